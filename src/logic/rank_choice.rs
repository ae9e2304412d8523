//! Which DP rank of the chosen worker a request goes to, where its engine takes a rank.
//!
//! The policy chooses the worker; this asks among the ranks of that worker what `cache_aware_zmq` asks among workers, with the same
//! thresholds. Loads have one basis: the depth that the ranks reported, where every rank has a fresh report, and otherwise what this
//! router has in flight at each.
//!
//! 1. The ranks are out of balance: the least loaded one.
//! 2. Some rank holds more than the threshold of the prompt: the least loaded of those that hold the most.
//! 3. Otherwise the least loaded one, of several the one that holds the most.
//!
//! What is still equal is drawn from the decision's seed.

use std::time::{Duration, Instant};

use crate::logic::ids::DpRank;
use crate::logic::policy::CacheAwareSettings;
use crate::logic::rng::Rng;
use crate::logic::snapshot::WorkerSnapshot;

/// Keeps the draws of the rank apart from those of the worker, which come from the same seed.
const SEED_OF_RANKS: u64 = 0xA076_1D64_78BD_642F;

/// How a rank is chosen.
#[derive(Debug, Clone, Copy)]
pub struct RankRules {
    /// How old a report may be.
    pub freshness: Duration,
    /// When the cache counts, and when balance outranks it.
    pub cache: CacheAwareSettings,
}

/// What is known of a worker's ranks beside its snapshot. Slices are indexed by rank; what is beyond their end is zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct RankFacts<'a> {
    /// Requests that earlier decisions of the round sent to each rank.
    pub reserved: &'a [u32],
    /// Blocks of the prompt that each rank holds or will probably hold soon.
    pub held_blocks: &'a [u32],
    /// Blocks of the prompt; zero where it is not known.
    pub prompt_blocks: u32,
}

/// Returns the rank for a request at the worker; `None` where its engine takes no rank. `wish` is the rank that the client named,
/// by the engine's own number: it is honoured where the worker owns it.
pub fn choose_rank(
    worker: &WorkerSnapshot,
    facts: &RankFacts<'_>,
    wish: Option<u32>,
    rules: &RankRules,
    now: Instant,
    seed: u64,
) -> Option<DpRank> {
    let num_ranks = worker.addressed_ranks as usize;
    if num_ranks == 0 {
        return None;
    }
    if let Some(rank) = wish.and_then(|number| worker.rank_numbered(number)) {
        return Some(rank);
    }
    let is_reported = all_reported(worker, num_ranks, rules.freshness, now);
    let load = |rank: usize| load_of(worker, rank, is_reported) + u64::from(at(facts.reserved, rank));
    let (mut least, mut most, mut best) = (u64::MAX, 0, 0);
    for rank in 0..num_ranks {
        (least, most) = (least.min(load(rank)), most.max(load(rank)));
        best = best.max(at(facts.held_blocks, rank));
    }
    let is_balanced = !rules.cache.is_imbalanced(least as f64, most as f64);
    let ratio = if facts.prompt_blocks == 0 { 0.0 } else { f64::from(best) / f64::from(facts.prompt_blocks) };
    let wants_holder = is_balanced && ratio > rules.cache.cache_threshold;
    let mut rng = Rng::from_seed(seed ^ SEED_OF_RANKS);
    // The lower the better, compared in this order.
    let badness = |rank: usize| {
        let missing = best - at(facts.held_blocks, rank);
        if wants_holder { (u64::from(missing), load(rank)) } else { (load(rank), u64::from(missing)) }
    };
    first_of_ties(num_ranks, badness, &mut rng)
}

fn at(counts: &[u32], rank: usize) -> u32 {
    counts.get(rank).copied().unwrap_or(0)
}

fn all_reported(worker: &WorkerSnapshot, num_ranks: usize, freshness: Duration, now: Instant) -> bool {
    let reports = worker.load.reports();
    let is_fresh =
        |report: &crate::logic::load::RankReport| now.saturating_duration_since(report.received_at) < freshness;
    reports.len() == num_ranks && reports.iter().all(|report| report.as_ref().is_some_and(is_fresh))
}

fn load_of(worker: &WorkerSnapshot, rank: usize, is_reported: bool) -> u64 {
    let own = worker.rank_flights.get(rank).copied().unwrap_or_default();
    if !is_reported {
        return u64::from(own.in_flight);
    }
    let reported = worker.load.reports().get(rank).copied().flatten().map_or(0, |report| report.load.depth());
    reported.saturating_add(u64::from(own.dispatches_since))
}

fn first_of_ties(num_ranks: usize, badness: impl Fn(usize) -> (u64, u64), rng: &mut Rng) -> Option<DpRank> {
    let mut best: Option<(usize, (u64, u64))> = None;
    let mut num_ties = 0;
    for rank in 0..num_ranks {
        let cost = badness(rank);
        match best {
            Some((_, least)) if cost > least => {}
            Some((_, least)) if cost == least => {
                num_ties += 1;
                if rng.below(num_ties) == 0 {
                    best = Some((rank, cost));
                }
            }
            _ => (best, num_ties) = (Some((rank, cost)), 1),
        }
    }
    best.map(|(rank, _)| DpRank::new(rank as u32))
}

/// The requests that the decisions of one round have sent to each rank of each slot. The buffer is reused from round to round.
#[derive(Debug, Default)]
pub struct RankReservations {
    /// Where each slot's ranks begin; empty where no worker of the round takes ranks.
    starts: Vec<u32>,
    counts: Vec<u32>,
}

impl RankReservations {
    /// Begins a round over these slots.
    pub fn begin<'a>(&mut self, slots: impl Iterator<Item = Option<&'a WorkerSnapshot>>) {
        self.starts.clear();
        self.counts.clear();
        let mut total = 0;
        for slot in slots {
            self.starts.push(total);
            total += slot.map_or(0, |worker| worker.addressed_ranks);
        }
        self.starts.push(total);
        self.counts.resize(total as usize, 0);
    }

    /// Returns the counts of one slot by rank.
    pub fn of(&self, slot: usize) -> &[u32] {
        match (self.starts.get(slot), self.starts.get(slot + 1)) {
            (Some(start), Some(end)) => self.counts.get(*start as usize..*end as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Counts one more request at the rank.
    pub fn add(&mut self, slot: usize, rank: DpRank) {
        let Some(start) = self.starts.get(slot) else { return };
        if rank.index() < self.of(slot).len()
            && let Some(count) = self.counts.get_mut(*start as usize + rank.index())
        {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests;
