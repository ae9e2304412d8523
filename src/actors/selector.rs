//! The SelectorActor answers where a request goes. It owns the rounds, the reservations inside a round, and the policy.
//!
//! Before each decision it asks **every** worker for a frozen snapshot. One round serves all requests that were waiting when it
//! began, and a request is only ever served by a round that began after it arrived. A worker that misses the round's deadline is
//! not a candidate in it, and no later round waits for it until its late answer shows that it lives; the registry hears of one
//! that stays silent. The router starts and stops this actor; when it dies, requests are answered with "unavailable".

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context as TaskContext;
use std::time::{Duration, Instant};

use actix::dev::{MessageResponse, OneshotSender};
use actix::prelude::{Actor, AsyncContext, Context, Handler, Recipient};
use rustc_hash::FxHashMap;

use crate::actors::gather::ask;
use crate::actors::observers::Observers;
use crate::clock;
use crate::logic::decide::{Choice, DecideRules, FrozenRound, NoWorker, Scratch, decide, is_for_a_pair};
use crate::logic::ids::{DecisionId, WorkerId};
use crate::logic::parking::{Parking, Place};
use crate::logic::policy::{LeastLoad, PrefixMatch};
use crate::logic::price::{Basis, PriceRules, trust};
use crate::logic::rate_limit::RateLimit;
use crate::logic::recent::RecentDecision;
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;
use crate::logic::role::Part;
use crate::logic::round::{Prompts, Round};
use crate::logic::siblings::Siblings;
use crate::logic::snapshot::WorkerSnapshot;
use crate::messages::{
    CandidateRecord, Decision, DecisionRecord, ReportTrouble, RouterEvent, SelectWorker, Trouble, WorkerPorts,
    WorkersChanged,
};
use crate::telemetry::{DecisionLabels, Telemetry};

mod driver;
mod pairs;
mod ranks;
mod settings;

use driver::{OpenRound, RoundDriver};
use ranks::{RankBuffers, RankQuestion};
pub use settings::SelectorSettings;

/// A worker that has not answered for this long is reported to the registry, which replaces it.
const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(500);
/// Requests that wait for room and are tried in one round. Where the first of them find none, the others would not either.
const PARKED_PER_ROUND: usize = 64;
/// Models with a turn of their own. The fleet bounds them; this bounds a fleet whose models change.
const MAX_TURNS: usize = 1_024;

/// Answers [`SelectWorker`]; see the module's documentation.
pub struct SelectorActor {
    settings: SelectorSettings,
    registry: Recipient<ReportTrouble>,
    observers: Observers,
    telemetry: Telemetry,
    workers: Arc<[Arc<WorkerPorts>]>,
    suspects: FxHashMap<WorkerId, Suspect>,
    waiting: Rc<RefCell<VecDeque<Waiting>>>,
    parked: Parking<Waiting>,
    turns: FxHashMap<Option<Arc<str>>, u64>,
    num_decisions: u64,
    seeds: Rng,
    buffers: Buffers,
    fallback_log: RateLimit,
    was_on_fallback: bool,
}

/// A request and whom to answer.
struct Waiting {
    request: RequestFacts,
    reply: Option<OneshotSender<Result<Decision, NoWorker>>>,
    /// Its place in the queue, once it has waited there, and since when.
    place: Option<Place>,
    queued_at: Option<Instant>,
}

impl Waiting {
    /// A client that left meanwhile drops the decision, and with it the reservation.
    fn answer(self, decision: Result<Decision, NoWorker>) {
        if let Some(reply) = self.reply {
            drop(reply.send(decision));
        }
    }
}

/// A worker that did not answer in time. Its token is still open; nothing more is asked of it until that one is used or dropped.
struct Suspect {
    missed: Arc<Round>,
    slot: usize,
    since: Instant,
    is_reported: bool,
}

