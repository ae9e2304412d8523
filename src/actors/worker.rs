//! The WorkerActor is one incarnation of one engine. It owns the subscriptions of its DP ranks, the load they reported, and the
//! account of what this router has sent there; dropping it drops all of that, so a worker that is added again starts clean.
//!
//! The registry starts it through the worker factory and ends it with [`Stop`]. When it dies, its sockets close, its tokens drop,
//! and the registry starts another one in its place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::{Actor, ActorContext, AsyncContext, Context, Handler, Recipient, StreamHandler};

use crate::actors::observers::Observers;
use crate::clock;
use crate::config::{KvSettings, LoadSettings};
use crate::feed::{FeedEvent, Frame, SubscribeError};
use crate::logic::endpoint::{Endpoint, Feed, Readiness, WorkerFacts, WorkerUrl};
use crate::logic::flight::FlightBook;
use crate::logic::health::{Cause, Health, HealthRules, RequestEnd, StateChange};
use crate::logic::ids::{DpRank, WorkerId};
use crate::logic::load::{Applied, LoadTable};
use crate::logic::pulse::Pulse;
use crate::logic::rank_acceptance::RankAcceptance;
use crate::logic::ranks::RankRange;
use crate::logic::rate_limit::RateLimit;
use crate::logic::round::Answer;
use crate::logic::snapshot::{FeedHealth, WorkerSnapshot};
use crate::logic::variant_board::VariantBoard;
use crate::messages::{
    BlockKeys, Collect, Describe, Drain, Outcome, ProbeEnded, ReportLoad, ReportPolledLoad, ReportTrouble,
    RequestFinished, Reserve, RouterEvent, SetReadiness, ShowBlocks, Stop, Trouble, WorkerPorts,
};
use crate::telemetry::Telemetry;
use crate::wire::load_frame::decode_load;
use crate::wire::message::split;

mod adapter;
mod feeds;
mod kv;

use feeds::{FeedItem, FeedKind, RankFeeds};
use kv::KvCache;

/// Room in the mailbox. Reservations and their ends come with `do_send`, which ignores it; it only bounds `try_send`.
const MAILBOX_CAPACITY: usize = 1_024;
/// At most one log line per worker and interval about frames that cannot be used.
const BAD_FRAME_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What a worker needs to know of the configuration.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// How load is judged.
    pub load: LoadSettings,
    /// How the engine's KV cache is followed.
    pub kv: KvSettings,
    /// When it is ejected, and how it returns.
    pub health: HealthRules,
}

/// What the registry hands to the worker factory beside the endpoint.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerContext {
    /// Settings of the built-in worker.
    pub settings: WorkerSettings,
    /// Where to report trouble.
    pub registry: Recipient<ReportTrouble>,
    /// Whom to tell what happens.
    pub observers: Observers,
    /// Where to count.
    pub telemetry: Telemetry,
    /// Where to post how the worker's blocks are keyed.
    pub variants: VariantBoard,
}

impl WorkerContext {
    /// Returns the context of workers that report to `registry`.
    pub fn new(
        settings: WorkerSettings,
        registry: Recipient<ReportTrouble>,
        observers: Observers,
        telemetry: Telemetry,
        variants: VariantBoard,
    ) -> Self {
        Self { settings, registry, observers, telemetry, variants }
    }
}

/// One engine; see the module's documentation.
#[derive(Debug)]
pub struct WorkerActor {
    id: WorkerId,
    url: WorkerUrl,
    context: WorkerContext,
    health: Health,
    pulse: Pulse,
    facts: Arc<WorkerFacts>,
    load: LoadTable,
    flights: FlightBook,
    load_feeds: RankFeeds,
    ranks: RankAcceptance,
    kv: KvCache,
    feed_health: FeedHealth,
    bad_frame_log: RateLimit,
    frozen: Option<Arc<WorkerSnapshot>>,
}

impl WorkerActor {
    /// Returns a worker that knows nothing of its engine yet.
    pub fn new(id: WorkerId, endpoint: &Endpoint, context: WorkerContext) -> Self {
        Self {
            id,
            url: endpoint.url.clone(),
            health: Health::new(context.settings.health),
            pulse: Pulse::default(),
            facts: Arc::default(),
            load: LoadTable::new(None),
            flights: FlightBook::default(),
            load_feeds: RankFeeds::new(FeedKind::Load, None, context.settings.load.freshness),
            ranks: RankAcceptance::default(),
            kv: KvCache::new(id, context.settings.kv, context.telemetry.clone(), context.variants.clone()),
            feed_health: FeedHealth::default(),
            bad_frame_log: RateLimit::new(BAD_FRAME_LOG_INTERVAL),
            frozen: None,
            context,
        }
    }

