//! The load that one worker's ranks reported, and whether it may be used.
//!
//! A report counts for a decision only when it is **complete** (every advertised rank has reported) and **fresh** (each of
//! those reports is younger than the freshness window). A partial sum is never formed, and an absent number is never read as
//! zero: zero is the most attractive load there is.
//!
//! A worker that advertised no load feed has no rank count to be complete against. Reports that reach it by another way (a
//! custom actor) are taken at face value while they are fresh. What an engine said when it was asked covers all its ranks, and so
//! takes the place of everything before; but only where nothing fresh came by itself: what is published is newer.

use std::time::{Duration, Instant};

use crate::logic::ids::DpRank;
use crate::logic::sequence::{SequenceCursor, SequenceStep};

/// Part of the KV tokens in use from which requests that wait are taken to wait for memory. Engines keep a little free for the
/// tokens that running requests are about to make.
const FILLED: f64 = 0.9;

/// How a report came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LoadSource {
    /// Published over ZMQ, in the map form.
    ZmqSnapshot,
    /// Published over ZMQ, in the array form.
    ZmqStat,
    /// SGLang said it when asked at `/v1/loads`.
    V1Loads,
    /// vLLM said it when asked at `/metrics`.
    VllmMetrics,
    /// A custom actor measured it.
    #[default]
    Custom,
}

impl LoadSource {
    /// Returns the name used in metrics and the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::ZmqSnapshot => "zmq_snapshot",
            Self::ZmqStat => "zmq_stat",
            Self::V1Loads => "v1_loads",
            Self::VllmMetrics => "vllm_metrics",
            Self::Custom => "custom",
        }
    }

    /// Tells whether the engine had to be asked for it.
    pub fn is_polled(self) -> bool {
        match self {
            Self::V1Loads | Self::VllmMetrics => true,
            Self::ZmqSnapshot | Self::ZmqStat | Self::Custom => false,
        }
    }
}

/// One rank's load as the engine reported it. Requests are counts, tokens are KV-cache tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankLoad {
    /// How it came.
    pub source: LoadSource,
    /// Requests in the running batch.
    pub running: u64,
    /// Requests queued before the scheduler.
    pub waiting: u64,
    /// KV tokens in use; at most `capacity_tokens` where that is known. `None` where the engine did not say.
    pub used_tokens: Option<u64>,
    /// KV tokens that fit. `None` where the engine sent zero, which means that it does not know.
    pub capacity_tokens: Option<u64>,
    /// Prompt tokens of waiting requests that are not in the cache.
    pub waiting_uncached_tokens: Option<u64>,
    /// Tokens of running and waiting requests together.
    pub total_tokens: Option<u64>,
    /// Size limit of the running batch.
    pub max_running: Option<u64>,
    /// Uncached prompt tokens prefilled since the engine started.
    pub prefill_uncached_tokens_total: Option<u64>,
    /// Microseconds spent in prefill since the engine started.
    pub prefill_busy_us_total: Option<u64>,
}

impl RankLoad {
    /// Returns the queue depth, running plus waiting requests.
    pub fn depth(&self) -> u64 {
        self.running.saturating_add(self.waiting)
    }

    /// Tells whether requests wait while nearly all KV memory is in use by running ones. Never where either is not known.
    fn has_no_memory(&self) -> bool {
        let known = self.used_tokens.zip(self.capacity_tokens);
        self.waiting > 0 && known.is_some_and(|(used, capacity)| used as f64 >= FILLED * capacity as f64)
    }
}

/// A report with the time it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankReport {
    /// What the engine said.
    pub load: RankLoad,
    /// When it arrived here.
    pub received_at: Instant,
}

/// Whether a worker's reported load may be used in a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Every advertised rank has a fresh report.
    Trusted,
    /// The report of this rank, the oldest, is older than the window.
    Stale {
        /// The rank with the oldest report.
        rank: DpRank,
        /// How old that report is.
        age: Duration,
    },
    /// Some advertised ranks never reported.
    Incomplete {
        /// Ranks that have reported.
        reported: u32,
        /// Ranks that were advertised.
        expected: u32,
    },
    /// No load feed was advertised, and no report came by another way.
    Unreported,
}

