//! Every message that crosses an actor boundary, grouped by receiver. This is the extension contract: an actor that handles the
//! messages of a port can stand in for the built-in one.
//!
//! | port | receives | built-in |
//! |---|---|---|
//! | selection | [`SelectWorker`], [`WorkersChanged`] | `SelectorActor` |
//! | worker | [`Collect`], [`Reserve`], [`RequestFinished`], [`Describe`], [`SetReadiness`], [`ReportLoad`], [`ReportPolledLoad`], [`Drain`], [`Stop`] | `WorkerActor` |
//! | registry | [`EndpointsChanged`], [`HoldWorker`], [`ReportTrouble`], [`ShowFleet`], [`Shutdown`] | `RegistryActor` |
//! | admin | [`ChangeWorkers`] | `AdminDiscovery` |
//! | spans | [`SpanEnded`], [`FlushSpans`] | `SpanExport`, with the feature `otel` |
//! | events | [`RouterEvent`] | none |

mod inside;

pub use inside::{Decision, PrefillLeg, Reservation, WorkerPorts};

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::{Message, MessageResponse};

use crate::logic::admin_set::{ChangeRefusal, WorkerChange};
use crate::logic::decide::NoWorker;
use crate::logic::endpoint::{Endpoint, Readiness, WorkerFacts, WorkerUrl};
use crate::logic::health::{Cause, WorkerState};
use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::load::RankLoad;
use crate::logic::price::Basis;
use crate::logic::probe::ProbeResult;
use crate::logic::prompt_keys::PromptKeys;
use crate::logic::request::RequestFacts;
use crate::logic::round::Token;
use crate::logic::snapshot::WorkerSnapshot;
use crate::logic::span::Span;

// ---- to the selector ------------------------------------------------------------------------------------------------------

/// Asks where a request goes.
///
/// Sent by the HTTP edge once per request. The built-in selector answers from a round of questions that started after this
/// message arrived. Whoever asks may go away: a decision that cannot be delivered releases its reservation by itself. Without an
/// answer the edge tells the client that the router is unavailable.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<Decision, NoWorker>")]
pub struct SelectWorker {
    /// The request.
    pub request: RequestFacts,
}

/// Tells which workers there are. Always the full set, ordered by id. Sent by the registry after each change.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct WorkersChanged {
    /// All of them, in every state.
    pub workers: Arc<[Arc<WorkerPorts>]>,
}

// ---- to a worker ----------------------------------------------------------------------------------------------------------

/// Asks a worker for its frozen snapshot. The answer goes into the token, or the token is dropped: both count as an answer.
///
/// Sent by the selector at the start of each round, which waits for at most the round deadline. A worker that does not answer in
/// time is not a candidate in that round, and later rounds do not wait for it until it answers again.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Collect(pub Token);

/// Tells a worker that a request is about to be sent to it. Arrives before any [`Collect`] of a later round.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Reserve {
    /// Which request.
    pub decision: DecisionId,
    /// The DP rank that it is addressed to; `None` where the engine chooses.
    pub rank: Option<DpRank>,
    /// Its prompt, where it is known as tokens: the worker's engine will hold its blocks soon.
    pub prompt: Option<Arc<PromptKeys>>,
}

/// Tells a worker how a request that was reserved at it ended. Sent exactly once per [`Reserve`].
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct RequestFinished {
    /// Which request.
    pub decision: DecisionId,
    /// How it ended.
    pub outcome: Outcome,
    /// Prompt tokens that the engine says it found in its cache; `None` where it says nothing of it.
    pub cached_tokens: Option<u32>,
    /// How long the engine wants to be left alone; only of [`Outcome::Overloaded`].
    pub retry_after: Option<Duration>,
}

/// How a request ended at one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The engine's answer was passed on to its end, whatever its status.
    Completed,
    /// The client left first. Not the worker's doing.
    ClientGone,
    /// The engine could not be reached, or the connection ended before the first byte of an answer.
    Unreachable,
    /// The engine's answer broke off after its first byte.
    BrokeOff,
    /// The engine sent no answer within the header timeout.
    TimedOut,
    /// The engine answered 500, 502 or 504. Whether that was passed on or another worker was tried does not matter to it.
    ServerError,
    /// The engine answered 429 or 503: it has no room now.
    Overloaded,
    /// The request was shared with another worker, which failed first. Not this worker's doing.
    PeerFailed,
    /// The request was never sent: it was cancelled between decision and dispatch.
    NotSent,
}

