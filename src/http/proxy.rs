//! Sends a request to the worker that was decided on, and to the next one if that fails before the first byte of an answer.
//!
//! What is tried again, and what is not, is written down in `logic::retry`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri};

use crate::clock;
use crate::error::RouteError;
use crate::http::Edge;
use crate::http::body::{ForwardedBody, IdleWatch};
use crate::http::headers;
use crate::http::pairs;
use crate::http::ranks::{RANK_HEADER, RankCarrier, body_at_rank, send_at_rank};
use crate::http::record::Record;
use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::prompt_keys::PromptKeys;
use crate::logic::request::RequestFacts;
use crate::logic::retry::{StatusMeaning, meaning_of};
use crate::messages::{Decision, Outcome, Reservation, SelectWorker, WorkerPorts};
use crate::telemetry::Telemetry;
use crate::upstream::{Protocol, UpstreamError};

/// Header with the decision's id; in every routed answer.
const DECISION_HEADER: &str = "x-fathom-decision-id";
/// Headers that say where a request went and why; only where the configuration says so.
const WORKER_HEADER: &str = "x-fathom-worker";
const REASON_HEADER: &str = "x-fathom-reason";
const BASIS_HEADER: &str = "x-fathom-basis";

/// A request as it will be sent, to whichever worker.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    /// Path and query at the engine.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// How it names a DP rank.
    pub(super) rank_carrier: RankCarrier,
    pub(super) arrived_at: Instant,
}

/// An answer whose head has arrived.
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    /// `None` where the worker has been told already how its part ended.
    pub(super) reservation: Option<Reservation>,
    /// How the request will have ended at the worker when the answer was passed on.
    pub(super) outcome: Outcome,
    worker: Arc<WorkerPorts>,
}

impl Answer {
    pub(super) fn new(response: Response<Incoming>, mut reservation: Reservation, worker: Arc<WorkerPorts>) -> Self {
        let outcome = match meaning_of(response.status().as_u16()) {
            StatusMeaning::Answer => Outcome::Completed,
            StatusMeaning::ServerError => Outcome::ServerError,
            StatusMeaning::Overloaded => Outcome::Overloaded,
        };
        if outcome == Outcome::Overloaded {
            reservation.set_retry_after(retry_after(response.headers()));
        }
        Self { response, reservation: Some(reservation), outcome, worker }
    }
}

/// The date form is not read: it would compare two clocks.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(hyper::header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// What of the request matters for how its answer is passed on.
pub(super) struct Sent<'a> {
    pub(super) method: &'a Method,
    pub(super) reads_usage: bool,
    pub(super) answered_at: Instant,
}

/// Decides, sends, and returns the answer to pass on.
pub(super) async fn route(
    edge: &Edge,
    mut request: RequestFacts,
    outgoing: Outgoing,
    record: &mut Record,
) -> Result<HttpResponse, RouteError> {
    edge.ports.retry_budget.pay();
    let mut decision = select(edge, &request, record).await?;
    let labels = (decision.id, decision.reason, decision.basis);
    let mut attempts = Attempts::default();
    let answer = loop {
        if decision.prefill.is_some() {
            return pairs::route(edge, request, decision, outgoing, record).await;
        }
        match attempt_all(edge, decision, &outgoing, &mut attempts, record).await {
            Ok(answer) => break answer,
            Err(error) if attempts.may_select_again(error) => {
                // The view may have been older than the fleet: one more decision, without those that failed.
                attempts.has_selected_again = true;
                request.excluded.clone_from(&attempts.failed);
                edge.ports.telemetry.second_decisions.inc();
                decision = match select(edge, &request, record).await {
                    Ok(decision) => decision,
                    Err(error) => break attempts.held.take().ok_or(error)?,
                };
            }
            Err(error) => break attempts.held.take().ok_or(error)?,
        }
    };
    let now = clock::now();
    let waited = now.saturating_duration_since(outgoing.arrived_at);
    edge.ports.telemetry.first_byte_seconds.observe(waited);
    let sent = Sent { method: &outgoing.method, reads_usage: request.prompt.is_some(), answered_at: now };
    Ok(respond(edge, answer, labels, sent, record.take()).map_into_boxed_body())
}

