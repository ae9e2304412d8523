//! Bodies: the client's, read whole up to a limit before anything is decided, and the engine's, passed on chunk by chunk.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use actix_web::body::{BodySize, MessageBody};
use actix_web::web::{Bytes, BytesMut, Payload};
use futures::{Future, StreamExt};
use hyper::body::{Body, Incoming};

use crate::clock;
use crate::error::RouteError;
use crate::http::record::Record;
use crate::messages::{Outcome, Reservation};
use crate::telemetry::RequestEnd;
use crate::wire::openai::is_last_event;
use crate::wire::usage::UsageTail;

/// Room set aside for a body by what its head announces; the rest grows with what really comes.
const MAX_INITIAL_BYTES: usize = 64 * 1024;

/// Reads the client's body.
pub(super) async fn read(
    payload: &mut Payload,
    announced: Option<usize>,
    max_body_bytes: usize,
    client_timeout: Duration,
) -> Result<Bytes, RouteError> {
    let too_large = RouteError::BodyTooLarge { max_body_bytes };
    if announced.is_some_and(|length| length > max_body_bytes) {
        return Err(too_large);
    }
    let Some(first) = next_part(payload, client_timeout).await? else { return Ok(Bytes::new()) };
    if first.len() > max_body_bytes {
        return Err(too_large);
    }
    let Some(second) = next_part(payload, client_timeout).await? else { return Ok(first) };
    let mut whole =
        BytesMut::with_capacity(announced.unwrap_or(0).clamp(first.len(), MAX_INITIAL_BYTES.max(first.len())));
    whole.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if whole.len() + chunk.len() > max_body_bytes {
            return Err(too_large);
        }
        whole.extend_from_slice(&chunk);
        next = next_part(payload, client_timeout).await?;
    }
    Ok(whole.freeze())
}

async fn next_part(payload: &mut Payload, timeout: Duration) -> Result<Option<Bytes>, RouteError> {
    let part = tokio::time::timeout(timeout, payload.next()).await.map_err(|_| RouteError::BodyTimeout)?;
    part.transpose().map_err(|_| RouteError::BodyBroken)
}

/// Why an answer broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenBody {
    /// The engine's connection failed.
    #[error(transparent)]
    Engine(#[from] hyper::Error),
    /// The other engine of a pair failed.
    #[error("the prefill engine failed")]
    Peer,
    /// The engine stood still for too long.
    #[error("the engine sent nothing for {0:?}")]
    Idle(Duration),
}

/// Notices an engine that stands still. Its timer is made only where the engine is waited for, and set again only when it fires, so
/// that a chunk costs no more than a look at the clock.
pub(super) struct IdleWatch {
    timeout: Duration,
    last_sent_at: Instant,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl IdleWatch {
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        Self { timeout, last_sent_at: now, timer: None }
    }

    fn sent(&mut self, now: Instant) {
        self.last_sent_at = now;
    }

    /// Ready when the engine has sent nothing for too long.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let due = tokio::time::Instant::from_std(self.last_sent_at + self.timeout);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= due {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}

/// The engine's body on its way to the client. Dropping it, as happens when the client leaves, closes the engine's connection and
/// ends the reservation.
pub(super) struct ForwardedBody {
    engine: Incoming,
    reservation: Option<Reservation>,
    completed_as: Outcome,
    idle: IdleWatch,
    /// The end of the answer, where the engine says how much of the prompt was cached; only of requests whose prompt is known.
    usage: Option<UsageTail>,
    /// The event that ends a stream was passed on. Many clients leave then, without reading the end of the transfer.
    has_said_all: bool,
    record: Record,
}

impl Drop for ForwardedBody {
    fn drop(&mut self) {
        if self.has_said_all && self.reservation.is_some() {
            self.complete();
        }
    }
}

impl ForwardedBody {
    /// Passes the body on. `completed_as` is how the request has ended at the worker once all of it was; a client that leaves an
    /// answer of which the head says it all changes nothing of that.
    pub(super) fn new(
        engine: Incoming,
        mut reservation: Option<Reservation>,
        completed_as: Outcome,
        reads_usage: bool,
        idle: IdleWatch,
        record: Record,
    ) -> Self {
        if let Some(reservation) = &mut reservation {
            let is_answer = completed_as == Outcome::Completed;
            reservation.presume(if is_answer { Outcome::ClientGone } else { completed_as });
        }
        let usage = reads_usage.then(UsageTail::default);
        let mut body = Self { engine, reservation, completed_as, idle, usage, has_said_all: false, record };
        if body.engine.is_end_stream() {
            // An empty body is never polled.
            body.complete();
        }
        body
    }

    fn complete(&mut self) {
        if let Some(mut reservation) = self.reservation.take() {
            if self.completed_as == Outcome::Completed {
                let cached_tokens = self.usage.as_ref().and_then(UsageTail::cached_tokens);
                reservation.set_cached_tokens(cached_tokens);
                self.record.found_cached(cached_tokens);
            }
            reservation.finish(self.completed_as);
        }
        self.record.passed_on();
    }

    /// Tells whether the worker knows how its part ended, or will with the drop of this: nothing is left that a client would miss.
    pub(super) fn has_ended(&self) -> bool {
        self.has_said_all || self.reservation.is_none()
    }

    /// Ends the answer as broken; `outcome` is how the request ends at this worker.
    pub(super) fn break_off(&mut self, outcome: Outcome, end: RequestEnd) {
        if let Some(reservation) = self.reservation.take() {
            reservation.finish(outcome);
        }
        self.record.failed(end);
    }
}

impl MessageBody for ForwardedBody {
    type Error = BrokenBody;

    fn size(&self) -> BodySize {
        self.engine.size_hint().exact().map_or(BodySize::Stream, BodySize::Sized)
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        loop {
            let frame = match Pin::new(&mut self.engine).poll_frame(context) {
                Poll::Pending if self.idle.poll(context).is_ready() => {
                    self.break_off(Outcome::BrokeOff, RequestEnd::StoodStill);
                    return Poll::Ready(Some(Err(BrokenBody::Idle(self.idle.timeout))));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(frame) => frame,
            };
            match frame {
                None => {
                    self.complete();
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    // actix-web then closes the connection without a final chunk: the client sees a broken transfer.
                    self.break_off(Outcome::BrokeOff, RequestEnd::BrokeOff);
                    return Poll::Ready(Some(Err(error.into())));
                }
                Some(Ok(frame)) => {
                    let now = clock::now();
                    self.idle.sent(now);
                    if let Ok(data) = frame.into_data() {
                        self.record.chunk(now);
                        if self.completed_as == Outcome::Completed
                            && let Some(reservation) = &self.reservation
                        {
                            reservation.heard();
                        }
                        if let Some(usage) = &mut self.usage {
                            usage.push(&data);
                        }
                        self.has_said_all = is_last_event(&data);
                        if self.engine.is_end_stream() {
                            // A body of known length is not polled again after its last byte.
                            self.complete();
                        }
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;
    use std::time::Duration;

    use super::IdleWatch;
    use crate::clock;

    async fn is_idle(watch: &mut IdleWatch) -> bool {
        poll_fn(|context| Poll::Ready(watch.poll(context).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_engine_that_stands_still_is_idle_however_long_it_takes_in_all() {
        let mut watch = IdleWatch::new(Duration::from_secs(10), clock::now());
        for _ in 0..100 {
            tokio::time::advance(Duration::from_secs(9)).await;
            assert!(!is_idle(&mut watch).await);
            watch.sent(clock::now());
        }
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!is_idle(&mut watch).await);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(is_idle(&mut watch).await);
    }
}
