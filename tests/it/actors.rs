//! Workers, policies and rounds that misbehave, and what the others notice of it.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use actix::prelude::Arbiter;
use fathom_router::logic::policy::{Pick, Policy, View};
use fathom_router::logic::round::Token;
use fathom_router::logic::snapshot::WorkerSnapshot;
use fathom_router::messages::{Decision, SelectWorker};
use fathom_router::router::{Router, RouterBuilder};
use fathom_router::sim::{ResponseMode, SimConfig, SimEngine};
use fathom_router::telemetry::Kind;
use fathom_router::{RequestFacts, Rng};
use futures::future::join_all;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::support::{
    FakeWorker, Hold, RunningRouter, Streams, Switch, assert_all_succeeded, engine, eventually, fast_config,
    first_worker_at, millis, names_of, start_router, within_reason,
};

async fn three_engines() -> [SimEngine; 3] {
    [engine("first").await, engine("second").await, engine("third").await]
}

/// A router over the engines whose first worker keeps its tokens once the switch is on, and that worker's address.
async fn with_one_that_can_fall_silent(engines: &[SimEngine]) -> (RunningRouter, Switch, String) {
    let (switch, url) = (Switch::default(), engines[0].url());
    let hangs = switch.clone();
    let factory = first_worker_at(url.clone(), move |id, endpoint| {
        let mut kept = Vec::new();
        FakeWorker::start_here(id, endpoint, hangs.answering(move |token, _| kept.push(token)))
    });
    let mut config = fast_config(&urls(engines));
    config.round_deadline = millis(200);
    let router = start_router(Router::builder().config(config).worker_factory(factory)).await;
    router.wait_until_serving(3).await;
    (router, switch, url)
}

fn urls(engines: &[SimEngine]) -> Vec<String> {
    engines.iter().map(SimEngine::url).collect()
}

fn replacements(router: &RunningRouter, cause: &'static str) -> u64 {
    router.handle.telemetry().worker_replacements.get_or_create(&Kind { kind: cause }).get()
}

/// Sends requests, all of which must succeed, until the worker at the address was replaced for that cause.
async fn serve_until_replaced(router: &RunningRouter, cause: &'static str) {
    eventually(&format!("the worker is replaced as {cause}"), || async {
        assert_all_succeeded(&router.chat_times(5).await);
        (replacements(router, cause) > 0).then_some(())
    })
    .await;
}

#[actix::test]
async fn a_worker_that_panics_costs_no_request_and_is_replaced() {
    let engines = three_engines().await;
    let (switch, url) = (Switch::default(), engines[0].url());
    let panics = switch.clone();
    let factory = first_worker_at(url.clone(), move |id, endpoint| {
        FakeWorker::start_here(
            id,
            endpoint,
            panics.answering(|_token, _| panic!("a worker of the test panics on purpose")),
        )
    });
    let router = start_router(Router::builder().config(fast_config(&urls(&engines))).worker_factory(factory)).await;
    router.wait_until_serving(3).await;
    let old = router.worker(&url).await.expect("a worker").id;

    switch.turn_on();
    let answers = join_all((0..20).map(|_| router.chat())).await;
    assert_all_succeeded(&answers);
    assert_eq!(names_of(&answers).get("first"), None, "it was no candidate any more");
    serve_until_replaced(&router, "dead").await;
    assert_eq!(switch.num_asked(), 1, "it died of the first question");
    router.wait_until_serving(3).await;
    let new = router.worker(&url).await.expect("a worker");
    assert!(new.id > old, "{} after {old}", new.id);
    assert_eq!(new.facts.models.len(), 1, "what its engine had said is known already");
    assert_eq!(replacements(&router, "dead"), 1);
    router.stop_and_check().await;
}

