//! The wiring of one worker, with time paused. Its sockets are opened towards a port that says nothing.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::{Actor, Addr, Context, Handler};

use super::{WorkerActor, WorkerContext, WorkerSettings};
use crate::actors::gather::gather;
use crate::actors::observers::Observers;
use crate::clock;
use crate::config::{KvSettings, LoadSettings};
use crate::logic::endpoint::{Endpoint, Feed, FeedPlan, Readiness, WorkerFacts, WorkerUrl};
use crate::logic::health::{HealthRules, WorkerState};
use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::load::{RankLoad, Trust};
use crate::logic::snapshot::WorkerSnapshot;
use crate::logic::variant_board::VariantBoard;
use crate::messages::{
    Describe, Drain, Outcome, ReportLoad, ReportTrouble, RequestFinished, Reserve, RouterEvent, SetReadiness, Stop,
    Trouble, WorkerPorts,
};
use crate::telemetry::{Kind, Telemetry};

const ID: WorkerId = WorkerId::new(1);

/// Notes what it is told, in the place of the registry and of an observer.
#[derive(Default)]
struct Listener {
    heard: Arc<Mutex<Vec<String>>>,
}

impl Actor for Listener {
    type Context = Context<Self>;
}

impl Handler<ReportTrouble> for Listener {
    type Result = ();

    fn handle(&mut self, msg: ReportTrouble, _ctx: &mut Self::Context) {
        assert_eq!(msg.worker, ID);
        let Trouble::EngineUnreachable = msg.trouble else { panic!("{msg:?}") };
        self.heard.lock().unwrap().push("unreachable".to_owned());
    }
}

impl Handler<RouterEvent> for Listener {
    type Result = ();

    fn handle(&mut self, event: RouterEvent, _ctx: &mut Self::Context) {
        let heard = match event {
            RouterEvent::WorkerStateChanged { worker: ID, from, to, .. } => format!("{} -> {}", from.name(), to.name()),
            RouterEvent::Finished { decision, worker: ID, outcome } => {
                format!("{} {}", decision.number(), outcome.name())
            }
            other => panic!("{other:?}"),
        };
        self.heard.lock().unwrap().push(heard);
    }
}

/// A worker with everything around it.
struct Bench {
    worker: Addr<WorkerActor>,
    ports: Arc<[Arc<WorkerPorts>]>,
    telemetry: Telemetry,
    heard: Arc<Mutex<Vec<String>>>,
    // Observers are not kept alive by those who tell them.
    _listener: Addr<Listener>,
}

impl Bench {
    fn start() -> Self {
        tokio::time::pause();
        let listener = Listener::default();
        let heard = Arc::clone(&listener.heard);
        let listener = listener.start();
        let telemetry = Telemetry::new();
        let context = WorkerContext::new(
            WorkerSettings { load: LoadSettings::default(), kv: KvSettings::default(), health: HealthRules::default() },
            listener.clone().recipient(),
            Observers::new(vec![listener.clone().recipient()]),
            telemetry.clone(),
            VariantBoard::default(),
        );
        let endpoint = Endpoint::new(WorkerUrl::parse("http://127.0.0.1:1").unwrap());
        let worker = WorkerActor::new(ID, &endpoint, context).start();
        let ports = WorkerPorts::new(ID, &endpoint, &worker).with_report_load(worker.clone().recipient());
        Self { worker, ports: Arc::from([Arc::new(ports)]), telemetry, heard, _listener: listener }
    }

    async fn send<M>(&self, message: M)
    where
        M: actix::Message<Result = ()> + Send + 'static,
        WorkerActor: Handler<M>,
    {
        self.worker.send(message).await.unwrap();
    }

    async fn reserve(&self, number: u64) {
        self.send(Reserve { decision: DecisionId::new(number), rank: None, prompt: None }).await;
    }

    async fn finish(&self, number: u64, outcome: Outcome) {
        self.send(RequestFinished {
            decision: DecisionId::new(number),
            outcome,
            cached_tokens: None,
            retry_after: None,
        })
        .await;
    }

    async fn report(&self, rank: u32, running: u64) {
        let load = RankLoad { running, ..RankLoad::default() };
        self.send(ReportLoad { rank: DpRank::new(rank), load }).await;
    }

    async fn snapshot(&self) -> Arc<WorkerSnapshot> {
        let answers = gather(Arc::clone(&self.ports), Duration::from_secs(1)).await;
        answers.into_iter().next().flatten().expect("an answer")
    }

