//! What requests do to a worker's health: when it is ejected for failing, and how it is tried until it serves again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fathom_router::config::{PolicyKind, RouterConfig};
use fathom_router::logic::health::WorkerState;
use fathom_router::messages::Outcome;
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use http_body_util::BodyExt;
use serde_json::json;

use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, Stub, StubAnswer, StubRequest, assert_all_succeeded, chat_body,
    engine_like, eventually, fast_config, millis, post,
};

const PATH: &str = "/v1/chat/completions";
const LONG: Duration = Duration::from_secs(600);

/// In turn, without probes, and with a cool-down that no test waits for.
fn config(urls: &[String]) -> RouterConfig {
    let mut config = fast_config(urls);
    config.policy = PolicyKind::RoundRobin;
    config.probes.interval = Duration::ZERO;
    config.health.cooldown = LONG;
    config.health.max_cooldown = LONG;
    config
}

/// An engine whose chats fail with 500 while the switch is on.
async fn failing_while(is_failing: &Rc<Cell<bool>>) -> Stub {
    let (is_failing, otherwise) = (Rc::clone(is_failing), engine_like(json!({}), "tiny"));
    Stub::start(move |request: &StubRequest| match request.path.as_str() {
        PATH if is_failing.get() => StubAnswer::Json(500, json!({"error": "the engine's own words"})),
        _ => otherwise(request),
    })
    .await
}

async fn wait_for_state(router: &RunningRouter, url: &str, state: WorkerState) {
    eventually(&format!("{url} is {}", state.name()), || async {
        (router.worker(url).await?.state == state).then_some(())
    })
    .await;
}

/// Seen in jaseci-labs/jac#8430 and duolahypercho/codex-router#139.
#[actix::test]
async fn a_worker_whose_streams_break_off_half_way_is_ejected_though_each_began_well() {
    let (mut breaking, good) = (RawEngine::start().await, Stub::start(engine_like(json!({}), "tiny")).await);
    let url = breaking.url();
    let router = RunningRouter::with(config(&[url.clone(), good.url()])).await;
    let engine = actix::spawn(async move {
        loop {
            let mut request = breaking.next_request().await;
            request.start_stream().await;
            for number in 0..3 {
                request.write_chunk(format!("data: {number}\n\n")).await;
            }
            request.reset();
        }
    });
    let client = Client::new();
    let mut num_broken = 0;
    for _ in 0..100 {
        let answer = client.open(&format!("{}{PATH}", router.url), chat_body(1, true)).await;
        assert_eq!(answer.status(), 200);
        num_broken += u64::from(answer.into_body().collect().await.is_err());
    }
    assert_eq!(num_broken, 10, "the threshold, and none after it");
    wait_for_state(&router, &url, WorkerState::Ejected).await;
    assert_eq!(router.num_ended(Outcome::BrokeOff), 10);
    assert_eq!(router.metric("fathom_worker_ejections_total{kind=\"failure_rate\"}").await, Some(1.0));
    let shown = router.shown(&url).await;
    assert!(shown["health"]["next_trial_in_ms"].as_u64().is_some_and(|pause| pause > 0), "{shown}");
    engine.abort();
    router.stop().await;
}

/// Seen in sgl-project/sglang#31206.
#[actix::test]
async fn a_burst_at_a_worker_on_probation_brings_one_trial_at_a_time_and_enough_of_them_let_it_serve() {
    let (mut tried, good) = (RawEngine::start().await, Stub::start(engine_like(json!({}), "tiny")).await);
    let url = tried.url();
    let mut config = config(&[url.clone(), good.url()]);
    config.health.min_requests = 1;
    config.health.cooldown = millis(100);
    config.health.probation_successes = 2;
    config.introspection.interval = LONG;
    let router = RunningRouter::with(config).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(RawClient::connect(&router.url).await);
        clients.last_mut().unwrap().write(post(PATH, "{}")).await;
    }
    tried.next_request().await.answer("HTTP/1.1 500 Internal Server Error", "{}").await;
    wait_for_state(&router, &url, WorkerState::Probation).await;
    assert_eq!(router.metric("fathom_workers{state=\"probation\"}").await, Some(1.0));

    // A burst: one of them is the trial, and waits as long as the engine takes.
    let num_before = good.requests_to(PATH).len();
    let burst = join_all((0..20).map(|_| router.chat()));
    let engine = async {
        let trial = tried.next_request().await;
        eventually("the others have gone elsewhere", || async {
            (good.requests_to(PATH).len() == num_before + 19).then_some(())
        })
        .await;
        assert!(!tried.has_request(), "no second one comes while the first is under way");
        trial.answer("HTTP/1.1 200 OK", "{}").await;
    };
    let (answers, ()) = futures::future::join(burst, engine).await;
    assert_all_succeeded(&answers);
    assert_eq!(router.worker(&url).await.map(|worker| worker.state), Some(WorkerState::Probation), "one is not enough");
    let ((), answer) = futures::future::join(
        async { tried.next_request().await.answer("HTTP/1.1 200 OK", "{}").await },
        router.chat(),
    )
    .await;
    assert_eq!(answer.status, 200);
    wait_for_state(&router, &url, WorkerState::Serving).await;
    router.stop().await;
}