#[derive(Default)]
struct Buffers {
    scratch: Scratch,
    prefill_scratch: Scratch,
    view: Vec<Option<Arc<WorkerSnapshot>>>,
    reserved: Vec<u32>,
    matches: Vec<PrefixMatch>,
    siblings: Siblings,
    ranks: RankBuffers,
}

impl std::fmt::Debug for SelectorActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SelectorActor").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl SelectorActor {
    /// Returns a selector that knows no worker yet.
    pub fn new(
        settings: SelectorSettings,
        registry: Recipient<ReportTrouble>,
        observers: Observers,
        telemetry: Telemetry,
    ) -> Self {
        let seeds = Rng::from_seed(settings.seed);
        let parked = Parking::new(settings.queue.max_waiting);
        Self {
            settings,
            registry,
            observers,
            telemetry,
            workers: Arc::from([]),
            suspects: FxHashMap::default(),
            waiting: Rc::default(),
            parked,
            turns: FxHashMap::default(),
            num_decisions: 0,
            seeds,
            buffers: Buffers::default(),
            fallback_log: RateLimit::new(Duration::from_secs(10)),
            was_on_fallback: false,
        }
    }

    fn start_round(&mut self, context: &TaskContext<'_>) -> OpenRound {
        self.suspects.retain(|_, suspect| !suspect.missed.is_filled(suspect.slot) && !suspect.missed.is_complete());
        let mut requests = VecDeque::with_capacity(self.parked.len().min(PARKED_PER_ROUND));
        while requests.len() < PARKED_PER_ROUND
            && let Some((place, waiting)) = self.parked.first()
        {
            requests.push_back(Waiting { place: Some(place), ..waiting });
        }
        requests.append(&mut self.waiting.borrow_mut());
        let prompts: Prompts = requests.iter().filter_map(|waiting| waiting.request.prompt.clone()).collect();
        let is_asked = |worker: &WorkerPorts| !self.suspects.contains_key(&worker.id);
        let round = ask(&self.workers, is_asked, prompts, context.waker().clone());
        self.telemetry.rounds.inc();
        OpenRound { round, workers: Arc::clone(&self.workers), requests, started_at: clock::now() }
    }

    fn end_round(&mut self, mut open: OpenRound) {
        let now = clock::now();
        if !open.round.is_complete() {
            self.note_misses(&open, now);
        }
        self.report_unresponsive(now);
        let mut buffers = std::mem::take(&mut self.buffers);
        open.round.freeze_into(&mut buffers.view);
        buffers.reserved.clear();
        buffers.reserved.resize(buffers.view.len(), 0);
        buffers.ranks.begin(&buffers.view);
        let mut num_prompts = 0;
        for waiting in std::mem::take(&mut open.requests) {
            buffers.matches.clear();
            let place = waiting.request.prompt.is_some().then_some(num_prompts);
            if let Some(prompt) = &waiting.request.prompt {
                open.round.matches_into(num_prompts, &mut buffers.matches);
                buffers.siblings.raise(prompt, &buffers.view, &mut buffers.matches);
                num_prompts += 1;
            }
            if waiting.reply.as_ref().is_none_or(OneshotSender::is_closed) {
                continue;
            }
            let decision = self.decide(&waiting.request, &open, place, &mut buffers, now);
            self.answer(waiting, decision, now);
        }
        let expired = self.parked.expired(now);
        // Whoever is answered may look at it.
        self.telemetry.queued_requests.set(self.parked.len() as i64);
        for late in expired {
            let waited = late.queued_at.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            self.telemetry.queue_wait_seconds.observe(waited);
            self.refuse(late, "waited_too_long");
        }
        buffers.siblings.clear();
        // The snapshots must not outlive their round: the workers reuse theirs as long as nothing changes.
        buffers.view.clear();
        self.buffers = buffers;
    }

    /// Answers, unless the request may wait for room.
    fn answer(&mut self, mut waiting: Waiting, decision: Result<Decision, NoWorker>, now: Instant) {
        match (decision, waiting.place) {
            (Err(NoWorker::Full), Some(place)) => self.parked.put_back(place, waiting),
            (Err(NoWorker::Full), None) => {
                let (priority, deadline) = (waiting.request.priority, now + self.settings.queue.timeout);
                waiting.queued_at = Some(now);
                if let Err(turned_away) = self.parked.enter(waiting, priority, deadline) {
                    self.refuse(turned_away, "queue_full");
                }
            }
            (Err(cause), _) => {
                Telemetry::count(&self.telemetry.no_worker, cause.name());
                waiting.answer(Err(cause));
            }
            (Ok(decision), _) => {
                let queued_for = waiting.queued_at.map(|since| now.saturating_duration_since(since));
                queued_for.into_iter().for_each(|waited| self.telemetry.queue_wait_seconds.observe(waited));
                waiting.answer(Ok(decision.with_queue_time(queued_for.unwrap_or_default())));
            }
        }
    }

    fn refuse(&self, waiting: Waiting, why: &'static str) {
        Telemetry::count(&self.telemetry.no_worker, NoWorker::Full.name());
        Telemetry::count(&self.telemetry.queue_refusals, why);
        waiting.answer(Err(NoWorker::Full));
    }

    fn note_misses(&mut self, open: &OpenRound, now: Instant) {
        for (slot, worker) in open.workers.iter().enumerate() {
            if !open.round.is_filled(slot) && !self.suspects.contains_key(&worker.id) {
                self.telemetry.round_misses.inc();
                tracing::debug!(worker = %worker.id, "worker missed the round's deadline");
                let missed = Arc::clone(&open.round);
                self.suspects.insert(worker.id, Suspect { missed, slot, since: now, is_reported: false });
            }
        }
    }

    fn report_unresponsive(&mut self, now: Instant) {
        for (worker, suspect) in &mut self.suspects {
            let silent_for = now.saturating_duration_since(suspect.since);
            if silent_for >= UNRESPONSIVE_AFTER && !suspect.is_reported {
                let trouble = ReportTrouble { worker: *worker, trouble: Trouble::Unresponsive };
                suspect.is_reported = self.registry.try_send(trouble).is_ok();
            }
        }
    }

    fn decide(
        &mut self,
        request: &RequestFacts,
        open: &OpenRound,
        prompt_place: Option<usize>,
        buffers: &mut Buffers,
        now: Instant,
    ) -> Result<Decision, NoWorker> {
        let seed = self.seeds.next_u64();
        let rules = DecideRules {
            price: self.settings.price,
            policy: &*self.settings.policy,
            turn: self.turns.get(&request.model).copied().unwrap_or(0),
            seed,
            caps: self.settings.caps,
            part: Part::Whole,
        };
        let round = FrozenRound { slots: &buffers.view, reserved: &buffers.reserved, matches: &buffers.matches, now };
        let question = RankQuestion { request, open, prompt_place, now, seed };
        let mut choice = match decide_or_least_load(request, &round, &rules, &mut buffers.scratch, &self.telemetry) {
            Ok(choice) => choice,
            Err(_) if is_for_a_pair(request, &round) => return self.decide_pair(question, buffers),
            Err(cause) => return Err(cause),
        };
        choice.rank = self.choose_rank(question, &choice, buffers);
        self.advance_turn(request);
        self.num_decisions += 1;
        let id = DecisionId::new(self.settings.seed.wrapping_add(self.num_decisions));
        buffers.reserved[choice.slot] += 1;
        buffers.ranks.reserve(choice.slot, choice.rank);
        if let Some(prompt) = &request.prompt {
            buffers.siblings.note(choice.slot, choice.rank, prompt);
        }
        let matched_tokens = matched_tokens(request, &choice, buffers);
        self.remember(id, request, &choice, matched_tokens, &open.workers[choice.slot], now);
        self.record(id, seed, self.settings.policy.name(), &choice, buffers, now);
        let fallbacks = choice.fallbacks.iter().map(|slot| Arc::clone(&open.workers[*slot])).collect();
        let worker = Arc::clone(&open.workers[choice.slot]);
        let decision = Decision::at_rank(id, worker, choice.rank, request, choice.reason, choice.basis);
        let decision = decision.with_fallbacks(fallbacks).with_matched_tokens(matched_tokens);
        Ok(decision.with_retries_by_decision(self.settings.caps.limit_anything()))
    }

    /// Keeps what an operator sees of it: one entry of a bounded list.
    fn remember(
        &self,
        id: DecisionId,
        request: &RequestFacts,
        choice: &Choice,
        matched_tokens: Option<u32>,
        worker: &WorkerPorts,
        now: Instant,
    ) {
        let prompt_tokens = request.prompt.as_ref().map(|prompt| prompt.num_tokens());
        if let (Some(all), Some(matched)) = (prompt_tokens, matched_tokens) {
            self.telemetry.prompt_tokens.inc_by(u64::from(all));
            self.telemetry.matched_prompt_tokens.inc_by(u64::from(matched));
        }
        self.telemetry.recent().note(RecentDecision {
            id,
            worker: worker.id,
            rank: choice.rank,
            reason: choice.reason,
            basis: choice.basis,
            load: choice.load,
            prompt_tokens,
            matched_tokens,
            at: now,
        });
    }

    fn advance_turn(&mut self, request: &RequestFacts) {
        if let Some(turn) = self.turns.get_mut(&request.model) {
            *turn += 1;
        } else if self.turns.len() < MAX_TURNS {
            // Only models that some worker serves come here: a client cannot fill the map.
            self.turns.insert(request.model.clone(), 1);
        }
    }

    fn record(
        &mut self,
        id: DecisionId,
        seed: u64,
        policy: &'static str,
        choice: &Choice,
        buffers: &Buffers,
        now: Instant,
    ) {
        let labels = DecisionLabels { policy, reason: choice.reason, basis: choice.basis.name() };
        self.telemetry.decisions.get_or_create(&labels).inc();
        self.note_fallback(choice.basis, buffers, now);
        let Some(chosen) = buffers.view[choice.slot].as_ref() else { return };
        tracing::debug!(decision = %id, worker = %chosen.id, policy, reason = choice.reason, basis = choice.basis.name(),
            load = choice.load, "decided");
        self.observers.tell(&self.telemetry, || {
            RouterEvent::Decided(Arc::new(DecisionRecord {
                id,
                worker: chosen.id,
                rank: choice.rank,
                url: chosen.url.clone(),
                policy,
                reason: choice.reason,
                basis: choice.basis,
                seed,
                candidates: candidate_records(buffers, &self.settings.price, now),
            }))
        });
    }

    fn count_causes(&self, buffers: &Buffers, now: Instant) {
        let candidates = buffers.scratch.candidates().iter();
        let snapshots = candidates.filter_map(|candidate| buffers.view.get(candidate.slot)?.as_ref());
        let mut causes: Vec<&'static str> = Vec::new();
        for trust in snapshots.map(|snapshot| trust(snapshot, &self.settings.price, now)) {
            if !trust.is_trusted() && !causes.contains(&trust.name()) {
                causes.push(trust.name());
            }
        }
        causes.into_iter().for_each(|cause| Telemetry::count(&self.telemetry.fallback_causes, cause));
    }

    /// One log line per change, and a gauge: the operator must learn that the engines' load is not what decides.
    fn note_fallback(&mut self, basis: Basis, buffers: &Buffers, now: Instant) {
        let advertised =
            |snapshot: &Option<Arc<WorkerSnapshot>>| snapshot.as_ref().is_some_and(|worker| worker.advertises_load());
        let is_on_fallback = basis != Basis::Engine && buffers.view.iter().any(advertised);
        if is_on_fallback {
            self.telemetry.fallback_decisions.inc();
            self.count_causes(buffers, now);
        }
        if is_on_fallback == self.was_on_fallback {
            return;
        }
        self.was_on_fallback = is_on_fallback;
        self.telemetry.fleet_on_fallback.set(i64::from(is_on_fallback));
        let Some(held_back) = self.fallback_log.admit(now) else { return };
        if is_on_fallback {
            tracing::warn!(
                basis = basis.name(),
                held_back,
                "the fleet is on fallback: some engine's load is missing or old"
            );
        } else {
            tracing::info!(held_back, "the fleet is routed on the engines' load again");
        }
    }
}

