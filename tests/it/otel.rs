//! Spans of requests: what a collector gets, what the engine is told, and that requests never wait for either.

use std::collections::BTreeMap;
use std::future::Future;

use fathom_router::sim::{RecordedRequest, SimEngine};
use fathom_router::telemetry::Kind;
use futures::future::join;
use hyper::Request;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;

use crate::support::{
    Answer, Client, RawEngine, RawRequest, RunningRouter, assert_all_succeeded, chat_body, engine, eventually,
    fast_config, soon, whole,
};

const PATH: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A router over the engine that tells this collector of its requests.
async fn router_with(engine: &SimEngine, endpoint: &str) -> RunningRouter {
    let mut config = fast_config(&[engine.url()]);
    config.otlp_endpoint = Some(endpoint.to_owned());
    RunningRouter::with(config).await
}

async fn chat(router: &RunningRouter, model: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::post(format!("{}{PATH}", router.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = chat_body(4, true).replace("\"tiny\"", &format!("\"{model}\""));
    whole(Client::new().send(request.body(body.into()).unwrap()).await).await
}

fn last_request(engine: &SimEngine) -> RecordedRequest {
    engine.stats().recent.last().cloned().expect("a request")
}

fn header(request: &RecordedRequest, name: &str) -> Option<String> {
    request.header(name).map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// The spans of an export.
fn spans_of(export: &RawRequest) -> Vec<Span> {
    assert_eq!(export.message.first_line(), "POST /v1/traces HTTP/1.1");
    assert_eq!(export.message.header_values("content-type"), ["application/x-protobuf"]);
    let message = ExportTraceServiceRequest::decode(&*export.message.body).expect("an export");
    assert_eq!(message.resource_spans.len(), 1);
    let resource = message.resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(texts(&resource.attributes)["service.name"], "fathom");
    message.resource_spans.into_iter().flat_map(|part| part.scope_spans).flat_map(|part| part.spans).collect()
}

/// The attributes as people read them.
fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone().and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => format!("{number:?}"),
        Some(Value::BoolValue(is_so)) => is_so.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn take(export: RawRequest, rejected_spans: i64) {
    let partial_success = Some(ExportTracePartialSuccess { rejected_spans, error_message: String::new() });
    let answer = ExportTraceServiceResponse { partial_success };
    export.answer("HTTP/1.1 200 OK\ncontent-type: application/x-protobuf", answer.encode_to_vec()).await;
}

/// Gets exports until so many spans have come.
async fn collect(collector: &mut RawEngine, num_spans: usize) -> Vec<Span> {
    let mut spans = Vec::new();
    while spans.len() < num_spans {
        let export = collector.next_request().await;
        spans.extend(spans_of(&export));
        take(export, 0).await;
    }
    spans
}

fn count(router: &RunningRouter, kind: &'static str) -> u64 {
    router.handle.telemetry().spans.get_or_create(&Kind { kind }).get()
}

#[actix::test]
async fn a_span_tells_the_decision_and_the_engine_goes_on_with_its_trace() {
    let (engine, mut collector) = (engine("a").await, RawEngine::start().await);
    let router = router_with(&engine, &collector.url()).await;
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("traceparent", &*traceparent), ("tracestate", "a=1,b=2"), ("x-request-id", "seven")];
    let answer = chat(&router, "tiny", &headers).await;
    assert_eq!(answer.status, 200);
    let spans = collect(&mut collector, 1).await;
    let [span] = &spans[..] else { panic!("one span for one request: {spans:?}") };
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
    let at_engine = last_request(&engine);
    assert_eq!(header(&at_engine, "traceparent"), Some(format!("00-{TRACE}-{}-01", hex(&span.span_id))));
    assert_eq!(header(&at_engine, "tracestate").as_deref(), Some("a=1,b=2"));
    assert_eq!((span.kind(), &*span.name), (SpanKind::Server, "POST /v1/chat/completions"));
    assert!(span.end_time_unix_nano > span.start_time_unix_nano && span.status.is_none(), "{span:?}");
    let told = texts(&span.attributes);
    for (key, value) in [
        ("fathom.decision", answer.header("x-fathom-decision-id")),
        ("fathom.worker_url", &engine.url()),
        ("fathom.policy", "cache_aware_zmq"),
        ("fathom.reason", answer.header("x-fathom-reason")),
        ("fathom.basis", answer.header("x-fathom-basis")),
        ("fathom.source", "worker"),
        ("fathom.outcome", "answered"),
        ("fathom.attempts", "1"),
        ("fathom.is_stream", "true"),
        ("fathom.request_id", "seven"),
        ("fathom.queue_ms", "0.0"),
        ("gen_ai.request.model", "tiny"),
        ("http.request.method", "POST"),
        ("http.route", PATH),
        ("http.response.status_code", "200"),
        ("url.path", PATH),
    ] {
        assert_eq!(told.get(key).map(String::as_str), Some(value), "{key}: {told:?}");
    }
    assert!(told["fathom.worker"].starts_with('w'), "{told:?}");
    for key in ["fathom.decision_ms", "fathom.ttft_ms"] {
        assert!(told[key].parse::<f64>().is_ok_and(|millis| millis > 0.0), "{key}: {told:?}");
    }
    eventually("the span is counted", || async { (count(&router, "exported") == 1).then_some(()) }).await;
    assert_eq!(router.metric("fathom_spans_total{kind=\"exported\"}").await, Some(1.0));
    router.stop_and_check().await;
}

#[actix::test]
async fn a_rank_and_what_is_known_of_the_prompt_are_attributes() {
    let config = fathom_router::sim::SimConfig { dp_size: 2, ..fathom_router::sim::SimConfig::default() };
    let engine = SimEngine::start(config).await.expect("an engine");
    let mut collector = RawEngine::start().await;
    let router = router_with(&engine, &collector.url()).await;
    router.wait_until_trusted(1).await;
    let body = serde_json::json!({"model": "tiny", "prompt": vec![7; 64], "max_tokens": 1}).to_string();
    assert_eq!(Client::new().post(&format!("{}/v1/completions", router.url), body).await.status, 200);
    let spans = collect(&mut collector, 1).await;
    let told = texts(&spans[0].attributes);
    assert!(["0", "1"].contains(&&*told["fathom.dp_rank"]), "{told:?}");
    assert_eq!((&*told["fathom.prompt_tokens"], &*told["fathom.matched_tokens"]), ("64", "0"));
    router.stop().await;
}

#[actix::test]
async fn a_request_without_a_valid_parent_begins_a_trace_and_one_that_is_not_recorded_has_no_span() {
    let (engine, mut collector) = (engine("a").await, RawEngine::start().await);
    let router = router_with(&engine, &collector.url()).await;
    let unrecorded = format!("00-{TRACE}-{CALLER}-00");
    let answer = chat(&router, "tiny", &[("traceparent", &unrecorded), ("tracestate", "a=1")]).await;
    assert_eq!(answer.status, 200);
    let at_engine = last_request(&engine);
    assert_eq!(header(&at_engine, "traceparent").as_deref(), Some(&*unrecorded));
    assert_eq!(header(&at_engine, "tracestate").as_deref(), Some("a=1"));
    let mut named = Vec::new();
    let valid = format!("00-{TRACE}-{CALLER}-01");
    let roots: [&[(&str, &str)]; 4] = [
        &[],
        &[("traceparent", "00-0-0-01"), ("tracestate", "a=1")],
        &[("tracestate", "a=1")],
        &[("traceparent", &valid), ("traceparent", &valid), ("tracestate", "a=1")],
    ];
    for headers in roots {
        assert_eq!(chat(&router, "tiny", headers).await.status, 200, "{headers:?}");
        let at_engine = last_request(&engine);
        assert_eq!(header(&at_engine, "tracestate"), None, "it is of another trace: {headers:?}");
        assert_eq!(at_engine.headers.iter().filter(|(name, _)| name == "traceparent").count(), 1, "{headers:?}");
        named.extend(header(&at_engine, "traceparent"));
    }
    let spans = collect(&mut collector, named.len()).await;
    let told: Vec<String> =
        spans.iter().map(|span| format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))).collect();
    assert_eq!(told, named, "of the request that is not recorded there is no span");
    assert!(spans.iter().all(|span| span.parent_span_id.is_empty()));
    router.stop().await;
}

