//! The load of engines that publish none, asked for.

use std::time::Duration;

use fathom_router::config::{LoadPollingMode, RouterConfig};
use fathom_router::logic::endpoint::{Endpoint, Secret, WorkerUrl};
use fathom_router::router::Router;
use fathom_router::sim::{LoadPaths, LoadPublishing, SimConfig, SimEngine};
use serde_json::{Value, json};

use crate::support::{
    Hold, RunningRouter, Streams, Stub, StubAnswer, assert_all_succeeded, engine_like, eventually, fast_config,
    start_router,
};

async fn silent(name: &str, load_paths: LoadPaths, dp_size: u32) -> SimEngine {
    let config = SimConfig { name: name.to_owned(), load: None, load_paths, dp_size, ..SimConfig::default() };
    SimEngine::start(config).await.expect("an engine")
}

fn polling(urls: &[String]) -> RouterConfig {
    let mut config = fast_config(urls);
    config.load_polling.mode = LoadPollingMode::Auto;
    config.load_polling.interval = Duration::from_millis(100);
    config
}

fn polls(kind: &str) -> String {
    format!("fathom_load_polls_total{{kind=\"{kind}\"}}")
}

#[actix::test]
async fn engines_of_both_kinds_are_asked_and_compared_by_their_queue() {
    let [sglang, vllm] = [silent("sglang", LoadPaths::SgLang, 2).await, silent("vllm", LoadPaths::Vllm, 1).await];
    let router = RunningRouter::with(polling(&[sglang.url(), vllm.url()])).await;
    router.wait_until_trusted(2).await;
    let shown = router.shown(&sglang.url()).await;
    assert_eq!((&shown["load"]["feed"], &shown["load"]["trust"]), (&json!("not_advertised"), &json!("trusted")));
    let sources = |shown: &Value| {
        let ranks = shown["load"]["ranks"].as_array().expect("ranks").clone();
        ranks.iter().map(|rank| rank["source"].as_str().expect("a source").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(sources(&shown), ["v1_loads", "v1_loads"]);
    let shown = router.shown(&vllm.url()).await;
    assert_eq!(sources(&shown), ["vllm_metrics"]);
    let rank = &shown["load"]["ranks"][0];
    assert_eq!((&rank["used_tokens"], rank["capacity_tokens"].is_u64()), (&json!(0), true));
    let series = format!("fathom_rank_report_source{{worker=\"{}\",rank=\"0\",source=\"vllm_metrics\"}}", vllm.url());
    assert_eq!(router.metric(&series).await, Some(1.0));

    // Work that this router did not send, and can know of only by asking.
    let around = Streams::open(&vllm.url(), 12);
    router
        .wait_until_shown(&vllm.url(), "its queue is seen", |shown| {
            shown["load"]["ranks"][0]["running"]
                .as_u64()
                .zip(shown["load"]["ranks"][0]["waiting"].as_u64())
                .is_some_and(|(running, waiting)| running + waiting == 12)
        })
        .await;
    let held = Hold::decisions(&router, 10).await;
    assert_eq!(held.count_at(&sglang.url()), 10, "{:?}", held.counts());
    assert!(held.decisions.iter().all(|decision| decision.basis.name() == "engine"));
    drop((held, around));
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_publishes_its_load_is_not_asked_and_none_is_where_it_is_switched_off() {
    let publishing = SimEngine::start(SimConfig { load: Some(LoadPublishing::default()), ..SimConfig::default() });
    let [publishing, quiet] = [publishing.await.expect("an engine"), silent("quiet", LoadPaths::SgLang, 1).await];
    let router = RunningRouter::with(polling(&[publishing.url(), quiet.url()])).await;
    router.wait_until_trusted(2).await;
    router.wait_for_metric(&polls("told"), 3.0).await;
    assert_eq!(publishing.stats().num_requests("/v1/loads"), 0);
    assert_eq!(router.shown(&publishing.url()).await["load"]["ranks"][0]["source"], "zmq_stat");
    router.stop_and_check().await;

    let asked = quiet.stats().num_requests("/v1/loads");
    let mut config = polling(&[quiet.url()]);
    config.load_polling.mode = LoadPollingMode::Off;
    let router = RunningRouter::with(config).await;
    assert_all_succeeded(&router.chat_times(20).await);
    assert_eq!(quiet.stats().num_requests("/v1/loads"), asked);
    assert_eq!(router.shown(&quiet.url()).await["load"]["trust"], "unreported");
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_does_not_answer_holds_nobody_up_and_is_asked_one_question_at_a_time() {
    let quick = silent("quick", LoadPaths::SgLang, 1).await;
    let like_an_engine = engine_like(json!({"served_model_name": "tiny"}), "tiny");
    let slow = Stub::start(move |request| match request.path.as_str() {
        "/v1/loads?include=core" => StubAnswer::Hang,
        _ => like_an_engine(request),
    })
    .await;
    let router = RunningRouter::with(polling(&[slow.url(), quick.url()])).await;
    router.wait_for_metric(&polls("told"), 10.0).await;
    assert_eq!(slow.requests_to("/v1/loads?include=core").len(), 1, "the first question is still open");
    assert_eq!(router.shown(&quick.url()).await["load"]["trust"], "trusted");
    assert_eq!(router.shown(&slow.url()).await["load"]["trust"], "unreported");
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#32070.
#[actix::test]
async fn an_answer_that_cannot_be_right_is_no_load_and_an_engine_without_either_path_is_left_alone() {
    let like_an_engine = engine_like(json!({"served_model_name": "tiny"}), "tiny");
    let wrong = Stub::start(move |request| match request.path.as_str() {
        "/v1/loads?include=core" => {
            let ranks = json!([{"dp_rank": 0, "num_running_reqs": -1, "num_waiting_reqs": 0}]);
            StubAnswer::Json(200, json!({ "loads": ranks }))
        }
        _ => like_an_engine(request),
    })
    .await;
    let none = silent("none", LoadPaths::Nowhere, 1).await;
    let router = RunningRouter::with(polling(&[wrong.url(), none.url()])).await;
    router.wait_for_metric(&polls("failed"), 5.0).await;
    router.wait_until_metric_is(&polls("no_load_there"), 2.0).await;
    for url in [wrong.url(), none.url()] {
        assert_eq!(router.shown(&url).await["load"]["trust"], "unreported", "{url}");
    }
    let stats = none.stats();
    assert_eq!((stats.num_requests("/v1/loads"), stats.num_requests("/metrics")), (1, 1));
    assert_all_succeeded(&router.chat_times(10).await);
    router.stop_and_check().await;
}

#[actix::test]
async fn each_engine_is_asked_with_its_own_key_only_and_what_it_said_grows_old() {
    let like_an_engine = |key: &'static str| {
        let like = engine_like(json!({"served_model_name": "tiny"}), "tiny");
        move |request: &crate::support::StubRequest| {
            let is_loads = request.path == "/v1/loads?include=core";
            match request.header("authorization") {
                Some(sent) if sent == key && is_loads => {
                    let ranks = json!([{"dp_rank": 0, "num_running_reqs": 1, "num_waiting_reqs": 0}]);
                    StubAnswer::Json(200, json!({ "loads": ranks }))
                }
                _ if is_loads => StubAnswer::Json(401, json!({})),
                _ => like(request),
            }
        }
    };
    let [first, second] =
        [Stub::start(like_an_engine("Bearer sk-first")).await, Stub::start(like_an_engine("Bearer sk-second")).await];
    let with_key = |url: String, key: &str| {
        let mut endpoint = Endpoint::new(WorkerUrl::parse(&url).unwrap());
        endpoint.overrides.api_key = Some(Secret::new(key));
        endpoint
    };
    let mut config = polling(&[]);
    config.load.freshness = Duration::from_millis(500);
    config.workers = vec![with_key(first.url(), "sk-first"), with_key(second.url(), "sk-second")];
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(2).await;
    router.wait_until_trusted(2).await;
    for (stub, key) in [(&first, "Bearer sk-first"), (&second, "Bearer sk-second")] {
        let asked = stub.requests_to("/v1/loads?include=core");
        assert!(asked.iter().all(|request| request.header("authorization") == Some(key)));
    }
    let url = first.url();
    drop(first);
    router.wait_until_shown(&url, "it is not trusted any more", |shown| shown["load"]["trust"] == "stale").await;
    eventually("the other one still is", || async {
        (router.shown(&second.url()).await["load"]["trust"] == "trusted").then_some(())
    })
    .await;
    router.stop_and_check().await;
}
