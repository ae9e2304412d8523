//! What the engines' health path does to the workers' health, with traffic and without.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fathom_router::config::{PolicyKind, RouterConfig};
use fathom_router::logic::health::WorkerState;
use fathom_router::router::Router;
use futures::future::join_all;
use serde_json::json;

use crate::support::{
    RunningRouter, Stub, StubAnswer, StubRequest, assert_all_succeeded, engine_like, eventually, fast_config, millis,
    start_router,
};

const PATH: &str = "/v1/chat/completions";
const LONG: Duration = Duration::from_secs(600);

/// What a health path does now.
#[derive(Clone, Copy)]
enum Probed {
    With(u16),
    Slow,
}

/// An engine whose health path a test switches.
async fn engine_with(probed: &Rc<Cell<Probed>>) -> Stub {
    let (probed, otherwise) = (Rc::clone(probed), engine_like(json!({}), "tiny"));
    Stub::start(move |request: &StubRequest| match (request.path.as_str(), probed.get()) {
        ("/health", Probed::With(status)) => StubAnswer::Json(status, json!({})),
        ("/health", Probed::Slow) => StubAnswer::Hang,
        (PATH, Probed::With(503)) => StubAnswer::Json(503, json!({"error": "loading"})),
        _ => otherwise(request),
    })
    .await
}

/// Frequent probes; cool-downs that no test waits for.
fn config(urls: &[String]) -> RouterConfig {
    let mut config = fast_config(urls);
    config.policy = PolicyKind::RoundRobin;
    config.probes.interval = millis(100);
    config.probes.timeout = millis(50);
    config.health.cooldown = LONG;
    config.health.max_cooldown = LONG;
    config
}

async fn wait_for_state(router: &RunningRouter, url: &str, state: WorkerState) {
    eventually(&format!("{url} is {}", state.name()), || async {
        (router.worker(url).await?.state == state).then_some(())
    })
    .await;
}

fn probes(result: &str) -> String {
    format!("fathom_health_probes_total{{kind=\"{result}\"}}")
}

/// Seen in sgl-project/sglang#9198, rllm-org/rllm#926 and conveyordata/data-product-portal#3910.
#[actix::test]
async fn busy_workers_that_answer_their_health_path_too_late_go_on_serving_and_a_dead_one_is_out() {
    let probed = Rc::new(Cell::new(Probed::With(200)));
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(engine_with(&probed).await);
    }
    let urls: Vec<String> = engines.iter().map(Stub::url).collect();
    let mut config = config(&urls);
    // Ten probes in a row without an answer in between: a second without a request, on however busy a machine.
    config.health.probe_failures = 10;
    let router = RunningRouter::with(config).await;
    probed.set(Probed::Slow);
    eventually("each worker has been asked often enough to be ejected", || async {
        assert_all_succeeded(&router.chat_times(3).await);
        router.metric(&probes("slow")).await.filter(|count| *count >= 60.0)
    })
    .await;
    assert!(router.fleet().await.iter().all(|worker| worker.state == WorkerState::Serving));

    drop(engines.remove(0));
    eventually("the dead one is out, and nobody notices", || async {
        assert_all_succeeded(&router.chat_times(3).await);
        (router.worker(&urls[0]).await?.state == WorkerState::Ejected).then_some(())
    })
    .await;
    for url in &urls[1..] {
        assert_eq!(router.worker(url).await.map(|worker| worker.state), Some(WorkerState::Serving));
    }
    router.stop().await;
}

/// Seen in sgl-project/sglang#9198: the whole fleet was removed for being slow.
#[actix::test]
async fn a_fleet_that_is_ejected_by_probes_alone_still_takes_traffic() {
    let probed = Rc::new(Cell::new(Probed::With(200)));
    let engines = [engine_with(&probed).await, engine_with(&probed).await];
    let urls: Vec<String> = engines.iter().map(Stub::url).collect();
    let router = RunningRouter::with(config(&urls)).await;
    probed.set(Probed::Slow);
    for url in &urls {
        wait_for_state(&router, url, WorkerState::Ejected).await;
    }
    assert_eq!(router.metric("fathom_worker_ejections_total{kind=\"probes\"}").await, Some(2.0));
    assert_all_succeeded(&router.chat_times(2).await);
    router.stop().await;
}

