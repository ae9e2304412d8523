//! Requests that a prefill worker and a decode worker share.
//!
//! Both get the same body, with a room of their own, at the same time. The client gets the decode worker's answer; that of the
//! prefill worker is read and dropped. The first failure ends both legs, and so does a client that leaves. Before the first byte of
//! an answer, another pair is tried in a new room, within the budget of retries; after it, nothing is.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;

use crate::clock;
use crate::error::RouteError;
use crate::http::Edge;
use crate::http::body::{BrokenBody, ForwardedBody};
use crate::http::proxy::{Answer, Outgoing, Sent, may_retry, request_for, respond, select};
use crate::http::ranks::send_at_rank;
use crate::http::record::Record;
use crate::logic::ids::WorkerId;
use crate::logic::request::RequestFacts;
use crate::logic::retry::{StatusMeaning, meaning_of};
use crate::logic::rng::Rng;
use crate::logic::rooms::Rooms;
use crate::messages::{Decision, Outcome, PrefillLeg, Reservation, WorkerPorts};
use crate::telemetry::{RequestEnd, Telemetry};
use crate::upstream::UpstreamError;
use crate::wire::shared_body::{Meeting, batch_size, shared_body};

/// Pairs that are tried for one request.
const MAX_PAIRS: u32 = 3;
/// Connections that may end before an answer: the engines may have begun to work.
const MAX_EARLY_ENDS: u32 = 1;
/// How long a prefill worker may still take to end its answer once the decode worker has ended its own.
const PREFILL_END_TIMEOUT: Duration = Duration::from_secs(5);

/// What follows from a failure.
enum Cause {
    /// Another pair may be tried.
    Passing,
    /// The same, but not often.
    EarlyEnd,
    /// Nothing more is tried.
    Final(RouteError),
}

/// What became of a pair.
enum Attempt {
    /// The decode worker answers; the prefill worker may still be at it.
    Answered(Answer, Option<Prefill>),
    /// An answer about the request itself, which any other pair would give as well.
    Refused(Answer),
    /// One of them failed; another pair may do better.
    Failed { worker: WorkerId, held: Option<Answer>, cause: Cause },
}

/// Sends the request to the pair that was decided on, or to the next one.
pub(super) async fn route(
    edge: &Edge,
    mut request: RequestFacts,
    mut decision: Decision,
    outgoing: Outgoing,
    record: &mut Record,
) -> Result<HttpResponse, RouteError> {
    let batch = batch_size(&outgoing.body).map_err(|_| RouteError::TooManyPrompts)?;
    let (mut held, mut num_early_ends) = (None, 0);
    for num_pairs in 1.. {
        let labels = (decision.id, decision.reason, decision.basis);
        record.tries(&decision.worker);
        let (answer, prefill) = match attempt(edge, decision, &outgoing, batch).await? {
            Attempt::Answered(answer, prefill) => (answer, prefill),
            Attempt::Refused(answer) => (answer, None),
            Attempt::Failed { worker, held: own_words, cause } => {
                if let Cause::Final(error) = cause {
                    return Err(error);
                }
                num_early_ends += u32::from(matches!(cause, Cause::EarlyEnd));
                held = own_words.or(held);
                request.excluded.push(worker);
                let is_last = num_pairs >= MAX_PAIRS || num_early_ends > MAX_EARLY_ENDS;
                if let Some(next) = next_pair(edge, &request, is_last, record).await {
                    decision = next;
                    continue;
                }
                (held.take().ok_or(RouteError::AllWorkersFailed)?, None)
            }
        };
        let now = clock::now();
        edge.ports.telemetry.first_byte_seconds.observe(now.saturating_duration_since(outgoing.arrived_at));
        let sent = Sent { method: &outgoing.method, reads_usage: false, answered_at: now };
        let response = respond(edge, answer, labels, sent, record.take());
        return Ok(match prefill {
            None => response.map_into_boxed_body(),
            Some(prefill) => response.map_body(|_, decode| BoxBody::new(PairBody { decode, prefill: Some(prefill) })),
        });
    }
    Err(RouteError::AllWorkersFailed)
}

/// A regular worker that has come meanwhile is left to the next request.
async fn next_pair(edge: &Edge, request: &RequestFacts, is_last: bool, record: &mut Record) -> Option<Decision> {
    if is_last || !may_retry(edge) {
        return None;
    }
    edge.ports.telemetry.fallback_dispatches.inc();
    Telemetry::count(&edge.ports.telemetry.retries, "pair");
    select(edge, request, record).await.ok().filter(|decision| decision.prefill.is_some())
}

