//! Names of metrics, and the router's own counters.
//!
//! Each router has a registry of its own, so that two of them in one process do not add up. Labels come from closed sets; what a
//! worker is called appears only in series that are made from the live fleet at each scrape, so that they vanish with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::logic::decide::NoWorker;
use crate::logic::recent::RecentDecisions;
use crate::messages::Outcome;

mod histogram;
mod requests;

pub use histogram::DurationHistogram;
pub use requests::{RequestCounters, RequestEnd, RequestLabels};
mod kubernetes;

pub use kubernetes::{KubernetesLabels, KubernetesTelemetry};

/// Labels of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabels {
    /// The policy's name.
    pub policy: &'static str,
    /// The policy's reason.
    pub reason: &'static str,
    /// What the loads were made of.
    pub basis: &'static str,
}

/// One label from a closed set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    /// The kind counted.
    pub kind: &'static str,
}

/// The counters of one router. Cheap to clone; clones count into the same registry.
#[derive(Clone)]
pub struct Telemetry {
    registry: Arc<Registry>,
    /// Decisions by policy, reason and basis.
    pub decisions: Family<DecisionLabels, Counter>,
    /// Requests for which no worker could be chosen, by cause.
    pub no_worker: Family<Kind, Counter>,
    /// The decisions of the last seconds.
    recent: Arc<Mutex<RecentDecisions>>,
    /// Decisions that were priced by in-flight although a candidate advertises load.
    pub fallback_decisions: Counter,
    /// The same by why a candidate's load was not used; one decision may have several causes.
    pub fallback_causes: Family<Kind, Counter>,
    /// 1 while the last decision was such a one. It is shown as far as the fleet still is so, for there may be no further decision.
    pub fleet_on_fallback: Gauge,
    /// Rounds of questions.
    pub rounds: Counter,
    /// Answers that were missing when a round had to decide.
    pub round_misses: Counter,
    /// Policies that panicked or named nobody.
    pub policy_faults: Counter,
    /// Load frames taken.
    pub load_frames: Counter,
    /// Load frames that could not be used, by reason.
    pub bad_load_frames: Family<Kind, Counter>,
    /// Times an engine was asked for its load, by result.
    pub load_polls: Family<Kind, Counter>,
    /// Silent or failed feed sockets opened again.
    pub feed_reopens: Counter,
    /// KV event batches taken.
    pub kv_frames: Counter,
    /// KV event batches that could not be read, by reason.
    pub bad_kv_frames: Family<Kind, Counter>,
    /// KV events that could not be read, by reason.
    pub bad_kv_events: Family<Kind, Counter>,
    /// KV event batches that never came live.
    pub kv_missing_batches: Counter,
    /// Times a publisher of KV events started again.
    pub kv_restarts: Counter,
    /// Replays of KV events, by whether they closed their gap.
    pub kv_replays: Family<Kind, Counter>,
    /// Times a worker's blocks turned out to be keyed in another way.
    pub kv_key_changes: Counter,
    /// Times a worker's list of cached blocks proved wrong.
    pub kv_downgrades: Counter,
    /// Prompts by what they were read from, or by why they are not known as tokens.
    pub prompts: Family<Kind, Counter>,
    /// What sources of workers found, by source and result.
    pub discovery_updates: Family<Kind, Counter>,
    /// Times an engine was asked what it serves, by result.
    pub introspections: Family<Kind, Counter>,
    /// Workers ejected, by cause.
    pub worker_ejections: Family<Kind, Counter>,
    /// Probes of health paths, by result.
    pub health_probes: Family<Kind, Counter>,
    /// Worker actors replaced, by cause.
    pub worker_replacements: Family<Kind, Counter>,
    /// Events that an observer missed because its mailbox was full.
    pub observer_misses: Counter,
    /// Requests that ended at a worker, by outcome.
    pub requests: Family<Kind, Counter>,
    /// Clients' requests, each exactly once, by how they ended.
    pub client_requests: RequestCounters,
    /// Requests sent to a fallback after another worker failed.
    pub fallback_dispatches: Counter,
    /// Workers that refused a DP rank they were believed to own.
    pub rank_refusals: Counter,
    /// The same, by how the worker before had failed.
    pub retries: Family<Kind, Counter>,
    /// Failed answers that were passed on although a fallback was left, because the retry budget was spent.
    pub retry_budget_refusals: Counter,
    /// Requests that were decided a second time, because everybody of the first decision had failed.
    pub second_decisions: Counter,
    /// Answers that the router itself gave instead of a worker, by error code.
    pub router_errors: Family<Kind, Counter>,
    /// Requests that wait for a worker with room.
    pub queued_requests: Gauge,
    /// Requests that were refused for lack of room, by whether they had waited.
    pub queue_refusals: Family<Kind, Counter>,
    /// How long requests waited for room, whether they found it or not.
    pub queue_wait_seconds: DurationHistogram,
    /// Requests being handled now.
    pub open_requests: Gauge,
    /// From asking the selector to its answer, the wait for room left out.
    pub decision_seconds: DurationHistogram,
    /// From a request's arrival to the first byte of the answer.
    pub first_byte_seconds: DurationHistogram,
    /// From a request's arrival to the first chunk of its stream.
    pub time_to_first_token_seconds: DurationHistogram,
    /// Between two chunks of a stream.
    pub chunk_gap_seconds: DurationHistogram,
    /// From a request's arrival to its end.
    pub request_duration_seconds: DurationHistogram,
    /// Prompt tokens of decided requests, where prompts are known as tokens.
    pub prompt_tokens: Counter,
    /// Of these, tokens that the chosen worker held.
    pub matched_prompt_tokens: Counter,
    /// Prompt tokens that engines said they found cached.
    pub cached_prompt_tokens: Counter,
    /// Spans of requests that were to be exported, by what became of them.
    pub spans: Family<Kind, Counter>,
    /// What is known of the Kubernetes API.
    pub kubernetes: KubernetesTelemetry,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// Returns counters at zero, registered.
    pub fn new() -> Self {
        let mut telemetry = Self {
            registry: Arc::default(),
            decisions: Family::default(),
            no_worker: Family::default(),
            recent: Arc::default(),
            fallback_decisions: Counter::default(),
            fallback_causes: Family::default(),
            fleet_on_fallback: Gauge::default(),
            rounds: Counter::default(),
            round_misses: Counter::default(),
            policy_faults: Counter::default(),
            load_frames: Counter::default(),
            bad_load_frames: Family::default(),
            load_polls: Family::default(),
            feed_reopens: Counter::default(),
            kv_frames: Counter::default(),
            bad_kv_frames: Family::default(),
            bad_kv_events: Family::default(),
            kv_missing_batches: Counter::default(),
            kv_restarts: Counter::default(),
            kv_replays: Family::default(),
            kv_key_changes: Counter::default(),
            kv_downgrades: Counter::default(),
            prompts: Family::default(),
            discovery_updates: Family::default(),
            introspections: Family::default(),
            worker_ejections: Family::default(),
            health_probes: Family::default(),
            worker_replacements: Family::default(),
            observer_misses: Counter::default(),
            requests: Family::default(),
            client_requests: RequestCounters::default(),
            fallback_dispatches: Counter::default(),
            rank_refusals: Counter::default(),
            retries: Family::default(),
            retry_budget_refusals: Counter::default(),
            second_decisions: Counter::default(),
            router_errors: Family::default(),
            queued_requests: Gauge::default(),
            queue_refusals: Family::default(),
            queue_wait_seconds: DurationHistogram::new(histogram::QUEUE_WAIT),
            open_requests: Gauge::default(),
            decision_seconds: DurationHistogram::new(histogram::DECISION),
            first_byte_seconds: DurationHistogram::new(histogram::FIRST_BYTE),
            time_to_first_token_seconds: DurationHistogram::new(histogram::FIRST_TOKEN),
            chunk_gap_seconds: DurationHistogram::new(histogram::CHUNK_GAP),
            request_duration_seconds: DurationHistogram::new(histogram::WHOLE_REQUEST),
            prompt_tokens: Counter::default(),
            matched_prompt_tokens: Counter::default(),
            cached_prompt_tokens: Counter::default(),
            spans: Family::default(),
            kubernetes: KubernetesTelemetry::default(),
        };
        telemetry.registry = Arc::new(telemetry.register());
        telemetry.show_zeros();
        telemetry
    }

