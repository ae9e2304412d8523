//! Replays the last batches of KV events to whoever missed some: one ROUTER socket per rank, served by one thread.
//!
//! The protocol is that of SGLang 0.5.22 and later. A DEALER asks with an empty delimiter and a sequence number, eight
//! bytes big-endian, and gets every batch that is still kept from that number on: delimiter, topic, sequence, payload. The
//! end is a message with the sequence -1 and no payload. Anything else is ignored. A number that is older than what is
//! kept is answered from the oldest batch on.
//!
//! As in SGLang, the sockets have ZMQ's default high-water mark unless configured otherwise, and ROUTER drops what exceeds
//! it: a replay of more than a thousand batches may have holes, or lack its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use bytes::Bytes;

use super::config::{KvReplay, SimConfig};
use super::error::SimError;
use super::kv_publisher::TOPIC;
use super::lock::lock;
use super::sockets::{RankSockets, SocketOptions};

/// Where the thread hears that it is to end.
const END_ENDPOINT: &str = "inproc://end";

/// What takes the place of the sequence number in the last message; -1 to its sender.
const END_MARKER: u64 = u64::MAX;

/// The last batches of every rank, shared between who publishes and who replays.
#[derive(Clone)]
pub(super) struct KeptBatches {
    ranks: Arc<Mutex<Vec<VecDeque<Kept>>>>,
    most: usize,
}

#[derive(Debug, Clone)]
struct Kept {
    sequence: u64,
    payload: Bytes,
}

impl KeptBatches {
    /// Keeps so many batches per rank.
    pub(super) fn new(dp_size: u32, most: usize) -> Self {
        Self { ranks: Arc::new(Mutex::new(vec![VecDeque::new(); dp_size as usize])), most }
    }

    /// Keeps a batch in place of the oldest one.
    pub(super) fn push(&self, rank: u32, sequence: u64, payload: &[u8]) {
        let mut ranks = lock(&self.ranks);
        let Some(batches) = ranks.get_mut(rank as usize).filter(|_| self.most > 0) else { return };
        if batches.len() == self.most {
            batches.pop_front();
        }
        batches.push_back(Kept { sequence, payload: Bytes::copy_from_slice(payload) });
    }

    fn since(&self, rank: usize, from: u64) -> Vec<Kept> {
        let ranks = lock(&self.ranks);
        ranks.get(rank).into_iter().flatten().filter(|batch| batch.sequence >= from).cloned().collect()
    }
}

/// The replay sockets and the thread that serves them.
pub(super) struct ReplayServer {
    port_base: u16,
    /// `None` once it is told.
    end: Option<zmq::Socket>,
    thread: Option<JoinHandle<()>>,
}

impl ReplayServer {
    /// Binds the sockets and serves them.
    pub(super) fn open(config: &SimConfig, replay: KvReplay, kept: KeptBatches) -> Result<Self, SimError> {
        let options = SocketOptions {
            kind: zmq::ROUTER,
            scope: config.scope,
            send_high_water_mark: replay.send_high_water_mark.into(),
        };
        let sockets = RankSockets::open(config.dp_size, replay.port_base, options)?;
        let port_base = sockets.port_base();
        let (end, on_end) = end_pair(sockets.context())
            .map_err(|source| SimError::Socket { endpoint: END_ENDPOINT.to_owned(), source })?;
        let thread = thread::Builder::new()
            .name("sim-kv-replay".to_owned())
            .spawn(move || serve(&sockets, &on_end, &kept))
            .map_err(SimError::Thread)?;
        Ok(Self { port_base, end: Some(end), thread: Some(thread) })
    }

    pub(super) fn port_base(&self) -> u16 {
        self.port_base
    }
}

impl Drop for ReplayServer {
    /// Ends the thread; the ports are free when it returns.
    fn drop(&mut self) {
        if let Some(end) = self.end.take()
            && let Err(error) = end.send("", 0)
        {
            tracing::warn!(%error, "replay thread was not told to end");
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::warn!("replay thread of a simulated engine panicked");
        }
    }
}