async fn attempt(
    edge: &Edge,
    decision: Decision,
    outgoing: &Outgoing,
    batch: Option<u32>,
) -> Result<Attempt, RouteError> {
    let Decision { id, worker, rank, mut reservation, prefill, .. } = decision;
    let Some(leg) = prefill else { return Err(RouteError::SelectorUnavailable) };
    let rooms = edge.ports.rooms.open(batch.unwrap_or(1), leg.rank, &mut Rng::from_seed(leg.room_seed));
    let meeting = Meeting { host: leg.worker.url.host(), port: leg.bootstrap_port, first_room: rooms.first(), batch };
    let body = shared_body(&outgoing.body, &meeting).ok_or(RouteError::InvalidBody)?;
    let outgoing = Outgoing { body: body.into(), ..outgoing.clone() };
    let prefill_worker = leg.worker.id;
    let mut prefill = Some(Prefill::start(edge, *leg, rooms, &outgoing)?);
    // From here on, being dropped means that the client has left.
    reservation.presume(Outcome::ClientGone);
    let mut decode = pin!(send_at_rank(edge, &worker, rank, &outgoing));
    loop {
        let step = poll_fn(|context| {
            if let Some(Poll::Ready(end)) = prefill.as_mut().map(|prefill| prefill.poll(context)) {
                return Poll::Ready(Step::Prefill(end));
            }
            decode.as_mut().poll(context).map(Step::Decode)
        });
        match step.await {
            Step::Prefill(PrefillEnd::Done) => prefill = None,
            Step::Prefill(end) => {
                reservation.finish(Outcome::PeerFailed);
                tracing::debug!(decision = %id, worker = %prefill_worker, "the prefill worker failed before an answer");
                return Ok(after_prefill(end, prefill_worker));
            }
            Step::Decode(answered) => {
                let attempt = after_decode(answered, reservation, Arc::clone(&worker), prefill);
                if let Attempt::Failed { worker, .. } = &attempt {
                    tracing::debug!(decision = %id, %worker, "the decode worker failed before an answer");
                }
                return Ok(attempt);
            }
        }
    }
}

enum Step {
    Prefill(PrefillEnd),
    Decode(Result<Response<Incoming>, UpstreamError>),
}

fn after_prefill(end: PrefillEnd, worker: WorkerId) -> Attempt {
    match end {
        PrefillEnd::Done => Attempt::Failed { worker, held: None, cause: Cause::Passing },
        PrefillEnd::Answered(answer) => judged(answer, worker),
        PrefillEnd::Failed(error) => Attempt::Failed { worker, held: None, cause: cause_of(&error) },
    }
}

fn after_decode(
    answered: Result<Response<Incoming>, UpstreamError>,
    reservation: Reservation,
    worker: Arc<WorkerPorts>,
    prefill: Option<Prefill>,
) -> Attempt {
    let id = worker.id;
    let attempt = match answered {
        Ok(response) if response.status().is_success() => {
            return Attempt::Answered(Answer::new(response, reservation, worker), prefill);
        }
        Ok(response) => judged(Answer::new(response, reservation, worker), id),
        Err(error) => {
            reservation.finish(outcome_of(&error));
            Attempt::Failed { worker: id, held: None, cause: cause_of(&error) }
        }
    };
    if let Some(prefill) = prefill {
        prefill.end(Outcome::PeerFailed);
    }
    attempt
}

/// An answer other than success ends the pair; what it says of the engine is told to its worker now.
fn judged(mut answer: Answer, worker: WorkerId) -> Attempt {
    if meaning_of(answer.response.status().as_u16()) == StatusMeaning::Answer {
        return Attempt::Refused(answer);
    }
    if let Some(reservation) = answer.reservation.take() {
        reservation.finish(answer.outcome);
    }
    Attempt::Failed { worker, held: Some(answer), cause: Cause::Passing }
}

fn outcome_of(error: &UpstreamError) -> Outcome {
    match error {
        UpstreamError::Timeout(_) => Outcome::TimedOut,
        UpstreamError::Invalid(_) | UpstreamError::Local(_) => Outcome::NotSent,
        UpstreamError::Body(_) => Outcome::BrokeOff,
        _ => Outcome::Unreachable,
    }
}

/// As with one worker: the work may still be going on after a timeout, and what cannot be sent cannot be sent elsewhere.
fn cause_of(error: &UpstreamError) -> Cause {
    match error {
        UpstreamError::Timeout(_) => Cause::Final(RouteError::UpstreamTimeout),
        UpstreamError::Invalid(_) => Cause::Final(RouteError::InvalidPath),
        UpstreamError::Local(_) => Cause::Final(RouteError::Overloaded),
        UpstreamError::Connect(_) => Cause::Passing,
        _ => Cause::EarlyEnd,
    }
}

