//! Publishes what changes in the caches: one PUB socket and one count of batches per rank.
//!
//! A rank first sends what a fresh SGLang engine sends, a batch with sequence 0 that holds `AllBlocksCleared`, right after
//! its socket is bound. PUB does not keep messages for later subscribers, so that in practice only a replay brings it.
//!
//! Unlike an engine's, batches do not pass through a thread: they are handed to ZMQ by whoever changed the cache, before
//! the answer that depends on the change. A test that has the answer therefore knows that the events are on their way.

use super::clock;
use super::config::{KvEvents, SimConfig};
use super::error::SimError;
use super::kv_frame::encode_batch;
use super::kv_replay::{KeptBatches, ReplayServer};
use super::prefix_cache::CacheEvent;
use super::sockets::{RankSockets, SocketOptions};

/// The default topic of SGLang: the frame is present and empty.
pub(super) const TOPIC: &str = "";

/// The default of SGLang's `KVEventsConfig`.
const SEND_HIGH_WATER_MARK: i32 = 100_000;

/// The KV event sockets of an engine, if it has any.
pub(super) struct KvPublisher {
    outlet: Option<Outlet>,
}

struct Outlet {
    sockets: RankSockets,
    replay: Option<ReplayServer>,
    kept: KeptBatches,
    feeds: Vec<RankFeed>,
}

/// What one rank has published.
#[derive(Debug, Clone, Copy, Default)]
struct RankFeed {
    next_sequence: u64,
    num_to_drop: u64,
}

impl KvPublisher {
    /// Opens the sockets, where the configuration has any, and says that all caches are empty.
    pub(super) fn open(config: &SimConfig) -> Result<Self, SimError> {
        let KvEvents::Published(publishing) = config.kv_events else { return Ok(Self { outlet: None }) };
        let options = SocketOptions { kind: zmq::PUB, scope: config.scope, send_high_water_mark: SEND_HIGH_WATER_MARK };
        let sockets = RankSockets::open(config.dp_size, publishing.port_base, options)?;
        let kept = KeptBatches::new(config.dp_size, publishing.replay.map_or(0, |replay| replay.buffer_steps));
        let replay = match publishing.replay {
            Some(replay) => Some(ReplayServer::open(config, replay, kept.clone())?),
            None => None,
        };
        let feeds = vec![RankFeed::default(); config.dp_size as usize];
        let mut publisher = Self { outlet: Some(Outlet { sockets, replay, kept, feeds }) };
        for rank in 0..config.dp_size {
            publisher.publish(rank, &[CacheEvent::Cleared]);
        }
        Ok(publisher)
    }

    /// Returns the event port of rank 0.
    pub(super) fn port_base(&self) -> Option<u16> {
        self.outlet.as_ref().map(|outlet| outlet.sockets.port_base())
    }

    /// Returns the replay port of rank 0.
    pub(super) fn replay_port_base(&self) -> Option<u16> {
        self.outlet.as_ref()?.replay.as_ref().map(ReplayServer::port_base)
    }

    /// Returns how many batches a rank has published, lost ones included: the sequence of its next one.
    pub(super) fn num_batches(&self, rank: u32) -> Option<u64> {
        Some(self.outlet.as_ref()?.feeds.get(rank as usize)?.next_sequence)
    }

    /// Publishes a batch, unless it is to be lost. A batch without events is none.
    pub(super) fn publish(&mut self, rank: u32, events: &[CacheEvent]) {
        let Some(outlet) = self.outlet.as_mut().filter(|_| !events.is_empty()) else { return };
        if let Err(error) = outlet.publish(rank, events, clock::wall_seconds()) {
            tracing::debug!(%error, rank, "kv events not sent");
        }
    }

    /// Lets the next batches of a rank get lost on the way to its subscribers. They use up their sequence numbers and can
    /// be replayed.
    pub(super) fn drop_next(&mut self, rank: u32, num_batches: u64) -> Result<(), SimError> {
        let feed = self.outlet.as_mut().and_then(|outlet| outlet.feeds.get_mut(rank as usize));
        feed.ok_or(SimError::NoSocket { rank })?.num_to_drop = num_batches;
        Ok(())
    }

    /// Closes the sockets; their ports are free when it returns.
    pub(super) fn close(&mut self) {
        drop(self.outlet.take());
    }
}

impl Outlet {
    fn publish(&mut self, rank: u32, events: &[CacheEvent], wall_seconds: f64) -> Result<(), SimError> {
        let feed = self.feeds.get_mut(rank as usize).ok_or(SimError::NoSocket { rank })?;
        let sequence = feed.next_sequence;
        feed.next_sequence += 1;
        let is_lost = feed.num_to_drop > 0;
        feed.num_to_drop = feed.num_to_drop.saturating_sub(1);

        let payload = encode_batch(events, rank, wall_seconds)?;
        self.kept.push(rank, sequence, &payload);
        if is_lost {
            return Ok(());
        }
        self.sockets.send(rank, vec![TOPIC.into(), sequence.to_be_bytes().to_vec(), payload])
    }
}
