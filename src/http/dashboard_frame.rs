//! One snapshot of everything that the operator's page shows, as JSON. Counters are those since the start: a page that skipped frames
//! still has right rates.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;

use crate::clock;
use crate::http::{EdgePorts, fleet_metrics};
use crate::logic::recent::{RecentDecision, WINDOW};
use crate::logic::snapshot::WorkerSnapshot;
use crate::messages::{FleetMember, Outcome};
use crate::telemetry::{DurationHistogram, Kind, RequestEnd};

/// Decisions in one frame, the newest ones.
const MAX_DECISIONS: usize = 40;
/// Ranks of one worker that are shown.
const MAX_RANKS: usize = 64;
/// Models of one worker that are named.
const MAX_MODELS: usize = 8;

#[derive(Serialize)]
struct Frame<'a> {
    number: u64,
    wall_ms: u64,
    version: &'static str,
    policy: &'static str,
    is_draining: bool,
    is_on_fallback: bool,
    open: usize,
    queued: i64,
    imbalance: Option<f64>,
    decisions: Decisions,
    ends: Vec<(&'static str, &'static str, u64)>,
    attempts: Vec<(&'static str, u64)>,
    retries: u64,
    prompt_tokens: u64,
    matched_tokens: u64,
    first_token: Histogram,
    chunk_gap: Histogram,
    request: Histogram,
    workers: Vec<Worker<'a>>,
}

#[derive(Serialize)]
struct Decisions {
    /// Of all decisions; the newest of `last` has this number.
    num_ever: u64,
    window_secs: u64,
    in_window: usize,
    largest_share: f64,
    by_reason: BTreeMap<String, u32>,
    last: Vec<Decided>,
}

#[derive(Serialize)]
struct Decided {
    id: String,
    worker: String,
    rank: Option<u32>,
    reason: &'static str,
    basis: &'static str,
    load: f64,
    prompt: Option<u32>,
    matched: Option<u32>,
    age_ms: u64,
}

#[derive(Serialize)]
struct Histogram {
    bounds_us: &'static [u64],
    counts: Vec<u64>,
}

#[derive(Serialize)]
struct Worker<'a> {
    id: String,
    url: &'a str,
    state: &'static str,
    trust: Option<&'static str>,
    models: Vec<&'a str>,
    version: Option<&'a str>,
    in_flight: Option<u32>,
    depth: Option<u64>,
    age_ms: Option<u64>,
    ended: u32,
    failed: u32,
    trial_in_ms: Option<u64>,
    kv_blocks: Option<u64>,
    kv_found: Option<f64>,
    ranks: Vec<Rank>,
}

#[derive(Serialize)]
struct Rank {
    rank: usize,
    running: Option<u64>,
    waiting: Option<u64>,
    used: Option<u64>,
    capacity: Option<u64>,
    age_ms: Option<u64>,
    kv: Option<&'static str>,
}

/// Returns the frame of that number as one line of JSON; `None` where it cannot be written, which no value in it can cause.
pub(super) fn encode(ports: &EdgePorts, members: &[FleetMember], number: u64, now: Instant) -> Option<String> {
    let telemetry = &ports.telemetry;
    let attempts = Outcome::ALL.map(|outcome| outcome.name());
    let count = |kind| telemetry.requests.get(&Kind { kind }).map_or(0, |counter| counter.get());
    let frame = Frame {
        number,
        wall_ms: millis(clock::wall_now().duration_since(UNIX_EPOCH).unwrap_or_default()),
        version: env!("CARGO_PKG_VERSION"),
        policy: *ports.policy.lock().unwrap_or_else(PoisonError::into_inner),
        is_draining: ports.gate.is_draining(),
        is_on_fallback: fleet_metrics::is_on_fallback(members, telemetry, ports.freshness, now),
        open: ports.gate.num_open(),
        queued: telemetry.queued_requests.get(),
        imbalance: fleet_metrics::imbalance(members, ports.freshness, now),
        decisions: decisions(ports, now),
        ends: RequestEnd::ALL.map(|end| (end.source(), end.outcome(), telemetry.client_requests.count(end))).to_vec(),
        attempts: attempts.map(|kind| (kind, count(kind))).to_vec(),
        retries: telemetry.fallback_dispatches.get(),
        prompt_tokens: telemetry.prompt_tokens.get(),
        matched_tokens: telemetry.matched_prompt_tokens.get(),
        first_token: Histogram::of(&telemetry.time_to_first_token_seconds),
        chunk_gap: Histogram::of(&telemetry.chunk_gap_seconds),
        request: Histogram::of(&telemetry.request_duration_seconds),
        workers: members.iter().map(|member| worker(member, ports.freshness, now)).collect(),
    };
    serde_json::to_string(&frame).ok()
}

