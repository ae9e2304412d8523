//! Asking engines what they serve: when, how often, on which path, and what becomes of each answer.

use std::time::Duration;

use fathom_router::messages::Introspection;
use fathom_router::router::Router;
use fathom_router::sim::{ServerInfoMode, SimEngine};
use serde_json::json;

use crate::support::{
    Client, RunningRouter, Stub, StubAnswer, StubRequest, chat_answer, engine, eventually, fast_config, millis,
    not_found, start_router,
};

const A_DAY: Duration = Duration::from_secs(86_400);

async fn assert_pending(router: &RunningRouter, engine: &SimEngine) {
    let health = Client::new().get(&format!("{}/health", engine.url())).await;
    assert_eq!(health.status, 200, "the engine's health path answers all the while");

    let shown = router.shown(&engine.url()).await;
    assert_eq!((&shown["state"], &shown["introspection"]), (&json!("pending"), &json!("failed")));
    assert_eq!(shown["models"], json!([]), "no model is made up");
    assert_eq!(router.metric("fathom_workers{state=\"pending\"}").await, Some(1.0));
    assert_eq!(router.metric("fathom_workers{state=\"serving\"}").await, Some(0.0));

    let models = Client::new().get(&format!("{}/v1/models", router.url)).await;
    assert_eq!(models.json()["data"], json!([]));
    let answer = router.chat().await;
    assert_eq!((answer.status, answer.header("x-fathom-error-code")), (503, "no_worker_available"));
}

/// Seen in sgl-project/sglang#27980.
#[actix::test]
async fn a_worker_that_cannot_yet_say_what_it_serves_is_pending_and_joins_without_being_announced_again() {
    let engine = engine("slow-to-tell").await;
    engine.set_server_info(ServerInfoMode::Hang);
    let mut config = fast_config(&[engine.url()]);
    config.introspection.attempt_timeout = millis(200);
    config.introspection.attempts = 1;
    let router = start_router(Router::builder().config(config)).await;

    router.wait_for_metric("fathom_introspections_total{kind=\"unreachable\"}", 2.0).await;
    assert_pending(&router, &engine).await;

    engine.set_server_info(ServerInfoMode::Status(503));
    router.wait_for_metric("fathom_introspections_total{kind=\"server_error\"}", 2.0).await;
    assert_pending(&router, &engine).await;
    let id = router.members().await[0].id;

    engine.set_server_info(ServerInfoMode::Normal);
    router.wait_until_serving(1).await;
    assert_eq!(router.members().await[0].id, id, "it is still the same worker");
    assert_eq!(router.shown(&engine.url()).await["models"], json!(["tiny"]));
    assert_eq!(router.metric("fathom_workers{state=\"pending\"}").await, Some(0.0));
    assert_eq!(router.chat().await.status, 200);
    router.stop_and_check().await;
}

