//! Each port with a foreign actor behind it, by public API only.

use std::sync::Arc;

use actix::prelude::{Actor, Context, Handler};
use fathom_router::logic::decide::NoWorker;
use fathom_router::logic::health::WorkerState;
use fathom_router::logic::ids::DecisionId;
use fathom_router::logic::price::Basis;
use fathom_router::messages::{Decision, EndpointsChanged, RouterEvent, SelectWorker, WorkerPorts, WorkersChanged};
use fathom_router::router::{Router, SelectorPorts};
use fathom_router::{Endpoint, Pick, Policy, RequestFacts, Rng, View, WorkerUrl};

use crate::support::{Client, Events, chat_body, engine, eventually, fast_config, names_of, start_router};

#[derive(Debug)]
struct LastByUrl;

impl Policy for LastByUrl {
    fn name(&self) -> &'static str {
        "last_by_url"
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, _rng: &mut Rng) -> Pick {
        let last = (0..view.len()).max_by_key(|candidate| view.snapshot(*candidate).url.clone());
        Pick::new(last.unwrap_or(0), "last")
    }
}

#[actix::test]
async fn a_policy_of_ones_own_decides_and_an_observer_is_told_all_that_led_to_it() {
    let engines = [engine("a").await, engine("b").await];
    let urls: Vec<String> = engines.iter().map(|engine| engine.url()).collect();
    let mut events = Events::record();
    let builder = Router::builder().config(fast_config(&urls)).policy(LastByUrl).subscribe(events.observer());
    let router = start_router(builder).await;
    router.wait_until_serving(2).await;
    let answer = Client::new().post(&format!("{}/v1/chat/completions", router.url), chat_body(1, false)).await;
    let last = urls.iter().max().expect("two engines");
    assert_eq!(answer.header("x-fathom-worker"), last);
    assert_eq!(answer.header("x-fathom-reason"), "last");

    let record = events
        .next(|event| if let RouterEvent::Decided(record) = event { Some(Arc::clone(record)) } else { None })
        .await;
    assert_eq!(record.id.to_string(), answer.header("x-fathom-decision-id"));
    assert_eq!((record.policy, record.reason, record.url.as_str()), ("last_by_url", "last", last.as_str()));
    assert_eq!(record.candidates.len(), 2, "every candidate is told");
    let finished =
        events.next(|event| if let RouterEvent::Finished { decision, .. } = event { Some(*decision) } else { None });
    assert_eq!(finished.await, record.id);
    router.stop().await;
}

/// Sends everything to the first worker that it was told of.
#[derive(Default)]
struct FirstWorker {
    workers: Vec<Arc<WorkerPorts>>,
}

impl Actor for FirstWorker {
    type Context = Context<Self>;
}

impl Handler<WorkersChanged> for FirstWorker {
    type Result = ();

    fn handle(&mut self, msg: WorkersChanged, _ctx: &mut Self::Context) {
        self.workers = msg.workers.to_vec();
    }
}

impl Handler<SelectWorker> for FirstWorker {
    type Result = Result<Decision, NoWorker>;

    fn handle(&mut self, msg: SelectWorker, _ctx: &mut Self::Context) -> Self::Result {
        let first = self.workers.first().ok_or(NoWorker::EmptyFleet)?;
        Ok(Decision::new(DecisionId::new(7), Arc::clone(first), &msg.request, "first", Basis::InFlight))
    }
}

#[actix::test]
async fn an_actor_of_ones_own_selects_and_the_account_is_kept_all_the_same() {
    let engines = [engine("first").await, engine("second").await];
    let urls: Vec<String> = engines.iter().map(|engine| engine.url()).collect();
    let selector = FirstWorker::default().start();
    let ports = SelectorPorts::new(selector.clone().recipient()).with_workers(selector.recipient());
    let router = start_router(Router::builder().config(fast_config(&urls)).selector(ports)).await;
    router.wait_until_serving(2).await;
    let chosen = router.members().await.remove(0).url;
    let client = Client::new();
    let url = format!("{}/v1/chat/completions", router.url);
    let answers = futures::future::join_all((0..6).map(|_| client.post(&url, chat_body(1, true)))).await;
    assert_eq!(names_of(&answers).len(), 1);
    assert!(answers.iter().all(|answer| answer.header("x-fathom-worker") == chosen.as_str()));
    assert!(answers.iter().all(|answer| answer.header("x-fathom-decision-id") == "0000000000000007"));
    router.wait_until_idle().await;
    router.stop().await;
}

/// Sends one set as soon as it starts.
struct OneSet {
    endpoints: Vec<Endpoint>,
    registry: actix::Recipient<EndpointsChanged>,
}

impl Actor for OneSet {
    type Context = Context<Self>;

    fn started(&mut self, _ctx: &mut Self::Context) {
        let set = EndpointsChanged { source: Arc::from("own"), endpoints: std::mem::take(&mut self.endpoints) };
        self.registry.try_send(set).expect("room in the registry's mailbox");
    }
}

#[actix::test]
async fn a_discovery_actor_of_ones_own_adds_to_the_static_list() {
    let (fixed, found) = (engine("fixed").await, engine("found").await);
    let endpoints = vec![Endpoint::new(WorkerUrl::parse(&found.url()).unwrap())];
    let builder = Router::builder().config(fast_config(&[fixed.url()])).discovery(move |registry| {
        OneSet { endpoints, registry }.start();
    });
    let router = start_router(builder).await;
    router.wait_until_serving(2).await;
    let state = router.worker(&found.url()).await.map(|worker| worker.state);
    assert_eq!(state, Some(WorkerState::Serving));
    router.stop().await;
}

/// An observer with no room, which never reads: its first event keeps it busy for ever.
struct Stuck;

impl Actor for Stuck {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1);
    }
}

impl Handler<RouterEvent> for Stuck {
    type Result = actix::AtomicResponse<Self, ()>;

    fn handle(&mut self, _event: RouterEvent, _ctx: &mut Self::Context) -> Self::Result {
        actix::AtomicResponse::new(Box::pin(actix::fut::wrap_future(std::future::pending())))
    }
}

#[actix::test]
async fn an_observer_that_does_not_read_misses_events_and_slows_nobody() {
    let engine = engine("a").await;
    let stuck = Stuck.start();
    let builder = Router::builder().config(fast_config(&[engine.url()])).subscribe(stuck.recipient());
    let router = start_router(builder).await;
    router.wait_until_serving(1).await;
    let client = Client::new();
    for _ in 0..50 {
        let answer = client.post(&format!("{}/v1/chat/completions", router.url), chat_body(1, false)).await;
        assert_eq!(answer.status, 200);
    }
    eventually("misses are counted", || async {
        (router.metric("fathom_observer_misses_total").await >= Some(50.0)).then_some(())
    })
    .await;
    router.stop().await;
}