#[actix::test]
async fn what_the_router_refuses_has_a_span_with_its_code_and_only_failures_are_errors() {
    let (engine, mut collector) = (engine("a").await, RawEngine::start().await);
    let router = router_with(&engine, &collector.url()).await;
    assert_eq!(chat(&router, "nobody", &[]).await.status, 404);
    engine.kill().await;
    assert_eq!(chat(&router, "tiny", &[]).await.status, 503);
    let spans = collect(&mut collector, 2).await;
    let told = spans.iter().map(|span| (texts(&span.attributes), span.status.is_some())).collect::<Vec<_>>();
    for ((told, is_error), (status, code, fails)) in
        told.iter().zip([("404", "model_not_found", false), ("503", "all_workers_failed", true)])
    {
        assert_eq!((&*told["http.response.status_code"], &*told["fathom.code"]), (status, code));
        assert_eq!((&*told["fathom.source"], *is_error), ("router", fails), "{told:?}");
        assert_eq!(told.get("error.type").map(String::as_str), fails.then_some(code));
    }
    assert!(!told[0].0.contains_key("fathom.decision") && told[1].0.contains_key("fathom.decision"));
    router.stop().await;
}

#[actix::test]
async fn the_last_spans_reach_the_collector_while_the_router_stops() {
    let (engine, mut collector) = (engine("a").await, RawEngine::start().await);
    let router = router_with(&engine, &collector.url()).await;
    let telemetry = router.handle.telemetry().clone();
    for _ in 0..3 {
        assert_eq!(chat(&router, "tiny", &[]).await.status, 200);
    }
    let (spans, ()) = join(collect(&mut collector, 3), router.stop_and_check()).await;
    assert_eq!(spans.len(), 3);
    assert_eq!(telemetry.spans.get_or_create(&Kind { kind: "exported" }).get(), 3, "the stop waits for the answer");
}

