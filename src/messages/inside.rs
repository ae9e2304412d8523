//! What travels inside messages: the doors of a worker, a place at it, and a decision.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::Recipient;

use crate::logic::endpoint::{Endpoint, Secret, WorkerUrl};
use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::price::Basis;
use crate::logic::prompt_keys::PromptKeys;
use crate::logic::pulse::Pulse;
use crate::logic::rank_acceptance::RankAcceptance;
use crate::logic::request::RequestFacts;
use crate::logic::rooms::RoomRank;
use crate::messages::{
    Collect, Describe, Drain, Outcome, ProbeEnded, ReportLoad, ReportPolledLoad, RequestFinished, Reserve,
    SetReadiness, ShowBlocks, Stop,
};

/// The doors of one worker, whoever built it. Shared behind an `Arc`: copying a `Recipient` allocates.
#[non_exhaustive]
pub struct WorkerPorts {
    /// Who.
    pub id: WorkerId,
    /// Where.
    pub url: WorkerUrl,
    /// The bearer key that its engine wants.
    pub api_key: Option<Secret>,
    /// Answers [`Collect`].
    pub collect: Recipient<Collect>,
    /// Receives [`Reserve`].
    pub reserve: Recipient<Reserve>,
    /// Receives [`RequestFinished`].
    pub finished: Recipient<RequestFinished>,
    /// Receives [`Describe`].
    pub describe: Recipient<Describe>,
    /// Receives [`SetReadiness`].
    pub readiness: Recipient<SetReadiness>,
    /// Receives [`ReportLoad`], where the worker takes reports from others.
    pub report_load: Option<Recipient<ReportLoad>>,
    /// Receives [`ReportPolledLoad`], where the worker's engine may be asked for its load.
    pub report_polled_load: Option<Recipient<ReportPolledLoad>>,
    /// Answers [`ShowBlocks`], where the worker lists blocks.
    pub show_blocks: Option<Recipient<ShowBlocks>>,
    /// Receives [`ProbeEnded`], where the worker's engine is to be probed.
    pub probe_ended: Option<Recipient<ProbeEnded>>,
    /// Beats with each part of a good answer of its engine.
    pub pulse: Pulse,
    /// What is known of whether its engine takes the ranks that it is believed to own.
    pub ranks: RankAcceptance,
    /// Receives [`Drain`].
    pub drain: Recipient<Drain>,
    /// Receives [`Stop`].
    pub stop: Recipient<Stop>,
    /// Whether its engine speaks HTTP/2 in cleartext.
    speaks_http2: AtomicBool,
}

impl WorkerPorts {
    /// Returns the ports of an actor that handles every message of the worker port.
    pub fn new<A>(id: WorkerId, endpoint: &Endpoint, worker: &actix::Addr<A>) -> Self
    where
        A: actix::Actor<Context = actix::Context<A>>
            + actix::Handler<Collect>
            + actix::Handler<Reserve>
            + actix::Handler<RequestFinished>
            + actix::Handler<Describe>
            + actix::Handler<SetReadiness>
            + actix::Handler<Drain>
            + actix::Handler<Stop>,
    {
        Self {
            id,
            url: endpoint.url.clone(),
            api_key: endpoint.overrides.api_key.clone(),
            collect: worker.clone().recipient(),
            reserve: worker.clone().recipient(),
            finished: worker.clone().recipient(),
            describe: worker.clone().recipient(),
            readiness: worker.clone().recipient(),
            report_load: None,
            report_polled_load: None,
            show_blocks: None,
            probe_ended: None,
            pulse: Pulse::default(),
            ranks: RankAcceptance::default(),
            drain: worker.clone().recipient(),
            stop: worker.clone().recipient(),
            speaks_http2: AtomicBool::new(false),
        }
    }

    /// Adds the port through which others may report load.
    #[must_use]
    pub fn with_report_load(mut self, report_load: Recipient<ReportLoad>) -> Self {
        self.report_load = Some(report_load);
        self
    }

    /// Notes whether the engine speaks HTTP/2 in cleartext.
    pub fn set_http2(&self, speaks_http2: bool) {
        self.speaks_http2.store(speaks_http2, Ordering::Relaxed);
    }

