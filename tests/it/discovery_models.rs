//! `GET /v1/models`: what the engines list, as they list it, whether or not they can be asked now.

use std::time::Duration;

use fathom_router::router::Router;
use fathom_router::sim::{ServerInfoMode, SimConfig, SimEngine};
use serde_json::{Value, json};

use crate::support::{
    Client, RunningRouter, Stub, StubAnswer, StubRequest, fast_config, not_found, start_router, within_reason,
};

async fn engine_serving(model: &str, max_model_len: u64) -> SimEngine {
    let config = SimConfig { name: model.to_owned(), model: model.to_owned(), max_model_len, ..SimConfig::default() };
    SimEngine::start(config).await.expect("an engine")
}

async fn listed(router: &RunningRouter) -> Vec<Value> {
    let answer = Client::new().get(&format!("{}/v1/models", router.url)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["object"], "list");
    answer.json()["data"].as_array().expect("a list of models").clone()
}

/// Seen in vllm-project/production-stack#892.
#[actix::test]
async fn the_models_of_all_workers_are_listed_with_every_field_that_their_engines_gave() {
    let adapter = json!({
        "id": "lora-a", "object": "model", "created": 1, "owned_by": "team", "root": "tiny", "parent": "tiny",
        "permission": [{"id": "modelperm-1", "allow_sampling": true}], "max_model_len": 2048,
        "vendor": {"nested": [1, 2.5, null, "Ä"]}, "large": 12_345_678_901_234_567_890_u64,
    });
    let own = adapter.clone();
    let stub = Stub::start(move |request: &StubRequest| match request.path.as_str() {
        "/server_info" => StubAnswer::Json(200, json!({"served_model_name": "lora-a"})),
        "/v1/models" => StubAnswer::Json(200, json!({"object": "list", "data": [own.clone()]})),
        _ => not_found(),
    })
    .await;
    let engine = engine_serving("tiny", 4096).await;
    let router = start_router(Router::builder().config(fast_config(&[stub.url(), engine.url()]))).await;
    router.wait_until_serving(2).await;

    let listed = listed(&router).await;
    let direct = Client::new().get(&format!("{}/v1/models", engine.url())).await.json()["data"][0].clone();
    assert_eq!(listed, [adapter, direct], "sorted by id, and nothing is missing");
    router.stop_and_check().await;
}

/// Seen in vllm-project/production-stack#892.
#[actix::test]
async fn where_workers_differ_in_a_models_limit_the_smallest_is_listed() {
    let [large, small, middle] =
        [engine_serving("tiny", 8192).await, engine_serving("tiny", 1024).await, engine_serving("tiny", 4096).await];
    let router = RunningRouter::over(&[&large, &small, &middle]).await;

    let listed = listed(&router).await;
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["id"], &listed[0]["max_model_len"]), (&json!("tiny"), &json!(1024)));
    assert_eq!(router.shown_workers().await.len(), 3);
    router.stop_and_check().await;
}

/// Seen in vllm-project/router#135.
#[actix::test]
async fn models_are_listed_from_what_is_known_while_an_engine_is_down_or_hangs() {
    let gone = engine_serving("gone", 1024).await;
    let gone_url = gone.url();
    gone.kill().await;
    let hangs = engine_serving("hangs", 1024).await;
    hangs.set_server_info(ServerInfoMode::Hang);
    let serves = engine_serving("serves", 1024).await;
    let mut config = fast_config(&[gone_url, hangs.url(), serves.url()]);
    config.introspection.attempt_timeout = Duration::from_secs(60);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;

    let asked_before = serves.stats().num_requests("/v1/models");
    for _ in 0..20 {
        let listed = within_reason("the models are listed", listed(&router)).await;
        assert_eq!(listed.iter().map(|model| &model["id"]).collect::<Vec<_>>(), ["serves"]);
    }
    assert_eq!(serves.stats().num_requests("/v1/models"), asked_before, "no engine is asked for a list");

    // Down after it had answered: what it said is still known until requests show otherwise.
    serves.kill().await;
    assert_eq!(within_reason("the models are listed", listed(&router)).await.len(), 1);
    router.stop_and_check().await;
}