    /// Starts the worker on this thread's arbiter and returns its ports.
    pub fn start_ports(id: WorkerId, endpoint: &Endpoint, context: WorkerContext) -> WorkerPorts {
        let worker = Self::new(id, endpoint, context);
        let (pulse, ranks) = (worker.pulse.clone(), worker.ranks.clone());
        let worker = worker.start();
        WorkerPorts::new(id, endpoint, &worker)
            .with_probes(worker.clone().recipient(), pulse)
            .with_ranks(ranks)
            .with_report_load(worker.clone().recipient())
            .with_polled_load(worker.clone().recipient())
            .with_show_blocks(worker.recipient())
    }

    /// Returns the snapshot, made anew only if something changed since the last one.
    fn snapshot(&mut self) -> Arc<WorkerSnapshot> {
        if let Some(frozen) = &self.frozen {
            return Arc::clone(frozen);
        }
        let own_dispatches_since = match self.load.oldest_report_at() {
            Some(report_at) => self.flights.dispatches_since(report_at, self.context.settings.load.dispatch_visibility),
            None => 0,
        };
        let addressed_ranks = self.addressed_ranks();
        let snapshot = Arc::new(WorkerSnapshot {
            id: self.id,
            url: self.url.clone(),
            state: self.health.state(),
            health: self.health.view(clock::now()),
            serving_since: self.health.serving_since(),
            left_alone_until: self.health.left_alone_until(),
            in_flight: self.flights.in_flight(),
            addressed_ranks,
            rank_flights: self.flights.of_ranks(
                addressed_ranks as usize,
                |rank| self.load.report_at(rank),
                self.context.settings.load.dispatch_visibility,
            ),
            load: self.load.freeze(own_dispatches_since),
            facts: Arc::clone(&self.facts),
            feeds: FeedHealth { open_sockets: self.load_feeds.num_open(), ..self.feed_health },
            kv: self.kv.view(),
        });
        self.frozen = Some(Arc::clone(&snapshot));
        snapshot
    }

    /// A worker of one rank needs none named.
    fn addressed_ranks(&self) -> u32 {
        let addresses = self.context.settings.load.route_dp_ranks;
        let ranks = self.facts.ranks.filter(|ranks| addresses || ranks.is_configured());
        match ranks.map_or(0, RankRange::count) {
            0 | 1 => 0,
            count if !self.ranks.is_refused() => count,
            _ => 0,
        }
    }

    /// One log line per change; what follows from it for others, and when to look again.
    fn announce(&mut self, change: Option<StateChange>, ctx: &mut Context<Self>) {
        let Some(StateChange { from, to, cause }) = change else { return };
        self.frozen = None;
        let (worker, state) = (self.id, to.name());
        tracing::info!(%worker, url = %self.url, from = from.name(), to = state, cause = cause.name(), "worker changed state");
        let event = || RouterEvent::WorkerStateChanged { worker, from, to, cause };
        self.context.observers.tell(&self.context.telemetry, event);
        if cause.is_ejection() {
            Telemetry::count(&self.context.telemetry.worker_ejections, cause.name());
        }
        if let Some(until) = self.health.out_until() {
            let cooldown = until.saturating_duration_since(clock::now());
            ctx.run_later(cooldown, Self::look_at_the_time);
        }
        if matches!(cause, Cause::Unreachable | Cause::Probes) {
            let trouble = ReportTrouble { worker, trouble: Trouble::EngineUnreachable };
            if self.context.registry.try_send(trouble).is_err() {
                tracing::warn!(%worker, "the registry could not be told that the engine is unreachable");
            }
        }
    }

    fn look_at_the_time(&mut self, ctx: &mut Context<Self>) {
        let change = self.health.time_passed(clock::now());
        self.announce(change, ctx);
    }

    fn take_frame(&mut self, rank: DpRank, frame: &Frame, now: Instant) {
        let decoded = split(frame.parts())
            .map_err(|error| error.reason())
            .and_then(|message| Ok((message.sequence, decode_load(message.payload).map_err(|error| error.reason())?)));
        match decoded {
            Ok((sequence, load)) => {
                if self.load.apply(rank, sequence, load, now) == Applied::InForce {
                    self.frozen = None;
                }
                self.feed_health.frames += 1;
                self.context.telemetry.load_frames.inc();
            }
            Err(reason) => self.refuse_frame(rank, reason, now),
        }
    }

