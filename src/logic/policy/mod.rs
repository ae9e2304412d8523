//! Policies: pure functions from (request, frozen view, random numbers) to a pick.
//!
//! A policy reads loads only through [`View::load_of`], so that whatever it compares has one basis. It never sees a worker that
//! may not be chosen, and it breaks ties with the random numbers that it is given, never by position.

use std::fmt;
use std::time::Instant;

use crate::logic::ids::DpRank;
use crate::logic::price::{Basis, Priced};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;
use crate::logic::snapshot::WorkerSnapshot;

mod cache_aware_zmq;
mod least_load;
mod power_of_two;
mod random;
mod round_robin;

pub use cache_aware_zmq::{CacheAwareSettings, CacheAwareZmq};
pub use least_load::LeastLoad;
pub use power_of_two::PowerOfTwo;
pub use random::Random;
pub use round_robin::RoundRobin;

/// Chooses among the candidates of one decision.
///
/// ```
/// use fathom_router::{Pick, Policy, Rng, View};
///
/// /// Sends everything to the candidate with the most free KV tokens, as far as its engine says.
/// #[derive(Debug)]
/// struct MostFreeTokens;
///
/// impl Policy for MostFreeTokens {
///     fn name(&self) -> &'static str {
///         "most_free_tokens"
///     }
///
///     fn pick(&self, _request: &fathom_router::RequestFacts, view: &View<'_>, _rng: &mut Rng) -> Pick {
///         let free = |candidate: usize| -> u64 {
///             let reports = view.snapshot(candidate).load.reports().iter().flatten();
///             reports.map(|r| r.load.capacity_tokens.unwrap_or(0).saturating_sub(r.load.used_tokens.unwrap_or(0))).sum()
///         };
///         let best = (0..view.len()).max_by_key(|candidate| free(*candidate)).unwrap_or(0);
///         Pick::new(best, "most_free_tokens")
///     }
/// }
/// ```
pub trait Policy: Send + Sync + fmt::Debug {
    /// Returns the name used in configuration, metrics and answers.
    fn name(&self) -> &'static str;

    /// Tells whether the policy looks at [`View::prefix_match`]. Prompts are made into tokens and keys only for one that does.
    fn wants_prompts(&self) -> bool {
        true
    }

    /// Picks one of the view's candidates. There is at least one. A pick that names no candidate is replaced by the least
    /// loaded one, and counted.
    fn pick(&self, request: &RequestFacts, view: &View<'_>, rng: &mut Rng) -> Pick;
}

/// What a policy decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Index of the candidate in the view.
    pub candidate: usize,
    /// The rank to address, of those in [`WorkerSnapshot::addressed_ranks`]; `None` has the built-in selector choose one by its
    /// own load and cache (`logic::rank_choice`).
    pub rank: Option<DpRank>,
    /// Why, as a name from a closed set: it is a metric label.
    pub reason: &'static str,
}

impl Pick {
    /// Returns a pick that names no rank.
    pub fn new(candidate: usize, reason: &'static str) -> Self {
        Self { candidate, rank: None, reason }
    }
}

/// How much of a prompt a worker holds in its KV cache, from block 0 without a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixMatch {
    /// Blocks of the prompt that the worker's engine has said it holds, in any tier.
    pub matched_blocks: u32,
    /// Of these, the first ones that are in the accelerator's memory.
    pub device_blocks: u32,
    /// Blocks after these that it will probably hold soon: a request with them was sent there a short time ago.
    pub predicted_blocks: u32,
    /// Blocks of the prompt at the worker's block size. Zero: the prompt is not known as tokens.
    pub prompt_blocks: u32,
    /// A rank that holds the matched blocks.
    pub rank: Option<DpRank>,
}

impl PrefixMatch {
    /// Returns a match of which no more is known than how many of the prompt's blocks are held.
    pub fn of_blocks(matched_blocks: u32, prompt_blocks: u32) -> Self {
        Self { matched_blocks, device_blocks: matched_blocks, prompt_blocks, ..Self::default() }
    }

    /// Returns the part of the prompt, 0 to 1, that the worker holds or will probably hold soon.
    pub fn ratio(self) -> f64 {
        let blocks = self.matched_blocks.saturating_add(self.predicted_blocks);
        if self.prompt_blocks == 0 { 0.0 } else { f64::from(blocks) / f64::from(self.prompt_blocks) }
    }
}

/// The frozen fleet as one decision sees it: candidates are numbered from zero.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub(crate) candidates: &'a [Priced],
    pub(crate) slots: &'a [Option<std::sync::Arc<WorkerSnapshot>>],
    pub(crate) matches: &'a [PrefixMatch],
    pub(crate) basis: Basis,
    pub(crate) turn: u64,
    pub(crate) now: Instant,
}

impl<'a> View<'a> {
    /// Returns the number of candidates; never zero when a policy is asked.
    pub fn len(&self) -> usize {
        self.candidates.len()
    }

    /// Tells whether there is no candidate.
    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Returns the candidate's load. Comparable within this view only.
    ///
    /// # Panics
    /// Where `candidate` is not below [`View::len`].
    pub fn load_of(&self, candidate: usize) -> f64 {
        self.candidates[candidate].load
    }

    /// Returns the candidate's snapshot.
    ///
    /// # Panics
    /// Where `candidate` is not below [`View::len`].
    pub fn snapshot(&self, candidate: usize) -> &'a WorkerSnapshot {
        let slot = self.candidates[candidate].slot;
        #[expect(clippy::expect_used, reason = "candidates are made of filled slots only")]
        self.slots[slot].as_deref().expect("a candidate has a snapshot")
    }

    /// Returns how much of the prompt the candidate holds; nothing where that is not known.
    pub fn prefix_match(&self, candidate: usize) -> PrefixMatch {
        self.matches.get(self.candidates[candidate].slot).copied().unwrap_or_default()
    }

    /// Returns what the loads are made of.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Returns how many decisions for this model came before.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Returns the time of the decision.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the least loaded of those candidates that `among` accepts, a random one of several; `None` where it accepts none.
    pub fn least_loaded(&self, among: impl Fn(usize) -> bool, rng: &mut Rng) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        let mut num_ties = 0;
        for candidate in (0..self.len()).filter(|candidate| among(*candidate)) {
            let load = self.load_of(candidate);
            match best {
                Some((_, least)) if load > least => {}
                Some((_, least)) if load == least => {
                    // Reservoir sampling: the k-th of k equals replaces the choice with probability 1/k.
                    num_ties += 1;
                    if rng.below(num_ties) == 0 {
                        best = Some((candidate, load));
                    }
                }
                _ => {
                    best = Some((candidate, load));
                    num_ties = 1;
                }
            }
        }
        best.map(|(candidate, _)| candidate)
    }
}

#[cfg(test)]
mod tests;