/// What was tried for one request.
#[derive(Default)]
struct Attempts {
    failed: Vec<WorkerId>,
    num_early_ends: u32,
    /// This machine had none left at some attempt.
    lacks_connections: bool,
    has_selected_again: bool,
    /// The last answer that was not passed on because another worker might give a better one.
    held: Option<Answer>,
}

impl Attempts {
    /// What the client gets where nobody is left, unless an engine has said something.
    fn error(&self) -> RouteError {
        if self.lacks_connections { RouteError::Overloaded } else { RouteError::AllWorkersFailed }
    }

    fn may_select_again(&self, error: RouteError) -> bool {
        error == RouteError::AllWorkersFailed && !self.has_selected_again && self.num_early_ends < 2
    }
}

pub(super) async fn select(edge: &Edge, request: &RequestFacts, record: &mut Record) -> Result<Decision, RouteError> {
    let asked_at = clock::now();
    let select = SelectWorker { request: request.clone() };
    let decision = edge.ports.selector.send(select).await.map_err(|_| RouteError::SelectorUnavailable)??;
    record.decided(&decision, asked_at);
    Ok(decision)
}

/// Tries the decision's worker and then its fallbacks. After an error, what an engine said of itself is worth more than that the
/// others could not be reached.
async fn attempt_all(
    edge: &Edge,
    decision: Decision,
    outgoing: &Outgoing,
    attempts: &mut Attempts,
    record: &mut Record,
) -> Result<Answer, RouteError> {
    let Decision { id, worker, rank, reservation, fallbacks, prompt, retries_by_decision, .. } = decision;
    let may_select_again = retries_by_decision && !attempts.has_selected_again;
    let mut next = Some((worker, reservation, rank));
    let mut fallbacks = fallbacks.into_iter();
    while let Some((worker, mut reservation, rank)) = next.take() {
        // From here on, being dropped means that the client has left.
        reservation.presume(Outcome::ClientGone);
        record.tries(&worker);
        let error = match send_at_rank(edge, &worker, rank, outgoing).await {
            Ok(response) => {
                let mut answer = Answer::new(response, reservation, worker);
                let may_go_on = fallbacks.len() > 0 || may_select_again;
                if answer.outcome == Outcome::Completed || !may_go_on || !may_retry(edge) {
                    return Ok(answer);
                }
                if let Some(reservation) = answer.reservation.take() {
                    reservation.finish(answer.outcome);
                }
                attempts.failed.push(answer.worker.id);
                let cause = answer.outcome.name();
                attempts.held = Some(answer);
                next = next_of(edge, id, &prompt, &mut fallbacks, cause);
                continue;
            }
            Err(error) => error,
        };
        tracing::debug!(decision = %id, worker = %worker.id, %error, "attempt failed before an answer");
        attempts.failed.push(worker.id);
        let cause = match error {
            UpstreamError::Connect(_) => "unreachable",
            UpstreamError::Local(_) => "no_connection",
            _ => "ended_early",
        };
        match error {
            UpstreamError::Timeout(_) => {
                reservation.finish(Outcome::TimedOut);
                return Err(RouteError::UpstreamTimeout);
            }
            UpstreamError::Invalid(_) => {
                reservation.finish(Outcome::NotSent);
                return Err(RouteError::InvalidPath);
            }
            UpstreamError::Local(_) => {
                // Not the worker's doing. Local ports are counted per engine, so the next one may still be reached.
                reservation.finish(Outcome::NotSent);
                attempts.lacks_connections = true;
            }
            UpstreamError::Connect(_) => reservation.finish(Outcome::Unreachable),
            UpstreamError::Request(_) | UpstreamError::Body(_) | UpstreamError::Status(_) => {
                reservation.finish(Outcome::Unreachable);
                attempts.num_early_ends += 1;
                if attempts.num_early_ends > 1 {
                    return Err(attempts.error());
                }
            }
        }
        next = next_of(edge, id, &prompt, &mut fallbacks, cause);
    }
    Err(attempts.error())
}

