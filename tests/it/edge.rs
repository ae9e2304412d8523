//! The HTTP edge: what passes, what is refused, what happens to streams, and what is tried again.

use std::time::Duration;

use fathom_router::router::Router;
use fathom_router::sim::{ResponseMode, SimConfig, SimEngine};
use http_body_util::BodyExt;

use crate::support::{
    Client, RunningRouter, Stub, StubAnswer, StubRequest, chat_body, engine, engine_like, eventually, fast_config,
    start_router,
};

#[actix::test]
async fn bodies_reach_the_engine_byte_for_byte_and_credentials_do_not() {
    let engine = engine("a").await;
    let router = RunningRouter::over(&[&engine]).await;
    let client = Client::new();
    let odd = r#"{ "model" :"tiny","unknown": [1,  2.50, "\u00e9"], "prompt":"hi", "max_tokens" : 1}"#;
    for path in ["/v1/completions", "/v1/chat/completions", "/generate", "/v1/embeddings"] {
        let request = hyper::Request::post(format!("{}{path}?x=1", router.url))
            .header("authorization", "Bearer secret")
            .header("x-request-id", "7")
            .body(odd.into())
            .unwrap();
        drop(client.send(request).await.into_body().collect().await);
        let seen = engine.stats().recent.pop().expect("the engine saw the request");
        assert_eq!(seen.body, odd.as_bytes(), "{path}");
        assert_eq!(seen.path_and_query, format!("{path}?x=1"));
        assert_eq!(seen.header("x-request-id"), Some(&b"7"[..]));
        assert_eq!(seen.header("authorization"), None, "a client's key is not for the engine");
    }
    router.stop().await;
}

