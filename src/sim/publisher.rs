//! When each rank publishes its load, and what it says.
//!
//! A report goes out at once when it differs from the last one, though never within 5 ms of it; then it is sent as it
//! is when the 5 ms are over, so that the last value always arrives. An unchanged report is repeated after the
//! heartbeat interval. The sockets keep eight messages per subscriber and drop the rest, as in SGLang.
//!
//! The reports leave on a thread of their own, like those of an engine's scheduler process: a router that blocks the
//! thread of a test must not thereby silence the engine.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::clock;
use super::config::{LoadPublishing, SimConfig};
use super::error::SimError;
use super::fault::FeedStop;
use super::load_frame::{LoadForm, Reported};
use super::lock::lock;
use super::slot::SlotPool;
use super::sockets::{RankSockets, SocketOptions};

/// The least time between two reports of one rank.
const MIN_INTERVAL: Duration = Duration::from_millis(5);

/// What SGLang sets for its load sockets: a burst may lose reports.
const SEND_HIGH_WATER_MARK: i32 = 8;

/// The load sockets of an engine and what is said over them.
pub(super) struct LoadPublisher {
    publishing: LoadPublishing,
    options: SocketOptions,
    port_base: u16,
    outlet: Outlet,
    feeds: Vec<RankFeed>,
}

/// How long the publishing thread may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Until(Instant),
    ForChange,
    Over,
}

impl LoadPublisher {
    /// Opens the sockets of an engine that is configured to publish its load.
    pub(super) fn open(config: &SimConfig) -> Result<Option<Self>, SimError> {
        let Some(publishing) = config.load.clone() else { return Ok(None) };
        let options = SocketOptions { kind: zmq::PUB, scope: config.scope, send_high_water_mark: SEND_HIGH_WATER_MARK };
        let sockets = RankSockets::open(config.dp_size, publishing.port_base, options)?;
        Ok(Some(Self {
            publishing,
            options,
            port_base: sockets.port_base(),
            outlet: Outlet::Open(sockets),
            feeds: (0..config.dp_size).map(RankFeed::new).collect(),
        }))
    }

    pub(super) fn port_base(&self) -> u16 {
        self.port_base
    }

    /// Stops the reports of all ranks. A publisher whose sockets are closed stays closed, whatever the kind of stop.
    pub(super) fn stop(&mut self, kind: FeedStop) {
        self.outlet = match (std::mem::replace(&mut self.outlet, Outlet::Closed), kind) {
            (Outlet::Open(sockets) | Outlet::Silent(sockets), FeedStop::Silence) => Outlet::Silent(sockets),
            (Outlet::Open(_) | Outlet::Silent(_) | Outlet::Closed, FeedStop::Close) => Outlet::Closed,
            (Outlet::Closed, FeedStop::Silence) => Outlet::Closed,
            (Outlet::Ended, _) => Outlet::Ended,
        };
    }

    /// Publishes again, on the same ports and with the next sequence numbers. All ranks report at once.
    pub(super) fn resume(&mut self) -> Result<(), SimError> {
        self.outlet = match std::mem::replace(&mut self.outlet, Outlet::Closed) {
            Outlet::Open(sockets) | Outlet::Silent(sockets) => Outlet::Open(sockets),
            Outlet::Closed => Outlet::Open(RankSockets::open(self.num_ranks(), Some(self.port_base), self.options)?),
            Outlet::Ended => Outlet::Ended,
        };
        self.feeds.iter_mut().for_each(RankFeed::forget_last);
        Ok(())
    }

    /// Closes the sockets for good; their ports are free when it returns.
    pub(super) fn end(&mut self) {
        self.outlet = Outlet::Ended;
    }

    pub(super) fn publish_only(&mut self, ranks: &[u32]) {
        for feed in &mut self.feeds {
            feed.select(ranks);
        }
    }

    /// Makes a rank report `load` instead of the truth, or the truth again.
    pub(super) fn report(&mut self, rank: u32, load: Option<Reported>) -> Result<(), SimError> {
        let feed = self.feeds.get_mut(rank as usize).ok_or(SimError::NoSocket { rank })?;
        feed.lie = load;
        Ok(())
    }

