//! Tells when a subscription's connection is lost. libzmq reconnects by itself and without a word, and what comes then may be
//! from another process with numbers that happen to fit; this is the only sign of it.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::stream::LocalBoxStream;
use futures::{Stream, StreamExt};
use tmq::{FromZmqSocket, Multipart};

use crate::feed::context::ContextLease;

/// Sockets that a monitor takes beside the one it watches: both ends of an in-process pair.
pub(super) const MONITOR_SOCKETS: usize = 2;

static NUM_MONITORS: AtomicU64 = AtomicU64::new(0);

/// Returns a stream with an item for each loss of the socket's connection. Must be called before connect.
pub(super) fn connection_losses(
    lease: &ContextLease,
    watched: &zmq::Socket,
) -> tmq::Result<LocalBoxStream<'static, tmq::Result<()>>> {
    // The name must be unique in its context, and contexts are shared.
    let endpoint = format!("inproc://fathom-monitor-{}", NUM_MONITORS.fetch_add(1, Ordering::Relaxed));
    let disconnected = zmq::SocketEvent::DISCONNECTED;
    watched.monitor(&endpoint, i32::from(disconnected.to_raw()))?;
    let pair = lease.socket(zmq::PAIR)?;
    pair.set_linger(0)?;
    pair.connect(&endpoint)?;
    let events = tmq::pair::Pair::from_zmq_socket(pair)?;
    Ok(losses(events).boxed_local())
}

fn losses(events: impl Stream<Item = tmq::Result<Multipart>>) -> impl Stream<Item = tmq::Result<()>> {
    events.filter_map(|event| async move {
        match event {
            Ok(parts) => is_loss(&parts).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    })
}

/// The first part is the event's number (two bytes) and a value (four bytes), in the machine's byte order.
fn is_loss(parts: &Multipart) -> bool {
    let number = parts.iter().next().and_then(|first| first.first_chunk::<2>().copied());
    number.is_some_and(|number| u16::from_ne_bytes(number) == zmq::SocketEvent::DISCONNECTED.to_raw())
}