    /// Tells whether the engine speaks HTTP/2 in cleartext.
    pub fn speaks_http2(&self) -> bool {
        self.speaks_http2.load(Ordering::Relaxed)
    }

    /// Adds the port through which the worker hears what its engine said of its load when it was asked.
    #[must_use]
    pub fn with_polled_load(mut self, report_polled_load: Recipient<ReportPolledLoad>) -> Self {
        self.report_polled_load = Some(report_polled_load);
        self
    }

    /// Adds the port through which the worker hears of probes; `pulse` is where it looks for signs of life between them.
    #[must_use]
    pub fn with_probes(mut self, probe_ended: Recipient<ProbeEnded>, pulse: Pulse) -> Self {
        self.probe_ended = Some(probe_ended);
        self.pulse = pulse;
        self
    }

    /// Shares what is learnt of the engine's ranks with the worker, which addresses none once one was refused.
    #[must_use]
    pub fn with_ranks(mut self, ranks: RankAcceptance) -> Self {
        self.ranks = ranks;
        self
    }

    /// Adds the port through which others may see which blocks the worker lists.
    #[must_use]
    pub fn with_show_blocks(mut self, show_blocks: Recipient<ShowBlocks>) -> Self {
        self.show_blocks = Some(show_blocks);
        self
    }

    /// Reserves a place at the worker, at a rank or at whichever its engine takes. The place is held until the reservation is
    /// finished or dropped.
    pub fn reserve(
        self: &Arc<Self>,
        decision: DecisionId,
        rank: Option<DpRank>,
        prompt: Option<Arc<PromptKeys>>,
    ) -> Reservation {
        #[expect(clippy::disallowed_methods, reason = "a worker that is gone needs no account of its requests")]
        self.reserve.do_send(Reserve { decision, rank, prompt });
        Reservation {
            decision,
            worker: Arc::clone(self),
            outcome: Outcome::NotSent,
            cached_tokens: None,
            retry_after: None,
        }
    }
}

impl fmt::Debug for WorkerPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPorts").field("id", &self.id).field("url", &self.url).finish_non_exhaustive()
    }
}

/// One request's place at one worker. Dropping it in any way tells the worker that the request has ended, exactly once: the
/// in-flight count cannot leak and cannot go below zero.
pub struct Reservation {
    decision: DecisionId,
    worker: Arc<WorkerPorts>,
    outcome: Outcome,
    cached_tokens: Option<u32>,
    retry_after: Option<Duration>,
}

impl Reservation {
    /// Sets how long the engine wants to be left alone.
    pub fn set_retry_after(&mut self, retry_after: Option<Duration>) {
        self.retry_after = retry_after;
    }

    /// Sets how many prompt tokens the engine says it found in its cache.
    pub fn set_cached_tokens(&mut self, cached_tokens: Option<u32>) {
        self.cached_tokens = cached_tokens;
    }

    /// Sets how the request will have ended if nothing else is said before the drop.
    pub fn presume(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Notes that a part of a good answer came: the worker lives.
    pub fn heard(&self) {
        self.worker.pulse.beat();
    }

    /// Ends the request.
    pub fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Returns how the request will have ended if nothing else is said before the drop.
    pub fn presumed(&self) -> Outcome {
        self.outcome
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        #[expect(clippy::disallowed_methods, reason = "a worker that is gone needs no account; Drop cannot wait")]
        self.worker.finished.do_send(RequestFinished {
            decision: self.decision,
            outcome: self.outcome,
            cached_tokens: self.cached_tokens,
            retry_after: self.retry_after,
        });
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("decision", &self.decision).finish_non_exhaustive()
    }
}

/// Where a request goes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Decision {
    /// Identifies it in logs and answers.
    pub id: DecisionId,
    /// The worker chosen.
    pub worker: Arc<WorkerPorts>,
    /// The rank to address; `None` leaves it to the engine.
    pub rank: Option<DpRank>,
    /// Its place there.
    pub reservation: Reservation,
    /// Workers to try next if it fails before its first byte, best first. A place is reserved when one is tried.
    pub fallbacks: Vec<Arc<WorkerPorts>>,
    /// Whether an answer that another worker might better calls for one more decision where there are no fallbacks: a fallback is sent to
    /// without a look at its load, and must not be where that is limited.
    pub retries_by_decision: bool,
    /// Why.
    pub reason: &'static str,
    /// What the loads were made of.
    pub basis: Basis,
    /// The request's prompt, for the reservations of fallbacks.
    pub prompt: Option<Arc<PromptKeys>>,
    /// Who computes the prompt, where the worker is a decode worker; there are no fallbacks then.
    pub prefill: Option<Box<PrefillLeg>>,
    /// How long the request waited for room.
    pub queued_for: Duration,
    /// Tokens of the prompt that the worker holds in its cache; `None` where the prompt is not known as tokens.
    pub matched_tokens: Option<u32>,
}