impl Outcome {
    /// Every outcome, for counters that show zeros too.
    pub const ALL: [Self; 9] = [
        Self::Completed,
        Self::ClientGone,
        Self::Unreachable,
        Self::BrokeOff,
        Self::TimedOut,
        Self::ServerError,
        Self::Overloaded,
        Self::PeerFailed,
        Self::NotSent,
    ];

    /// Returns the name used in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClientGone => "client_gone",
            Self::Unreachable => "unreachable",
            Self::BrokeOff => "broke_off",
            Self::TimedOut => "timed_out",
            Self::ServerError => "server_error",
            Self::Overloaded => "overloaded",
            Self::PeerFailed => "peer_failed",
            Self::NotSent => "not_sent",
        }
    }
}

/// Tells a worker what its engine serves and where it publishes. Sent by the registry each time the engine was asked with
/// success; the first one makes the worker take traffic.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Describe(pub Arc<WorkerFacts>);

/// Tells a worker whether the platform calls it ready. Its load and cache state stay.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct SetReadiness(pub Readiness);

/// Gives a worker a load report that came by another way than its own sockets.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct ReportLoad {
    /// The rank that it is about.
    pub rank: DpRank,
    /// What was measured.
    pub load: RankLoad,
}

/// Gives a worker what its engine said of all its ranks when it was asked. The worker leaves it out where it has something
/// fresh that came by itself.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct ReportPolledLoad {
    /// The loads of the ranks, in order, all of them.
    pub loads: Vec<RankLoad>,
    /// When the engine was asked. The loads are as old as that, at most.
    pub asked_at: Instant,
}

/// Asks a worker which blocks it lists, to compare them with what its engine holds. Costs a copy of all keys.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "BlockKeys")]
pub struct ShowBlocks;

/// The keys of the blocks that a worker lists.
#[derive(Debug, Clone, Default, MessageResponse)]
#[non_exhaustive]
pub struct BlockKeys {
    /// Per DP rank, in no order within a rank.
    pub by_rank: Vec<Vec<u64>>,
}

/// Tells a worker what a probe of its engine's health path came to. Sent by the registry at the probe interval to workers that
/// have the port.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct ProbeEnded(pub ProbeResult);

/// Tells a worker to take no new requests.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Drain;

/// Tells a worker to end: close its sockets and stop. Requests that still run finish without it.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop;

// ---- to the registry ------------------------------------------------------------------------------------------------------

/// Tells the registry the full set of endpoints that one discovery source wants. Sets of several sources are united.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct EndpointsChanged {
    /// The source's own name; a later set of the same name takes the place of this one.
    pub source: Arc<str>,
    /// Everything that it wants.
    pub endpoints: Vec<Endpoint>,
}

/// Tells the registry that the operator wants a worker suspended whatever its sources say, or lets them decide again. Ends by itself
/// when no source names the address any more.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct HoldWorker {
    /// Which address.
    pub url: WorkerUrl,
    /// `Suspended` holds it, `Ready` lets it go.
    pub readiness: Readiness,
}

/// Tells the registry that a worker needs looking at.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct ReportTrouble {
    /// Which.
    pub worker: WorkerId,
    /// What was seen.
    pub trouble: Trouble,
}

/// What may be wrong with a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Its actor has not answered for many rounds: replace it.
    Unresponsive,
    /// Its engine could not be reached several times, by requests or probes: ask it again soon.
    EngineUnreachable,
}

/// Asks for the whole fleet, frozen now, in order of ids.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Vec<FleetMember>")]
pub struct ShowFleet;

/// One worker as the registry knows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FleetMember {
    /// Who.
    pub id: WorkerId,
    /// Where.
    pub url: WorkerUrl,
    /// What it said just now; `None` where its actor did not answer in time.
    pub snapshot: Option<Arc<WorkerSnapshot>>,
    /// What became of asking its engine.
    pub introspection: Introspection,
    /// Who names it, in order.
    pub sources: Vec<Arc<str>>,
    /// Its doors.
    pub ports: Arc<WorkerPorts>,
}