#[actix::test]
async fn a_worker_that_never_answers_costs_one_deadline_and_is_replaced() {
    let engines = three_engines().await;
    let (router, switch, url) = with_one_that_can_fall_silent(&engines).await;
    let old = router.worker(&url).await.expect("a worker").id;

    switch.turn_on();
    serve_until_replaced(&router, "unresponsive").await;
    assert_eq!(switch.num_asked(), 1, "no later round has waited for it");
    assert!(router.handle.telemetry().round_misses.get() >= 1);
    router.wait_until_serving(3).await;
    assert_ne!(router.worker(&url).await.expect("a worker").id, old);
    router.stop_and_check().await;
}

#[actix::test]
async fn a_worker_whose_thread_is_blocked_costs_one_deadline_and_is_replaced() {
    let engines = three_engines().await;
    let (switch, url) = (Switch::default(), engines[0].url());
    let arbiter = Arbiter::new();
    let (release, blocked) = mpsc::channel::<()>();
    let (blocks, blocked, thread) = (switch.clone(), Arc::new(Mutex::new(blocked)), arbiter.handle());
    let factory = first_worker_at(url.clone(), move |id, endpoint| {
        let blocked = Arc::clone(&blocked);
        let block = move |_token: Token, _| drop(blocked.lock().map(|blocked| blocked.recv()));
        FakeWorker::start_on(&thread, id, endpoint, blocks.answering(block))
    });
    let mut config = fast_config(&urls(&engines));
    config.round_deadline = millis(200);
    let router = start_router(Router::builder().config(config).worker_factory(factory)).await;
    router.wait_until_serving(3).await;
    let old = router.worker(&url).await.expect("a worker").id;

    switch.turn_on();
    serve_until_replaced(&router, "unresponsive").await;
    assert!(router.handle.telemetry().round_misses.get() >= 1);
    router.wait_until_serving(3).await;
    assert_ne!(router.worker(&url).await.expect("a worker").id, old);

    // Its thread goes on at last, with a question of long ago and the order to stop.
    drop(release);
    assert_all_succeeded(&router.chat_times(10).await);
    assert_eq!(router.members().await.len(), 3);
    router.stop_and_check().await;
    arbiter.stop();
    arbiter.join().expect("the thread of the worker ends");
}

/// Tokens that a fake worker hands over instead of answering, each with what it would have said.
type Questions = UnboundedReceiver<(Token, Arc<WorkerSnapshot>)>;

async fn next_question(questions: &mut Questions) -> (Token, Arc<WorkerSnapshot>) {
    within_reason("the worker is asked", questions.recv()).await.expect("a worker")
}

fn one_worker_asked_by_hand(url: &str) -> (RouterBuilder, Questions) {
    let (send, questions) = unbounded_channel();
    let factory = first_worker_at(url.to_owned(), move |id, endpoint| {
        let send = send.clone();
        FakeWorker::start_here(id, endpoint, move |token, snapshot| drop(send.send((token, snapshot))))
    });
    let mut config = fast_config(&[]);
    config.round_deadline = Duration::from_secs(1);
    (Router::builder().config(config).worker_factory(factory), questions)
}

fn any_request() -> SelectWorker {
    SelectWorker { request: RequestFacts::default() }
}

#[actix::test]
async fn a_request_is_served_only_by_a_round_that_started_after_it_arrived_and_one_round_serves_all_that_wait() {
    let engine = engine("e").await;
    let (builder, mut questions) = one_worker_asked_by_hand(&engine.url());
    let router = start_router(builder).await;
    router.announce("test", &[&engine.url()]).await;
    let selector = router.handle.selector();

    let first = selector.send(any_request());
    let (token, snapshot) = next_question(&mut questions).await;
    // Sent while the first round is open: messages are on their way as soon as they are sent, polled or not.
    let second = actix::spawn(selector.send(any_request()));
    let third = actix::spawn(selector.send(any_request()));
    assert!(questions.try_recv().is_err(), "one round at a time");
    token.fill(snapshot);
    let first = first.await.expect("a selector").expect("a worker");

    let (token, snapshot) = next_question(&mut questions).await;
    assert!(!second.is_finished() && !third.is_finished(), "the first round had begun before they came");
    assert_eq!(snapshot.in_flight, 1, "what the first round decided is known to the second");
    token.fill(snapshot);
    let [second, third] = [second, third].map(|waiting| async { waiting.await.unwrap().unwrap().expect("a worker") });
    let decided: [Decision; 3] = [first, second.await, third.await];
    assert_eq!(router.handle.telemetry().rounds.get(), 2);
    assert!(questions.try_recv().is_err(), "and nobody was asked a third time");
    drop(decided);
    router.stop_and_check().await;
}

