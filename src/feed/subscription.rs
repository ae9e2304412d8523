//! One SUB socket to one publisher, as a stream of frames.
//!
//! The stream connects when it is first polled, on the thread that polls it, and ends after its first error: tmq would repeat a
//! fatal error for ever. Dropping the stream closes the socket. A publisher that is not there is no error: the socket goes on
//! trying, and the stream stays silent. Silence is for the owner to judge.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::stream::{self, LocalBoxStream};
use futures::{Stream, StreamExt, TryFutureExt};
use tmq::subscribe::SubscribeWithoutTopic;
use tmq::{FromZmqSocket, Multipart};

use crate::feed::context::ContextLease;
use crate::feed::monitor::{MONITOR_SOCKETS, Watched, connection_changes};
use crate::feed::socket::{resolve, set_options};

/// Frames read from libzmq at a time: one readiness query per batch instead of one per frame.
const READ_BATCH: usize = 64;
/// What to subscribe to.
#[derive(Debug, Clone)]
pub(crate) struct SubscriptionSpec {
    /// Host to dial; an IPv6 address in brackets.
    pub host: Arc<str>,
    /// Port to dial.
    pub port: u16,
    /// Topic prefix; empty subscribes to everything.
    pub topic: Arc<str>,
    /// Messages kept for this process when it is slow; the publisher drops what is beyond.
    pub receive_limit: i32,
    /// Bytes of the largest message taken; a publisher that sends more is disconnected.
    pub max_message_bytes: i64,
    /// Whether it is told when the connection is ready and when it is lost. Takes two more sockets.
    pub tells_connection: bool,
}

/// What a subscription brings.
#[derive(Debug)]
pub(crate) enum FeedEvent {
    /// A message.
    Frame(Frame),
    /// The connection is ready: what is published from now on comes.
    Connected,
    /// The connection was lost; what comes after may be from another process.
    ConnectionLost,
}

/// One multipart message.
pub(crate) struct Frame(Multipart);

impl Frame {
    /// Returns the message's parts in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.0.0.iter().map(|part| &**part)
    }

    /// Returns the last part, without a copy.
    pub(crate) fn into_payload(mut self) -> Payload {
        Payload(self.0.pop_back().unwrap_or_else(tmq::Message::new))
    }
}

/// One part of a message.
pub(crate) struct Payload(tmq::Message);

impl std::ops::Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").field("num_bytes", &self.0.len()).finish()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("num_parts", &self.0.len()).finish()
    }
}

/// Why a subscription ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SubscribeError {
    /// The host has no address.
    #[error("cannot resolve host {host:?}")]
    Resolve {
        /// The host.
        host: Arc<str>,
        /// What the resolver said.
        source: std::io::Error,
    },
    /// The socket could not be opened: most often this process has no descriptor left.
    #[error("cannot open a subscription to {endpoint}")]
    Open {
        /// Where to.
        endpoint: String,
        /// What libzmq said.
        source: tmq::TmqError,
    },
    /// The socket failed while it was read.
    #[error("subscription failed")]
    Receive(#[source] tmq::TmqError),
}

/// Subscribes. The stream must be polled on a tokio runtime with I/O.
pub(crate) fn subscribe(spec: SubscriptionSpec) -> impl Stream<Item = Result<FeedEvent, SubscribeError>> + 'static {
    async move {
        let address = resolve(&spec.host, spec.port).await?;
        open(&spec, address)
    }
    .map_ok(items)
    .try_flatten_stream()
}

type EventStream = LocalBoxStream<'static, tmq::Result<FeedEvent>>;

pub(super) struct OpenSocket {
    // Declared before the lease, so that its sockets are closed before their places are given away.
    pub(super) events: EventStream,
    pub(super) _lease: ContextLease,
}

pub(super) fn items(socket: OpenSocket) -> impl Stream<Item = Result<FeedEvent, SubscribeError>> {
    stream::unfold(Some(socket), |socket| async move {
        let mut socket = socket?;
        match socket.events.next().await? {
            Ok(event) => Some((Ok(event), Some(socket))),
            Err(error) => Some((Err(SubscribeError::Receive(error)), None)),
        }
    })
}

fn open(spec: &SubscriptionSpec, address: SocketAddr) -> Result<OpenSocket, SubscribeError> {
    let endpoint = format!("tcp://{address}");
    let num_sockets = if spec.tells_connection { 1 + MONITOR_SOCKETS } else { 1 };
    let connected = ContextLease::take(num_sockets).map_err(tmq::TmqError::from).and_then(|lease| {
        let events = connect(&lease, spec, &endpoint)?;
        Ok(OpenSocket { events, _lease: lease })
    });
    connected.map_err(|source| SubscribeError::Open { endpoint, source })
}

fn connect(lease: &ContextLease, spec: &SubscriptionSpec, endpoint: &str) -> tmq::Result<EventStream> {
    let socket = lease.socket(zmq::SUB)?;
    set_options(&socket, spec.receive_limit, spec.max_message_bytes)?;
    let changes = if spec.tells_connection { Some(connection_changes(lease, &socket)?) } else { None };
    socket.connect(endpoint)?;
    let subscribed = SubscribeWithoutTopic::from_zmq_socket(socket)?.subscribe(spec.topic.as_bytes())?;
    let messages = subscribed.into_inner().buffered(READ_BATCH);
    Ok(match changes {
        None => messages.map(message_event).boxed_local(),
        Some(changes) => Watched::new(messages, changes).boxed_local(),
    })
}

pub(super) fn message_event(message: tmq::Result<Multipart>) -> tmq::Result<FeedEvent> {
    message.map(|parts| FeedEvent::Frame(Frame(parts)))
}