/// Seen in vllm-project/router#179.
#[actix::test]
async fn load_is_tracked_on_paths_that_are_only_passed_through() {
    let mut engines = Vec::new();
    for number in 0..4 {
        engines.push(engine(&number.to_string()).await);
    }
    let router = RunningRouter::over(&engines.iter().collect::<Vec<_>>()).await;
    let client = Client::new();
    let url = format!("{}/v1/some/other/path", router.url);
    let answers = futures::future::join_all((0..120).map(|_| client.post(&url, "{}"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    for engine in &engines {
        let share = engine.stats().num_requests("/v1/some/other/path");
        assert!((10..=60).contains(&share), "one engine got {share} of 120");
    }
    router.wait_until_idle().await;
    router.stop().await;
}

#[actix::test]
async fn what_cannot_be_served_is_refused_in_the_shape_of_openai_errors_before_any_engine_is_touched() {
    let engine = engine("a").await;
    let mut config = fast_config(&[engine.url()]);
    config.http.max_body_bytes = 1_000;
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;
    let client = Client::new();
    let url = format!("{}/v1/chat/completions", router.url);
    let rows = [
        ("{bad".to_owned(), 400, "invalid_body"),
        ("[]".to_owned(), 400, "invalid_body"),
        (r#"{"model":"nobody"}"#.to_owned(), 404, "model_not_found"),
        (format!(r#"{{"model":"{}"}}"#, "x".repeat(2_000)), 413, "body_too_large"),
    ];
    for (body, status, code) in rows {
        let answer = client.post(&url, body).await;
        assert_eq!((answer.status, answer.header("x-fathom-error-code")), (status, code));
        assert_eq!(answer.json()["error"]["code"], code);
    }
    assert!(engine.stats().recent.is_empty(), "no engine was touched");
    router.stop().await;
}

#[actix::test]
async fn readiness_follows_the_fleet() {
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    let client = Client::new();
    assert_eq!(client.get(&format!("{}/healthz", router.url)).await.status, 200);
    let answer = client.get(&format!("{}/readyz", router.url)).await;
    assert_eq!((answer.status, answer.header("x-fathom-error-code")), (503, "no_worker_available"));
    router.handle.drain();
    let answer = client.post(&format!("{}/generate", router.url), "{}").await;
    assert_eq!((answer.status, answer.header("x-fathom-error-code")), (503, "router_shutting_down"));
    router.stop().await;
}

/// Seen in BerriAI/litellm#33404.
#[actix::test]
async fn a_stream_that_breaks_ends_as_broken_without_an_invented_done() {
    let engine = engine("a").await;
    let router = RunningRouter::over(&[&engine]).await;
    engine.set_response_mode(ResponseMode::BreakAfterChunks(2));
    let response = Client::new().open(&format!("{}/v1/chat/completions", router.url), chat_body(50, true)).await;
    let mut body = response.into_body();
    let mut text = Vec::new();
    let is_broken = loop {
        match body.frame().await {
            Some(Ok(frame)) => text.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(is_broken, "the client must not take the answer for whole");
    assert!(!String::from_utf8_lossy(&text).contains("[DONE]"));
    eventually("the break is counted", || async {
        (router.metric("fathom_requests_total{kind=\"broke_off\"}").await == Some(1.0)).then_some(())
    })
    .await;
    router.stop().await;
}

/// Seen in smg-project/smg#2403.
#[actix::test]
async fn an_engine_error_for_a_stream_keeps_status_body_and_type() {
    let engine = engine("a").await;
    let router = RunningRouter::over(&[&engine]).await;
    engine.set_response_mode(ResponseMode::Status(422, r#"{"error":"no"}"#.to_owned()));
    let answer = Client::new().post(&format!("{}/v1/chat/completions", router.url), chat_body(5, true)).await;
    assert_eq!((answer.status, &answer.body[..]), (422, &br#"{"error":"no"}"#[..]));
    assert!(answer.header("content-type").starts_with("application/json"));
    router.stop().await;
}

/// Seen in vllm-project/production-stack#634.
#[actix::test]
async fn a_client_that_leaves_ends_the_engines_work_and_its_account() {
    let token_time = Duration::from_millis(20);
    let engine = SimEngine::start(SimConfig { token_time, ..SimConfig::default() }).await.unwrap();
    let router = RunningRouter::over(&[&engine]).await;
    let client = Client::new();
    let response = client.open(&format!("{}/v1/chat/completions", router.url), chat_body(10_000, true)).await;
    let mut body = response.into_body();
    assert!(body.frame().await.is_some_and(|frame| frame.is_ok()), "the stream has begun");
    assert_eq!(router.worker(&engine.url()).await.map(|worker| worker.in_flight), Some(1), "it counts while it runs");
    drop((body, client));
    eventually("the engine sees its client leave", || async { (engine.stats().aborted == 1).then_some(()) }).await;
    router.wait_until_idle().await;
    eventually("the cause is counted", || async {
        (router.metric("fathom_requests_total{kind=\"client_gone\"}").await == Some(1.0)).then_some(())
    })
    .await;
    router.stop().await;
}

#[actix::test]
async fn a_worker_that_cannot_be_reached_is_passed_over_before_the_first_byte() {
    let (dead, alive) = (engine("dead").await, engine("alive").await);
    let router = RunningRouter::over(&[&dead, &alive]).await;
    dead.kill().await;
    let client = Client::new();
    for _ in 0..12 {
        let answer = client.post(&format!("{}/v1/chat/completions", router.url), chat_body(1, false)).await;
        assert_eq!((answer.status, answer.header("x-sim-engine")), (200, "alive"));
    }
    alive.kill().await;
    let answer = client.post(&format!("{}/v1/chat/completions", router.url), chat_body(1, false)).await;
    assert_eq!((answer.status, answer.header("x-fathom-error-code")), (503, "all_workers_failed"));
    router.stop().await;
}

#[actix::test]
async fn an_engine_that_never_answers_ends_in_a_timeout_and_nobody_else_is_asked() {
    let silent = || {
        let described = engine_like(serde_json::json!({ "served_model_name": "tiny" }), "tiny");
        move |request: &StubRequest| if request.method == "POST" { StubAnswer::Hang } else { described(request) }
    };
    let (first, second) = (Stub::start(silent()).await, Stub::start(silent()).await);
    let mut config = fast_config(&[first.url(), second.url()]);
    config.upstream.response_header_timeout = Duration::from_secs(1);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(2).await;
    let answer = Client::new().post(&format!("{}/v1/chat/completions", router.url), "{}").await;
    assert_eq!((answer.status, answer.header("x-fathom-error-code")), (504, "upstream_timeout"));
    let path = "/v1/chat/completions";
    assert_eq!(first.requests_to(path).len() + second.requests_to(path).len(), 1, "the work may still be going on");
    router.stop().await;
}