fn decisions(ports: &EdgePorts, now: Instant) -> Decisions {
    let recent = ports.telemetry.recent();
    let spread = recent.spread(now);
    let mut by_reason = BTreeMap::new();
    for decision in recent.within(now) {
        *by_reason.entry(format!("{} ({})", decision.reason, decision.basis.name())).or_insert(0) += 1;
    }
    Decisions {
        num_ever: recent.num_ever(),
        window_secs: WINDOW.as_secs(),
        in_window: spread.num_decisions,
        largest_share: spread.largest_share,
        by_reason,
        last: recent.within(now).take(MAX_DECISIONS).map(|decision| decided(decision, now)).collect(),
    }
}

fn decided(decision: &RecentDecision, now: Instant) -> Decided {
    Decided {
        id: decision.id.to_string(),
        worker: decision.worker.to_string(),
        rank: decision.rank.map(|rank| rank.number()),
        reason: decision.reason,
        basis: decision.basis.name(),
        load: decision.load,
        prompt: decision.prompt_tokens,
        matched: decision.matched_tokens,
        age_ms: millis(now.saturating_duration_since(decision.at)),
    }
}

impl Histogram {
    fn of(histogram: &DurationHistogram) -> Self {
        Self { bounds_us: histogram.bounds_us(), counts: histogram.counts() }
    }
}

fn worker(member: &FleetMember, freshness: Duration, now: Instant) -> Worker<'_> {
    let snapshot = member.snapshot.as_deref();
    let trust = snapshot.map(|worker| worker.load.trust(now, freshness));
    let has_kv = |worker: &&WorkerSnapshot| !worker.kv.ranks.is_empty();
    let until = snapshot.and_then(|worker| worker.health.out_until);
    Worker {
        id: member.id.to_string(),
        url: member.url.as_str(),
        state: snapshot.map_or("unresponsive", |worker| worker.state.name()),
        trust: trust.map(|trust| trust.name()),
        models: snapshot
            .map(|worker| worker.facts.models.iter().take(MAX_MODELS).map(|model| &**model).collect())
            .unwrap_or_default(),
        version: snapshot.and_then(|worker| worker.facts.version.as_deref()),
        in_flight: snapshot.map(|worker| worker.in_flight),
        // What must not be used is not shown either.
        depth: snapshot.filter(|_| trust.is_some_and(|trust| trust.is_trusted())).map(|worker| worker.load.depth()),
        age_ms: snapshot.and_then(|worker| worker.load.age(now)).map(millis),
        ended: snapshot.map_or(0, |worker| worker.health.window.ended),
        failed: snapshot.map_or(0, |worker| worker.health.window.failed),
        trial_in_ms: until.map(|until| millis(until.saturating_duration_since(now))),
        kv_blocks: snapshot.filter(has_kv).map(|worker| worker.kv.ranks.iter().map(|rank| rank.num_blocks).sum()),
        kv_found: snapshot.filter(has_kv).and_then(|worker| worker.kv.truth.ratio()),
        ranks: snapshot.map(|worker| ranks(worker, now)).unwrap_or_default(),
    }
}

/// Missing is missing: a rank that has not reported has no numbers.
fn ranks(worker: &WorkerSnapshot, now: Instant) -> Vec<Rank> {
    let (reports, caches) = (worker.load.reports(), &worker.kv.ranks);
    let rank = |rank: usize| {
        let report = reports.get(rank).and_then(Option::as_ref);
        Rank {
            rank,
            running: report.map(|report| report.load.running),
            waiting: report.map(|report| report.load.waiting),
            used: report.and_then(|report| report.load.used_tokens),
            capacity: report.and_then(|report| report.load.capacity_tokens),
            age_ms: report.map(|report| millis(now.saturating_duration_since(report.received_at))),
            kv: caches.get(rank).map(|cache| cache.trust.name()),
        }
    };
    (0..reports.len().max(caches.len()).min(MAX_RANKS)).map(rank).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