/// Returns how many of the prompt's tokens the chosen worker holds; `None` where the prompt is not known as tokens.
fn matched_tokens(request: &RequestFacts, choice: &Choice, buffers: &Buffers) -> Option<u32> {
    let prompt = request.prompt.as_ref()?;
    let matched_blocks = buffers.matches.get(choice.slot).map_or(0, |found| found.matched_blocks);
    let block_size = buffers.view.get(choice.slot)?.as_ref()?.kv.variant.map_or(0, |variant| variant.block_size);
    Some(matched_blocks.saturating_mul(block_size).min(prompt.num_tokens()))
}

/// A policy is the user's code: where it panics, the request still goes to the least loaded worker.
fn decide_or_least_load(
    request: &RequestFacts,
    round: &FrozenRound<'_>,
    rules: &DecideRules<'_>,
    scratch: &mut Scratch,
    telemetry: &Telemetry,
) -> Result<Choice, NoWorker> {
    let decided = catch_unwind(AssertUnwindSafe(|| decide(request, round, rules, scratch)));
    match decided {
        Ok(decided) => {
            if decided.as_ref().is_ok_and(|choice| choice.reason == "pick_out_of_range") {
                telemetry.policy_faults.inc();
            }
            decided
        }
        Err(_) => {
            telemetry.policy_faults.inc();
            tracing::error!(policy = rules.policy.name(), "the policy panicked: the least loaded worker is taken");
            let rules = DecideRules { policy: &LeastLoad, ..*rules };
            decide(request, round, &rules, scratch).map(|choice| Choice { reason: "policy_panicked", ..choice })
        }
    }
}