pub(super) fn may_retry(edge: &Edge) -> bool {
    let is_allowed = edge.ports.retry_budget.take();
    if !is_allowed {
        edge.ports.telemetry.retry_budget_refusals.inc();
    }
    is_allowed
}

type Target = (Arc<WorkerPorts>, Reservation, Option<DpRank>);

fn next_of(
    edge: &Edge,
    id: DecisionId,
    prompt: &Option<Arc<PromptKeys>>,
    fallbacks: &mut impl Iterator<Item = Arc<WorkerPorts>>,
    cause: &'static str,
) -> Option<Target> {
    let worker = fallbacks.next()?;
    edge.ports.telemetry.fallback_dispatches.inc();
    Telemetry::count(&edge.ports.telemetry.retries, cause);
    let reservation = worker.reserve(id, None, prompt.clone());
    Some((worker, reservation, None))
}

/// Sends the request as it is, to the DP rank with the engine's own number where there is one.
pub(super) async fn send(
    edge: &Edge,
    worker: &WorkerPorts,
    rank: Option<u32>,
    outgoing: &Outgoing,
) -> Result<Response<Incoming>, UpstreamError> {
    let (request, protocol) = request_for(worker, rank, outgoing)?;
    edge.client.send(request, protocol).await
}

/// Returns the request as the worker gets it.
pub(super) fn request_for(
    worker: &WorkerPorts,
    rank: Option<u32>,
    outgoing: &Outgoing,
) -> Result<(Request<Full<Bytes>>, Protocol), UpstreamError> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(worker.url.authority())
        .path_and_query(outgoing.target.as_str())
        .build()
        .map_err(UpstreamError::Invalid)?;
    let body = match (rank, outgoing.rank_carrier) {
        (Some(rank), RankCarrier::Body) => body_at_rank(&outgoing.body, rank),
        (Some(_) | None, _) => outgoing.body.clone(),
    };
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = outgoing.headers.clone();
    // One that the client sent is here only where it is to be passed on in place of the key.
    if let Some(key) = &worker.api_key
        && !outgoing.headers.contains_key(AUTHORIZATION)
        && let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", key.reveal()))
    {
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    if let Some(rank) = rank.filter(|_| outgoing.rank_carrier == RankCarrier::Header) {
        request.headers_mut().insert(RANK_HEADER, HeaderValue::from(rank));
    }
    let protocol = if worker.speaks_http2() { Protocol::Http2 } else { Protocol::Http1 };
    Ok((request, protocol))
}

pub(super) fn respond(
    edge: &Edge,
    answer: Answer,
    (id, reason, basis): (DecisionId, &'static str, crate::logic::price::Basis),
    sent: Sent<'_>,
    mut record: Record,
) -> HttpResponse<ForwardedBody> {
    let Sent { method, reads_usage, answered_at } = sent;
    let (head, body) = answer.response.into_parts();
    record.answers(&answer.worker, head.status.as_u16(), is_event_stream(&head.headers), answered_at);
    let status = StatusCode::from_u16(head.status.as_u16()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = HttpResponse::build(status);
    for header in headers::to_client(&head.headers) {
        response.append_header(header);
    }
    response.insert_header((DECISION_HEADER, id.to_string()));
    if edge.ports.settings.expose_decision {
        response
            .insert_header((WORKER_HEADER, answer.worker.url.as_str()))
            .insert_header((REASON_HEADER, reason))
            .insert_header((BASIS_HEADER, basis.name()));
    }
    if method == Method::HEAD
        && let Some(length) =
            head.headers.get(hyper::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
    {
        response.no_chunking(length);
    }
    let idle = IdleWatch::new(edge.ports.stream_idle_timeout, answered_at);
    let body = ForwardedBody::new(body, answer.reservation, answer.outcome, reads_usage, idle, record);
    response.finish().set_body(body)
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    const EVENT_STREAM: &[u8] = b"text/event-stream";
    let kind = headers.get(hyper::header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.and_then(|kind| kind.get(..EVENT_STREAM.len())).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM))
}
