//! Workers that come and go: what is left of them, what a successor inherits, and what clients notice.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fathom_router::logic::endpoint::{Endpoint, Readiness, WorkerUrl};
use fathom_router::logic::health::WorkerState;
use fathom_router::messages::{EndpointsChanged, RouterEvent};
use fathom_router::router::Router;
use fathom_router::sim::{FeedStop, LoadPublishing, Reported, SimConfig, SimEngine};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, Events, Hold, RunningRouter, Streams, assert_all_succeeded, chat_body, engine, eventually,
    fast_config, in_own_process, millis, names_of, start_router,
};

/// Descriptors that may be open beyond those at the start: connections that are just being closed, and what the runtime opens
/// once and keeps.
const SLACK: usize = 12;
const NUM_CYCLES: usize = 1_000;

fn num_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list of open descriptors").count()
}

fn num_threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("a list of threads").count()
}

fn serves(event: &RouterEvent) -> Option<()> {
    matches!(event, RouterEvent::WorkerStateChanged { to: WorkerState::Serving, .. }).then_some(())
}

fn is_removed(event: &RouterEvent) -> Option<()> {
    matches!(event, RouterEvent::WorkerRemoved { .. }).then_some(())
}

/// Seen in ai-dynamo/dynamo#11730.
#[actix::test]
async fn a_thousand_workers_that_came_and_went_have_left_nothing_open() {
    if in_own_process("churn::a_thousand_workers_that_came_and_went_have_left_nothing_open").is_some() {
        return;
    }
    let engine = SimEngine::start(SimConfig { dp_size: 2, ..SimConfig::default() }).await.expect("an engine");
    let mut events = Events::record();
    let builder = Router::builder().config(fast_config(&[])).subscribe(events.observer());
    let router = start_router(builder).await;
    let (url, cycle) = (engine.url(), async |events: &mut Events| {
        router.announce("churn", &[&engine.url()]).await;
        events.next(serves).await;
        router.announce("churn", &[]).await;
        events.next(is_removed).await;
    });
    for _ in 0..5 {
        cycle(&mut events).await;
    }
    router.announce("churn", &[&url]).await;
    router.wait_until_trusted(1).await;
    assert_eq!(router.shown(&url).await["load"]["open_sockets"], 2, "what is churned has sockets");
    router.announce("churn", &[]).await;
    let (descriptors, threads) = (settled(num_descriptors).await, num_threads());

    let mut most = 0;
    for _ in 0..NUM_CYCLES {
        cycle(&mut events).await;
        most = most.max(num_descriptors());
    }
    eventually(&format!("no more than {descriptors} + {SLACK} descriptors are open"), || async {
        (num_descriptors() <= descriptors + SLACK).then_some(())
    })
    .await;
    assert!(
        most < descriptors + NUM_CYCLES / 2,
        "{most} descriptors were open at a time, they are not closed promptly"
    );
    eventually(&format!("no more than {threads} + 4 threads run"), || async {
        (num_threads() <= threads + 4).then_some(())
    })
    .await;
    assert!(router.members().await.is_empty());
    assert_eq!(router.metric("fathom_observer_misses_total").await, Some(0.0));
    router.stop_and_check().await;
}

/// Each opening takes the place of the one before it.
#[actix::test]
async fn feeds_that_are_opened_again_and_again_keep_no_socket_of_before() {
    if in_own_process("churn::feeds_that_are_opened_again_and_again_keep_no_socket_of_before").is_some() {
        return;
    }
    let load = Some(LoadPublishing { heartbeat: millis(50), ..LoadPublishing::default() });
    let config = SimConfig { dp_size: 16, load, ..SimConfig::default() };
    let engine = SimEngine::start(config).await.expect("an engine");
    let mut config = fast_config(&[engine.url()]);
    config.load.freshness = millis(500);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_trusted(1).await;
    let descriptors = settled(num_descriptors).await;

    engine.stop_publishing(FeedStop::Silence);
    router.wait_for_metric("fathom_feed_reopens_total", 2.0 * 16.0).await;
    eventually(&format!("no more than {descriptors} + {SLACK} descriptors are open"), || async {
        (num_descriptors() <= descriptors + SLACK).then_some(())
    })
    .await;
    assert_eq!(router.shown(&engine.url()).await["load"]["open_sockets"], 16);
    router.stop_and_check().await;
}

/// Returns the value when it has stayed the same for a while.
async fn settled(measure: impl Fn() -> usize) -> usize {
    let last = Cell::new((measure(), 0));
    eventually("the measure has settled", || async {
        let (value, num_same) = last.get();
        let now = measure();
        last.set(if now == value { (value, num_same + 1) } else { (now, 0) });
        (num_same > 40).then_some(value)
    })
    .await
}

