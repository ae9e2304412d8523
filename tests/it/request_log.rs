//! The request log: one line for each request, whatever became of it, and the same as the metrics say.

use fathom_router::router::Router;
use hyper::Request;

use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, chat_body, engine, fast_config, in_own_process, post, post_head,
    start_router, whole,
};

const PATH: &str = "/v1/chat/completions";
const TARGET: &str = "fathom_router::requests";

/// Produces one of each, and returns once all of them are counted.
async fn one_of_each() {
    let mut engine = RawEngine::start().await;
    let mut config = fast_config(&[engine.url()]);
    (config.http.request_log, config.http.max_body_bytes) = (true, 1_000);
    let router = RunningRouter::with(config).await;
    for head in ["400 Bad Request", "500 Internal Server Error", "200 OK"] {
        let mut client = RawClient::connect(&router.url).await;
        client.write(post(PATH, r#"{"model":"tiny"}"#)).await;
        let mut request = engine.next_request().await;
        request.write(format!("HTTP/1.1 {head}\r\ncontent-length: 2\r\n\r\n{{}}")).await;
        client.answer().await;
    }
    for body in [r#"{"model":"nobody"}"#.to_owned(), "x".repeat(2_000)] {
        let mut client = RawClient::connect(&router.url).await;
        client.write(post(PATH, &body)).await;
        client.answer().await;
    }
    let mut client = RawClient::connect(&router.url).await;
    client.write(post_head(PATH, 900) + "{\"model\":").await;
    router.wait_until_open(1).await;
    client.leave();
    router.wait_until_open(0).await;
    for is_clients_doing in [false, true] {
        let mut client = RawClient::connect(&router.url).await;
        client.write(post(PATH, r#"{"model":"tiny","stream":true}"#)).await;
        let mut request = engine.next_request().await;
        request.start_stream().await;
        request.write_chunk("data: 1\n\n").await;
        client.read_through("data: 1").await;
        if is_clients_doing {
            client.leave();
            request.peer_is_gone().await;
        } else {
            drop(request);
            client.read_to_end().await;
        }
        router.wait_until_open(0).await;
    }
    router.handle.drain();
    let answer = Client::new().post(&format!("{}{PATH}", router.url), "{}").await;
    assert_eq!(answer.status, 503);
    check_metrics(&router).await;
    router.stop().await;
}

async fn check_metrics(router: &RunningRouter) {
    let ended = |source: &str, outcome: &str| {
        format!("fathom_client_requests_total{{source=\"{source}\",outcome=\"{outcome}\"}}")
    };
    for (source, outcome, count) in [
        ("worker", "answered", 1.0),
        ("worker", "client_error", 1.0),
        ("worker", "server_error", 1.0),
        ("worker", "broke_off", 1.0),
        ("router", "client_error", 2.0),
        ("router", "server_error", 1.0),
    ] {
        assert_eq!(router.metric(&ended(source, outcome)).await, Some(count), "{source} {outcome}");
    }
    let gone = router.metric(&ended("client", "client_gone")).await.unwrap();
    let broken = router.metric(&ended("client", "body_broken")).await.unwrap();
    assert_eq!(gone + broken, 2.0, "one left during its upload, one during its answer");
    assert_eq!(router.metric("fathom_streams_total{kind=\"broke_off\"}").await, Some(1.0));
    assert_eq!(router.metric("fathom_streams_total{kind=\"client_gone\"}").await, Some(1.0));
}

fn log_json() {
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
}

/// Seen in sgl-project/sglang#39460.
#[actix::test]
async fn every_request_has_one_line_that_names_who_ended_it_and_agrees_with_the_metrics() {
    let test = "request_log::every_request_has_one_line_that_names_who_ended_it_and_agrees_with_the_metrics";
    let Some(written) = in_own_process(test) else {
        log_json();
        return one_of_each().await;
    };
    let entries = written.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let lines: Vec<_> = entries.filter(|entry| entry["target"] == TARGET).collect();
    let said = |field: &str| lines.iter().map(|line| line["fields"][field].clone()).collect::<Vec<_>>();
    let sources = ["worker", "worker", "worker", "router", "router", "client", "worker", "client", "router"];
    assert_eq!(said("source"), sources);
    let outcomes = said("outcome");
    let expected = ["client_error", "server_error", "answered", "client_error", "client_error"];
    assert_eq!(&outcomes[..5], expected);
    assert!(["client_gone", "body_broken"].contains(&outcomes[5].as_str().unwrap()), "{}", lines[5]);
    assert_eq!(&outcomes[6..], ["broke_off", "client_gone", "server_error"]);
    let statuses = said("status");
    assert_eq!(&statuses[..5], [400, 500, 200, 404, 413]);
    assert_eq!(&statuses[6..], [200, 200, 503]);
    for (number, line) in lines.iter().enumerate() {
        let (fields, reached_a_worker) = (&line["fields"], [0, 1, 2, 6, 7].contains(&number));
        assert_eq!(fields["decision"].is_string(), reached_a_worker, "{fields}");
        assert_eq!(fields["worker"].is_string(), reached_a_worker, "{fields}");
        assert_eq!(fields["ttft_ms"].is_number(), reached_a_worker, "{fields}");
        assert!(fields["total_ms"].is_number() && fields["path"] == PATH && fields["method"] == "POST", "{fields}");
    }
    assert_eq!(lines[3]["fields"]["code"], "model_not_found");
}

async fn hostile_texts() {
    let engine = engine("a").await;
    let mut config = fast_config(&[engine.url()]);
    config.http.request_log = true;
    let router = RunningRouter::with(config).await;
    let model = format!("\n2026-01-01T00:00:00Z  INFO {TARGET}: forged\u{1b}[31m{}", "\u{202e}".repeat(20_000));
    for id in ["7".to_owned(), "i".repeat(64 * 1024), "caf\u{e9}\tx".to_owned()] {
        let body = serde_json::json!({ "model": model }).to_string();
        let request = Request::post(format!("{}{PATH}?{}", router.url, "q".repeat(4_000)));
        let request = request.header("x-request-id", hyper::header::HeaderValue::from_bytes(id.as_bytes()).unwrap());
        let answer = whole(Client::new().send(request.body(body.into()).unwrap()).await).await;
        assert_eq!(answer.status, 404);
    }
    router.stop().await;
}

#[actix::test]
async fn texts_of_clients_are_escaped_and_cut_in_the_request_log() {
    let Some(written) = in_own_process("request_log::texts_of_clients_are_escaped_and_cut_in_the_request_log") else {
        tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
        return hostile_texts().await;
    };
    let lines: Vec<&str> = written.lines().filter(|line| line.contains(&format!("{TARGET}: "))).collect();
    assert_eq!(lines.len(), 3, "one record per request: {lines:?}");
    for line in lines {
        assert!(line.len() < 2_000, "{} bytes", line.len());
        assert!(line.contains("\\nforged") || line.contains("\\n2026"), "{line}");
        assert!(!line.contains('\u{1b}') && !line.contains('\u{202e}'), "{line}");
    }
}

#[actix::test]
async fn without_being_asked_for_nothing_is_logged_of_a_request() {
    let Some(written) = in_own_process("request_log::without_being_asked_for_nothing_is_logged_of_a_request") else {
        log_json();
        let engine = engine("a").await;
        let router = start_router(Router::builder().config(fast_config(&[engine.url()]))).await;
        router.wait_until_serving(1).await;
        let answer = Client::new().post(&format!("{}{PATH}", router.url), chat_body(1, false)).await;
        assert_eq!(answer.status, 200);
        return router.stop().await;
    };
    assert!(written.contains("router stopped") && !written.contains(TARGET), "{written}");
}
