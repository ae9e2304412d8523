//! The decisions of the last seconds: how they were spread, and a sample of them for people.
//!
//! What is said of them is said of a window that ends now, so that it falls to nothing when nothing is decided any more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::price::Basis;

/// How long a decision counts.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Decisions that are kept; of a busier window these are the last ones.
pub const MAX_DECISIONS: usize = 1_024;

/// One decision as it is remembered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecentDecision {
    /// Which.
    pub id: DecisionId,
    /// Who was chosen.
    pub worker: WorkerId,
    /// The rank that was addressed.
    pub rank: Option<DpRank>,
    /// Why.
    pub reason: &'static str,
    /// What the loads were made of.
    pub basis: Basis,
    /// The chosen worker's load on that basis.
    pub load: f64,
    /// Tokens of its prompt, where it is known as tokens.
    pub prompt_tokens: Option<u32>,
    /// Of these, tokens that the chosen worker holds.
    pub matched_tokens: Option<u32>,
    /// When.
    pub at: Instant,
}

/// How recent decisions were spread over the workers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spread {
    /// Decisions within the window.
    pub num_decisions: usize,
    /// Workers that were chosen at all.
    pub num_workers: usize,
    /// Part of the decisions that went to the worker chosen most often, 0 to 1; 0 where nothing was decided.
    pub largest_share: f64,
}

/// A bounded record of decisions.
#[derive(Debug, Default)]
pub struct RecentDecisions {
    decisions: VecDeque<RecentDecision>,
    num_ever: u64,
}

impl RecentDecisions {
    /// Remembers a decision; the oldest one is forgotten for it.
    pub fn note(&mut self, decision: RecentDecision) {
        if self.decisions.len() >= MAX_DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
        self.num_ever += 1;
    }

    /// Returns how many were ever noted: the number of the newest one.
    pub fn num_ever(&self) -> u64 {
        self.num_ever
    }

    /// Returns those within the window before `now`, newest first.
    pub fn within(&self, now: Instant) -> impl Iterator<Item = &RecentDecision> {
        self.decisions.iter().rev().take_while(move |decision| now.saturating_duration_since(decision.at) < WINDOW)
    }

    /// Returns how those within the window before `now` were spread.
    pub fn spread(&self, now: Instant) -> Spread {
        let mut counts: FxHashMap<WorkerId, usize> = FxHashMap::default();
        let mut num_decisions = 0;
        for decision in self.within(now) {
            *counts.entry(decision.worker).or_default() += 1;
            num_decisions += 1;
        }
        let largest = counts.values().max().copied().unwrap_or(0);
        let largest_share = if num_decisions == 0 { 0.0 } else { largest as f64 / num_decisions as f64 };
        Spread { num_decisions, num_workers: counts.len(), largest_share }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DECISIONS, RecentDecision, RecentDecisions, Spread, WINDOW};
    use crate::logic::ids::{DecisionId, WorkerId};
    use crate::logic::price::Basis;
    use crate::logic::testing::{secs, start};

    fn decision(number: u64, worker: u64, seconds: u64) -> RecentDecision {
        RecentDecision {
            id: DecisionId::new(number),
            worker: WorkerId::new(worker),
            rank: None,
            reason: "least_load",
            basis: Basis::Engine,
            load: 0.0,
            prompt_tokens: None,
            matched_tokens: None,
            at: start() + secs(seconds),
        }
    }

    #[test]
    fn the_spread_is_that_of_the_window_and_falls_to_nothing_in_silence() {
        let mut recent = RecentDecisions::default();
        for number in 0..100 {
            recent.note(decision(number, if number % 4 == 0 { 2 } else { 1 }, 0));
        }
        let now = start() + WINDOW / 2;
        assert_eq!(recent.spread(now), Spread { num_decisions: 100, num_workers: 2, largest_share: 0.75 });
        for minute in 1..=5 {
            assert_eq!(recent.spread(start() + secs(60 * minute)), Spread::default(), "after {minute} minutes");
        }
        assert_eq!(recent.num_ever(), 100);
    }

    #[test]
    fn no_more_are_kept_than_the_limit_and_the_newest_come_first() {
        let mut recent = RecentDecisions::default();
        let num = 2 * MAX_DECISIONS as u64;
        (0..num).for_each(|number| recent.note(decision(number, number, 0)));
        let kept: Vec<u64> = recent.within(start()).map(|decision| decision.id.number()).collect();
        assert_eq!((kept.len(), kept[0]), (MAX_DECISIONS, num - 1));
    }
}