/// Seen in ai-dynamo/dynamo#11730.
#[actix::test]
async fn workers_that_the_operator_added_and_removed_have_left_nothing_open() {
    if in_own_process("churn::workers_that_the_operator_added_and_removed_have_left_nothing_open").is_some() {
        return;
    }
    let engine = SimEngine::start(SimConfig { dp_size: 8, ..SimConfig::default() }).await.expect("an engine");
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    let (url, path) = (engine.url(), format!("/workers/{}", engine.url()));
    let cycle = async || {
        assert_eq!(router.admin("POST", "/workers", serde_json::json!({ "url": url })).await.status, 201);
        router.wait_until_serving(1).await;
        assert_eq!(router.admin("DELETE", &path, serde_json::Value::Null).await.status, 200);
    };
    for _ in 0..5 {
        cycle().await;
    }
    let (descriptors, threads) = (settled(num_descriptors).await, num_threads());
    for _ in 0..100 {
        cycle().await;
    }
    eventually(&format!("no more than {descriptors} + {SLACK} descriptors are open"), || async {
        (num_descriptors() <= descriptors + SLACK).then_some(())
    })
    .await;
    assert!(num_threads() <= threads + 8, "{threads} threads ran before");
    router.stop_and_check().await;
}

/// Seen in llm-d/llm-d-router#1738.
#[actix::test]
async fn nothing_shows_a_worker_any_more_that_was_removed() {
    let [stays, goes] = [engine("stays").await, engine("goes").await];
    let router = RunningRouter::over(&[&stays]).await;
    router.announce("other", &[&goes.url()]).await;
    router.wait_until_trusted(2).await;
    assert_all_succeeded(&router.chat_times(10).await);
    assert!(router.metrics().await.contains(&goes.url()));

    router.announce("other", &[]).await;
    let (metrics, workers) = (router.metrics().await, router.shown_workers().await);
    assert!(!metrics.contains(&goes.url()), "its series are gone");
    assert!(metrics.contains(&stays.url()));
    assert_eq!(workers.iter().map(|worker| &worker["url"]).collect::<Vec<_>>(), [&json!(stays.url())]);
    assert_eq!(router.metric("fathom_workers{state=\"serving\"}").await, Some(1.0));
    let served_before = goes.stats().num_requests("/v1/chat/completions");
    let answers = router.chat_times(20).await;
    assert_eq!(names_of(&answers)["stays"], 20);
    assert_eq!(goes.stats().num_requests("/v1/chat/completions"), served_before);
    router.stop_and_check().await;
}

async fn slow_engine(name: &str) -> SimEngine {
    let load = Some(LoadPublishing { heartbeat: millis(50), ..LoadPublishing::default() });
    let config = SimConfig { name: name.to_owned(), load, token_time: millis(100), ..SimConfig::default() };
    SimEngine::start(config).await.expect("an engine")
}

async fn wait_until_in_flight(router: &RunningRouter, url: &str, count: u32) {
    let sentence = format!("{count} requests are in flight there");
    router.wait_until_shown(url, &sentence, |shown| shown["in_flight"] == count).await;
}

/// Seen in BerriAI/litellm#40401.
#[actix::test]
async fn a_worker_that_is_added_again_inherits_nothing_and_late_ends_do_not_touch_it() {
    let [first, second] = [slow_engine("first").await, slow_engine("second").await];
    first.set_reported_load(0, Some(Reported { num_running_reqs: 3, ..Reported::default() })).unwrap();
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    router.announce("test", &[&first.url()]).await;
    router.wait_until_trusted(1).await;
    let old = router.worker(&first.url()).await.expect("a worker").id;
    let streams = Streams::open(&router.url, 5);
    wait_until_in_flight(&router, &first.url(), 5).await;

    first.stop_publishing(FeedStop::Silence);
    router.announce("test", &[]).await;
    router.announce("test", &[&first.url(), &second.url()]).await;
    router.wait_until_serving(2).await;
    let shown = router.shown(&first.url()).await;
    assert_ne!(shown["id"], json!(old.to_string()));
    assert_eq!((&shown["in_flight"], &shown["load"]["frames"]), (&json!(0), &json!(0)));
    assert_eq!((&shown["load"]["trust"], &shown["load"]["ranks"]), (&json!("incomplete"), &json!([null])));

    let held = Hold::decisions(&router, 4).await;
    assert_eq!((held.count_at(&first.url()), held.count_at(&second.url())), (2, 2));
    drop(streams);
    eventually("the engine has noticed that its old clients left", || async {
        (first.stats().aborted == 5).then_some(())
    })
    .await;
    assert_eq!(router.shown(&first.url()).await["in_flight"], 2, "the ends of requests of long ago are not its own");
    assert_in_flight_is_never_negative(&router).await;
    drop(held);
    router.wait_until_idle().await;

    let held = Hold::decisions(&router, 200).await;
    assert_eq!((held.count_at(&first.url()), held.count_at(&second.url())), (100, 100));
    let to_the_first = held.urls().iter().step_by(2).filter(|url| **url == first.url()).count();
    assert!((20..=80).contains(&to_the_first), "{to_the_first} of 100 ties went to the first");
    drop(held);
    router.stop_and_check().await;
}

