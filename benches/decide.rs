//! One decision of each policy on a frozen round: `cargo bench --bench decide`.

#![allow(missing_docs, reason = "criterion's macros write undocumented functions")]
#![allow(clippy::expect_used, reason = "a bench that cannot go on should say where")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fathom_router::clock;
use fathom_router::config::PolicyKind;
use fathom_router::logic::admission::Caps;
use fathom_router::logic::decide::{DecideRules, FrozenRound, Scratch, decide};
use fathom_router::logic::endpoint::WorkerUrl;
use fathom_router::logic::ids::WorkerId;
use fathom_router::logic::load::{LoadView, RankLoad, RankReport};
use fathom_router::logic::policy::{CacheAwareSettings, PrefixMatch};
use fathom_router::logic::price::{BasisRule, PriceRules};
use fathom_router::logic::request::RequestFacts;
use fathom_router::logic::role::Part;
use fathom_router::logic::snapshot::WorkerSnapshot;

const NUM_RANKS: usize = 4;

fn fleet(num_workers: usize) -> Vec<Option<Arc<WorkerSnapshot>>> {
    let received_at = clock::now();
    let worker = |number: usize| {
        let url =
            WorkerUrl::parse(&format!("http://10.0.{}.{}:30000", number / 250, number % 250 + 1)).expect("an address");
        let report = |rank: usize| {
            let load = RankLoad { running: ((number * 7 + rank) % 13) as u64, ..RankLoad::default() };
            Some(RankReport { load, received_at })
        };
        let mut snapshot = WorkerSnapshot::new(WorkerId::new(number as u64 + 1), url);
        snapshot.load = LoadView::new(Some(NUM_RANKS as u32), (0..NUM_RANKS).map(report).collect(), 0);
        Some(Arc::new(snapshot))
    };
    (0..num_workers).map(worker).collect()
}

fn policies(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    // Seen in smg-project/smg#1758: the cost of a pick grew with the fleet until it was most of a request. The bound here: a
    // millisecond at 512 workers.
    for num_workers in [8, 64, 512, 4096] {
        let slots = fleet(num_workers);
        let reserved = vec![0; num_workers];
        let matches: Vec<PrefixMatch> =
            (0..num_workers).map(|slot| PrefixMatch::of_blocks((slot % 5) as u32 * 100, 512)).collect();
        for kind in PolicyKind::ALL {
            let policy = kind.build(CacheAwareSettings::default());
            let price = PriceRules {
                basis: BasisRule::Uniform,
                freshness: Duration::from_secs(3_600),
                ramp_up: Duration::from_secs(10),
            };
            let request = RequestFacts::default();
            let mut scratch = Scratch::default();
            let mut seed = 0;
            group.bench_with_input(BenchmarkId::new(kind.name(), num_workers), &num_workers, |b, _| {
                b.iter(|| {
                    seed += 1;
                    let round =
                        FrozenRound { slots: &slots, reserved: &reserved, matches: &matches, now: clock::now() };
                    let rules = DecideRules {
                        price,
                        policy: &*policy,
                        turn: seed,
                        seed,
                        caps: Caps::default(),
                        part: Part::Whole,
                    };
                    black_box(decide(&request, &round, &rules, &mut scratch)).expect("a worker")
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, policies);
criterion_main!(benches);
