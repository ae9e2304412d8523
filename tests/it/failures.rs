//! Engines that fail before the first byte: who is asked instead, how often, and when they are asked again.

use std::time::Duration;

use fathom_router::logic::health::WorkerState;
use fathom_router::messages::Outcome;
use fathom_router::sim::{SimConfig, SimEngine};

use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, chat_body, engine, eventually, fast_config, millis, post,
};

const PATH: &str = "/v1/chat/completions";

/// Seen in NVIDIA-NeMo/labs-molt#42: what was cut off before an answer may have begun to run, and must not go round the fleet.
#[actix::test]
async fn a_connection_that_ends_before_an_answer_is_tried_on_one_other_worker_and_no_more() {
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(RawEngine::start().await);
    }
    let urls: Vec<String> = engines.iter().map(RawEngine::url).collect();
    let router = RunningRouter::with(fast_config(&urls)).await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post(PATH, "{}")).await;
    let mut num_asked = 0;
    while num_asked < 2 {
        let next = engines.iter_mut().map(|engine| Box::pin(engine.next_request()));
        let (request, ..) = futures::future::select_all(next).await;
        request.reset();
        num_asked += 1;
    }
    let answer = client.answer().await;
    assert_eq!(answer.first_line(), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(answer.header_values("x-fathom-error-code"), ["all_workers_failed"]);
    assert!(engines.iter().all(|engine| !engine.has_request()), "the third is not asked");
    router.wait_until_ended(Outcome::Unreachable, 2).await;
    router.wait_until_idle().await;
    router.stop().await;
}

/// Seen in smg-project/smg#2468.
#[actix::test]
async fn a_worker_that_cannot_be_reached_is_ejected_and_returns_when_its_health_path_answers_again() {
    let (lost, other) = (engine("lost").await, engine("other").await);
    let (lost_url, port) = (lost.url(), lost.port());
    let mut config = fast_config(&[lost_url.clone(), other.url()]);
    config.probes.interval = millis(100);
    config.health.cooldown = Duration::from_secs(600);
    config.health.max_cooldown = Duration::from_secs(600);
    let router = RunningRouter::with(config).await;
    lost.kill().await;
    let client = Client::new();
    let url = format!("{}{PATH}", router.url);
    eventually("the worker is ejected", || async {
        assert_eq!(client.post(&url, chat_body(1, false)).await.status, 200, "the other one serves meanwhile");
        (router.worker(&lost_url).await?.state == WorkerState::Ejected).then_some(())
    })
    .await;
    let fallbacks = router.metric("fathom_fallback_dispatches_total").await;
    assert!(fallbacks >= Some(3.0), "each failure was passed on: {fallbacks:?}");
    for _ in 0..10 {
        client.post(&url, chat_body(1, false)).await;
    }
    assert_eq!(router.metric("fathom_fallback_dispatches_total").await, fallbacks, "an ejected worker is not tried");
    router.wait_for_metric("fathom_health_probes_total{kind=\"refused\"}", 1.0).await;
    let back = SimEngine::start(SimConfig { port, ..SimConfig::default() }).await.expect("the same port");
    router.wait_until_serving(2).await;
    back.kill().await;
    router.stop().await;
}