impl Trust {
    /// Tells whether the reported load may be used.
    pub fn is_trusted(self) -> bool {
        matches!(self, Self::Trusted)
    }

    /// Returns the name used in metrics and the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::Stale { .. } => "stale",
            Self::Incomplete { .. } => "incomplete",
            Self::Unreported => "unreported",
        }
    }
}

/// What became of a report handed to [`LoadTable::apply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is now the rank's load.
    InForce,
    /// It is older than the one in force, or a repetition, and changed nothing.
    OutOfDate,
    /// The worker did not advertise this rank.
    UnknownRank,
}

/// The reports of one worker. Bounded by its rank count.
#[derive(Debug, Clone, Default)]
pub struct LoadTable {
    expected_ranks: Option<u32>,
    ranks: Vec<RankSlot>,
}

#[derive(Debug, Clone, Copy, Default)]
struct RankSlot {
    report: Option<RankReport>,
    cursor: SequenceCursor,
}

impl LoadTable {
    /// Returns an empty table. `expected_ranks` is the advertised rank count, `None` where no load feed was advertised.
    pub fn new(expected_ranks: Option<u32>) -> Self {
        let slots = expected_ranks.map_or(0, |count| count as usize);
        Self { expected_ranks, ranks: vec![RankSlot::default(); slots] }
    }

    /// Takes a report of the rank's stream, in the order of its sequence numbers.
    pub fn apply(&mut self, rank: DpRank, sequence: u64, load: RankLoad, now: Instant) -> Applied {
        let Some(slot) = self.slot(rank) else {
            return Applied::UnknownRank;
        };
        match slot.cursor.advance(sequence) {
            SequenceStep::Next | SequenceStep::Gap { .. } | SequenceStep::Restart => {
                slot.report = Some(RankReport { load, received_at: now });
                Applied::InForce
            }
            SequenceStep::Duplicate | SequenceStep::Late => Applied::OutOfDate,
        }
    }

    /// Takes a report that has no sequence number: one that a custom actor measured.
    pub fn apply_unsequenced(&mut self, rank: DpRank, load: RankLoad, now: Instant) -> Applied {
        let Some(slot) = self.slot(rank) else {
            return Applied::UnknownRank;
        };
        slot.report = Some(RankReport { load, received_at: now });
        Applied::InForce
    }

    /// Takes what the engine said of all its ranks, in order, when it was asked at `asked_at`. Not where something fresh came by
    /// itself, nor where the engine advertised another number of ranks.
    pub fn apply_polled(&mut self, loads: &[RankLoad], asked_at: Instant, freshness: Duration) -> Applied {
        let is_other_count = self.expected_ranks.is_some_and(|expected| expected as usize != loads.len());
        if loads.is_empty() || is_other_count || loads.len() > crate::logic::endpoint::MAX_DP_RANKS as usize {
            return Applied::UnknownRank;
        }
        let outranks = |report: RankReport| {
            let is_newer = report.received_at > asked_at;
            let is_fresh = asked_at.saturating_duration_since(report.received_at) < freshness;
            is_newer || (is_fresh && !report.load.source.is_polled())
        };
        if self.ranks.iter().filter_map(|slot| slot.report).any(outranks) {
            return Applied::OutOfDate;
        }
        self.ranks.resize(loads.len(), RankSlot::default());
        for (slot, load) in self.ranks.iter_mut().zip(loads) {
            slot.report = Some(RankReport { load: *load, received_at: asked_at });
        }
        Applied::InForce
    }

    /// Forgets where the rank's stream was, because its connection is a new one. Its last report stands until it is stale.
    pub fn restart_stream(&mut self, rank: DpRank) {
        if let Some(slot) = self.ranks.get_mut(rank.index()) {
            slot.cursor = SequenceCursor::default();
        }
    }

    /// Returns the view of the table that a decision reads.
    pub fn freeze(&self, own_dispatches_since: u32) -> LoadView {
        let reports: Box<[Option<RankReport>]> = self.ranks.iter().map(|slot| slot.report).collect();
        LoadView::new(self.expected_ranks, reports, own_dispatches_since)
    }

    /// Returns when the report in force of the rank was received.
    pub fn report_at(&self, rank: usize) -> Option<Instant> {
        self.ranks.get(rank)?.report.map(|report| report.received_at)
    }

