//! Tells when a subscription's connection is lost. libzmq reconnects by itself and without a word, and what comes then may be
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

/// A subscription and the losses of its connection.
pub(super) struct Watched<M: AsZmqSocket> {
    messages: M,
    losses: LocalBoxStream<'static, tmq::Result<()>>,
}

impl<M: AsZmqSocket> Watched<M> {
    pub(super) fn new(messages: M, losses: LocalBoxStream<'static, tmq::Result<()>>) -> Self {
        Self { messages, losses }
    }
}

impl<M: AsZmqSocket + Stream<Item = tmq::Result<Multipart>> + Unpin> Stream for Watched<M> {
    type Item = tmq::Result<FeedEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A loss comes before whatever the next connection brings.
        if let Poll::Ready(Some(loss)) = self.losses.poll_next_unpin(context) {
            return Poll::Ready(Some(loss.map(|()| FeedEvent::ConnectionLost)));
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

/// Returns a stream with an item for each loss of the socket's connection. Must be called before connect.
pub(super) fn connection_losses(
    lease: &ContextLease,
    watched: &zmq::Socket,
) -> tmq::Result<LocalBoxStream<'static, tmq::Result<()>>> {
    let endpoint = unique_endpoint();
    let disconnected = zmq::SocketEvent::DISCONNECTED;
    watched.monitor(&endpoint, i32::from(disconnected.to_raw()))?;
    let pair = lease.socket(zmq::PAIR)?;
    pair.set_linger(0)?;
    pair.connect(&endpoint)?;
    let events = tmq::pair::Pair::from_zmq_socket(pair)?;
    Ok(losses(events).boxed_local())
}

/// The name must be unique in its context, and contexts are shared.
fn unique_endpoint() -> String {
    format!("inproc://fathom-monitor-{}", NUM_MONITORS.fetch_add(1, Ordering::Relaxed))
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
                tells_losses: true,
            };
            let mut events = Box::pin(subscribe(spec));
            let (socket, context) = publish_to(port, &mut events).await;
            drop(socket);
            drop(events);
            drop(context);
        }
    }
}