    /// A frame that cannot be used changes nothing: the last good report stands until it is stale.
    fn refuse_frame(&mut self, rank: DpRank, reason: &'static str, now: Instant) {
        self.feed_health.bad_frames += 1;
        self.frozen = None;
        Telemetry::count(&self.context.telemetry.bad_load_frames, reason);
        if let Some(held_back) = self.bad_frame_log.admit(now) {
            tracing::warn!(worker = %self.id, url = %self.url, %rank, reason, held_back, "load frame refused");
        }
    }

    fn feed_failed(&mut self, rank: DpRank, error: &SubscribeError, now: Instant) {
        tracing::warn!(worker = %self.id, url = %self.url, %rank, %error, "load feed failed, it will be opened again");
        self.load_feeds.failed(rank, now);
        self.frozen = None;
    }

    /// Silence past the freshness window may be a publisher that is gone without a word; only a new connection can tell.
    fn reopen_silent_feeds(&mut self, ctx: &mut Context<Self>) {
        let now = clock::now();
        if self.frozen.as_ref().is_some_and(|frozen| frozen.health != self.health.view(now)) {
            self.frozen = None;
        }
        self.kv.relist_due(now, ctx);
        let num_reopened = self.kv.reopen_failed(now, ctx);
        self.telemetry_of_reopens(num_reopened);
        for rank in self.load_feeds.overdue(now) {
            self.load.restart_stream(rank);
            self.load_feeds.reopen(rank, now, ctx);
            self.telemetry_of_reopens(1);
        }
    }

    fn telemetry_of_reopens(&mut self, num_reopened: u64) {
        if num_reopened > 0 {
            self.feed_health.reopened += num_reopened;
            self.context.telemetry.feed_reopens.inc_by(num_reopened);
            self.frozen = None;
        }
    }

    fn open_feeds(&mut self, ctx: &mut Context<Self>) {
        if let Feed::Refused(reason) = &self.facts.load_feed {
            tracing::warn!(worker = %self.id, url = %self.url, %reason, "load feed refused, the worker is priced by in-flight");
        }
        if let Feed::Refused(reason) = &self.facts.kv_feed {
            tracing::warn!(worker = %self.id, url = %self.url, %reason, "KV event feed refused, the worker's cache is not known");
        }
        if let Some(plan) = self.facts.load_feed.plan() {
            self.load = LoadTable::new(Some(plan.dp_size));
            let freshness = self.context.settings.load.freshness;
            self.load_feeds = RankFeeds::new(FeedKind::Load, Some(plan.clone()), freshness);
            self.load_feeds.open_all(clock::now(), ctx);
        }
    }
}

/// Returns what an outcome says of the worker's health.
fn request_end(msg: &RequestFinished) -> RequestEnd {
    match msg.outcome {
        Outcome::Completed => RequestEnd::Proven,
        Outcome::Unreachable => RequestEnd::Unreachable,
        Outcome::BrokeOff | Outcome::TimedOut | Outcome::ServerError => RequestEnd::Failed,
        Outcome::Overloaded => RequestEnd::Overloaded(msg.retry_after),
        Outcome::ClientGone | Outcome::PeerFailed | Outcome::NotSent => RequestEnd::Nothing,
    }
}

impl Actor for WorkerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX_CAPACITY);
        let check_interval = (self.context.settings.load.freshness / 4).max(Duration::from_millis(10));
        ctx.run_interval(check_interval, Self::reopen_silent_feeds);
    }
}

impl Handler<Collect> for WorkerActor {
    type Result = ();

    fn handle(&mut self, Collect(token): Collect, _ctx: &mut Self::Context) {
        let matches = match &**token.prompts() {
            [] => Vec::new(),
            prompts => self.kv.matches(prompts, clock::now()),
        };
        let snapshot = self.snapshot();
        let num_ranks = snapshot.addressed_ranks;
        let rank_blocks = self.kv.rank_blocks(token.prompts(), num_ranks, clock::now());
        token.fill_with(Answer { snapshot, matches, rank_blocks });
    }
}

impl Handler<Reserve> for WorkerActor {
    type Result = ();

    fn handle(&mut self, msg: Reserve, _ctx: &mut Self::Context) {
        let now = clock::now();
        self.flights.reserve(msg.decision, msg.rank, now);
        self.health.reserved(msg.decision);
        if let Some(prompt) = &msg.prompt {
            self.kv.reserved(msg.decision, prompt, msg.rank, now);
        }
        self.frozen = None;
    }
}

impl Handler<RequestFinished> for WorkerActor {
    type Result = ();

