//! Tells when a subscription's connection is ready and when it is lost. libzmq reconnects by itself and without a word, and what comes then may be
//! from another process with numbers that happen to fit; this is the only sign of it.
//!
//! libzmq (4.3.4) tells it from its own thread, over a pair of sockets and without a limit of time: once nobody holds the other end,
//! the next loss blocks that thread, and with it every socket of the context. So the watch is ended before its other end is closed,
//! in the only way that the bindings have: by a second watch, for no events.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::stream::LocalBoxStream;
use futures::{Stream, StreamExt};
use tmq::{AsZmqSocket, FromZmqSocket, Multipart};

use crate::feed::FeedEvent;
use crate::feed::context::ContextLease;
use crate::feed::subscription::message_event;

/// Sockets that a monitor takes beside the one it watches: both ends of an in-process pair.
pub(super) const MONITOR_SOCKETS: usize = 2;

static NUM_MONITORS: AtomicU64 = AtomicU64::new(0);

/// A subscription and what becomes of its connection.
pub(super) struct Watched<M: AsZmqSocket> {
    messages: M,
    changes: LocalBoxStream<'static, tmq::Result<FeedEvent>>,
}

impl<M: AsZmqSocket> Watched<M> {
    pub(super) fn new(messages: M, changes: LocalBoxStream<'static, tmq::Result<FeedEvent>>) -> Self {
        Self { messages, changes }
    }
}

impl<M: AsZmqSocket + Stream<Item = tmq::Result<Multipart>> + Unpin> Stream for Watched<M> {
    type Item = tmq::Result<FeedEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A loss comes before whatever the next connection brings.
        if let Poll::Ready(Some(change)) = self.changes.poll_next_unpin(context) {
            return Poll::Ready(Some(change));
        }
        self.messages.poll_next_unpin(context).map(|next| next.map(message_event))
    }
}

impl<M: AsZmqSocket> Drop for Watched<M> {
    fn drop(&mut self) {
        // Before the fields are dropped. It can only fail in a context that ends, which tells nothing any more.
        let _ = self.messages.get_socket().monitor(&unique_endpoint(), 0);
    }
}

/// What is watched: that a connection is ready, and that it is lost.
const EVENTS: [zmq::SocketEvent; 2] = [zmq::SocketEvent::HANDSHAKE_SUCCEEDED, zmq::SocketEvent::DISCONNECTED];

/// Returns a stream of what becomes of the socket's connection. Must be called before connect.
pub(super) fn connection_changes(
    lease: &ContextLease,
    watched: &zmq::Socket,
) -> tmq::Result<LocalBoxStream<'static, tmq::Result<FeedEvent>>> {
    let endpoint = unique_endpoint();
    let mask = EVENTS.iter().fold(0, |mask, event| mask | event.to_raw());
    watched.monitor(&endpoint, i32::from(mask))?;
    let pair = lease.socket(zmq::PAIR)?;
    pair.set_linger(0)?;
    pair.connect(&endpoint)?;
    let events = tmq::pair::Pair::from_zmq_socket(pair)?;
    let changes = events.filter_map(|event| std::future::ready(event.map(|parts| change(&parts)).transpose()));
    Ok(changes.boxed_local())
}

/// The name must be unique in its context, and contexts are shared.
fn unique_endpoint() -> String {
    format!("inproc://fathom-monitor-{}", NUM_MONITORS.fetch_add(1, Ordering::Relaxed))
}

/// The first part is the event's number (two bytes) and a value (four bytes), in the machine's byte order.
fn change(parts: &Multipart) -> Option<FeedEvent> {
    let number = parts.iter().next().and_then(|first| first.first_chunk::<2>().copied())?;
    let [ready, lost] = EVENTS.map(|event| event.to_raw());
    match u16::from_ne_bytes(number) {
        number if number == ready => Some(FeedEvent::Connected),
        number if number == lost => Some(FeedEvent::ConnectionLost),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt;

    use crate::feed::{FeedEvent, SubscriptionSpec, subscribe};

    /// Publishes until the subscription has had a message, and returns the socket.
    async fn publish_to(
        port: u16,
        events: &mut (impl futures::Stream<Item = Result<FeedEvent, crate::feed::SubscribeError>> + Unpin),
    ) -> (zmq::Socket, zmq::Context) {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::PUB).unwrap();
        socket.set_linger(0).unwrap();
        socket.bind(&format!("tcp://127.0.0.1:{port}")).unwrap();
        for _ in 0..2_000 {
            socket.send(b"hello".as_slice(), zmq::DONTWAIT).unwrap();
            let next = tokio::time::timeout(std::time::Duration::from_millis(5), events.next()).await;
            if matches!(next, Ok(Some(Ok(FeedEvent::Frame(_))))) {
                return (socket, context);
            }
        }
        panic!("the subscription hears nothing");
    }

    #[tokio::test]
    async fn a_connection_that_is_lost_while_its_watch_ends_blocks_no_other_subscription() {
        for _ in 0..20 {
            let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            let spec = SubscriptionSpec {
                host: Arc::from("127.0.0.1"),
                port,
                topic: Arc::from(""),
                receive_limit: 10,
                max_message_bytes: 100,
                tells_connection: true,
            };
            let mut events = Box::pin(subscribe(spec));
            let (socket, context) = publish_to(port, &mut events).await;
            drop(socket);
            drop(events);
            drop(context);
        }
    }
}