    async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
        // The worker's timers have fired; let it act on them.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    fn num_finished(&self, outcome: Outcome) -> u64 {
        self.telemetry.requests.get_or_create(&Kind { kind: outcome.name() }).get()
    }

    async fn heard(&self) -> Vec<String> {
        tokio::task::yield_now().await;
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

/// Ports that accept connections and say nothing on them, as long as the listener lives.
fn mute_port() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn facts(port: u16, dp_size: u32) -> Arc<WorkerFacts> {
    let plan = FeedPlan { host: "127.0.0.1".into(), port_base: port, dp_size, topic: "".into() };
    Arc::new(WorkerFacts {
        models: Arc::from(["tiny".into()]),
        load_feed: Feed::Planned(plan),
        ..WorkerFacts::default()
    })
}

#[actix::test]
async fn a_silent_feed_is_opened_again_after_the_freshness_window_and_then_ever_more_slowly() {
    let bench = Bench::start();
    let (_listener, port) = mute_port();
    bench.send(Describe(facts(port, 1))).await;
    assert_eq!(bench.snapshot().await.feeds.open_sockets, 1);

    let started = clock::now();
    let mut reopened_at = Vec::new();
    while clock::now() < started + Duration::from_secs(100) {
        bench.advance(Duration::from_millis(1_250)).await;
        let feeds = bench.snapshot().await.feeds;
        assert_eq!(feeds.open_sockets, 1, "never none and never two");
        if feeds.reopened as usize > reopened_at.len() {
            reopened_at.push((clock::now() - started).as_secs());
        }
    }
    assert_eq!(reopened_at, [5, 15, 35, 65, 95], "the pause doubles from 5 s up to 30 s");
    assert_eq!(bench.telemetry.feed_reopens.get(), 5);
    assert_eq!(bench.heard().await, ["pending -> serving"], "that a feed is silent says nothing of the engine");
}

#[actix::test]
async fn a_second_description_opens_nothing_twice_and_forgets_nothing() {
    let bench = Bench::start();
    let (_listener, port) = mute_port();
    bench.send(Describe(facts(port, 1))).await;
    bench.report(0, 3).await;
    let serving_since = bench.snapshot().await.serving_since;

    bench.advance(Duration::from_secs(1)).await;
    bench.send(Describe(facts(port, 1))).await;
    let snapshot = bench.snapshot().await;
    assert_eq!((snapshot.feeds.open_sockets, snapshot.feeds.reopened), (1, 0));
    assert_eq!((snapshot.load.depth(), snapshot.serving_since), (3, serving_since));
    assert_eq!(bench.heard().await, ["pending -> serving"]);
}

#[actix::test]
async fn a_worker_without_a_description_is_pending_and_has_no_socket() {
    let bench = Bench::start();
    bench.advance(Duration::from_secs(60)).await;
    let snapshot = bench.snapshot().await;
    assert_eq!((snapshot.state, snapshot.feeds.open_sockets, snapshot.feeds.reopened), (WorkerState::Pending, 0, 0));
    assert_eq!(bench.heard().await, Vec::<String>::new());
}

#[actix::test]
async fn each_reservation_counts_until_its_one_end() {
    let bench = Bench::start();
    for number in [1, 2, 3, 2] {
        bench.reserve(number).await;
    }
    assert_eq!(bench.snapshot().await.in_flight, 3);
    bench.finish(2, Outcome::Completed).await;
    bench.finish(2, Outcome::Completed).await;
    bench.finish(9, Outcome::Completed).await;
    assert_eq!(bench.snapshot().await.in_flight, 2, "a repeated end and a foreign one change nothing");
    bench.finish(1, Outcome::ClientGone).await;
    bench.finish(3, Outcome::NotSent).await;
    assert_eq!(bench.snapshot().await.in_flight, 0);

    let counted =
        [Outcome::Completed, Outcome::ClientGone, Outcome::NotSent].map(|outcome| bench.num_finished(outcome));
    assert_eq!(counted, [1, 1, 1]);
    assert_eq!(bench.heard().await, ["2 completed", "1 client_gone", "3 not_sent"]);
}

#[actix::test]
async fn a_reservation_that_is_dropped_has_ended() {
    let bench = Bench::start();
    let kept = bench.ports[0].reserve(DecisionId::new(1), None, None);
    drop(bench.ports[0].reserve(DecisionId::new(2), None, None));
    assert_eq!(bench.snapshot().await.in_flight, 1);
    kept.finish(Outcome::BrokeOff);
    assert_eq!(bench.snapshot().await.in_flight, 0);
    assert_eq!(bench.heard().await, ["2 not_sent", "1 broke_off"]);
}

#[actix::test]
async fn a_dispatch_counts_on_top_of_a_report_until_one_can_contain_it() {
    let bench = Bench::start();
    bench.report(0, 4).await;
    bench.reserve(1).await;
    assert_eq!(bench.snapshot().await.load.depth(), 5);

    bench.advance(Duration::from_millis(50)).await;
    bench.report(0, 4).await;
    assert_eq!(bench.snapshot().await.load.depth(), 5, "the engine may not have seen it yet");
    bench.advance(Duration::from_millis(1)).await;
    bench.report(0, 5).await;
    assert_eq!(bench.snapshot().await.load.depth(), 5, "it is one of the five");
    assert_eq!(bench.snapshot().await.in_flight, 1);
}

#[actix::test]
async fn load_is_trusted_for_the_freshness_window_and_stale_after_it() {
    let bench = Bench::start();
    let freshness = LoadSettings::default().freshness;
    bench.report(0, 4).await;
    bench.advance(freshness - Duration::from_millis(1)).await;
    assert_eq!(bench.snapshot().await.load.trust(clock::now(), freshness), Trust::Trusted);
    bench.advance(Duration::from_millis(1)).await;
    let stale = Trust::Stale { rank: DpRank::new(0), age: freshness };
    assert_eq!(bench.snapshot().await.load.trust(clock::now(), freshness), stale);
}

#[actix::test]
async fn a_snapshot_is_shared_until_something_changes() {
    let bench = Bench::start();
    let first = bench.snapshot().await;
    bench.advance(Duration::from_secs(1)).await;
    assert!(Arc::ptr_eq(&first, &bench.snapshot().await));
    bench.reserve(1).await;
    assert!(!Arc::ptr_eq(&first, &bench.snapshot().await));
}

#[actix::test]
async fn an_engine_that_cannot_be_reached_three_times_in_a_row_is_ejected_and_the_registry_hears_of_it() {
    let bench = Bench::start();
    let (_listener, port) = mute_port();
    bench.send(Describe(facts(port, 1))).await;
    let ends = [
        Outcome::Unreachable,
        Outcome::Unreachable,
        Outcome::Completed,
        Outcome::Unreachable,
        Outcome::ClientGone,
        Outcome::TimedOut,
        Outcome::NotSent,
        Outcome::Unreachable,
    ];
    for (number, outcome) in (1..).zip(ends) {
        bench.reserve(number).await;
        bench.finish(number, outcome).await;
    }
    assert_eq!(bench.snapshot().await.state, WorkerState::Serving, "two since the last one that reached it");
    bench.heard().await;

    bench.reserve(20).await;
    bench.finish(20, Outcome::Unreachable).await;
    assert_eq!(bench.snapshot().await.state, WorkerState::Ejected);
    assert_eq!(bench.heard().await, ["serving -> ejected", "unreachable", "20 unreachable"]);
    bench.advance(Duration::from_secs(6)).await;
    let on_probation = bench.snapshot().await;
    assert_eq!((on_probation.state, on_probation.health.may_be_tried), (WorkerState::Probation, true));
    bench.reserve(21).await;
    assert!(!bench.snapshot().await.health.may_be_tried, "the trial is under way");
    bench.finish(21, Outcome::NotSent).await;
    assert!(bench.snapshot().await.health.may_be_tried, "and is given back");
    for number in 22..25 {
        bench.reserve(number).await;
        bench.finish(number, Outcome::Completed).await;
    }
    assert_eq!(bench.snapshot().await.state, WorkerState::Serving);
    let changes: Vec<String> = bench.heard().await.into_iter().filter(|heard| heard.contains("->")).collect();
    assert_eq!(changes, ["ejected -> probation", "probation -> serving"]);
    let ejections = bench.telemetry.worker_ejections.get_or_create(&Kind { kind: "unreachable" }).get();
    assert_eq!(ejections, 1);
}

#[actix::test]
async fn a_readiness_blip_keeps_the_load_and_draining_is_for_good() {
    let bench = Bench::start();
    let (_listener, port) = mute_port();
    bench.send(Describe(facts(port, 1))).await;
    bench.report(0, 4).await;
    bench.send(SetReadiness(Readiness::Suspended)).await;
    let suspended = bench.snapshot().await;
    assert_eq!((suspended.state, suspended.load.depth(), suspended.feeds.open_sockets), (WorkerState::Suspended, 4, 1));
    bench.send(SetReadiness(Readiness::Ready)).await;
    bench.send(Drain).await;
    bench.send(SetReadiness(Readiness::Ready)).await;
    bench.send(Describe(facts(port, 1))).await;
    assert_eq!(bench.snapshot().await.state, WorkerState::Draining);
    let expected = ["pending -> serving", "serving -> suspended", "suspended -> serving", "serving -> draining"];
    assert_eq!(bench.heard().await, expected);
}

#[actix::test]
async fn a_worker_that_is_stopped_is_gone_with_its_feeds() {
    let bench = Bench::start();
    let (_listener, port) = mute_port();
    bench.send(Describe(facts(port, 1))).await;
    bench.send(Stop).await;
    tokio::task::yield_now().await;
    assert!(!bench.worker.connected());
    assert!(
        gather(Arc::clone(&bench.ports), Duration::from_secs(1)).await[0].is_none(),
        "a dropped token is an answer"
    );
}