fn candidate_records(buffers: &Buffers, rules: &PriceRules, now: Instant) -> Vec<CandidateRecord> {
    let record = |candidate: &crate::logic::price::Priced| {
        let snapshot = Arc::clone(buffers.view.get(candidate.slot)?.as_ref()?);
        let (trust, report_age) = (trust(&snapshot, rules, now), snapshot.load.age(now));
        Some(CandidateRecord { snapshot, load: candidate.load, trust, report_age })
    };
    buffers.scratch.candidates().iter().filter_map(record).collect()
}

impl Actor for SelectorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.spawn(RoundDriver::new());
    }
}

/// The reply to [`SelectWorker`]: keeps the sender itself in the queue, where a boxed future per request would cost a task.
#[derive(Debug)]
pub struct Queued {
    queue: Rc<RefCell<VecDeque<Waiting>>>,
    request: RequestFacts,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("request", &self.request).finish_non_exhaustive()
    }
}

impl MessageResponse<SelectorActor, SelectWorker> for Queued {
    fn handle(self, _ctx: &mut Context<SelectorActor>, reply: Option<OneshotSender<Result<Decision, NoWorker>>>) {
        self.queue.borrow_mut().push_back(Waiting { request: self.request, reply, place: None, queued_at: None });
    }
}

impl Handler<SelectWorker> for SelectorActor {
    type Result = Queued;

    fn handle(&mut self, msg: SelectWorker, _ctx: &mut Self::Context) -> Queued {
        Queued { queue: Rc::clone(&self.waiting), request: msg.request }
    }
}

impl Handler<WorkersChanged> for SelectorActor {
    type Result = ();

    fn handle(&mut self, msg: WorkersChanged, _ctx: &mut Self::Context) {
        self.workers = msg.workers;
        let workers = &self.workers;
        self.suspects.retain(|id, _| workers.iter().any(|worker| worker.id == *id));
    }
}