/// Two connected sockets: what is sent over the first arrives at the second, which polls together with network sockets.
fn end_pair(context: &zmq::Context) -> Result<(zmq::Socket, zmq::Socket), zmq::Error> {
    let on_end = context.socket(zmq::PAIR)?;
    on_end.bind(END_ENDPOINT)?;
    let end = context.socket(zmq::PAIR)?;
    end.connect(END_ENDPOINT)?;
    Ok((end, on_end))
}

fn serve(sockets: &RankSockets, on_end: &zmq::Socket, kept: &KeptBatches) {
    loop {
        let mut items = vec![on_end.as_poll_item(zmq::POLLIN)];
        items.extend(sockets.sockets().iter().map(|socket| socket.as_poll_item(zmq::POLLIN)));
        match zmq::poll(&mut items, -1) {
            Ok(_) if items[0].is_readable() => return,
            Ok(_) | Err(zmq::Error::EINTR) => {}
            Err(error) => {
                tracing::warn!(%error, "replay thread of a simulated engine ended early");
                return;
            }
        }
        for (rank, socket) in sockets.sockets().iter().enumerate() {
            if items[rank + 1].is_readable()
                && let Err(error) = answer_one(socket, rank, kept)
            {
                tracing::debug!(%error, rank, "replay not sent");
            }
        }
    }
}

/// Answers one request, so that a peer that asks without end cannot keep the thread from ending.
fn answer_one(socket: &zmq::Socket, rank: usize, kept: &KeptBatches) -> Result<(), zmq::Error> {
    let request = socket.recv_multipart(zmq::DONTWAIT)?;
    let Some((peer, from)) = read_request(&request) else {
        tracing::debug!(rank, num_frames = request.len(), "request for a replay ignored");
        return Ok(());
    };
    for batch in kept.since(rank, from) {
        let sequence = batch.sequence.to_be_bytes();
        socket.send_multipart([peer, b"", TOPIC.as_bytes(), &sequence, &batch.payload], zmq::DONTWAIT)?;
    }
    socket.send_multipart([peer, b"", b"", &END_MARKER.to_be_bytes(), b""], zmq::DONTWAIT)
}

/// Returns who asks, and from which number on.
fn read_request(frames: &[Vec<u8>]) -> Option<(&[u8], u64)> {
    let [peer, delimiter, from] = frames else { return None };
    let from = <[u8; 8]>::try_from(from.as_slice()).ok()?;
    delimiter.is_empty().then(|| (peer.as_slice(), u64::from_be_bytes(from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::replay;

    #[test]
    fn only_the_last_batches_are_kept_and_only_those_from_a_number_on_are_given() {
        let kept = KeptBatches::new(2, 2);
        for sequence in 0..4 {
            kept.push(1, sequence, &[sequence as u8]);
        }
        let since = |rank, from| kept.since(rank, from).into_iter().map(|batch| batch.sequence).collect::<Vec<_>>();
        assert_eq!(
            [since(1, 0), since(1, 3), since(1, 9), since(0, 0), since(2, 0)],
            [vec![2, 3], vec![3], vec![], vec![], vec![]]
        );
        let none = KeptBatches::new(1, 0);
        none.push(0, 0, b"x");
        assert!(none.since(0, 0).is_empty());
    }

    #[test]
    fn a_request_is_what_the_router_sends_and_nothing_else() {
        let frames = |rest: Vec<Vec<u8>>| [vec![b"peer".to_vec()], rest].concat();
        assert_eq!(read_request(&frames(replay::request(258))), Some((&b"peer"[..], 258)));
        let others = [vec![], vec![vec![]], vec![vec![], vec![0; 7]], vec![vec![1], vec![0; 8]], vec![vec![]; 3]];
        for other in others {
            assert_eq!(read_request(&frames(other.clone())), None, "{other:?}");
        }
    }
}
