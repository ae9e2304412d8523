//! Limits per worker: held under a burst, refused at once with a hint, and free again when a request ends.

use std::cell::RefCell;
use std::rc::Rc;

use fathom_router::config::PolicyKind;
use fathom_router::logic::decide::NoWorker;
use fathom_router::logic::request::RequestFacts;
use fathom_router::messages::{Decision, SelectWorker};
use fathom_router::sim::{ResponseMode, SimEngine};

use crate::support::{Client, RunningRouter, chat_body, engine, eventually, fast_config};

async fn decide(router: &RunningRouter) -> Result<Decision, NoWorker> {
    router.handle.selector().send(SelectWorker { request: RequestFacts::default() }).await.expect("a selector")
}

#[actix::test]
async fn ten_thousand_requests_at_once_never_exceed_the_limit() {
    let engines = [engine("a").await, engine("b").await, engine("c").await];
    let mut config = fast_config(&engines.each_ref().map(|engine| engine.url()));
    config.caps.max_in_flight = Some(7);
    let router = RunningRouter::with(config).await;
    let decided = futures::future::join_all((0..10_000).map(|_| decide(&router))).await;
    let (placed, refused): (Vec<_>, Vec<_>) = decided.into_iter().partition(Result::is_ok);
    assert_eq!((placed.len(), refused.len()), (21, 9_979));
    assert!(refused.iter().all(|refusal| matches!(refusal, Err(NoWorker::Full))));
    for engine in &engines {
        let on_it = placed.iter().flatten().filter(|decision| decision.worker.url.as_str() == engine.url());
        assert_eq!(on_it.count(), 7);
    }
    assert!(decide(&router).await.is_err());
    drop(placed);
    router.wait_until_idle().await;
    assert!(decide(&router).await.is_ok(), "a place that was given back is free");
    router.stop().await;
}

#[actix::test]
async fn a_client_that_finds_every_worker_full_is_told_to_come_again() {
    let only = engine("a").await;
    let mut config = fast_config(&[only.url()]);
    config.caps.max_in_flight = Some(1);
    let router = RunningRouter::with(config).await;
    let held = decide(&router).await.expect("a place");
    let client = Client::new();
    let url = format!("{}/v1/chat/completions", router.url);
    let refused = client.post(&url, chat_body(1, false)).await;
    assert_eq!((refused.status, refused.header("x-fathom-error-code")), (503, "workers_full"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(router.metric("fathom_no_worker_total{kind=\"full\"}").await, Some(1.0), "each request is counted once");
    drop(held);
    router.wait_until_idle().await;
    assert_eq!(client.post(&url, chat_body(1, false)).await.status, 200);
    router.stop().await;
}

#[actix::test]
async fn requests_wait_for_room_by_priority_and_then_by_arrival() {
    let only = engine("a").await;
    let mut config = fast_config(&[only.url()]);
    config.caps.max_in_flight = Some(1);
    config.queue.max_waiting = 3;
    let router = RunningRouter::with(config).await;
    let mut held = Some(decide(&router).await.expect("a place"));
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut waiting = Vec::new();
    for (name, priority) in [("first", 0), ("second", 0), ("urgent", 7)] {
        let request = RequestFacts { priority, ..RequestFacts::default() };
        let (selector, order) = (router.handle.selector(), Rc::clone(&order));
        waiting.push(actix::spawn(async move {
            let decision = selector.send(SelectWorker { request }).await.expect("a selector").expect("a worker");
            order.borrow_mut().push(name);
            decision
        }));
        let num_waiting = waiting.len() as i64;
        eventually("it waits", || async {
            (router.handle.telemetry().queued_requests.get() == num_waiting).then_some(())
        })
        .await;
    }
    assert!(matches!(decide(&router).await, Err(NoWorker::Full)), "the queue is full as well");
    for (num_placed, next) in [(1, 2), (2, 0), (3, 1)] {
        drop(held.take());
        eventually("the next one has a place", || async { (order.borrow().len() == num_placed).then_some(()) }).await;
        held = Some(std::mem::replace(&mut waiting[next], actix::spawn(std::future::pending())).await.unwrap());
    }
    assert_eq!(*order.borrow(), ["urgent", "first", "second"]);
    router.stop().await;
}

#[actix::test]
async fn a_request_that_waited_long_enough_is_refused() {
    let only = engine("a").await;
    let mut config = fast_config(&[only.url()]);
    config.caps.max_in_flight = Some(1);
    config.queue.max_waiting = 3;
    config.queue.timeout = std::time::Duration::from_millis(20);
    let router = RunningRouter::with(config).await;
    let held = decide(&router).await.expect("a place");
    assert!(matches!(decide(&router).await, Err(NoWorker::Full)));
    assert_eq!(router.handle.telemetry().queued_requests.get(), 0);
    drop(held);
    router.stop().await;
}

#[actix::test]
async fn a_retry_goes_to_a_worker_with_room_and_to_no_other() {
    let broken = engine("broken").await;
    broken.set_response_mode(ResponseMode::Status(500, "its own words".to_owned()));
    let (first, second) = (engine("first").await, engine("second").await);
    let mut config = fast_config(&[broken.url(), first.url(), second.url()]);
    config.caps.max_in_flight = Some(1);
    config.health.failure_ratio = 0.0;
    config.policy = PolicyKind::RoundRobin;
    let router = RunningRouter::with(config).await;
    let url = format!("{}/v1/chat/completions", router.url);
    let client = Client::new();
    let place_at = async |wanted: &SimEngine| loop {
        let decision = decide(&router).await.expect("a place");
        if decision.worker.url.as_str() == wanted.url() {
            break decision;
        }
    };
    let held = place_at(&first).await;
    for _ in 0..8 {
        assert_eq!(client.post(&url, chat_body(1, false)).await.header("x-sim-engine"), "second");
    }
    let also_held = place_at(&second).await;
    let answer = client.post(&url, chat_body(1, false)).await;
    assert_eq!((answer.status, &*answer.body), (500, &b"its own words"[..]), "both others are full");
    assert!(broken.stats().num_requests("/v1/chat/completions") > 1, "it was tried first now and then");
    drop((held, also_held));
    router.stop().await;
}
