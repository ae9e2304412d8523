//! One question to a replay socket and its answers, as a stream of messages.
//!
//! Its peer is a ROUTER that drops silently what a slow asker does not take, its end marker included, and it answers between two
//! batches of its own. So the stream ends after a time in any case, and after a number of answers; whether they are all there is
//! for the owner to judge.

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, Stream, StreamExt, TryFutureExt};
use tmq::dealer::Dealer;
use tmq::{FromZmqSocket, Multipart};

use crate::feed::context::ContextLease;
use crate::feed::socket::{resolve, set_options};
use crate::feed::subscription::{OpenSocket, items, message_event};
use crate::feed::{FeedEvent, SubscribeError};

/// Whom to ask for what.
#[derive(Debug, Clone)]
pub(crate) struct ReplaySpec {
    /// Host to dial; an IPv6 address in brackets.
    pub(crate) host: Arc<str>,
    /// Port to dial.
    pub(crate) port: u16,
    /// The parts of the question.
    pub(crate) request: Vec<Vec<u8>>,
    /// How long answers are waited for, all in all.
    pub(crate) timeout: Duration,
    /// The most answers taken.
    pub(crate) max_replies: usize,
    /// Bytes of the largest answer taken.
    pub(crate) max_message_bytes: i64,
}

/// Asks, and returns the answers. The stream must be polled on a tokio runtime with I/O.
pub(crate) fn replay(spec: ReplaySpec) -> impl Stream<Item = Result<FeedEvent, SubscribeError>> + 'static {
    let (timeout, max_replies) = (spec.timeout, spec.max_replies);
    let answers = async move {
        let address = resolve(&spec.host, spec.port).await?;
        let endpoint = format!("tcp://{address}");
        ask(&spec, &endpoint).await.map_err(|source| SubscribeError::Open { endpoint, source })
    };
    answers.map_ok(items).try_flatten_stream().take(max_replies).take_until(tokio::time::sleep(timeout))
}

async fn ask(spec: &ReplaySpec, endpoint: &str) -> tmq::Result<OpenSocket> {
    let lease = ContextLease::take(1)?;
    let socket = lease.socket(zmq::DEALER)?;
    // Answers wait here while the actor is busy; what does not fit is dropped by the peer without a word.
    set_options(&socket, i32::try_from(spec.max_replies).unwrap_or(i32::MAX), spec.max_message_bytes)?;
    socket.connect(endpoint)?;
    let mut dealer = Dealer::from_zmq_socket(socket)?;
    let request: Multipart = spec.request.clone().into();
    dealer.send(request).await?;
    Ok(OpenSocket { events: dealer.map(message_event).boxed_local(), _lease: lease })
}