/// What became of asking an engine what it serves and where it publishes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Introspection {
    /// The first answer is still awaited.
    #[default]
    Asking,
    /// It answered.
    Answered,
    /// It wants a key that it was not given.
    Unauthorized,
    /// The last attempt failed. The text is for the operator and holds nothing of the engine's answer.
    Failed(Arc<str>),
}

/// Tells the registry to stop every worker and then itself.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Shutdown;

// ---- to the source that the operator commands ------------------------------------------------------------------------------

/// Asks for a change of the fleet on the operator's word.
///
/// Sent by the HTTP edge. Changes are made one after the other, in order of arrival; the answer comes when the registry has taken
/// the change. Without an answer within the edge's deadline the operator is told so, and the change may still be made.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<WorkersAfter, ChangeRefusal>")]
pub struct ChangeWorkers(pub WorkerChange);

/// What a change came to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkersAfter {
    /// The address that the change was about.
    pub url: WorkerUrl,
    /// Its worker after the change; `None` where there is none any more.
    pub member: Option<FleetMember>,
    /// Whether the change started a worker.
    pub is_new: bool,
}

impl WorkersAfter {
    /// Returns the answer to a change. For admin sources outside this crate too.
    pub fn new(url: WorkerUrl, member: Option<FleetMember>, is_new: bool) -> Self {
        Self { url, member, is_new }
    }
}

// ---- to whoever exports spans -------------------------------------------------------------------------------------------------

/// Hands over the span of a request that has ended.
///
/// Sent by the HTTP edge, which does not wait: where the mailbox is full, or its actor has ended, the span is dropped and counted.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct SpanEnded(pub Box<Span>);

/// Asks that everything be delivered. Answered when nothing is left, or when what is left cannot be delivered.
///
/// Sent by the router once, when it stops; it waits for two seconds.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct FlushSpans;

// ---- to observers ---------------------------------------------------------------------------------------------------------

/// What happened, for observers. Sent with `try_send`: an observer whose mailbox is full misses events, and the miss is counted.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum RouterEvent {
    /// A worker was started for an endpoint.
    WorkerStarted {
        /// Its id.
        worker: WorkerId,
        /// Where it is.
        url: WorkerUrl,
    },
    /// A worker takes traffic now, or no longer does.
    WorkerStateChanged {
        /// Which.
        worker: WorkerId,
        /// The state that it left.
        from: WorkerState,
        /// The state that it entered.
        to: WorkerState,
        /// Why.
        cause: Cause,
    },
    /// A worker is gone, with all it knew.
    WorkerRemoved {
        /// Which.
        worker: WorkerId,
        /// Where it was.
        url: WorkerUrl,
    },
    /// A request was given to a worker; one that two workers share gives two of these, with one id.
    Decided(Arc<DecisionRecord>),
    /// A request ended at a worker.
    Finished {
        /// Which request.
        decision: DecisionId,
        /// Where.
        worker: WorkerId,
        /// How.
        outcome: Outcome,
    },
}

/// One decision with everything that led to it: the same view, policy and seed give the same choice again.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DecisionRecord {
    /// The decision.
    pub id: DecisionId,
    /// Who was chosen.
    pub worker: WorkerId,
    /// The rank that the request is addressed to; `None` where the engine chooses.
    pub rank: Option<DpRank>,
    /// Where that worker is.
    pub url: WorkerUrl,
    /// The policy's name.
    pub policy: &'static str,
    /// Why.
    pub reason: &'static str,
    /// What the loads were made of.
    pub basis: Basis,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Every candidate with the load that it was priced at.
    pub candidates: Vec<CandidateRecord>,
}

/// One candidate of a decision.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CandidateRecord {
    /// Its frozen snapshot.
    pub snapshot: Arc<WorkerSnapshot>,
    /// Its load on the decision's basis.
    pub load: f64,
    /// Whether its report could be used.
    pub trust: crate::logic::load::Trust,
    /// Age of its oldest report.
    pub report_age: Option<std::time::Duration>,
}
