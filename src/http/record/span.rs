//! A request as a span: its place in the client's trace, and the account of it as attributes. Where nobody collects spans, nothing of
//! this happens, and the client's own `traceparent` reaches the engine as it came.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::prelude::Recipient;
use actix_web::HttpRequest;
use actix_web::http::header::HeaderValue as ClientValue;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::{Open, Told, capped, millis};
use crate::clock;
use crate::logic::ids::DpRank;
use crate::logic::rng::Rng;
use crate::logic::span::{AttributeValue, Span};
use crate::logic::trace_context::{Place, SpanId, TraceContext};
use crate::messages::SpanEnded;
use crate::telemetry::{RequestEnd, Telemetry};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Where spans go, and where their ids come from. Shared by all HTTP threads.
#[derive(Debug, Clone)]
pub(crate) struct Tracer {
    ended: Recipient<SpanEnded>,
    ids: Arc<Mutex<Rng>>,
}

impl Tracer {
    /// Returns what hands spans to `ended`. The ids must differ from those of other routers, whatever the configured seed is.
    pub(crate) fn new(ended: Recipient<SpanEnded>, ids: Rng) -> Self {
        Self { ended, ids: Arc::new(Mutex::new(ids)) }
    }

    /// Opens the request's span; `None` where its caller does not want one.
    pub(super) fn open(&self, request: &HttpRequest) -> Option<OpenSpan> {
        let headers = request.headers().get_all(TRACEPARENT.as_str()).map(ClientValue::as_bytes);
        // Nothing panics while it is held.
        let place = Place::of(headers, &mut self.ids.lock().unwrap_or_else(PoisonError::into_inner));
        let (own, parent) = match place {
            Place::Root(own) => (own, None),
            Place::Child { own, parent } => (own, Some(parent)),
            Place::Unrecorded => return None,
        };
        Some(OpenSpan { own, parent, route: request.match_pattern(), started_at: clock::wall_now() })
    }

    /// Hands a span over where there is room; nobody waits for it.
    fn hand_over(&self, span: Span, telemetry: &Telemetry) {
        if self.ended.try_send(SpanEnded(Box::new(span))).is_err() {
            telemetry.spans_ended("dropped", 1);
        }
    }
}

/// What a span has that the account has not.
pub(super) struct OpenSpan {
    own: TraceContext,
    parent: Option<SpanId>,
    route: Option<String>,
    started_at: SystemTime,
}

impl OpenSpan {
    /// Names the span in what the engine gets.
    pub(super) fn pass_on(&self, headers: &mut HeaderMap) {
        let Ok(value) = HeaderValue::try_from(self.own.to_string()) else { return };
        headers.insert(TRACEPARENT, value);
        if self.parent.is_none() {
            // It belongs to a trace that this request is not part of.
            headers.remove(TRACESTATE);
        }
    }
}

impl Open {
    /// Hands the request over as a span, where it has one.
    pub(super) fn export(&self, told: &Told, end: RequestEnd, total: Duration) {
        let telemetry = &self.edge.ports.telemetry;
        if let (Some(tracer), Some(open)) = (&self.edge.ports.tracer, &self.span) {
            let started_at = open.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let span = Span {
                context: open.own,
                parent: open.parent,
                name: format!("{} {}", known_method(&told.method), open.route.as_deref().unwrap_or("/")),
                started_at_nanos: nanos(started_at),
                ended_at_nanos: nanos(started_at + total),
                is_failure: is_failure(end),
                attributes: self.attributes(told, open, end),
            };
            tracer.hand_over(span, telemetry);
        }
    }

    /// The names of OpenTelemetry's own conventions where there are any.
    fn attributes(&self, told: &Told, open: &OpenSpan, end: RequestEnd) -> Vec<(&'static str, AttributeValue)> {
        let mut attributes = Vec::with_capacity(24);
        let mut add = |key, value: Option<AttributeValue>| attributes.extend(value.map(|value| (key, value)));
        let text = |text: &str| AttributeValue::from(capped(text).into_owned());
        add("http.request.method", Some(known_method(&told.method).into()));
        add("http.route", open.route.as_deref().map(text));
        add("url.path", Some(text(&told.path)));
        add("http.response.status_code", self.status.map(|status| u32::from(status).into()));
        add("error.type", is_failure(end).then(|| self.code.unwrap_or(end.outcome()).into()));
        add("gen_ai.request.model", told.model.as_deref().map(text));
        add("fathom.request_id", told.request_id.as_deref().map(text));
        add("fathom.source", Some(end.source().into()));
        add("fathom.outcome", Some(end.outcome().into()));
        add("fathom.code", self.code.map(Into::into));
        add("fathom.attempts", Some(self.num_attempts.into()));
        add("fathom.is_stream", Some(self.is_stream.into()));
        add("fathom.worker", self.worker.as_ref().map(|worker| worker.id.to_string().into()));
        add("fathom.worker_url", self.worker.as_ref().map(|worker| text(worker.url.as_str())));
        if let Some(decision) = &self.decision {
            add("fathom.decision", Some(decision.id.to_string().into()));
            add("fathom.dp_rank", decision.rank.map(|rank| DpRank::number(rank).into()));
            add("fathom.policy", decision.policy.map(Into::into));
            add("fathom.reason", Some(decision.reason.into()));
            add("fathom.basis", Some(decision.basis.name().into()));
            add("fathom.queue_ms", Some(millis(decision.queued_for).into()));
            add("fathom.decision_ms", Some(millis(decision.took).into()));
            add("fathom.prompt_tokens", decision.prompt_tokens.map(Into::into));
            add("fathom.matched_tokens", decision.matched_tokens.map(Into::into));
        }
        let first = self.first_chunk_at.map(|at| at.saturating_duration_since(self.arrived_at));
        add("fathom.ttft_ms", first.map(|first| millis(first).into()));
        add("fathom.cached_tokens", self.cached_tokens.map(Into::into));
        attributes
    }
}

/// Whether the router or a worker is to blame. A client that leaves is not.
fn is_failure(end: RequestEnd) -> bool {
    match end {
        RequestEnd::WorkerFailed | RequestEnd::BrokeOff | RequestEnd::StoodStill | RequestEnd::RouterFailed => true,
        RequestEnd::Answered
        | RequestEnd::WorkerRefused
        | RequestEnd::RouterRefused
        | RequestEnd::BodyBroken
        | RequestEnd::ClientGone => false,
    }
}

/// Clients may send any word as a method; the names of spans come from a closed set.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("_OTHER")
}

fn nanos(since_epoch: Duration) -> u64 {
    since_epoch.as_nanos().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::known_method;

    #[test]
    fn a_word_that_is_no_method_does_not_name_a_span() {
        assert_eq!([known_method("POST"), known_method("post"), known_method("BREW")], ["POST", "_OTHER", "_OTHER"]);
    }
}
