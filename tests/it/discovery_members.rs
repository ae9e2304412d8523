//! Who is a worker, and under which model names: addresses that come from several sources, and engines that change.

use std::time::Duration;

use fathom_router::config::PolicyKind;
use fathom_router::router::Router;
use fathom_router::sim::{ServerInfoMode, SimConfig, SimEngine};
use serde_json::json;

use crate::support::{
    Client, RunningRouter, Stub, StubAnswer, StubRequest, assert_all_succeeded, chat_answer, engine, fast_config,
    names_of, not_found, start_router,
};

async fn engine_serving(name: &str, model: &str) -> SimEngine {
    let config = SimConfig { name: name.to_owned(), model: model.to_owned(), ..SimConfig::default() };
    SimEngine::start(config).await.expect("an engine")
}

/// Seen in sgl-project/sglang#12977.
#[actix::test]
async fn a_model_is_known_by_its_alias_and_by_its_path_only_where_it_has_none() {
    let aliased = engine_serving("aliased", "m-alias").await;
    let nameless = Stub::start(|request: &StubRequest| match request.path.as_str() {
        "/server_info" => StubAnswer::Json(200, json!({"served_model_name": "", "model_path": "/models/x"})),
        "/v1/chat/completions" => chat_answer(),
        _ => not_found(),
    })
    .await;
    let router = start_router(Router::builder().config(fast_config(&[aliased.url(), nameless.url()]))).await;
    router.wait_until_serving(2).await;

    assert_eq!(router.shown(&aliased.url()).await["models"], json!(["m-alias"]));
    assert_eq!(router.shown(&nameless.url()).await["models"], json!(["/models/x"]));
    let by_alias = router.chat_with("m-alias").await;
    assert_eq!((by_alias.status, by_alias.header("x-sim-engine")), (200, "aliased"));
    assert_eq!(router.chat_with("/models/x").await.header("x-fathom-worker"), nameless.url());
    let by_path = router.chat_with("/models/m-alias").await;
    assert_eq!((by_path.status, by_path.header("x-fathom-error-code")), (404, "model_not_found"));
    let listed = Client::new().get(&format!("{}/v1/models", router.url)).await;
    assert!(
        !String::from_utf8_lossy(&listed.body).contains("/models/m-alias"),
        "the path does not stand beside the alias"
    );
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#38523.
#[actix::test]
async fn an_address_that_several_sources_name_is_one_worker_with_one_share() {
    let [first, second] = [engine("first").await, engine("second").await];
    let mut config = fast_config(&[first.url(), second.url()]);
    // Turn by turn, so that a worker that is held twice shows as twice the share.
    config.policy = PolicyKind::RoundRobin;
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(2).await;
    let ids: Vec<_> = router.members().await.iter().map(|member| member.id).collect();

    let port = first.port();
    router.announce("admin", &[&first.url()]).await;
    router.announce("kubernetes", &[&format!("HTTP://127.0.0.1:{port}/"), &format!("127.0.0.1:{port}")]).await;
    assert_eq!(
        router.members().await.iter().map(|member| member.id).collect::<Vec<_>>(),
        ids,
        "nobody was added or restarted"
    );
    let names = names_of(&router.chat_times(300).await);
    assert_eq!((names["first"], names["second"]), (150, 150));

    router.announce("admin", &[]).await;
    router.announce("kubernetes", &[]).await;
    assert_eq!(router.members().await.len(), 2, "the configuration still names both");
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#38523.
#[actix::test]
async fn an_engine_that_comes_back_with_another_model_is_another_worker() {
    let [before, other] = [engine_serving("before", "tiny").await, engine_serving("other", "tiny").await];
    let mut config = fast_config(&[before.url(), other.url()]);
    config.introspection.interval = Duration::from_secs(1);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(2).await;
    router.wait_until_trusted(2).await;
    let (url, port) = (before.url(), before.port());
    let old = router.worker(&url).await.expect("a worker");

    before.kill().await;
    let config =
        SimConfig { name: "after".to_owned(), model: "large".to_owned(), port, load: None, ..SimConfig::default() };
    let after = SimEngine::start(config).await.expect("an engine at the same address");
    router.wait_until_shown(&url, "it serves the other model", |shown| shown["models"] == json!(["large"])).await;
    let new = router.worker(&url).await.expect("a worker");
    assert_ne!(new.id, old.id);
    assert!(new.load.reports().is_empty(), "the load of the engine that was there before is gone");
    assert_eq!(router.metric("fathom_worker_replacements_total{kind=\"another_engine\"}").await, Some(1.0));
    assert_eq!(router.members().await.len(), 2);

    let answers = router.chat_times(20).await;
    assert_all_succeeded(&answers);
    assert_eq!(names_of(&answers)["other"], 20, "nothing for the old model goes there");
    assert_eq!(router.chat_with("large").await.header("x-sim-engine"), "after");
    assert_eq!(after.stats().completed, 1);
    router.stop_and_check().await;
}

/// An engine that is asked again and says the same stays the worker that it is.
#[actix::test]
async fn asking_again_changes_nothing_where_the_answer_is_the_same() {
    let engine = engine("steady").await;
    let mut config = fast_config(&[engine.url()]);
    config.introspection.interval = Duration::from_secs(1);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_trusted(1).await;
    let before = router.worker(&engine.url()).await.expect("a worker");

    router.wait_for_metric("fathom_introspections_total{kind=\"answered\"}", 3.0).await;
    let after = router.worker(&engine.url()).await.expect("a worker");
    assert_eq!((after.id, after.feeds.reopened), (before.id, 0));
    assert_eq!((after.feeds.open_sockets, after.serving_since), (1, before.serving_since));
    router.stop_and_check().await;
}

/// Seen in vllm-project/router#210.
#[actix::test]
async fn no_rank_is_named_to_an_engine_whose_ranks_the_router_does_not_know() {
    let config = |name: &str| SimConfig { name: name.to_owned(), dp_size: 4, ..SimConfig::default() };
    let [first, second] = [
        SimEngine::start(config("first")).await.expect("an engine"),
        SimEngine::start(config("second")).await.expect("an engine"),
    ];
    for engine in [&first, &second] {
        engine.set_server_info(ServerInfoMode::NotFound);
    }
    let router = RunningRouter::over(&[&first, &second]).await;

    let answers = router.chat_times(40).await;
    assert_all_succeeded(&answers);
    for engine in [&first, &second] {
        for request in engine.stats().recent {
            assert_eq!(request.header("x-data-parallel-rank"), None, "{}", engine.name());
        }
    }
    assert_eq!(names_of(&answers).len(), 2, "both engines served");
    router.stop_and_check().await;
}
