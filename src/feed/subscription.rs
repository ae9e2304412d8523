//! One SUB socket to one publisher, as a stream of frames.
//!
//! The stream connects when it is first polled, on the thread that polls it, and ends after its first error: tmq would repeat a
//! fatal error for ever. Dropping the stream closes the socket. A publisher that is not there is no error: the socket goes on
//! trying, and the stream stays silent. Silence is for the owner to judge.
//!
//! ZMQ heartbeats are never set: on a socket with a bounded receive queue they abort the whole process (libzmq 4.3.4 and 4.3.5,
//! zeromq/libzmq 3937).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, LocalBoxStream};
use futures::{Stream, StreamExt, TryFutureExt};
use tmq::subscribe::SubscribeWithoutTopic;
use tmq::{FromZmqSocket, Multipart};

use crate::feed::context::ContextLease;

/// Frames read from libzmq at a time: one readiness query per batch instead of one per frame.
const READ_BATCH: usize = 64;
/// Reconnection starts after this many milliseconds, and doubles up to [`RECONNECT_MAX_MS`].
const RECONNECT_MS: i32 = 100;
const RECONNECT_MAX_MS: i32 = 2_000;
/// A peer that accepts the connection but speaks no ZMTP is given up after this many milliseconds.
const HANDSHAKE_MS: i32 = 1_000;
/// TCP keepalive: first probe after 10 s of silence, then every 5 s, dead after 3.
const KEEPALIVE_IDLE_SECS: i32 = 10;
const KEEPALIVE_INTERVAL_SECS: i32 = 5;
const KEEPALIVE_PROBES: i32 = 3;
/// How long one address of a name with several is tried before the next.
const ADDRESS_TIMEOUT: Duration = Duration::from_millis(500);

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
}

/// One multipart message.
pub(crate) struct Frame(Multipart);

impl Frame {
    /// Returns the message's parts in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|part| &**part)
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
pub(crate) fn subscribe(spec: SubscriptionSpec) -> impl Stream<Item = Result<Frame, SubscribeError>> + 'static {
    async move {
        let address = resolve(&spec.host, spec.port).await?;
        open(&spec, address)
    }
    .map_ok(frames)
    .try_flatten_stream()
}

struct OpenSocket {
    // Declared before the lease, so that it is closed before its place is given away.
    messages: LocalBoxStream<'static, tmq::Result<Multipart>>,
    _lease: ContextLease,
}

fn frames(socket: OpenSocket) -> impl Stream<Item = Result<Frame, SubscribeError>> {
    stream::unfold(Some(socket), |socket| async move {
        let mut socket = socket?;
        match socket.messages.next().await? {
            Ok(message) => Some((Ok(Frame(message)), Some(socket))),
            Err(error) => Some((Err(SubscribeError::Receive(error)), None)),
        }
    })
}

/// libzmq tries only the IPv6 address of a name that has both kinds, and never falls back. So a name is resolved here, at each
/// opening anew, and of several addresses the first one that accepts a connection is taken.
async fn resolve(host: &Arc<str>, port: u16) -> Result<SocketAddr, SubscribeError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let failed = |source| SubscribeError::Resolve { host: Arc::clone(host), source };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((bare, port)).await.map_err(failed)?.collect();
    let Some((first, others)) = addresses.split_first() else {
        return Err(failed(std::io::Error::from(std::io::ErrorKind::NotFound)));
    };
    if !others.is_empty() {
        for address in &addresses {
            let attempt = tokio::time::timeout(ADDRESS_TIMEOUT, tokio::net::TcpStream::connect(address));
            if matches!(attempt.await, Ok(Ok(_))) {
                return Ok(*address);
            }
        }
    }
    Ok(*first)
}

fn open(spec: &SubscriptionSpec, address: SocketAddr) -> Result<OpenSocket, SubscribeError> {
    let endpoint = format!("tcp://{address}");
    let lease = ContextLease::take();
    match connect(&lease, spec, &endpoint) {
        Ok(messages) => Ok(OpenSocket { messages, _lease: lease }),
        Err(source) => Err(SubscribeError::Open { endpoint, source }),
    }
}

/// Every option is set before connect: later ones do not reach the session that connect has made.
fn connect(
    lease: &ContextLease,
    spec: &SubscriptionSpec,
    endpoint: &str,
) -> tmq::Result<LocalBoxStream<'static, tmq::Result<Multipart>>> {
    let socket = lease.socket(zmq::SUB)?;
    socket.set_linger(0)?;
    socket.set_ipv6(true)?;
    socket.set_rcvhwm(spec.receive_limit)?;
    socket.set_maxmsgsize(spec.max_message_bytes)?;
    socket.set_handshake_ivl(HANDSHAKE_MS)?;
    socket.set_reconnect_ivl(RECONNECT_MS)?;
    socket.set_reconnect_ivl_max(RECONNECT_MAX_MS)?;
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(KEEPALIVE_IDLE_SECS)?;
    socket.set_tcp_keepalive_intvl(KEEPALIVE_INTERVAL_SECS)?;
    socket.set_tcp_keepalive_cnt(KEEPALIVE_PROBES)?;
    socket.connect(endpoint)?;
    let subscribed = SubscribeWithoutTopic::from_zmq_socket(socket)?.subscribe(spec.topic.as_bytes())?;
    Ok(subscribed.into_inner().buffered(READ_BATCH).boxed_local())
}