    /// Sends frames as they are, also while the reports are silenced.
    pub(super) fn send_raw(&self, rank: u32, frames: Vec<Vec<u8>>) -> Result<(), SimError> {
        match &self.outlet {
            Outlet::Open(sockets) | Outlet::Silent(sockets) => sockets.send(rank, frames),
            Outlet::Closed | Outlet::Ended => Err(SimError::NoSocket { rank }),
        }
    }

    /// Sends every report that is due and returns when the next one will be.
    fn publish_due(&mut self, truth: &[Reported], now: Instant, wall_seconds: f64) -> Wait {
        let sockets = match &self.outlet {
            Outlet::Open(sockets) => sockets,
            Outlet::Silent(_) | Outlet::Closed => return Wait::ForChange,
            Outlet::Ended => return Wait::Over,
        };
        let mut wait = Wait::ForChange;
        for (feed, truth) in self.feeds.iter_mut().zip(truth) {
            let Voice::Heard = feed.voice else { continue };
            let load = feed.lie.unwrap_or(*truth);
            if feed.due_at(&load, now, self.publishing.heartbeat) <= now {
                let frames = feed.next_frames(&load, self.publishing.form, now, wall_seconds);
                if let Err(error) = frames.and_then(|frames| sockets.send(feed.rank, frames)) {
                    tracing::debug!(%error, rank = feed.rank, "load report not sent");
                }
            }
            wait = wait.earlier(feed.due_at(&load, now, self.publishing.heartbeat));
        }
        wait
    }

    fn num_ranks(&self) -> u32 {
        u32::try_from(self.feeds.len()).unwrap_or(u32::MAX)
    }
}

impl Wait {
    fn earlier(self, at: Instant) -> Self {
        match self {
            Self::Until(other) => Self::Until(other.min(at)),
            Self::ForChange => Self::Until(at),
            Self::Over => Self::Over,
        }
    }
}

/// Publishes from a thread of its own until the publisher is ended. `changed` is rung after every change.
pub(super) fn spawn(
    publisher: Arc<Mutex<LoadPublisher>>,
    pool: Arc<SlotPool>,
    changed: Receiver<()>,
) -> Result<(), SimError> {
    // Detached: `end` followed by a ring ends it, and the sockets, which are all that it has, are gone before that.
    thread::Builder::new()
        .name("sim-load".to_owned())
        .spawn(move || run(&publisher, &pool, &changed))
        .map(drop)
        .map_err(SimError::Thread)
}