#[actix::test]
async fn a_question_is_repeated_where_that_may_help_and_only_there() {
    let rows = [
        ("a server error", ServerInfoMode::Status(503), 3, "server_error"),
        ("another server error", ServerInfoMode::Status(500), 3, "server_error"),
        ("a body that breaks off", ServerInfoMode::BrokenBody, 3, "broken_body"),
        ("a body that is not JSON", ServerInfoMode::NotJson, 1, "unreadable"),
        ("a client error", ServerInfoMode::Status(400), 1, "refused"),
        ("too many requests", ServerInfoMode::Status(429), 1, "refused"),
        ("a wrong key", ServerInfoMode::Unauthorized { bearer: "sesame".to_owned() }, 1, "unauthorized"),
        ("no access", ServerInfoMode::Status(403), 1, "unauthorized"),
    ];
    let mut engines = Vec::new();
    for (sentence, mode, _, _) in &rows {
        let engine = engine(sentence).await;
        engine.set_server_info(mode.clone());
        engines.push(engine);
    }
    let mut config = fast_config(&engines.iter().map(SimEngine::url).collect::<Vec<_>>());
    config.introspection.pending_interval = A_DAY;
    config.introspection.attempt_timeout = Duration::from_secs(20);
    let router = start_router(Router::builder().config(config)).await;
    eventually("every engine was asked to the end", || async {
        let members = router.members().await;
        let asked = members.iter().filter(|member| member.introspection != Introspection::Asking);
        (asked.count() == rows.len()).then_some(())
    })
    .await;

    for ((sentence, _, expected, result), engine) in rows.iter().zip(&engines) {
        assert_eq!(engine.stats().num_requests("/server_info"), *expected, "{sentence}");
        assert_eq!(engine.stats().num_requests("/get_server_info"), 0, "{sentence}: the path exists");
        let counted = rows.iter().filter(|row| row.3 == *result).count() as f64;
        let series = format!("fathom_introspections_total{{kind=\"{result}\"}}");
        assert_eq!(router.metric(&series).await, Some(counted), "{sentence}");
    }
    assert_eq!(router.metric("fathom_workers{state=\"pending\"}").await, Some(rows.len() as f64));
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_hangs_is_asked_as_often_as_configured_and_then_left_alone_for_the_interval() {
    let engine = engine("hangs").await;
    engine.set_server_info(ServerInfoMode::Hang);
    let mut config = fast_config(&[engine.url()]);
    config.introspection.pending_interval = A_DAY;
    config.introspection.attempt_timeout = millis(400);
    let router = start_router(Router::builder().config(config)).await;

    router.wait_for_metric("fathom_introspections_total{kind=\"unreachable\"}", 1.0).await;
    assert_eq!(engine.stats().num_requests("/server_info"), 3);
    let problem = router.shown(&engine.url()).await["problem"].as_str().map(str::to_owned);
    assert!(problem.is_some_and(|problem| problem.contains("could not be reached in time")));
    router.stop_and_check().await;
}

#[actix::test]
async fn an_older_engine_is_asked_on_its_older_path() {
    let engine = Stub::start(|request: &StubRequest| match request.path.as_str() {
        "/get_server_info" => StubAnswer::Json(200, json!({"served_model_name": "m-old", "version": "0.4.9"})),
        "/v1/chat/completions" => chat_answer(),
        _ => not_found(),
    })
    .await;
    let router = start_router(Router::builder().config(fast_config(&[engine.url()]))).await;
    router.wait_until_serving(1).await;

    let shown = router.shown(&engine.url()).await;
    assert_eq!((&shown["models"], &shown["version"]), (&json!(["m-old"]), &json!("0.4.9")));
    assert_eq!(engine.requests_to("/server_info").len(), 1, "a path that does not exist is not tried again");
    assert_eq!(engine.requests_to("/get_server_info").len(), 1);
    assert_eq!(router.chat_with("m-old").await.status, 200);
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_only_lists_its_models_serves_and_is_priced_by_in_flight() {
    let engine = engine("no-info").await;
    engine.set_server_info(ServerInfoMode::NotFound);
    let router = RunningRouter::over(&[&engine]).await;

    let shown = router.shown(&engine.url()).await;
    assert_eq!((&shown["models"], &shown["load"]["feed"]), (&json!(["tiny"]), &json!("not_advertised")));
    assert_eq!((&shown["load"]["trust"], &shown["load"]["open_sockets"]), (&json!("unreported"), &json!(0)));
    let answer = router.chat().await;
    assert_eq!((answer.status, answer.header("x-fathom-basis")), (200, "in_flight"));
    assert_eq!(
        router.metric("fathom_fallback_decisions_total").await,
        Some(0.0),
        "nothing was advertised to fall back from"
    );
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_tells_no_model_in_any_way_stays_out() {
    let engine = Stub::start(|request: &StubRequest| match request.path.as_str() {
        "/v1/chat/completions" => chat_answer(),
        "/server_info" => StubAnswer::Json(200, json!({"served_model_name": "", "version": "0.5.23"})),
        _ => not_found(),
    })
    .await;
    let router = start_router(Router::builder().config(fast_config(&[engine.url()]))).await;
    router.wait_for_metric("fathom_introspections_total{kind=\"not_found\"}", 2.0).await;

    let shown = router.shown(&engine.url()).await;
    assert_eq!((&shown["state"], &shown["models"]), (&json!("pending"), &json!([])));
    assert_eq!(router.chat_with("").await.status, 503);
    assert_eq!(engine.requests_to("/v1/chat/completions").len(), 0);
    router.stop_and_check().await;
}