    fn handle(&mut self, msg: RequestFinished, ctx: &mut Self::Context) {
        let Some(sent_at) = self.flights.finish(msg.decision) else { return };
        let now = clock::now();
        self.kv.finished(msg.decision, msg.outcome, msg.cached_tokens, now, ctx);
        self.frozen = None;
        Telemetry::count(&self.context.telemetry.requests, msg.outcome.name());
        let end = request_end(&msg);
        if end == RequestEnd::Proven {
            self.pulse.beat();
        }
        let change = self.health.ended(msg.decision, end, sent_at, now);
        self.announce(change, ctx);
        let (worker, telemetry) = (self.id, &self.context.telemetry);
        self.context.observers.tell(telemetry, || RouterEvent::Finished {
            decision: msg.decision,
            worker,
            outcome: msg.outcome,
        });
    }
}

impl Handler<Describe> for WorkerActor {
    type Result = ();

    fn handle(&mut self, Describe(facts): Describe, ctx: &mut Self::Context) {
        let is_first = self.facts.models.is_empty();
        self.facts = facts;
        self.frozen = None;
        if is_first {
            self.open_feeds(ctx);
        }
        self.kv.describe(&self.facts, clock::now(), ctx);
        let change = self.health.engine_answered(clock::now());
        self.announce(change, ctx);
    }
}

impl Handler<SetReadiness> for WorkerActor {
    type Result = ();

    fn handle(&mut self, SetReadiness(readiness): SetReadiness, ctx: &mut Self::Context) {
        let change = match readiness {
            Readiness::Ready => self.health.resume(clock::now()),
            Readiness::Suspended => self.health.suspend(clock::now()),
        };
        self.announce(change, ctx);
    }
}

impl Handler<ReportLoad> for WorkerActor {
    type Result = ();

    fn handle(&mut self, msg: ReportLoad, _ctx: &mut Self::Context) {
        if self.load.apply_unsequenced(msg.rank, msg.load, clock::now()) == Applied::InForce {
            self.frozen = None;
        }
    }
}

impl Handler<ReportPolledLoad> for WorkerActor {
    type Result = ();

    fn handle(&mut self, msg: ReportPolledLoad, _ctx: &mut Self::Context) {
        let freshness = self.context.settings.load.freshness;
        if self.load.apply_polled(&msg.loads, msg.asked_at, freshness) == Applied::InForce {
            self.frozen = None;
        }
    }
}

impl Handler<ShowBlocks> for WorkerActor {
    type Result = BlockKeys;

    fn handle(&mut self, _msg: ShowBlocks, _ctx: &mut Self::Context) -> BlockKeys {
        BlockKeys { by_rank: self.kv.keys() }
    }
}

impl Handler<ProbeEnded> for WorkerActor {
    type Result = ();

    fn handle(&mut self, ProbeEnded(result): ProbeEnded, ctx: &mut Self::Context) {
        let change = self.health.probed(result, self.pulse.take(), clock::now());
        self.announce(change, ctx);
    }
}

impl Handler<Drain> for WorkerActor {
    type Result = ();

    fn handle(&mut self, _msg: Drain, ctx: &mut Self::Context) {
        let change = self.health.drain(clock::now());
        self.announce(change, ctx);
    }
}

impl Handler<Stop> for WorkerActor {
    type Result = ();

    fn handle(&mut self, _msg: Stop, ctx: &mut Self::Context) {
        // The context drops the streams with it, which closes the sockets.
        ctx.stop();
    }
}

impl StreamHandler<FeedItem> for WorkerActor {
    fn handle(&mut self, item: FeedItem, ctx: &mut Self::Context) {
        let now = clock::now();
        if item.kind != FeedKind::Load {
            self.kv.take(item, now, ctx);
            self.frozen = None;
            return;
        }
        if !self.load_feeds.is_current(&item) {
            return;
        }
        match &item.event {
            Some(Ok(FeedEvent::Frame(frame))) => {
                self.load_feeds.heard(item.rank, now);
                self.take_frame(item.rank, frame, now);
            }
            // What comes on the next connection may be another process, with numbers of its own.
            Some(Ok(FeedEvent::ConnectionLost)) => self.load.restart_stream(item.rank),
            Some(Err(error)) => self.feed_failed(item.rank, error, now),
            Some(Ok(FeedEvent::Connected)) | None => {}
        }
    }

    fn finished(&mut self, _ctx: &mut Self::Context) {
        // One rank's stream ended with an error that was handled as its last item; the worker goes on.
    }
}

#[cfg(test)]
mod tests;
