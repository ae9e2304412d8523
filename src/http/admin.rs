//! The router's own answers: health, readiness, metrics, the fleet and its models.

use actix_web::{HttpResponse, web};
use serde::Serialize;

use crate::clock;
use crate::error::RouteError;
use crate::http::admin_kv::KvAnswer;
use crate::http::admin_ranks::RanksAnswer;
use crate::http::{Edge, fleet_metrics, respond};
use crate::logic::endpoint::Feed;
use crate::logic::health::{HealthView, WorkerState};
use crate::logic::role::Part;
use crate::logic::snapshot::WorkerSnapshot;
use crate::messages::{FleetMember, Introspection, ShowFleet};
use crate::wire::openai::render_models;

/// Content type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The process is alive.
pub(super) async fn healthz() -> HttpResponse {
    HttpResponse::Ok().body("ok")
}

/// Some worker can take a request, or two that share it can.
pub(super) async fn readyz(edge: web::Data<Edge>) -> HttpResponse {
    if edge.ports.gate.is_leaving() {
        return respond::error(RouteError::ShuttingDown, &edge.ports.telemetry);
    }
    match fleet(&edge).await {
        Ok(members) if can_serve(&members) => HttpResponse::Ok().body("ready"),
        Ok(_) => respond::error(RouteError::NoWorkerAvailable, &edge.ports.telemetry),
        Err(error) => respond::error(error, &edge.ports.telemetry),
    }
}

/// The models of all workers that serve.
pub(super) async fn models(edge: web::Data<Edge>) -> HttpResponse {
    match fleet(&edge).await {
        Ok(members) => {
            let serving =
                members.iter().filter(|member| is_serving(member)).filter_map(|member| member.snapshot.as_ref());
            let list = render_models(serving.map(|worker| &*worker.facts.model_objects));
            if list.conflicts > 0 {
                tracing::debug!(conflicts = list.conflicts, "workers describe the same model differently");
            }
            respond::json(list.json)
        }
        Err(error) => respond::error(error, &edge.ports.telemetry),
    }
}

/// Counters, and the fleet as gauges.
pub(super) async fn metrics(edge: web::Data<Edge>) -> HttpResponse {
    let members = fleet(&edge).await.unwrap_or_default();
    let now = clock::now();
    let registry = fleet_metrics::registry(&members, &edge.ports.telemetry, edge.ports.freshness, now);
    HttpResponse::Ok().content_type(OPEN_METRICS).body(edge.ports.telemetry.render(&registry))
}

/// The fleet as the next decision would see it.
pub(super) async fn workers(edge: web::Data<Edge>) -> HttpResponse {
    let members = match fleet(&edge).await {
        Ok(members) => members,
        Err(error) => return respond::error(error, &edge.ports.telemetry),
    };
    let now = clock::now();
    let workers: Vec<WorkerAnswer> =
        members.iter().map(|member| worker_answer(member, edge.ports.freshness, now)).collect();
    respond::json_of(&edge, &FleetAnswer { workers })
}

pub(super) async fn fleet(edge: &Edge) -> Result<Vec<FleetMember>, RouteError> {
    edge.ports.fleet.send(ShowFleet).await.map_err(|_| RouteError::SelectorUnavailable)
}

/// A prefill worker and a decode worker are of use only where they have a model in common.
fn can_serve(members: &[FleetMember]) -> bool {
    let of_part = |part: Part| {
        let serving =
            members.iter().filter(|member| is_serving(member)).filter_map(|member| member.snapshot.as_deref());
        serving.filter(move |worker| worker.facts.role.part() == part)
    };
    let has_partner = |prefill: &WorkerSnapshot| {
        of_part(Part::Decode).any(|decode| prefill.facts.models.iter().any(|model| decode.serves(Some(model))))
    };
    of_part(Part::Whole).next().is_some() || of_part(Part::Prefill).any(has_partner)
}

fn is_serving(member: &FleetMember) -> bool {
    let takes_traffic = |state| matches!(state, WorkerState::Serving | WorkerState::Probation);
    member.snapshot.as_ref().is_some_and(|worker| takes_traffic(worker.state))
}

#[derive(Serialize)]
struct FleetAnswer {
    workers: Vec<WorkerAnswer>,
}

#[derive(Serialize)]
pub(super) struct WorkerAnswer {
    id: String,
    url: String,
    sources: Vec<String>,
    state: &'static str,
    introspection: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    version: Option<String>,
    models: Vec<String>,
    in_flight: Option<u32>,
    health: Option<HealthAnswer>,
    load: Option<LoadAnswer>,
    role: Option<&'static str>,
    dp_ranks: Option<RanksAnswer>,
    kv: Option<KvAnswer>,
}