fn run(publisher: &Mutex<LoadPublisher>, pool: &SlotPool, changed: &Receiver<()>) {
    loop {
        let truth = pool.loads();
        let wait = lock(publisher).publish_due(&truth, clock::now(), clock::wall_seconds());
        let heard = match wait {
            Wait::Over => return,
            Wait::ForChange => changed.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Wait::Until(at) => changed.recv_timeout(at.saturating_duration_since(clock::now())),
        };
        if heard == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

/// Whether reports can leave.
enum Outlet {
    Open(RankSockets),
    Silent(RankSockets),
    Closed,
    Ended,
}

/// Whether a rank takes part in publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Heard,
    Muted,
}

/// What one rank has published and is to publish.
#[derive(Debug)]
struct RankFeed {
    rank: u32,
    voice: Voice,
    lie: Option<Reported>,
    next_sequence: u64,
    last: Option<(Instant, Reported)>,
}

impl RankFeed {
    fn new(rank: u32) -> Self {
        Self { rank, voice: Voice::Heard, lie: None, next_sequence: 0, last: None }
    }

    fn select(&mut self, ranks: &[u32]) {
        self.voice = if ranks.contains(&self.rank) { Voice::Heard } else { Voice::Muted };
        self.forget_last();
    }

    /// Makes the next report due at once.
    fn forget_last(&mut self) {
        self.last = None;
    }

    fn due_at(&self, load: &Reported, now: Instant, heartbeat: Duration) -> Instant {
        let Some((sent_at, sent)) = &self.last else { return now };
        let interval = if sent == load { heartbeat } else { MIN_INTERVAL };
        *sent_at + interval
    }

    /// Encodes a report and counts it as sent. PUB would drop it just as silently.
    fn next_frames(
        &mut self,
        load: &Reported,
        form: LoadForm,
        now: Instant,
        wall_seconds: f64,
    ) -> Result<Vec<Vec<u8>>, SimError> {
        self.last = Some((now, *load));
        let payload = form.encode(load, Some(self.rank), wall_seconds)?;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Ok(vec![form.topic().into(), sequence.to_be_bytes().to_vec(), payload])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(1);

    fn running(num_running_reqs: u64) -> Reported {
        Reported { num_running_reqs, ..Reported::default() }
    }

    fn sent(load: &Reported, now: Instant) -> RankFeed {
        let mut feed = RankFeed::new(0);
        feed.next_frames(load, LoadForm::Stat11, now, 0.0).unwrap();
        feed
    }

    fn publisher(dp_size: u32) -> LoadPublisher {
        LoadPublisher::open(&SimConfig { dp_size, ..SimConfig::default() }).unwrap().unwrap()
    }

    #[test]
    fn the_first_report_is_due_at_once_a_changed_one_after_the_throttle_and_an_unchanged_one_after_the_heartbeat() {
        let now = clock::now();
        assert_eq!(RankFeed::new(0).due_at(&running(0), now, HEARTBEAT), now);
        assert_eq!(sent(&running(0), now).due_at(&running(1), now, HEARTBEAT), now + MIN_INTERVAL);
        assert_eq!(sent(&running(0), now).due_at(&running(0), now, HEARTBEAT), now + HEARTBEAT);
    }

    #[test]
    fn a_report_has_three_frames_with_the_sequence_counted_from_zero() {
        let mut feed = RankFeed::new(3);
        for sequence in 0u8..2 {
            let frames = feed.next_frames(&running(0), LoadForm::Stat6, clock::now(), 0.0).unwrap();
            assert_eq!(frames[..2], [b"load".to_vec(), vec![0, 0, 0, 0, 0, 0, 0, sequence]]);
            assert_eq!(frames[2], b"\x96\xa8LoadStat\x00\x00\x00\x00\x03");
        }
        let frames = feed.next_frames(&running(0), LoadForm::Snapshot, clock::now(), 0.0).unwrap();
        assert_eq!(frames[0], b"");
    }

    #[test]
    fn a_change_within_the_throttle_is_sent_when_it_is_over() {
        let mut publisher = publisher(1);
        let start = clock::now();
        assert_eq!(publisher.publish_due(&[running(0)], start, 0.0), Wait::Until(start + HEARTBEAT));

        let early = start + MIN_INTERVAL / 2;
        assert_eq!(publisher.publish_due(&[running(1)], early, 0.0), Wait::Until(start + MIN_INTERVAL));
        assert_eq!(publisher.feeds[0].next_sequence, 1);

        let later = start + MIN_INTERVAL;
        assert_eq!(publisher.publish_due(&[running(2)], later, 0.0), Wait::Until(later + HEARTBEAT));
        assert_eq!(publisher.feeds[0].last, Some((later, running(2))));
    }

    #[test]
    fn muted_ranks_say_nothing_and_a_lie_replaces_the_truth() {
        let mut publisher = publisher(2);
        publisher.publish_only(&[1]);
        publisher.report(1, Some(running(7))).unwrap();
        let now = clock::now();
        publisher.publish_due(&[running(0), running(0)], now, 0.0);
        assert_eq!(publisher.feeds[0].last, None);
        assert_eq!(publisher.feeds[1].last, Some((now, running(7))));
        assert!(matches!(publisher.report(2, None), Err(SimError::NoSocket { rank: 2 })));
    }

    #[test]
    fn a_stopped_publisher_waits_for_a_change_and_an_ended_one_is_over() {
        let mut publisher = publisher(1);
        let now = clock::now();
        for stop in [FeedStop::Silence, FeedStop::Close, FeedStop::Silence] {
            publisher.stop(stop);
            assert_eq!(publisher.publish_due(&[running(0)], now, 0.0), Wait::ForChange);
        }
        assert!(matches!(publisher.send_raw(0, Vec::new()), Err(SimError::NoSocket { rank: 0 })));

        publisher.resume().unwrap();
        assert_eq!(publisher.publish_due(&[running(0)], now, 0.0), Wait::Until(now + HEARTBEAT));

        publisher.end();
        publisher.resume().unwrap();
        assert_eq!(publisher.publish_due(&[running(0)], now, 0.0), Wait::Over);
    }
}