    /// A rate can be made of a counter only from when it is seen: what alerts are made of is there from the start.
    fn show_zeros(&self) {
        let families: [(&Family<Kind, Counter>, &[&'static str]); 7] = [
            (&self.requests, &Outcome::ALL.map(Outcome::name)),
            (&self.no_worker, &NoWorker::ALL.map(NoWorker::name)),
            (&self.fallback_causes, &["stale", "incomplete", "unreported"]),
            (&self.retries, &["unreachable", "no_connection", "ended_early", "server_error", "overloaded", "pair"]),
            (&self.queue_refusals, &["queue_full", "waited_too_long"]),
            (&self.kv_replays, &["repaired", "unrepaired"]),
            (&self.worker_ejections, &["unreachable", "failure_rate", "probes", "trial_failed"]),
        ];
        for (family, kinds) in families {
            kinds.iter().for_each(|kind| drop(family.get_or_create(&Kind { kind })));
        }
    }

    /// Adds one to the counter of the kind.
    pub fn count(family: &Family<Kind, Counter>, kind: &'static str) {
        family.get_or_create(&Kind { kind }).inc();
    }

    /// Adds so many to the counter of the kind.
    pub fn count_many(family: &Family<Kind, Counter>, kind: &'static str, count: u32) {
        if count > 0 {
            family.get_or_create(&Kind { kind }).inc_by(u64::from(count));
        }
    }

    /// Counts spans of requests that became this.
    pub fn spans_ended(&self, kind: &'static str, count: u64) {
        if count > 0 {
            self.spans.get_or_create(&Kind { kind }).inc_by(count);
        }
    }

    /// Returns the decisions of the last seconds.
    pub fn recent(&self) -> MutexGuard<'_, RecentDecisions> {
        // Nothing panics while it is held, and the record is whole at every step.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renders this router's counters, followed by the series of `fleet`, in the OpenMetrics text format.
    pub fn render(&self, fleet: &Registry) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail; a half-written page would still be readable up to that point.
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, fleet))
            .and_then(|()| encode_eof(&mut text));
        debug_assert!(written.is_ok());
        text
    }

    fn register(&self) -> Registry {
        let mut r = Registry::with_prefix("fathom");
        self.register_decisions(&mut r);
        self.register_feeds(&mut r);
        self.register_workers(&mut r);
        self.register_requests(&mut r);
        r
    }

    fn register_decisions(&self, r: &mut Registry) {
        r.register("decisions", "Decisions by policy, reason and basis", self.decisions.clone());
        r.register("no_worker", "Requests for which no worker could be chosen, by cause", self.no_worker.clone());
        let help = "Decisions priced by in-flight although a candidate advertises load";
        r.register("fallback_decisions", help, self.fallback_decisions.clone());
        let help = "The same by why a candidate's load was not used; one decision may have several causes";
        r.register("fallback_causes", help, self.fallback_causes.clone());
        r.register("rounds", "Rounds in which every worker was asked", self.rounds.clone());
        r.register("round_misses", "Answers missing when a round had to decide", self.round_misses.clone());
        r.register("policy_faults", "Policies that panicked or named nobody", self.policy_faults.clone());
        let help = "Prompts by what they were read from, or by why they are not known as tokens";
        r.register("prompts", help, self.prompts.clone());
        let help = "Prompt tokens of decided requests, where prompts are known as tokens";
        r.register("prompt_tokens", help, self.prompt_tokens.clone());
        let help = "Of these, tokens that the chosen worker held";
        r.register("matched_prompt_tokens", help, self.matched_prompt_tokens.clone());
        let help = "Prompt tokens that engines said they found cached";
        r.register("cached_prompt_tokens", help, self.cached_prompt_tokens.clone());
        r.register("queued_requests", "Requests that wait for a worker with room", self.queued_requests.clone());
        let help = "Requests refused for lack of room, by whether they had waited";
        r.register("queue_refusals", help, self.queue_refusals.clone());
        let help = "How long requests waited for room, whether they found it or not";
        r.register("queue_wait_seconds", help, self.queue_wait_seconds.clone());
        let help = "From asking the selector to its answer, the wait for room left out";
        r.register("decision_seconds", help, self.decision_seconds.clone());
    }

    fn register_feeds(&self, r: &mut Registry) {
        r.register("load_frames", "Load frames taken", self.load_frames.clone());
        r.register("bad_load_frames", "Load frames that could not be used, by reason", self.bad_load_frames.clone());
        r.register("load_polls", "Times an engine was asked for its load, by result", self.load_polls.clone());
        r.register("feed_reopens", "Silent or failed feed sockets opened again", self.feed_reopens.clone());
        r.register("kv_frames", "KV event batches taken", self.kv_frames.clone());
        r.register("bad_kv_frames", "KV event batches that could not be read, by reason", self.bad_kv_frames.clone());
        r.register("bad_kv_events", "KV events that could not be read, by reason", self.bad_kv_events.clone());
        r.register("kv_missing_batches", "KV event batches that never came live", self.kv_missing_batches.clone());
        r.register("kv_restarts", "Times a publisher of KV events started again", self.kv_restarts.clone());
        r.register("kv_replays", "Replays of KV events, by whether they closed their gap", self.kv_replays.clone());
        let help = "Times a worker's blocks turned out to be keyed in another way";
        r.register("kv_key_changes", help, self.kv_key_changes.clone());
        r.register("kv_downgrades", "Times a worker's list of cached blocks proved wrong", self.kv_downgrades.clone());
    }

    fn register_workers(&self, r: &mut Registry) {
        let help = "What sources of workers found, by source and result";
        r.register("discovery_updates", help, self.discovery_updates.clone());
        r.register("introspections", "Times an engine was asked, by result", self.introspections.clone());
        r.register("worker_ejections", "Workers ejected, by cause", self.worker_ejections.clone());
        r.register("health_probes", "Probes of health paths, by result", self.health_probes.clone());
        r.register("worker_replacements", "Worker actors replaced, by cause", self.worker_replacements.clone());
        r.register("observer_misses", "Events that an observer missed", self.observer_misses.clone());
    }

    fn register_requests(&self, r: &mut Registry) {
        r.register("requests", "Requests that ended at a worker, by outcome", self.requests.clone());
        let help = "Clients' requests, each once, by who produced what the client saw last and how they ended";
        r.register("client_requests", help, self.client_requests.requests.clone());
        r.register("streams", "Event streams, by how they ended", self.client_requests.streams.clone());
        r.register("fallback_dispatches", "Requests sent on after a worker failed", self.fallback_dispatches.clone());
        let help = "Workers that refused a DP rank they were believed to own";
        r.register("rank_refusals", help, self.rank_refusals.clone());
        r.register("retries", "The same, by how the worker before had failed", self.retries.clone());
        let help = "Failed answers passed on because the retry budget was spent";
        r.register("retry_budget_refusals", help, self.retry_budget_refusals.clone());
        let help = "Requests decided a second time, because everybody of the first decision had failed";
        r.register("second_decisions", help, self.second_decisions.clone());
        r.register("router_errors", "Answers the router gave itself, by code", self.router_errors.clone());
        r.register("open_requests", "Requests being handled now", self.open_requests.clone());
        let help = "From arrival to the first byte of the answer";
        r.register("first_byte_seconds", help, self.first_byte_seconds.clone());
        let help = "From arrival to the first chunk of a stream";
        r.register("time_to_first_token_seconds", help, self.time_to_first_token_seconds.clone());
        r.register("chunk_gap_seconds", "Between two chunks of a stream", self.chunk_gap_seconds.clone());
        let help = "From arrival to the end";
        r.register("request_duration_seconds", help, self.request_duration_seconds.clone());
        r.register("spans", "Spans of requests, by what became of them", self.spans.clone());
        self.kubernetes.register(r.sub_registry_with_prefix("kubernetes"));
    }
}
