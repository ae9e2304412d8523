//! Decisions through the actors, every worker asked before each: `cargo bench --bench round`.
//!
//! `grouped` is the built-in selector over built-in workers: one element is one decision with its reservation and the end of it.
//! `naive` asks every worker by a message and a reply for each request by itself (`join_all`), and reserves nothing.

#![allow(missing_docs, reason = "criterion's macros write undocumented functions")]
#![allow(clippy::expect_used, reason = "a bench that cannot go on should say where")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::{Actor, Addr, Context, Handler, Message, MessageResult, Recipient};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fathom_router::actors::{Observers, SelectorActor, SelectorSettings, WorkerActor, WorkerContext, WorkerSettings};
use fathom_router::clock;
use fathom_router::config::{HealthRules, KvSettings, LoadSettings, PolicyKind, QueueSettings};
use fathom_router::logic::admission::Caps;
use fathom_router::logic::decide::{DecideRules, FrozenRound, Scratch, decide};
use fathom_router::logic::endpoint::{Endpoint, WorkerFacts, WorkerUrl};
use fathom_router::logic::ids::{DpRank, WorkerId};
use fathom_router::logic::load::{LoadView, RankLoad, RankReport};
use fathom_router::logic::policy::CacheAwareSettings;
use fathom_router::logic::price::{BasisRule, PriceRules};
use fathom_router::logic::rank_choice::RankRules;
use fathom_router::logic::request::RequestFacts;
use fathom_router::logic::role::Part;
use fathom_router::logic::snapshot::WorkerSnapshot;
use fathom_router::logic::variant_board::VariantBoard;
use fathom_router::messages::{Describe, ReportLoad, ReportTrouble, SelectWorker, WorkersChanged};
use fathom_router::telemetry::Telemetry;
use futures::future::join_all;

const NUM_RANKS: u32 = 4;
const FRESHNESS: Duration = Duration::from_secs(3_600);

struct Nobody;

impl Actor for Nobody {
    type Context = Context<Self>;
}

impl Handler<ReportTrouble> for Nobody {
    type Result = ();

    fn handle(&mut self, _msg: ReportTrouble, _ctx: &mut Self::Context) {}
}

fn price_rules() -> PriceRules {
    PriceRules { basis: BasisRule::Uniform, freshness: FRESHNESS, ramp_up: Duration::ZERO }
}

fn url(number: usize) -> WorkerUrl {
    WorkerUrl::parse(&format!("http://10.0.{}.{}:30000", number / 250, number % 250 + 1)).expect("an address")
}

/// Starts workers that have a report of every rank, and a selector over them, all on this thread.
async fn grouped(num_workers: usize) -> Recipient<SelectWorker> {
    let nobody = Nobody.start();
    let telemetry = Telemetry::new();
    let mut load = LoadSettings::default();
    load.freshness = FRESHNESS;
    let context = WorkerContext::new(
        WorkerSettings { load, kv: KvSettings::default(), health: HealthRules::default() },
        nobody.clone().recipient(),
        Observers::default(),
        telemetry.clone(),
        VariantBoard::default(),
    );
    let mut workers = Vec::new();
    for number in 0..num_workers {
        let endpoint = Endpoint::new(url(number));
        let ports = WorkerActor::start_ports(WorkerId::new(number as u64 + 1), &endpoint, context.clone());
        let facts = WorkerFacts { models: Arc::from([Arc::from("tiny")]), ..WorkerFacts::default() };
        ports.describe.send(Describe(Arc::new(facts))).await.expect("a worker");
        let report_load = ports.report_load.as_ref().expect("a port");
        for rank in 0..NUM_RANKS {
            let load = RankLoad { running: (number as u64 * 7) % 13, ..RankLoad::default() };
            report_load.send(ReportLoad { rank: DpRank::new(rank), load }).await.expect("a worker");
        }
        workers.push(Arc::new(ports));
    }
    let ranks = RankRules { freshness: FRESHNESS, cache: CacheAwareSettings::default() };
    let settings = SelectorSettings {
        ranks,
        prefill_policy: PolicyKind::LeastLoad.build(CacheAwareSettings::default()),
        decode_policy: PolicyKind::LeastLoad.build(CacheAwareSettings::default()),
        caps: Caps::default(),
        queue: QueueSettings::default(),
        price: price_rules(),
        policy: PolicyKind::CacheAwareZmq.build(CacheAwareSettings::default()),
        round_deadline: Duration::from_millis(100),
        seed: 7,
    };
    let selector = SelectorActor::new(settings, nobody.recipient(), Observers::default(), telemetry).start();
    selector.send(WorkersChanged { workers: workers.into() }).await.expect("a selector");
    selector.recipient()
}

