//! The fleet as gauges, made anew at each scrape: the series of a worker that is gone are gone with it.

use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::logic::health::WorkerState;
use crate::logic::snapshot::WorkerSnapshot;
use crate::messages::FleetMember;
use crate::telemetry::Telemetry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TrustLabel {
    worker: String,
    trust: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabel {
    worker: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankLabel {
    worker: String,
    rank: u64,
}

/// For a figure that may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoLabels {}

/// The state of a worker that does not answer.
const UNRESPONSIVE: &str = "unresponsive";

type FloatGauge = Gauge<f64, std::sync::atomic::AtomicU64>;

/// Ranks of one worker that have series of their own. An engine says how many it has, and a fleet has many engines.
const MAX_RANKS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    worker: String,
    rank: u64,
    source: &'static str,
}

#[derive(Default)]
struct Fleet {
    workers: Family<StateLabel, Gauge>,
    in_flight: Family<WorkerLabel, Gauge>,
    depth: Family<WorkerLabel, Gauge>,
    is_trusted: Family<WorkerLabel, Gauge>,
    open_sockets: Family<WorkerLabel, Gauge>,
    running: Family<RankLabel, Gauge>,
    waiting: Family<RankLabel, Gauge>,
    used_tokens: Family<RankLabel, Gauge>,
    report_source: Family<SourceLabel, Gauge>,
    report_age: Family<RankLabel, FloatGauge>,
    worker_report_age: Family<WorkerLabel, FloatGauge>,
    trust: Family<TrustLabel, Gauge>,
    herd: FloatGauge,
    recent_decisions: Gauge,
    imbalance: Family<NoLabels, FloatGauge>,
    on_fallback: Gauge,
    kv_blocks: Family<RankLabel, Gauge>,
    kv_believed: Family<RankLabel, Gauge>,
    kv_index_bytes: Family<WorkerLabel, Gauge>,
    kv_evicted: Family<WorkerLabel, Gauge>,
    kv_found_ratio: Family<WorkerLabel, FloatGauge>,
}

/// Returns a registry with the fleet's gauges as of `now`.
pub(super) fn registry(members: &[FleetMember], telemetry: &Telemetry, freshness: Duration, now: Instant) -> Registry {
    let fleet = Fleet::default();
    let spread = telemetry.recent().spread(now);
    fleet.on_fallback.set(i64::from(is_on_fallback(members, telemetry, freshness, now)));
    fleet.herd.set(spread.largest_share);
    fleet.recent_decisions.set(spread.num_decisions as i64);
    if let Some(imbalance) = imbalance(members, freshness, now) {
        fleet.imbalance.get_or_create(&NoLabels {}).set(imbalance);
    }
    for state in WorkerState::ALL.map(WorkerState::name).into_iter().chain([UNRESPONSIVE]) {
        fleet.workers.get_or_create(&StateLabel { state }).set(0);
    }
    for member in members {
        let state = member.snapshot.as_ref().map_or(UNRESPONSIVE, |worker| worker.state.name());
        fleet.workers.get_or_create(&StateLabel { state }).inc();
        if let Some(worker) = &member.snapshot {
            fleet.add(worker, freshness, now);
        }
    }
    fleet.into_registry()
}

/// Tells whether the last decision did without reports that it should have had, and some are still missing.
pub(super) fn is_on_fallback(
    members: &[FleetMember],
    telemetry: &Telemetry,
    freshness: Duration,
    now: Instant,
) -> bool {
    let is_trusted = |member: &FleetMember| {
        member.snapshot.as_ref().is_some_and(|worker| worker.load.trust(now, freshness).is_trusted())
    };
    telemetry.fleet_on_fallback.get() == 1 && !members.iter().all(is_trusted)
}

/// Returns the largest reported depth over the mean one, of serving workers whose reports are trusted; 1 where all are idle, and
/// `None` where there is no such worker.
pub(super) fn imbalance(members: &[FleetMember], freshness: Duration, now: Instant) -> Option<f64> {
    let workers = members.iter().filter_map(|member| member.snapshot.as_ref());
    let serving = workers.filter(|worker| worker.state == WorkerState::Serving);
    let depths = serving.filter(|worker| worker.load.trust(now, freshness).is_trusted());
    let (mut num, mut sum, mut most) = (0_u32, 0.0_f64, 0.0_f64);
    for depth in depths.map(|worker| worker.load.depth() as f64) {
        (num, sum, most) = (num + 1, sum + depth, most.max(depth));
    }
    match num {
        0 => None,
        _ if sum == 0.0 => Some(1.0),
        _ => Some(most * f64::from(num) / sum),
    }
}

impl Fleet {
    fn add(&self, worker: &WorkerSnapshot, freshness: Duration, now: Instant) {
        let label = WorkerLabel { worker: worker.url.to_string() };
        self.in_flight.get_or_create(&label).set(i64::from(worker.in_flight));
        self.open_sockets.get_or_create(&label).set(i64::from(worker.feeds.open_sockets));
        let trust = worker.load.trust(now, freshness);
        let is_trusted = trust.is_trusted();
        self.trust.get_or_create(&TrustLabel { worker: worker.url.to_string(), trust: trust.name() }).set(1);
        if let Some(age) = worker.load.age(now) {
            self.worker_report_age.get_or_create(&label).set(age.as_secs_f64());
        }
        self.is_trusted.get_or_create(&label).set(i64::from(is_trusted));
        if is_trusted {
            // A depth that must not be used is left out: a scraper would take it for the truth.
            self.depth.get_or_create(&label).set(gauge(worker.load.depth()));
        }
        self.add_kv(worker, &label);
        for (rank, report) in worker.load.reports().iter().enumerate().take(MAX_RANKS) {
            let Some(report) = report else { continue };
            let label = RankLabel { worker: worker.url.to_string(), rank: rank as u64 };
            self.running.get_or_create(&label).set(gauge(report.load.running));
            self.waiting.get_or_create(&label).set(gauge(report.load.waiting));
            if let Some(used_tokens) = report.load.used_tokens {
                self.used_tokens.get_or_create(&label).set(gauge(used_tokens));
            }
            let source =
                SourceLabel { worker: worker.url.to_string(), rank: rank as u64, source: report.load.source.name() };
            self.report_source.get_or_create(&source).set(1);
            let age = now.saturating_duration_since(report.received_at);
            self.report_age.get_or_create(&label).set(age.as_secs_f64());
        }
    }

    fn add_kv(&self, worker: &WorkerSnapshot, label: &WorkerLabel) {
        if worker.kv.ranks.is_empty() {
            // The engine publishes no KV events.
            return;
        }
        self.kv_index_bytes.get_or_create(label).set(gauge(worker.kv.counts.bytes));
        self.kv_evicted.get_or_create(label).set(gauge(worker.kv.counts.evicted));
        if let Some(ratio) = worker.kv.truth.ratio() {
            self.kv_found_ratio.get_or_create(label).set(ratio);
        }
        for (rank, kv) in worker.kv.ranks.iter().enumerate().take(MAX_RANKS) {
            let label = RankLabel { worker: worker.url.to_string(), rank: rank as u64 };
            self.kv_blocks.get_or_create(&label).set(gauge(kv.num_blocks));
            self.kv_believed.get_or_create(&label).set(i64::from(kv.trust.may_match()));
        }
    }

    fn into_registry(self) -> Registry {
        let mut r = Registry::with_prefix("fathom");
        r.register("workers", "Workers by state", self.workers);
        r.register("worker_in_flight", "Requests of this router that have not ended", self.in_flight);
        r.register("worker_engine_depth", "Reported queue depth plus own dispatches since, where trusted", self.depth);
        r.register("worker_load_trusted", "1 where every rank's report is there and fresh", self.is_trusted);
        r.register("worker_load_trust", "1 for what the worker's reports are now", self.trust);
        let help = "Age of the worker's oldest rank report";
        r.register("worker_report_age_seconds", help, self.worker_report_age);
        let help = "Part of the last decisions that went to the worker chosen most often, 0 where there were none";
        r.register("herd_ratio", help, self.herd);
        r.register("recent_decisions", "Decisions that the herd ratio is made of", self.recent_decisions);
        let help = "1 where the last decision was priced by in-flight although a candidate advertises load, and reports are missing yet";
        r.register("fleet_on_fallback", help, self.on_fallback);
        let help = "Largest over mean queue depth of serving workers with trusted reports";
        r.register("load_imbalance_ratio", help, self.imbalance);
        r.register("worker_open_feed_sockets", "Open feed sockets", self.open_sockets);
        r.register("rank_running_requests", "Running requests as reported", self.running);
        r.register("rank_waiting_requests", "Waiting requests as reported", self.waiting);
        r.register("rank_used_tokens", "KV tokens in use as reported", self.used_tokens);
        r.register("rank_report_source", "1 for how the rank's last report came", self.report_source);
        r.register("rank_report_age_seconds", "Age of the rank's last report", self.report_age);
        r.register("rank_kv_blocks", "Blocks listed as cached", self.kv_blocks);
        r.register("rank_kv_believed", "1 where what the rank lists counts as a match", self.kv_believed);
        r.register("worker_kv_index_bytes", "Bytes taken by the list of cached blocks", self.kv_index_bytes);
        r.register("worker_kv_evicted_blocks", "Blocks dropped to keep the byte budget", self.kv_evicted);
        r.register("worker_kv_found_ratio", "Part of listed tokens that the engine found cached", self.kv_found_ratio);
        r
    }
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