#[actix::test]
async fn a_trial_whose_client_leaves_is_given_back() {
    let (mut tried, good) = (RawEngine::start().await, Stub::start(engine_like(json!({}), "tiny")).await);
    let mut config = config(&[tried.url(), good.url()]);
    config.health.min_requests = 1;
    config.health.cooldown = millis(100);
    let router = RunningRouter::with(config).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(RawClient::connect(&router.url).await);
        clients.last_mut().unwrap().write(post(PATH, "{}")).await;
    }
    tried.next_request().await.answer("HTTP/1.1 500 Internal Server Error", "{}").await;
    wait_for_state(&router, &tried.url(), WorkerState::Probation).await;
    for _ in 0..3 {
        let mut client = RawClient::connect(&router.url).await;
        client.write(post(PATH, "{}")).await;
        let trial = tried.next_request().await;
        client.leave();
        trial.peer_is_gone().await;
        router.wait_until_idle().await;
    }
    let worker = router.worker(&tried.url()).await.expect("a worker");
    assert_eq!((worker.state, worker.health.may_be_tried), (WorkerState::Probation, true));
    router.stop().await;
}

/// Seen in vllm-project/production-stack#749.
#[actix::test]
async fn a_worker_that_never_answers_slows_nobody_else_down_and_is_ejected_at_the_header_limit() {
    let otherwise = engine_like(json!({}), "tiny");
    let silent = Stub::start(move |request: &StubRequest| match request.path.as_str() {
        PATH => StubAnswer::Hang,
        _ => otherwise(request),
    })
    .await;
    let good = Stub::start(engine_like(json!({}), "tiny")).await;
    let mut config = config(&[silent.url(), good.url()]);
    config.upstream.response_header_timeout = Duration::from_secs(1);
    let router = RunningRouter::with(config).await;
    let mut answers: FuturesUnordered<_> = (0..40).map(|_| router.chat()).collect();
    let mut statuses = Vec::new();
    while let Some(answer) = answers.next().await {
        statuses.push(answer.status);
    }
    assert_eq!(statuses, [vec![200; 20], vec![504; 20]].concat(), "nobody waits for the silent one");
    drop(answers);
    wait_for_state(&router, &silent.url(), WorkerState::Ejected).await;
    assert_all_succeeded(&router.chat_times(20).await);
    assert_eq!(silent.requests_to(PATH).len(), 20, "it is left out");
    router.wait_until_idle().await;
    router.stop().await;
}

#[actix::test]
async fn with_everybody_failing_everybody_still_takes_traffic_and_returns_when_it_goes_well() {
    let is_failing = Rc::new(Cell::new(true));
    let engines = [failing_while(&is_failing).await, failing_while(&is_failing).await];
    let urls: Vec<String> = engines.iter().map(Stub::url).collect();
    let router = RunningRouter::with(config(&urls)).await;
    let answers = router.chat_times(40).await;
    assert!(answers.iter().all(|answer| answer.json()["error"] == "the engine's own words"));
    for url in &urls {
        wait_for_state(&router, url, WorkerState::Ejected).await;
    }
    let before: Vec<usize> = engines.iter().map(|engine| engine.requests_to(PATH).len()).collect();
    router.chat_times(10).await;
    for (engine, before) in engines.iter().zip(before) {
        assert!(engine.requests_to(PATH).len() >= before + 5, "traffic is spread over the least bad");
    }
    is_failing.set(false);
    let answers = join_all((0..20).map(|_| router.chat())).await;
    assert_all_succeeded(&answers);
    router.wait_until_serving(2).await;
    router.stop().await;
}