#[derive(Serialize)]
struct HealthAnswer {
    ended_in_window: u32,
    failed_in_window: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_trial_in_ms: Option<u64>,
}

impl HealthAnswer {
    fn of(health: &HealthView, now: std::time::Instant) -> Self {
        let until_trial = health.out_until.map(|until| until.saturating_duration_since(now).as_millis() as u64);
        Self {
            ended_in_window: health.window.ended,
            failed_in_window: health.window.failed,
            next_trial_in_ms: until_trial,
        }
    }
}

#[derive(Serialize)]
struct LoadAnswer {
    feed: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    feed_problem: Option<String>,
    trust: &'static str,
    depth: Option<u64>,
    own_dispatches_since_report: u32,
    expected_ranks: Option<u32>,
    open_sockets: u32,
    frames: u64,
    bad_frames: u64,
    reopened: u64,
    ranks: Vec<Option<RankAnswer>>,
}

#[derive(Serialize)]
struct RankAnswer {
    source: &'static str,
    age_ms: u64,
    running: u64,
    waiting: u64,
    used_tokens: Option<u64>,
    capacity_tokens: Option<u64>,
    waiting_uncached_tokens: Option<u64>,
    total_tokens: Option<u64>,
    max_running: Option<u64>,
}

pub(super) fn worker_answer(
    member: &FleetMember,
    freshness: std::time::Duration,
    now: std::time::Instant,
) -> WorkerAnswer {
    let (introspection, problem) = match &member.introspection {
        Introspection::Asking => ("asking", None),
        Introspection::Answered => ("answered", None),
        Introspection::Unauthorized => ("unauthorized", None),
        Introspection::Failed(reason) => ("failed", Some(reason.to_string())),
    };
    let snapshot = member.snapshot.as_deref();
    WorkerAnswer {
        id: member.id.to_string(),
        url: member.url.to_string(),
        sources: member.sources.iter().map(|source| source.to_string()).collect(),
        state: snapshot.map_or("unresponsive", |worker| worker.state.name()),
        introspection,
        problem,
        version: snapshot.and_then(|worker| worker.facts.version.as_deref().map(str::to_owned)),
        models: snapshot
            .map(|worker| worker.facts.models.iter().map(|model| model.to_string()).collect())
            .unwrap_or_default(),
        in_flight: snapshot.map(|worker| worker.in_flight),
        health: snapshot.map(|worker| HealthAnswer::of(&worker.health, now)),
        load: snapshot.map(|worker| load_answer(worker, freshness, now)),
        role: snapshot.map(|worker| worker.facts.role.name()),
        dp_ranks: snapshot.and_then(|worker| RanksAnswer::of(worker, member.ports.ranks.is_refused(), freshness, now)),
        kv: snapshot.map(KvAnswer::of),
    }
}

/// Returns what became of a feed, and why where it was refused.
pub(super) fn feed_answer(feed: &Feed) -> (&'static str, Option<String>) {
    match feed {
        Feed::NotAdvertised => ("not_advertised", None),
        Feed::Refused(reason) => ("refused", Some(reason.to_string())),
        Feed::Planned(_) => ("subscribed", None),
    }
}

fn load_answer(
    worker: &crate::logic::snapshot::WorkerSnapshot,
    freshness: std::time::Duration,
    now: std::time::Instant,
) -> LoadAnswer {
    let (feed, feed_problem) = feed_answer(&worker.facts.load_feed);
    let trust = worker.load.trust(now, freshness);
    let rank = |report: &crate::logic::load::RankReport| RankAnswer {
        source: report.load.source.name(),
        age_ms: now.saturating_duration_since(report.received_at).as_millis() as u64,
        running: report.load.running,
        waiting: report.load.waiting,
        used_tokens: report.load.used_tokens,
        capacity_tokens: report.load.capacity_tokens,
        waiting_uncached_tokens: report.load.waiting_uncached_tokens,
        total_tokens: report.load.total_tokens,
        max_running: report.load.max_running,
    };
    LoadAnswer {
        feed,
        feed_problem,
        trust: trust.name(),
        depth: trust.is_trusted().then(|| worker.load.depth()),
        own_dispatches_since_report: worker.load.own_dispatches_since(),
        expected_ranks: worker.load.expected_ranks(),
        open_sockets: worker.feeds.open_sockets,
        frames: worker.feeds.frames,
        bad_frames: worker.feeds.bad_frames,
        reopened: worker.feeds.reopened,
        ranks: worker.load.reports().iter().map(|report| report.as_ref().map(rank)).collect(),
    }
}