    /// Returns when the oldest report in force was received; `None` unless every expected rank has reported.
    pub fn oldest_report_at(&self) -> Option<Instant> {
        let received_at = |slot: &RankSlot| slot.report.map(|report| report.received_at);
        if self.expected_ranks.is_some() && self.ranks.iter().any(|slot| slot.report.is_none()) {
            return None;
        }
        self.ranks.iter().filter_map(received_at).min()
    }

    fn slot(&mut self, rank: DpRank) -> Option<&mut RankSlot> {
        if self.expected_ranks.is_none() && rank.number() < crate::logic::endpoint::MAX_DP_RANKS {
            // Nothing was advertised, so there is no count to be complete against: the table grows with who reports.
            if self.ranks.len() <= rank.index() {
                self.ranks.resize(rank.index() + 1, RankSlot::default());
            }
        }
        self.ranks.get_mut(rank.index())
    }
}

/// A frozen view of a worker's reported load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadView {
    expected_ranks: Option<u32>,
    reports: Box<[Option<RankReport>]>,
    reported: u32,
    depth: u64,
    oldest: Option<(DpRank, Instant)>,
    own_dispatches_since: u32,
    /// Whether no rank has memory for the requests that wait there.
    has_no_memory: bool,
}

impl LoadView {
    /// Freezes the reports, indexed by rank. `own_dispatches_since` counts this router's requests that the reports cannot yet
    /// contain.
    pub fn new(expected_ranks: Option<u32>, reports: Box<[Option<RankReport>]>, own_dispatches_since: u32) -> Self {
        let reported = reports.iter().flatten().count() as u32;
        let depth = reports.iter().flatten().fold(0_u64, |sum, report| sum.saturating_add(report.load.depth()));
        let oldest = reports
            .iter()
            .enumerate()
            .filter_map(|(index, report)| report.map(|report| (DpRank::new(index as u32), report.received_at)))
            .min_by_key(|(_, received_at)| *received_at);
        let has_no_memory = reported > 0 && reports.iter().flatten().all(|report| report.load.has_no_memory());
        Self { expected_ranks, reports, reported, depth, oldest, own_dispatches_since, has_no_memory }
    }

    /// Returns the view of a worker that reports nothing.
    pub fn unreported() -> Self {
        Self::new(None, Box::default(), 0)
    }

    /// Judges the reports at `now`. Constant time.
    pub fn trust(&self, now: Instant, freshness: Duration) -> Trust {
        if let Some(expected) = self.expected_ranks
            && self.reported < expected
        {
            return Trust::Incomplete { reported: self.reported, expected };
        }
        let Some((rank, received_at)) = self.oldest else {
            return Trust::Unreported;
        };
        let age = now.saturating_duration_since(received_at);
        if age < freshness { Trust::Trusted } else { Trust::Stale { rank, age } }
    }

    /// Returns the queue depth: running plus waiting over all ranks, plus this router's dispatches that the reports cannot yet
    /// contain. Only meaningful where [`LoadView::trust`] says `Trusted`.
    pub fn depth(&self) -> u64 {
        self.depth.saturating_add(u64::from(self.own_dispatches_since))
    }

    /// Tells whether requests wait at every rank because its KV memory is in use. Its depth says little then: a few long contexts
    /// can hold all of the memory, and a new request waits for them however few they are. Never of reports that are not trusted.
    pub fn is_short_of_memory(&self, now: Instant, freshness: Duration) -> bool {
        self.has_no_memory && self.trust(now, freshness).is_trusted()
    }

    /// Returns the reports by rank.
    pub fn reports(&self) -> &[Option<RankReport>] {
        &self.reports
    }

    /// Returns the advertised rank count.
    pub fn expected_ranks(&self) -> Option<u32> {
        self.expected_ranks
    }

    /// Returns how many of this router's dispatches the depth adds to the reports.
    pub fn own_dispatches_since(&self) -> u32 {
        self.own_dispatches_since
    }

    /// Returns the age of the oldest report.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.oldest.map(|(_, received_at)| now.saturating_duration_since(received_at))
    }
}

#[cfg(test)]
mod tests;