#[actix::test]
async fn a_worker_that_answers_late_is_asked_again_and_stays() {
    let engines = [engine("late").await, engine("prompt").await];
    let (send, mut questions) = unbounded_channel();
    let (switch, url) = (Switch::default(), engines[0].url());
    let is_late = switch.clone();
    let factory = first_worker_at(url.clone(), move |id, endpoint| {
        let send = send.clone();
        FakeWorker::start_here(
            id,
            endpoint,
            is_late.answering(move |token, snapshot| drop(send.send((token, snapshot)))),
        )
    });
    let mut config = fast_config(&urls(&engines));
    config.round_deadline = millis(50);
    let router = start_router(Router::builder().config(config).worker_factory(factory)).await;
    router.wait_until_serving(2).await;
    let selector = router.handle.selector();

    switch.turn_on();
    let first = selector.send(any_request()).await.unwrap().expect("a worker");
    assert_eq!(first.worker.url.as_str(), engines[1].url(), "only the other one had answered by the deadline");
    let (late, snapshot) = next_question(&mut questions).await;
    let second = selector.send(any_request()).await.unwrap().expect("a worker");
    assert_eq!((second.worker.url.as_str(), switch.num_asked()), (engines[1].url().as_str(), 1), "nobody waits for it");

    late.fill(snapshot);
    let third = selector.send(any_request());
    let (token, snapshot) = next_question(&mut questions).await;
    token.fill(snapshot);
    let third = third.await.unwrap().expect("a worker");
    assert_eq!(third.worker.url.as_str(), url, "two requests are at the other one");
    let replaced = ["dead", "unresponsive"].map(|cause| replacements(&router, cause));
    assert_eq!(replaced, [0, 0]);
    drop((first, second, third));
    router.stop_and_check().await;
}

#[actix::test]
async fn a_worker_that_does_not_answer_is_shown_as_such_beside_the_others() {
    let engines = three_engines().await;
    let (router, switch, url) = with_one_that_can_fall_silent(&engines).await;

    switch.turn_on();
    let shown = router.shown(&url).await;
    assert_eq!(
        (&shown["state"], &shown["in_flight"], &shown["load"]),
        (&json!("unresponsive"), &json!(null), &json!(null))
    );
    assert_eq!(router.shown(&engines[1].url()).await["state"], "serving");
    assert_eq!(router.metric("fathom_workers{state=\"unresponsive\"}").await, Some(1.0));
    assert_eq!(router.metric("fathom_workers{state=\"serving\"}").await, Some(2.0));
    router.stop_and_check().await;
}

#[derive(Debug)]
struct Faulty(fn(&View<'_>) -> Pick);

impl Policy for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, _rng: &mut Rng) -> Pick {
        (self.0)(view)
    }
}