type PrefillCall = Pin<Box<dyn Future<Output = Result<Option<Response<Incoming>>, UpstreamError>> + Send>>;

/// The prefill leg on its way. Dropping it means that the client has left.
struct Prefill {
    worker: Arc<WorkerPorts>,
    reservation: Option<Reservation>,
    call: PrefillCall,
    _rooms: Rooms,
}

enum PrefillEnd {
    /// It did its part.
    Done,
    /// It answered something else than success.
    Answered(Answer),
    /// It failed, which its worker has been told.
    Failed(UpstreamError),
}

impl Prefill {
    fn start(edge: &Edge, leg: PrefillLeg, rooms: Rooms, outgoing: &Outgoing) -> Result<Self, RouteError> {
        let PrefillLeg { worker, mut reservation, .. } = leg;
        let (request, protocol) = request_for(&worker, None, outgoing).map_err(|_| RouteError::InvalidPath)?;
        let (client, idle_timeout) = (edge.client.clone(), edge.ports.stream_idle_timeout);
        let call = async move {
            let response = client.send(request, protocol).await?;
            if !response.status().is_success() {
                return Ok(Some(response));
            }
            let mut body = response.into_body();
            loop {
                match tokio::time::timeout(idle_timeout, body.frame()).await {
                    Err(_) => return Err(UpstreamError::Timeout(idle_timeout)),
                    Ok(None) => return Ok(None),
                    Ok(Some(Err(error))) => return Err(UpstreamError::Body(Box::new(error))),
                    Ok(Some(Ok(_))) => {}
                }
            }
        };
        reservation.presume(Outcome::ClientGone);
        Ok(Self { worker, reservation: Some(reservation), call: Box::pin(call), _rooms: rooms })
    }

    /// To be polled until it is ready, and not after that.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<PrefillEnd> {
        let Poll::Ready(ended) = self.call.as_mut().poll(context) else { return Poll::Pending };
        let end = match (ended, self.reservation.take()) {
            (Ok(Some(response)), Some(reservation)) => {
                PrefillEnd::Answered(Answer::new(response, reservation, Arc::clone(&self.worker)))
            }
            (Ok(_), reservation) => {
                if let Some(reservation) = reservation {
                    reservation.heard();
                    reservation.finish(Outcome::Completed);
                }
                PrefillEnd::Done
            }
            (Err(error), reservation) => {
                if let Some(reservation) = reservation {
                    reservation.finish(outcome_of(&error));
                }
                PrefillEnd::Failed(error)
            }
        };
        Poll::Ready(end)
    }

    fn end(mut self, outcome: Outcome) {
        if let Some(reservation) = self.reservation.take() {
            reservation.finish(outcome);
        }
    }

    /// Lets it end by itself, for a while: the decode worker is done, and has all that it needs.
    fn leave_alone(mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let end = poll_fn(|context| self.poll(context).map(drop));
                if tokio::time::timeout(PREFILL_END_TIMEOUT, end).await.is_err() {
                    self.end(Outcome::Completed);
                }
            });
        }
    }
}

/// The decode worker's answer on its way to the client, while the prefill worker may still be at its part.
struct PairBody {
    decode: ForwardedBody,
    prefill: Option<Prefill>,
}

impl MessageBody for PairBody {
    type Error = BrokenBody;

    fn size(&self) -> BodySize {
        self.decode.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        if let Some(Poll::Ready(end)) = self.prefill.as_mut().map(|prefill| prefill.poll(context)) {
            self.prefill = None;
            if !matches!(end, PrefillEnd::Done) {
                if let PrefillEnd::Answered(mut answer) = end
                    && let Some(reservation) = answer.reservation.take()
                {
                    reservation.finish(answer.outcome);
                }
                self.decode.break_off(Outcome::PeerFailed, RequestEnd::BrokeOff);
                return Poll::Ready(Some(Err(BrokenBody::Peer)));
            }
        }
        let polled = Pin::new(&mut self.decode).poll_next(context);
        if let Poll::Ready(Some(Err(_))) = &polled
            && let Some(prefill) = self.prefill.take()
        {
            prefill.end(Outcome::PeerFailed);
        }
        polled
    }
}

impl Drop for PairBody {
    fn drop(&mut self) {
        if self.decode.has_ended()
            && let Some(prefill) = self.prefill.take()
        {
            prefill.leave_alone();
        }
    }
}
