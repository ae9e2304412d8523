//! The account of one client's request, from its arrival to whatever ends it: one count, and one line of the request log and one span
//! where these are asked for. All are made from the same end, so that they cannot disagree.
//!
//! It travels with the request and then with the body of the answer. Dropping it without an end means that the client has left.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use actix_web::{HttpRequest, web};
use hyper::HeaderMap;

use crate::clock;
use crate::error::RouteError;
use crate::http::in_flight::Pass;
use crate::http::{Edge, respond};
use crate::logic::ids::{DecisionId, DpRank};
use crate::logic::price::Basis;
use crate::messages::{Decision, WorkerPorts};
use crate::telemetry::RequestEnd;

mod span;

pub(crate) use span::Tracer;

/// Header with the client's own name for its request.
const REQUEST_ID_HEADER: &str = "x-request-id";
/// Bytes of a client's text that are logged.
const MAX_LOGGED_BYTES: usize = 128;

/// See the module's documentation. Boxed, for it is moved through several futures.
pub(super) struct Record(Option<Box<Open>>);

struct Open {
    edge: web::Data<Edge>,
    _pass: Option<Pass>,
    arrived_at: Instant,
    told: Option<Told>,
    span: Option<span::OpenSpan>,
    decision: Option<Decided>,
    worker: Option<Arc<WorkerPorts>>,
    num_attempts: u32,
    status: Option<u16>,
    code: Option<&'static str>,
    is_stream: bool,
    first_chunk_at: Option<Instant>,
    last_chunk_at: Instant,
    cached_tokens: Option<u32>,
    end: Option<(RequestEnd, Instant)>,
}

/// What the client said; kept only where it will be told.
struct Told {
    method: String,
    path: String,
    request_id: Option<String>,
    model: Option<Arc<str>>,
}

struct Decided {
    id: DecisionId,
    rank: Option<DpRank>,
    /// Known of requests with a span only.
    policy: Option<&'static str>,
    reason: &'static str,
    basis: Basis,
    queued_for: Duration,
    took: Duration,
    matched_tokens: Option<u32>,
    prompt_tokens: Option<u32>,
}

impl Record {
    /// Opens the account of a request that has just arrived.
    pub(super) fn open(edge: &web::Data<Edge>, request: &HttpRequest, arrived_at: Instant) -> Self {
        let span = edge.ports.tracer.as_ref().and_then(|tracer| tracer.open(request));
        let told = (edge.ports.settings.request_log || span.is_some()).then(|| Told::by(request));
        Self(Some(Box::new(Open {
            edge: edge.clone(),
            _pass: None,
            arrived_at,
            told,
            span,
            decision: None,
            worker: None,
            num_attempts: 0,
            status: None,
            code: None,
            is_stream: false,
            first_chunk_at: None,
            last_chunk_at: arrived_at,
            cached_tokens: None,
            end: None,
        })))
    }

    /// Hands the account over; what is left behind says nothing.
    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Holds the request's place among the open ones until the account is closed.
    pub(super) fn holds(&mut self, pass: Pass) {
        if let Some(open) = &mut self.0 {
            open._pass = Some(pass);
        }
    }

    pub(super) fn names_model(&mut self, model: Option<&Arc<str>>) {
        if let Some(told) = self.0.as_mut().and_then(|open| open.told.as_mut()) {
            told.model = model.cloned();
        }
    }

    /// Tells the engine in these headers which span its part belongs to.
    pub(super) fn pass_context_on(&self, headers: &mut HeaderMap) {
        if let Some(span) = self.0.as_ref().and_then(|open| open.span.as_ref()) {
            span.pass_on(headers);
        }
    }

    /// Notes a decision that was asked for at `asked_at`.
    pub(super) fn decided(&mut self, decision: &Decision, asked_at: Instant) {
        let Some(open) = &mut self.0 else { return };
        let waited = clock::now().saturating_duration_since(asked_at);
        let took = waited.saturating_sub(decision.queued_for);
        open.edge.ports.telemetry.decision_seconds.observe(took);
        let policy = open.span.as_ref().map(|_| &open.edge.ports.policy);
        open.decision = Some(Decided {
            id: decision.id,
            rank: decision.rank,
            policy: policy.map(|policy| *policy.lock().unwrap_or_else(PoisonError::into_inner)),
            reason: decision.reason,
            basis: decision.basis,
            queued_for: decision.queued_for,
            took,
            matched_tokens: decision.matched_tokens,
            prompt_tokens: decision.prompt.as_ref().map(|prompt| prompt.num_tokens()),
        });
    }

    /// Notes that the request is about to be sent to the worker.
    pub(super) fn tries(&mut self, worker: &Arc<WorkerPorts>) {
        if let Some(open) = &mut self.0 {
            open.num_attempts += 1;
            open.worker = Some(Arc::clone(worker));
        }
    }

    /// Notes the head of the answer that is passed on.
    pub(super) fn answers(&mut self, worker: &Arc<WorkerPorts>, status: u16, is_stream: bool, now: Instant) {
        if let Some(open) = &mut self.0 {
            open.last_chunk_at = now;
            open.worker = Some(Arc::clone(worker));
            (open.status, open.is_stream) = (Some(status), is_stream);
        }
    }