async fn assert_in_flight_is_never_negative(router: &RunningRouter) {
    let metrics = router.metrics().await;
    for line in metrics.lines().filter(|line| line.starts_with("fathom_") && !line.starts_with('#')) {
        assert!(!line.rsplit(' ').next().is_some_and(|value| value.starts_with('-')), "{line}");
    }
}

/// Seen in ai-dynamo/dynamo#13513.
#[actix::test]
async fn a_worker_that_is_added_again_while_its_requests_run_is_priced_by_its_engines_report() {
    let [first, second] = [slow_engine("first").await, slow_engine("second").await];
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    router.announce("test", &[&first.url()]).await;
    router.wait_until_trusted(1).await;
    let streams = Streams::open(&router.url, 30);
    wait_until_in_flight(&router, &first.url(), 30).await;

    router.announce("test", &[]).await;
    router.announce("test", &[&first.url(), &second.url()]).await;
    router.wait_until_trusted(2).await;
    let shown = router.shown(&first.url()).await;
    assert_eq!(
        (&shown["in_flight"], &shown["load"]["depth"]),
        (&json!(0), &json!(30)),
        "the router forgot, the engine did not"
    );
    let held = Hold::decisions(&router, 25).await;
    assert_eq!(held.count_at(&second.url()), 25);
    drop((held, streams));
    router.stop_and_check().await;
}

/// Seen in smg-project/smg#2521.
#[actix::test]
async fn a_worker_goes_whichever_way_its_address_is_spelled_and_no_other_goes_with_it() {
    let [first, second] = [engine("first").await, engine("second").await];
    let (first_port, second_port) = (first.port(), second.port());
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    router.announce("test", &[&first.url(), &format!("127.0.0.1:{second_port}")]).await;
    router.wait_until_serving(2).await;
    let ids: Vec<_> = router.members().await.iter().map(|member| member.id).collect();

    let spellings = [
        format!("http://127.0.0.1:{second_port}/"),
        format!("127.0.0.1:{second_port}/"),
        format!(" HTTP://127.0.0.1:{second_port} "),
    ];
    for spelling in &spellings {
        router.announce("test", &[&first.url(), spelling]).await;
        assert_eq!(router.members().await.iter().map(|member| member.id).collect::<Vec<_>>(), ids, "{spelling:?}");
    }
    router.announce("test", &[&format!("127.0.0.1:{first_port}/")]).await;
    let left = router.members().await;
    assert_eq!(left.iter().map(|member| member.url.to_string()).collect::<Vec<_>>(), [first.url()]);

    // An address of which the other is the beginning is another worker.
    let longer = format!("http://127.0.0.1:{first_port}");
    let shorter = &longer[..longer.len() - 1];
    router.announce("other", &[shorter]).await;
    assert_eq!(router.members().await.len(), 2);
    router.announce("other", &[]).await;
    let kept = router.members().await;
    assert_eq!((kept.len(), kept[0].id), (1, left[0].id));
    router.stop_and_check().await;
}

#[actix::test]
async fn a_worker_that_is_suspended_and_resumed_keeps_what_is_known_of_it() {
    let [blinks, stays] = [engine("blinks").await, engine("stays").await];
    let router = RunningRouter::over(&[&stays]).await;
    let announce = async |readiness| {
        let mut endpoint = Endpoint::new(WorkerUrl::parse(&blinks.url()).unwrap());
        endpoint.readiness = readiness;
        let set = EndpointsChanged { source: "test".into(), endpoints: vec![endpoint] };
        router.handle.endpoints().send(set).await.expect("a registry");
    };
    announce(Readiness::Ready).await;
    router.wait_until_trusted(2).await;
    let before = router.worker(&blinks.url()).await.expect("a worker");

    announce(Readiness::Suspended).await;
    router.wait_until_shown(&blinks.url(), "it is suspended", |shown| shown["state"] == "suspended").await;
    let answers = router.chat_times(10).await;
    assert_eq!(names_of(&answers)["stays"], 10);
    let suspended = router.shown(&blinks.url()).await["load"].clone();
    assert_eq!((&suspended["trust"], &suspended["open_sockets"]), (&json!("trusted"), &json!(1)));

    announce(Readiness::Ready).await;
    router.wait_until_serving(2).await;
    let after = router.worker(&blinks.url()).await.expect("a worker");
    assert_eq!((after.id, after.feeds.reopened), (before.id, 0));
    router.stop_and_check().await;
}