async fn run_grouped(selector: &Recipient<SelectWorker>, num_waiting: usize, num_rounds: u64) -> Duration {
    let started = clock::now();
    for _ in 0..num_rounds {
        let asked = (0..num_waiting).map(|_| selector.send(SelectWorker { request: RequestFacts::default() }));
        for decided in join_all(asked).await {
            drop(decided.expect("a selector").expect("a worker"));
        }
    }
    since(started)
}

fn since(started: Instant) -> Duration {
    clock::now().saturating_duration_since(started)
}

/// A worker that answers with its snapshot by a reply.
struct NaiveWorker(Arc<WorkerSnapshot>);

#[derive(Message)]
#[rtype(result = "Arc<WorkerSnapshot>")]
struct Ask;

impl Actor for NaiveWorker {
    type Context = Context<Self>;
}

impl Handler<Ask> for NaiveWorker {
    type Result = MessageResult<Ask>;

    fn handle(&mut self, _msg: Ask, _ctx: &mut Self::Context) -> Self::Result {
        MessageResult(Arc::clone(&self.0))
    }
}

fn naive(num_workers: usize) -> Vec<Addr<NaiveWorker>> {
    let worker = |number: usize| {
        let received_at = clock::now();
        let report =
            |_| Some(RankReport { load: RankLoad { running: number as u64 % 13, ..RankLoad::default() }, received_at });
        let mut snapshot = WorkerSnapshot::new(WorkerId::new(number as u64 + 1), url(number));
        snapshot.load = LoadView::new(Some(NUM_RANKS), (0..NUM_RANKS).map(report).collect(), 0);
        NaiveWorker(Arc::new(snapshot)).start()
    };
    (0..num_workers).map(worker).collect()
}

async fn run_naive(workers: &[Addr<NaiveWorker>], num_waiting: usize, num_rounds: u64) -> Duration {
    let policy = PolicyKind::CacheAwareZmq.build(CacheAwareSettings::default());
    let started = clock::now();
    for round in 0..num_rounds {
        let one = || async {
            let slots: Vec<_> =
                join_all(workers.iter().map(|worker| worker.send(Ask))).await.into_iter().map(Result::ok).collect();
            let frozen = FrozenRound { slots: &slots, reserved: &[], matches: &[], now: clock::now() };
            let rules = DecideRules {
                price: price_rules(),
                policy: &*policy,
                turn: 0,
                seed: round,
                caps: Caps::default(),
                part: Part::Whole,
            };
            decide(&RequestFacts::default(), &frozen, &rules, &mut Scratch::default()).expect("a worker")
        };
        join_all((0..num_waiting).map(|_| one())).await;
    }
    since(started)
}

fn rounds(c: &mut Criterion) {
    let system = actix::System::new();
    let mut group = c.benchmark_group("round");
    group.sample_size(20);
    for num_workers in [1, 8, 64, 256] {
        let selector = system.block_on(grouped(num_workers));
        let naive_workers = system.block_on(async { naive(num_workers) });
        for num_waiting in [1, 16, 256] {
            group.throughput(Throughput::Elements(num_waiting as u64));
            let shape = format!("{num_workers}w/{num_waiting}q");
            group.bench_with_input(BenchmarkId::new("grouped", &shape), &num_waiting, |b, num_waiting| {
                b.iter_custom(|num_rounds| system.block_on(run_grouped(&selector, *num_waiting, num_rounds)));
            });
            group.bench_with_input(BenchmarkId::new("naive", &shape), &num_waiting, |b, num_waiting| {
                b.iter_custom(|num_rounds| system.block_on(run_naive(&naive_workers, *num_waiting, num_rounds)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, rounds);
criterion_main!(benches);