    /// Notes a part of the answer.
    pub(super) fn chunk(&mut self, now: Instant) {
        let Some(open) = &mut self.0 else { return };
        let before = std::mem::replace(&mut open.last_chunk_at, now);
        let telemetry = &open.edge.ports.telemetry;
        if open.first_chunk_at.is_none() {
            open.first_chunk_at = Some(now);
            if open.is_stream {
                telemetry.time_to_first_token_seconds.observe(now.saturating_duration_since(open.arrived_at));
            }
        } else if open.is_stream {
            telemetry.chunk_gap_seconds.observe(now.saturating_duration_since(before));
        }
    }

    /// Notes what the engine said of its cache.
    pub(super) fn found_cached(&mut self, cached_tokens: Option<u32>) {
        if let (Some(open), Some(tokens)) = (&mut self.0, cached_tokens) {
            open.edge.ports.telemetry.cached_prompt_tokens.inc_by(u64::from(tokens));
            open.cached_tokens = cached_tokens;
        }
    }

    /// Notes that the answer was passed on to its end, which was its last chunk.
    pub(super) fn passed_on(&mut self) {
        if let Some(open) = &mut self.0 {
            let end = RequestEnd::of_worker(open.status.unwrap_or(0));
            open.end = Some((end, open.last_chunk_at));
        }
    }

    /// Notes that the worker's answer failed on its way.
    pub(super) fn failed(&mut self, end: RequestEnd) {
        if let Some(open) = &mut self.0 {
            open.end = Some((end, clock::now()));
        }
    }

    /// Notes that the router answers in place of a worker, and closes the account.
    pub(super) fn refused(mut self, error: RouteError) {
        let Some(open) = &mut self.0 else { return };
        let status = respond::status(error).as_u16();
        let end = if error == RouteError::BodyBroken { RequestEnd::BodyBroken } else { RequestEnd::of_router(status) };
        (open.status, open.code) = (Some(status), Some(error.code()));
        open.end = Some((end, clock::now()));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let (end, at) = self.end.unwrap_or_else(|| (RequestEnd::ClientGone, clock::now()));
        let telemetry = &self.edge.ports.telemetry;
        telemetry.client_requests.ended(end, self.is_stream);
        let total = at.saturating_duration_since(self.arrived_at);
        telemetry.request_duration_seconds.observe(total);
        let Some(told) = &self.told else { return };
        if self.edge.ports.settings.request_log {
            self.log(told, end, total);
        }
        self.export(told, end, total);
    }
}

impl Open {
    fn log(&self, told: &Told, end: RequestEnd, total: Duration) {
        let decision = self.decision.as_ref();
        let first = self.first_chunk_at.map(|at| at.saturating_duration_since(self.arrived_at));
        // Texts of clients are given as plain strings, which both formats escape.
        tracing::info!(
            target: "fathom_router::requests",
            request_id = told.request_id.as_deref().map(capped).as_deref(),
            decision = decision.map(|decision| tracing::field::display(decision.id)),
            method = told.method.as_str(),
            path = &*capped(&told.path),
            model = told.model.as_deref().map(capped).as_deref(),
            worker = self.worker.as_ref().map(|worker| tracing::field::display(worker.id)),
            url = self.worker.as_ref().map(|worker| worker.url.as_str()),
            rank = decision.and_then(|decision| decision.rank).map(DpRank::number),
            reason = decision.map(|decision| decision.reason),
            basis = decision.map(|decision| decision.basis.name()),
            attempts = self.num_attempts,
            source = end.source(),
            status = self.status,
            outcome = end.outcome(),
            code = self.code,
            is_stream = self.is_stream,
            queue_ms = decision.map(|decision| millis(decision.queued_for)),
            decision_ms = decision.map(|decision| millis(decision.took)),
            ttft_ms = first.map(millis),
            total_ms = millis(total),
            prompt_tokens = decision.and_then(|decision| decision.prompt_tokens),
            matched_tokens = decision.and_then(|decision| decision.matched_tokens),
            cached_tokens = self.cached_tokens,
            "request"
        );
    }
}

impl Told {
    fn by(request: &HttpRequest) -> Self {
        let id = request.headers().get(REQUEST_ID_HEADER).map(|value| String::from_utf8_lossy(value.as_bytes()));
        Self {
            method: request.method().as_str().to_owned(),
            path: request.path().to_owned(),
            request_id: id.map(Cow::into_owned),
            model: None,
        }
    }
}

/// Cuts a client's text to what a log line has room for.
fn capped(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_LOGGED_BYTES {
        return Cow::Borrowed(text);
    }
    let cut = (0..=MAX_LOGGED_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..cut]))
}

/// Milliseconds with three digits, so that a line stays readable.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::{MAX_LOGGED_BYTES, capped};

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(capped("short"), "short");
        for filler in ["x", "é", "日", "🦀"] {
            let text = capped(&filler.repeat(65_536)).into_owned();
            assert!(text.len() <= MAX_LOGGED_BYTES + '…'.len_utf8() && text.ends_with('…'), "{text}");
        }
    }
}