/// How many answers lie between two changes of the fleet.
const ANSWERS_PER_CHANGE: usize = 8;
const NUM_CLIENTS: usize = 16;
const REQUESTS_PER_CLIENT: usize = 75;

/// The sets that the fleet goes through: some workers are gone, some suspended, and one has never been there.
fn changing_sets(engines: &[SimEngine], absent: &str) -> Vec<Vec<Endpoint>> {
    let endpoint = |engine: &SimEngine, readiness| {
        let mut endpoint = Endpoint::new(WorkerUrl::parse(&engine.url()).unwrap());
        endpoint.readiness = readiness;
        endpoint
    };
    let ready = |index: usize| endpoint(&engines[index], Readiness::Ready);
    let suspended = |index: usize| endpoint(&engines[index], Readiness::Suspended);
    let absent = || Endpoint::new(WorkerUrl::parse(absent).unwrap());
    vec![
        vec![ready(1), ready(2), ready(3)],
        vec![ready(1)],
        vec![absent(), suspended(1), ready(2)],
        vec![],
        vec![ready(3), ready(2), absent()],
        vec![ready(1), suspended(2), suspended(3)],
    ]
}

/// Seen in ai-dynamo/dynamo#2294 and vllm-project/aibrix#1131.
#[actix::test]
async fn no_request_fails_because_of_workers_that_come_and_go_while_it_is_served() {
    let mut engines = Vec::new();
    for number in 0..4 {
        let config = SimConfig { name: format!("e{number}"), dp_size: 1 + number % 2, ..SimConfig::default() };
        engines.push(SimEngine::start(config).await.expect("an engine"));
    }
    let gone = engine("gone").await;
    let absent = gone.url();
    gone.kill().await;
    // One of them stays all the time: without it there are moments in which nobody could answer.
    let router = RunningRouter::over(&[&engines[0]]).await;

    let num_answers = Rc::new(Cell::new(0_usize));
    let clients = (0..NUM_CLIENTS).map(|_| {
        let (client, url, num_answers) = (Client::new(), router.url.clone(), Rc::clone(&num_answers));
        actix::spawn(async move {
            let mut answers: Vec<Answer> = Vec::new();
            for number in 0..REQUESTS_PER_CLIENT {
                let body = chat_body(3, number % 2 == 0);
                answers.push(client.post(&format!("{url}/v1/chat/completions"), body).await);
                num_answers.set(num_answers.get() + 1);
            }
            answers
        })
    });
    let clients: Vec<_> = clients.collect();
    let sets = changing_sets(&engines, &absent);
    let num_requests = NUM_CLIENTS * REQUESTS_PER_CLIENT;
    let mut num_changes = 0;
    while num_answers.get() < num_requests {
        let set = EndpointsChanged { source: "changing".into(), endpoints: sets[num_changes % sets.len()].clone() };
        router.handle.endpoints().send(set).await.expect("a registry");
        num_changes += 1;
        let next_change = (num_changes * ANSWERS_PER_CHANGE).min(num_requests);
        eventually("clients are answered", || async { (num_answers.get() >= next_change).then_some(()) }).await;
    }

    let answers: Vec<Answer> =
        join_all(clients).await.into_iter().flat_map(|client| client.expect("a client")).collect();
    assert_eq!(answers.len(), num_requests);
    assert_all_succeeded(&answers);
    assert!(num_changes >= 100, "only {num_changes} changes");
    assert!(names_of(&answers).len() >= 3, "those that come and go did serve: {:?}", names_of(&answers));
    assert_eq!(router.metrics().await.lines().filter(|line| line.starts_with("fathom_router_errors_total")).count(), 0);
    router.wait_until_idle().await;
    router.stop_and_check().await;
}

/// An engine that goes for good while requests are on their way to it: each is decided on anew.
#[actix::test]
async fn a_request_whose_worker_vanished_after_the_decision_is_answered_by_another() {
    let [stays, vanishes] = [engine("stays").await, engine("vanishes").await];
    stays.set_reported_load(0, Some(Reported { num_running_reqs: 30, ..Reported::default() })).unwrap();
    let mut config = fast_config(&[stays.url(), vanishes.url()]);
    config.load.freshness = Duration::from_secs(600);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_trusted(2).await;
    let is_seen = |shown: &Value| shown["load"]["depth"] == 30;
    router.wait_until_shown(&stays.url(), "its load is seen", is_seen).await;
    vanishes.kill().await;

    let answers = router.chat_times(10).await;
    assert_all_succeeded(&answers);
    assert_eq!(names_of(&answers)["stays"], 10);
    assert!(router.metric("fathom_fallback_dispatches_total").await >= Some(1.0));
    router.stop_and_check().await;
}
