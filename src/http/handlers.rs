//! Forwarded requests: read, look at, hand to the proxy.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use actix_web::body::BoxBody;
use actix_web::http::header::CONTENT_LENGTH;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures::future::{Either, select};

use crate::clock;
use crate::config::HttpSettings;
use crate::error::RouteError;
use crate::http::body;
use crate::http::departure::{Departure, WatchedBody};
use crate::http::headers::to_engine;
use crate::http::proxy::{Outgoing, route};
use crate::http::ranks::{RankCarrier, wanted_rank};
use crate::http::record::Record;
use crate::http::{Edge, prompt, respond};
use crate::logic::request::RequestFacts;
use crate::prompt::PromptKind;
use crate::wire::openai::peek_request;

/// Header with the request's priority, where requests wait for room.
const PRIORITY_HEADER: &str = "x-fathom-priority";

/// What a route says of the requests that it takes. Kept as the route's own data.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineRoute {
    pattern: &'static str,
    is_json: bool,
    /// The interface, where requests have a prompt.
    prompt: Option<PromptKind>,
}

impl EngineRoute {
    /// The route of a path whose body must be a JSON object, with a prompt or without.
    pub(super) fn json(pattern: &'static str, prompt: Option<PromptKind>) -> Self {
        Self { pattern, is_json: true, prompt }
    }

    /// Engines let those requests name a rank that they generate for.
    fn takes_rank(self) -> bool {
        self.prompt.is_some() || self.pattern == "/v1/responses"
    }

    fn rank_carrier(self) -> RankCarrier {
        if self.prompt == Some(PromptKind::Generate) { RankCarrier::Body } else { RankCarrier::Header }
    }

    /// The route of paths whose body may be anything.
    pub(super) fn any(pattern: &'static str) -> Self {
        Self { pattern, is_json: false, prompt: None }
    }
}

/// Forwards a request to the worker that is decided on.
pub(super) async fn forward(request: HttpRequest, payload: web::Payload, edge: web::Data<Edge>) -> HttpResponse {
    let arrived_at = clock::now();
    let mut record = Record::open(&edge, &request, arrived_at);
    match try_forward(&request, payload, &edge, &mut record, arrived_at).await {
        Ok(response) => response,
        Err(error) => {
            record.refused(error);
            respond::error(error, &edge.ports.telemetry)
        }
    }
}

async fn try_forward(
    request: &HttpRequest,
    mut payload: web::Payload,
    edge: &Edge,
    record: &mut Record,
    arrived_at: Instant,
) -> Result<HttpResponse, RouteError> {
    record.holds(edge.ports.gate.enter()?);
    let mut headers = to_engine(request.headers(), edge.ports.settings.forward_authorization)?;
    record.pass_context_on(&mut headers);
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let HttpSettings { max_body_bytes, client_timeout, .. } = edge.ports.settings;
    let mut body = body::read(&mut payload, announced, max_body_bytes, client_timeout).await?;
    let route_data = request.app_data::<EngineRoute>().copied().unwrap_or(EngineRoute::any("/"));
    let mut facts = facts_of(request, &body, route_data, edge.ports.settings.forward_dp_rank)?;
    facts.priority = priority_of(request);
    record.names_model(facts.model.as_ref());
    if let Some(kind) = route_data.prompt {
        let known = prompt::known(edge, kind, facts.model.as_ref(), &body).await;
        if let Some(known) = known {
            facts.prompt = Some(known.keys);
            body = known.body.unwrap_or(body);
        }
    }
    let outgoing = Outgoing {
        method: method_of(request)?,
        target: engine_target(request, route_data.pattern)?,
        headers,
        body,
        rank_carrier: route_data.rank_carrier(),
        arrived_at,
    };
    let routed = route(edge, facts, outgoing, record);
    match Departure::of(request, payload) {
        None => routed.await,
        Some(departure) => watched(routed, departure).await,
    }
}

/// Gives up on the request as soon as its client has left; what it holds is given back by its drop.
async fn watched(
    routed: impl Future<Output = Result<HttpResponse, RouteError>>,
    mut departure: Departure,
) -> Result<HttpResponse, RouteError> {
    let gone = poll_fn(|context| departure.poll_gone(context));
    match select(pin!(routed), gone).await {
        Either::Left((response, _)) => {
            Ok(response?.map_body(|_, body| BoxBody::new(WatchedBody::new(body, departure))))
        }
        Either::Right(_) => Ok(HttpResponse::BadRequest().finish()),
    }
}

fn facts_of(
    request: &HttpRequest,
    body: &Bytes,
    route: EngineRoute,
    forward_dp_rank: bool,
) -> Result<RequestFacts, RouteError> {
    match peek_request(body) {
        Ok(peek) => Ok(RequestFacts {
            may_be_shared: route.prompt.is_some(),
            takes_rank: route.takes_rank(),
            wanted_rank: forward_dp_rank.then(|| wanted_rank(request, &peek)).flatten(),
            model: peek.model.map(Arc::from),
            ..RequestFacts::default()
        }),
        Err(_) if route.is_json => Err(RouteError::InvalidBody),
        Err(_) => Ok(RequestFacts::default()),
    }
}

/// Anything but a number counts as none: a client may not care how this router reads its headers.
fn priority_of(request: &HttpRequest) -> i32 {
    let value = request.headers().get(PRIORITY_HEADER).and_then(|value| value.to_str().ok());
    value.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn method_of(request: &HttpRequest) -> Result<hyper::Method, RouteError> {
    hyper::Method::from_bytes(request.method().as_str().as_bytes()).map_err(|_| RouteError::InvalidPath)
}

/// The path and query at the engine: those of the request without the scope that the router is mounted at.
fn engine_target(request: &HttpRequest, pattern: &str) -> Result<String, RouteError> {
    let whole_pattern = request.match_pattern().unwrap_or_default();
    let scope = whole_pattern.strip_suffix(pattern).unwrap_or_default();
    let path = without_segments(request.uri().path(), scope.matches('/').count());
    if path.split('/').any(is_dot_segment) {
        // An engine would resolve it, and so answer for a path that this route does not stand for.
        return Err(RouteError::InvalidPath);
    }
    Ok(match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    })
}

fn without_segments(path: &str, num_segments: usize) -> &str {
    let mut rest = path;
    for _ in 0..num_segments {
        rest = rest.get(1..).and_then(|tail| tail.find('/').map(|slash| &tail[slash..])).unwrap_or(rest);
    }
    rest
}

fn is_dot_segment(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    plain == "." || plain == ".."
}

#[cfg(test)]
mod tests {
    use super::{is_dot_segment, without_segments};

    #[test]
    fn the_scope_is_cut_off_by_segments() {
        assert_eq!(without_segments("/v1/chat", 0), "/v1/chat");
        assert_eq!(without_segments("/llm/v1/chat", 1), "/v1/chat");
        assert_eq!(without_segments("/a/tenant-7/v1/chat", 2), "/v1/chat");
    }

    #[test]
    fn dot_segments_are_seen_through_their_encoding() {
        for segment in [".", "..", "%2e%2E", ".%2e"] {
            assert!(is_dot_segment(segment), "{segment}");
        }
        assert!(!is_dot_segment("gpt-4.1"));
    }
}
