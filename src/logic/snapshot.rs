//! What a worker says of itself when it is asked: frozen, shared, never changed afterwards.

use std::sync::Arc;
use std::time::Instant;

use crate::logic::endpoint::{Feed, WorkerFacts, WorkerUrl};
use crate::logic::health::{HealthView, WorkerState};
use crate::logic::ids::{DpRank, WorkerId};
use crate::logic::kv_stream::{StreamCounters, StreamTrust};
use crate::logic::load::LoadView;
use crate::logic::prefix_index::IndexCounts;
use crate::logic::prompt_keys::HashVariant;
use crate::logic::truth::TruthCheck;

/// One worker, frozen. Times are those of arrival; a reader judges ages against the time of its own decision.
#[derive(Debug, Clone)]
pub struct WorkerSnapshot {
    /// Who.
    pub id: WorkerId,
    /// Where.
    pub url: WorkerUrl,
    /// Whether it takes traffic.
    pub state: WorkerState,
    /// How its requests went of late, whether it may be tried, and when it will be.
    pub health: HealthView,
    /// Since when it has been serving without a break.
    pub serving_since: Option<Instant>,
    /// Until when its engine wants to be left alone, because it has no room: others are preferred.
    pub left_alone_until: Option<Instant>,
    /// Requests that this router has sent it and that have not ended.
    pub in_flight: u32,
    /// How many of its DP ranks requests may be addressed to, from the first on; zero leaves the rank to its engine.
    pub addressed_ranks: u32,
    /// What this router has sent to each of these ranks; empty where none may be addressed.
    pub rank_flights: Box<[RankFlight]>,
    /// The load that its engine reported.
    pub load: LoadView,
    /// What it serves and which feeds it has.
    pub facts: Arc<WorkerFacts>,
    /// How its streams fare, for the operator.
    pub feeds: FeedHealth,
    /// What is known of its KV cache. Shared between snapshots as long as nothing of it changes.
    pub kv: Arc<KvView>,
}

/// What is known of a worker's KV cache, beside the blocks themselves, which stay with the worker.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KvView {
    /// How its blocks are keyed; `None` where that is not known yet, or changes too often to be of use.
    pub variant: Option<HashVariant>,
    /// Whether the engine's ids proved to be those of the hash that is known.
    pub is_hash_verified: bool,
    /// Whether the keys changed so often that nothing is listed any more.
    pub is_given_up: bool,
    /// What is known of each rank, in order.
    pub ranks: Vec<KvRank>,
    /// What is listed, and what was left out.
    pub counts: IndexCounts,
    /// Batches that were taken.
    pub frames: u64,
    /// Batches that could not be read.
    pub bad_frames: u64,
    /// Events that could not be read.
    pub bad_events: u64,
    /// How the list compares with what the engine finds cached.
    pub truth: TruthCheck,
    /// Sockets open now.
    pub open_sockets: u32,
}

/// What is known of one rank's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvRank {
    /// How far what it lists can be believed.
    pub trust: StreamTrust,
    /// Blocks that it lists.
    pub num_blocks: u64,
    /// What became of its stream.
    pub counters: StreamCounters,
}

/// What this router has sent to one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankFlight {
    /// Requests addressed to it that have not ended.
    pub in_flight: u32,
    /// Of these, requests that the rank's report cannot yet contain; zero without a report.
    pub dispatches_since: u32,
}

/// Counters of a worker's load streams since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeedHealth {
    /// Frames that were taken.
    pub frames: u64,
    /// Frames that could not be used.
    pub bad_frames: u64,
    /// Times a silent or failed socket was opened again.
    pub reopened: u64,
    /// Sockets open now.
    pub open_sockets: u32,
}

impl WorkerSnapshot {
    /// Returns the snapshot of a serving worker that reports nothing. A start for tests and for custom workers.
    pub fn new(id: WorkerId, url: WorkerUrl) -> Self {
        Self {
            id,
            url,
            state: WorkerState::Serving,
            health: HealthView::default(),
            serving_since: None,
            left_alone_until: None,
            in_flight: 0,
            addressed_ranks: 0,
            rank_flights: Box::default(),
            load: LoadView::unreported(),
            facts: Arc::default(),
            feeds: FeedHealth::default(),
            kv: Arc::default(),
        }
    }

    /// Tells whether the worker serves the model. Everybody serves a request that names none.
    pub fn serves(&self, model: Option<&str>) -> bool {
        model.is_none_or(|model| self.facts.models.iter().any(|served| &**served == model))
    }

    /// Returns the rank that the engine itself numbers so, where it may be addressed.
    pub fn rank_numbered(&self, number: u32) -> Option<DpRank> {
        let rank = self.facts.ranks.as_ref()?.rank_numbered(number)?;
        (rank.number() < self.addressed_ranks).then_some(rank)
    }

    /// Tells whether the engine advertised a load feed, usable or not.
    pub fn advertises_load(&self) -> bool {
        !matches!(self.facts.load_feed, Feed::NotAdvertised)
    }
}