#[actix::test]
async fn a_batch_is_sent_again_where_the_collector_has_no_room_and_what_it_does_not_take_is_counted() {
    let (engine, mut collector) = (engine("a").await, RawEngine::start().await);
    let router = router_with(&engine, &collector.url()).await;
    assert_eq!(chat(&router, "tiny", &[]).await.status, 200);
    let first = collector.next_request().await;
    let spans = spans_of(&first);
    first.answer("HTTP/1.1 503 Service Unavailable", "").await;
    let second = collector.next_request().await;
    assert_eq!(spans_of(&second)[0], spans[0]);
    take(second, 1).await;
    eventually("it is counted", || async { (count(&router, "rejected") == 1).then_some(()) }).await;
    assert_eq!(chat(&router, "tiny", &[]).await.status, 200);
    collector.next_request().await.answer("HTTP/1.1 400 Bad Request", "what is this?").await;
    eventually("it is counted", || async { (count(&router, "failed") == 1).then_some(()) }).await;
    assert_eq!((count(&router, "exported"), count(&router, "dropped")), (0, 0));
    router.stop().await;
}

/// Requests are served, and the router stops in time, whatever `collector` does. Returns how many spans ended as failed.
async fn serves_and_stops<T>(endpoint: String, collector: impl Future<Output = T>) -> u64 {
    let engine = engine("a").await;
    let router = router_with(&engine, &endpoint).await;
    let telemetry = router.handle.telemetry().clone();
    let (answers, _) = join(router.chat_times(20), collector).await;
    assert_all_succeeded(&answers);
    assert!(header(&last_request(&engine), "traceparent").is_some());
    soon("the router stops", router.stop_and_check()).await;
    telemetry.spans.get_or_create(&Kind { kind: "failed" }).get()
}

#[actix::test]
async fn a_collector_that_is_dead_changes_nothing_for_requests() {
    let collector = RawEngine::start().await;
    let endpoint = collector.url();
    drop(collector);
    assert_eq!(serves_and_stops(endpoint, async {}).await, 20, "each of them is counted");
}

#[actix::test]
async fn a_collector_that_never_answers_changes_nothing_for_requests() {
    let mut collector = RawEngine::start().await;
    let mut held = None;
    assert_eq!(serves_and_stops(collector.url(), async { held = Some(collector.next_request().await) }).await, 0);
    assert!(held.is_some(), "an export was under way all the time");
}

#[actix::test]
async fn without_a_collector_the_client_s_own_trace_context_reaches_the_engine_unchanged() {
    let engine = engine("a").await;
    let router = RunningRouter::over(&[&engine]).await;
    for traceparent in [&*format!("00-{TRACE}-{CALLER}-01"), "anything"] {
        let answer = chat(&router, "tiny", &[("traceparent", traceparent), ("tracestate", "a=1")]).await;
        assert_eq!(answer.status, 200);
        let at_engine = last_request(&engine);
        assert_eq!(header(&at_engine, "traceparent").as_deref(), Some(traceparent));
        assert_eq!(header(&at_engine, "tracestate").as_deref(), Some("a=1"));
    }
    assert_eq!(chat(&router, "tiny", &[]).await.status, 200);
    assert_eq!(header(&last_request(&engine), "traceparent"), None);
    router.stop().await;
}