/// Seen in sgl-project/sglang#31206.
#[actix::test]
async fn probes_alone_bring_a_worker_back_without_any_traffic() {
    let probed = Rc::new(Cell::new(Probed::With(200)));
    let (sick, other) = (engine_with(&probed).await, Stub::start(engine_like(json!({}), "tiny")).await);
    let router = RunningRouter::with(config(&[sick.url(), other.url()])).await;
    probed.set(Probed::With(500));
    wait_for_state(&router, &sick.url(), WorkerState::Ejected).await;
    probed.set(Probed::With(200));
    wait_for_state(&router, &sick.url(), WorkerState::Serving).await;
    assert_eq!(sick.requests_to(PATH).len(), 0, "no request was needed for it");
    router.stop().await;
}

/// Seen in smg-project/smg#1102.
#[actix::test]
async fn a_newcomer_that_is_still_loading_gets_nothing_until_its_health_path_says_that_it_is_ready() {
    let probed = Rc::new(Cell::new(Probed::With(503)));
    let (loading, ready) = (engine_with(&probed).await, Stub::start(engine_like(json!({}), "tiny")).await);
    let router = start_router(Router::builder().config(config(&[loading.url(), ready.url()]))).await;
    router.wait_until_serving(1).await;
    router.wait_for_metric("fathom_introspections_total{kind=\"not_ready\"}", 2.0).await;
    assert_all_succeeded(&join_all((0..100).map(|_| router.chat())).await);
    assert_eq!(loading.requests_to(PATH).len(), 0);
    let shown = router.shown(&loading.url()).await;
    assert_eq!((&shown["state"], &shown["introspection"]), (&json!("pending"), &json!("failed")));
    assert!(shown["problem"].as_str().is_some_and(|problem| problem.contains("not ready")), "{shown}");
    probed.set(Probed::With(200));
    router.wait_until_serving(2).await;
    router.stop().await;
}

#[actix::test]
async fn an_engine_without_a_health_path_is_probed_once_and_serves() {
    let (without, with) =
        (Stub::start(engine_like(json!({}), "tiny")).await, engine_with(&Rc::new(Cell::new(Probed::With(200)))).await);
    let router = RunningRouter::with(config(&[without.url(), with.url()])).await;
    router.wait_for_metric(&probes("no_path"), 1.0).await;
    let num_asked = without.requests_to("/health").len();
    let healthy = router.metric(&probes("healthy")).await.unwrap_or_default();
    router.wait_for_metric(&probes("healthy"), healthy + 3.0).await;
    assert_eq!(without.requests_to("/health").len(), num_asked, "the others' probes go on, and its own do not");
    assert_eq!(router.metric(&probes("no_path")).await, Some(1.0));
    router.wait_until_serving(2).await;
    router.stop().await;
}

#[actix::test]
async fn the_health_path_is_the_one_that_is_configured_and_an_interval_of_zero_asks_nobody() {
    let otherwise = engine_like(json!({}), "tiny");
    let engine = Stub::start(move |request: &StubRequest| match request.path.as_str() {
        "/ping" => StubAnswer::Json(200, json!({})),
        _ => otherwise(request),
    })
    .await;
    let mut pinging = config(&[engine.url()]);
    pinging.probes.path = "/ping".into();
    let router = RunningRouter::with(pinging).await;
    router.wait_for_metric(&probes("healthy"), 2.0).await;
    router.stop().await;
    let num_asked = engine.requests_to("/ping").len();
    let mut silent = config(&[engine.url()]);
    silent.probes.path = "/ping".into();
    silent.probes.interval = Duration::ZERO;
    let router = RunningRouter::with(silent).await;
    assert_all_succeeded(&router.chat_times(3).await);
    assert_eq!(engine.requests_to("/ping").len(), num_asked);
    router.stop().await;
}