/// The part of a shared request that its prefill worker does.
#[derive(Debug)]
#[non_exhaustive]
pub struct PrefillLeg {
    /// The worker.
    pub worker: Arc<WorkerPorts>,
    /// The rank that the room has to name, and how many there are; `None` where any room will do.
    pub rank: Option<RoomRank>,
    /// Port at the worker's host where the decode engine finds it.
    pub bootstrap_port: u16,
    /// The request's place there.
    pub reservation: Reservation,
    /// Seed of the room's number.
    pub room_seed: u64,
}

impl PrefillLeg {
    /// Returns the leg and reserves the request's place at the worker. For selectors outside this crate too.
    pub fn new(
        id: DecisionId,
        worker: Arc<WorkerPorts>,
        rank: Option<RoomRank>,
        request: &RequestFacts,
        bootstrap_port: u16,
        room_seed: u64,
    ) -> Self {
        let reservation = worker.reserve(id, rank.map(|rank| DpRank::new(rank.rank)), request.prompt.clone());
        Self { worker, rank, bootstrap_port, reservation, room_seed }
    }
}

impl Decision {
    /// Returns a decision for the worker, at whichever rank its engine takes, and reserves its place there. For selectors outside
    /// this crate too.
    pub fn new(
        id: DecisionId,
        worker: Arc<WorkerPorts>,
        request: &RequestFacts,
        reason: &'static str,
        basis: Basis,
    ) -> Self {
        Self::at_rank(id, worker, None, request, reason, basis)
    }

    /// Returns the same for a rank of the worker.
    pub fn at_rank(
        id: DecisionId,
        worker: Arc<WorkerPorts>,
        rank: Option<DpRank>,
        request: &RequestFacts,
        reason: &'static str,
        basis: Basis,
    ) -> Self {
        let prompt = request.prompt.clone();
        let reservation = worker.reserve(id, rank, prompt.clone());
        Self {
            id,
            worker,
            rank,
            reservation,
            fallbacks: Vec::new(),
            reason,
            basis,
            prompt,
            prefill: None,
            queued_for: Duration::ZERO,
            matched_tokens: None,
            retries_by_decision: false,
        }
    }

    /// Names who computes the prompt for the worker, which then is a decode worker.
    #[must_use]
    pub fn with_prefill(mut self, prefill: PrefillLeg) -> Self {
        self.prefill = Some(Box::new(prefill));
        self
    }

    /// Names the workers to try next.
    #[must_use]
    pub fn with_fallbacks(mut self, fallbacks: Vec<Arc<WorkerPorts>>) -> Self {
        self.fallbacks = fallbacks;
        self
    }

    /// Says whether a retry takes one more decision.
    #[must_use]
    pub fn with_retries_by_decision(mut self, retries_by_decision: bool) -> Self {
        self.retries_by_decision = retries_by_decision;
        self
    }

    /// Notes how long the request waited for room.
    #[must_use]
    pub fn with_queue_time(mut self, queued_for: Duration) -> Self {
        self.queued_for = queued_for;
        self
    }

    /// Notes how many tokens of the prompt the worker holds.
    #[must_use]
    pub fn with_matched_tokens(mut self, matched_tokens: Option<u32>) -> Self {
        self.matched_tokens = matched_tokens;
        self
    }
}
