//! Sends a request to the worker that was decided on, and to the next one if that fails before the first byte of an answer.
//!
//! What is tried again: a connection that could not be made, on each fallback in turn; a connection that ended before an answer,
//! on one other worker, since the engine may have begun to work. A timeout is not: the work may still be going on. Nothing is ever
//! tried again after the first byte.

use std::sync::Arc;

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
use crate::http::body::ForwardedBody;
use crate::http::headers;
use crate::http::in_flight::Pass;
use crate::logic::request::RequestFacts;
use crate::messages::{Decision, Outcome, Reservation, SelectWorker, WorkerPorts};
use crate::upstream::UpstreamError;

/// Header with the decision's id; in every routed answer.
const DECISION_HEADER: &str = "x-fathom-decision-id";
/// Headers that say where a request went and why; only where the configuration says so.
const WORKER_HEADER: &str = "x-fathom-worker";
const REASON_HEADER: &str = "x-fathom-reason";
const BASIS_HEADER: &str = "x-fathom-basis";
/// Header that names the DP rank to an engine (SGLang with `--dp-size`).
const RANK_HEADER: &str = "x-data-parallel-rank";

/// A request as it will be sent, to whichever worker.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    /// Path and query at the engine.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) arrived_at: std::time::Instant,
}

/// An answer whose head has arrived.
struct Answer {
    response: Response<Incoming>,
    reservation: Reservation,
    worker: Arc<WorkerPorts>,
}

/// What of the request matters for how its answer is passed on.
struct Sent<'a> {
    method: &'a Method,
    reads_usage: bool,
}

/// Decides, sends, and returns the answer to pass on.
pub(super) async fn route(
    edge: &Edge,
    mut request: RequestFacts,
    outgoing: Outgoing,
    pass: Pass,
) -> Result<HttpResponse, RouteError> {
    let mut decision = select(edge, &request).await?;
    let labels = (decision.id, decision.reason, decision.basis);
    let mut attempts = Attempts::default();
    loop {
        match attempt_all(edge, decision, &outgoing, &mut attempts).await {
            Ok(answer) => {
                edge.ports
                    .telemetry
                    .first_byte_seconds
                    .observe(clock::now().saturating_duration_since(outgoing.arrived_at).as_secs_f64());
                let sent = Sent { method: &outgoing.method, reads_usage: request.prompt.is_some() };
                return Ok(respond(edge, answer, labels, sent, pass));
            }
            Err(error) if attempts.may_select_again(error) => {
                // The view may have been older than the fleet: one more decision, without those that failed.
                attempts.has_selected_again = true;
                request.excluded.clone_from(&attempts.failed);
                decision = select(edge, &request).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What was tried for one request.
#[derive(Debug, Default)]
struct Attempts {
    failed: Vec<crate::logic::ids::WorkerId>,
    num_early_ends: u32,
    has_selected_again: bool,
}

impl Attempts {
    fn may_select_again(&self, error: RouteError) -> bool {
        error == RouteError::AllWorkersFailed && !self.has_selected_again && self.num_early_ends < 2
    }
}

async fn select(edge: &Edge, request: &RequestFacts) -> Result<Decision, RouteError> {
    let select = SelectWorker { request: request.clone() };
    match edge.ports.selector.send(select).await {
        Ok(decided) => decided.map_err(RouteError::from),
        Err(_) => Err(RouteError::SelectorUnavailable),
    }
}

/// Tries the decision's worker and then its fallbacks.
async fn attempt_all(
    edge: &Edge,
    decision: Decision,
    outgoing: &Outgoing,
    attempts: &mut Attempts,
) -> Result<Answer, RouteError> {
    let Decision { id, worker, rank, reservation, fallbacks, prompt, .. } = decision;
    let mut next = Some((worker, reservation, rank));
    let mut fallbacks = fallbacks.into_iter();
    while let Some((worker, mut reservation, rank)) = next.take() {
        // From here on, being dropped means that the client has left.
        reservation.presume(Outcome::ClientGone);
        let error = match send(edge, &worker, rank, outgoing).await {
            Ok(response) => return Ok(Answer { response, reservation, worker }),
            Err(error) => error,
        };
        tracing::debug!(decision = %id, worker = %worker.id, %error, "attempt failed before an answer");
        attempts.failed.push(worker.id);
        match error {
            UpstreamError::Timeout(_) => {
                reservation.finish(Outcome::TimedOut);
                return Err(RouteError::UpstreamTimeout);
            }
            UpstreamError::Invalid(_) => {
                reservation.finish(Outcome::NotSent);
                return Err(RouteError::InvalidPath);
            }
            UpstreamError::Connect(_) => reservation.finish(Outcome::Unreachable),
            UpstreamError::Request(_) | UpstreamError::Body(_) | UpstreamError::Status(_) => {
                reservation.finish(Outcome::Unreachable);
                attempts.num_early_ends += 1;
                if attempts.num_early_ends > 1 {
                    return Err(RouteError::AllWorkersFailed);
                }
            }
        }
        next = fallbacks.next().map(|worker| {
            edge.ports.telemetry.fallback_dispatches.inc();
            let reservation = worker.reserve(id, prompt.clone());
            (worker, reservation, None)
        });
    }
    Err(RouteError::AllWorkersFailed)
}

async fn send(
    edge: &Edge,
    worker: &WorkerPorts,
    rank: Option<crate::logic::ids::DpRank>,
    outgoing: &Outgoing,
) -> Result<Response<Incoming>, UpstreamError> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(worker.url.authority())
        .path_and_query(outgoing.target.as_str())
        .build()
        .map_err(UpstreamError::Invalid)?;
    let mut request = Request::new(Full::new(outgoing.body.clone()));
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = outgoing.headers.clone();
    if let Some(key) = &worker.api_key
        && let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", key.reveal()))
    {
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    if let Some(rank) = rank {
        request.headers_mut().insert(RANK_HEADER, HeaderValue::from(rank.number()));
    }
    edge.client.send(request).await
}

fn respond(
    edge: &Edge,
    answer: Answer,
    (id, reason, basis): (crate::logic::ids::DecisionId, &'static str, crate::logic::price::Basis),
    sent: Sent<'_>,
    pass: Pass,
) -> HttpResponse {
    let Sent { method, reads_usage } = sent;
    let (head, body) = answer.response.into_parts();
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
    response.body(ForwardedBody::new(body, answer.reservation, reads_usage, pass))
}