#[actix::test]
async fn a_policy_that_fails_is_counted_and_the_least_loaded_worker_is_taken() {
    type Row = (&'static str, fn(&View<'_>) -> Pick);
    let rows: [Row; 2] = [
        ("policy_panicked", |_| panic!("a policy of the test panics on purpose")),
        ("pick_out_of_range", |view| Pick::new(view.len(), "beyond")),
    ];
    for (reason, pick) in rows {
        let engines = [engine("busy").await, engine("idle").await];
        let builder = Router::builder().config(fast_config(&urls(&engines))).policy(Faulty(pick));
        let router = start_router(builder).await;
        router.wait_until_trusted(2).await;
        let around = Streams::open(&engines[0].url(), 6);
        let sentence = "its load is seen";
        router.wait_until_shown(&engines[0].url(), sentence, |shown| shown["load"]["depth"].as_u64() >= Some(6)).await;

        let answers = router.chat_times(10).await;
        assert_all_succeeded(&answers);
        assert_eq!(names_of(&answers)["idle"], 10, "{reason}");
        assert!(answers.iter().all(|answer| answer.header("x-fathom-reason") == reason), "{reason}");
        assert_eq!(router.metric("fathom_policy_faults_total").await, Some(10.0), "{reason}");
        drop(around);
        router.stop_and_check().await;
    }
}

/// Seen in smg-project/smg#1714 and vllm-project/router#198.
#[actix::test]
async fn a_burst_over_idle_workers_is_split_evenly_with_and_without_reported_load() {
    for load in [Some(fathom_router::sim::LoadPublishing::default()), None] {
        let mut engines = Vec::new();
        for number in 0..4 {
            let config = SimConfig { name: format!("e{number}"), load: load.clone(), ..SimConfig::default() };
            engines.push(SimEngine::start(config).await.expect("an engine"));
        }
        let router = RunningRouter::over(&engines.iter().collect::<Vec<_>>()).await;
        if load.is_some() {
            router.wait_until_trusted(4).await;
        }

        let held = Hold::decisions_at_once(&router, 100).await;
        let basis = if load.is_some() { "engine" } else { "in_flight" };
        assert!(held.decisions.iter().all(|decision| decision.basis.name() == basis));
        let counts = held.counts();
        assert!(counts.len() == 4 && counts.values().all(|count| (23..=27).contains(count)), "{basis}: {counts:?}");
        drop(held);
        router.wait_until_idle().await;
        router.stop_and_check().await;
    }
}

/// Seen in smg-project/smg#1714.
#[actix::test]
async fn requests_count_from_their_decision_on_and_not_from_the_first_byte_of_their_answers() {
    let mut engines = Vec::new();
    for number in 0..4 {
        let engine = engine(&format!("e{number}")).await;
        engine.set_response_mode(ResponseMode::HangBeforeHeaders);
        engines.push(engine);
    }
    let router = RunningRouter::over(&engines.iter().collect::<Vec<_>>()).await;
    let held = |engine: &SimEngine| engine.stats().running + engine.stats().waiting;
    let mut streams = Vec::new();
    for sent in 1..=40 {
        streams.push(Streams::open(&router.url, 1));
        eventually("the request has reached an engine", || async {
            (engines.iter().map(held).sum::<u64>() == sent).then_some(())
        })
        .await;
    }
    let counts: Vec<u64> = engines.iter().map(held).collect();
    assert!(counts.iter().all(|count| (8..=12).contains(count)), "{counts:?}");
    drop(streams);
    router.wait_until_idle().await;
    router.stop_and_check().await;
}

/// Seen in vllm-project/router#215.
#[actix::test]
async fn a_request_that_is_cancelled_before_its_answer_leaves_no_reservation() {
    let engines = three_engines().await;
    let router = RunningRouter::over(&engines.iter().collect::<Vec<_>>()).await;
    let selector = router.handle.selector();

    let mut kept = Vec::new();
    for number in 0..200 {
        let asked = selector.send(any_request());
        if number % 4 == 0 {
            kept.push(asked);
        }
        // The others are dropped here: before, during or after the round that would have served them.
    }
    let decided: Vec<Decision> =
        join_all(kept).await.into_iter().map(|asked| asked.unwrap().expect("a worker")).collect();
    eventually("only the requests that somebody waits for are in flight", || async {
        let in_flight: u32 = router.fleet().await.iter().map(|worker| worker.in_flight).sum();
        (in_flight as usize == decided.len()).then_some(())
    })
    .await;
    drop(decided);
    router.wait_until_idle().await;
    router.stop_and_check().await;
}
