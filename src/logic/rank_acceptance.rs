//! Whether a worker's engine takes the ranks that it is believed to own.
//!
//! Engines number their ranks over all nodes of a deployment, or over their own, and not all say which. One that is given a rank it
//! does not own refuses the request (400), which is a fault of configuration: the request is sent to it once more without a rank,
//! and it gets no ranks from then on. A 400 may be the client's doing as well; so the second attempt is made only for a rank that
//! has not been accepted before, and only where it does better are ranks to blame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::logic::endpoint::MAX_DP_RANKS;
use crate::logic::ids::DpRank;

const WORDS: usize = MAX_DP_RANKS as usize / u64::BITS as usize;

/// What the threads that talk to one engine have learnt of its ranks. Cheap to clone; clones are one.
#[derive(Debug, Clone, Default)]
pub struct RankAcceptance {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    first_number: AtomicU32,
    is_refused: AtomicBool,
    accepted: [AtomicU64; WORDS],
}

impl RankAcceptance {
    /// Sets the engine's own number of its first rank.
    pub fn set_first_number(&self, number: u32) {
        self.inner.first_number.store(number, Ordering::Relaxed);
    }

    /// Returns the engine's own number of a rank.
    pub fn number_of(&self, rank: DpRank) -> u32 {
        self.inner.first_number.load(Ordering::Relaxed).saturating_add(rank.number())
    }

    /// Tells whether the engine has refused a rank that it was believed to own.
    pub fn is_refused(&self) -> bool {
        self.inner.is_refused.load(Ordering::Relaxed)
    }

    /// Notes a refusal. Returns whether it is the first.
    pub fn refuse(&self) -> bool {
        !self.inner.is_refused.swap(true, Ordering::Relaxed)
    }

    /// Tells whether a request to the rank has been accepted.
    pub fn is_accepted(&self, rank: DpRank) -> bool {
        self.word(rank).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Notes that a request to the rank was accepted.
    pub fn accept(&self, rank: DpRank) {
        // Writing only where it changes keeps the line shared between threads.
        if let Some((word, bit)) = self.word(rank)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn word(&self, rank: DpRank) -> Option<(&AtomicU64, u64)> {
        let word = self.inner.accepted.get(rank.index() / u64::BITS as usize)?;
        Some((word, 1 << (rank.number() % u64::BITS)))
    }
}

#[cfg(test)]
mod tests {
    use super::RankAcceptance;
    use crate::logic::ids::DpRank;

    #[test]
    fn ranks_are_accepted_one_by_one_and_refused_at_once() {
        let ranks = RankAcceptance::default();
        for number in [0, 63, 64, 1_023] {
            assert!(!ranks.is_accepted(DpRank::new(number)), "{number}");
            ranks.clone().accept(DpRank::new(number));
            assert!(ranks.is_accepted(DpRank::new(number)), "{number}");
        }
        assert!(!ranks.is_accepted(DpRank::new(1)));
        ranks.accept(DpRank::new(1_024));
        assert!(!ranks.is_accepted(DpRank::new(1_024)), "there is no such rank");
        assert!(!ranks.is_refused());
        assert!(ranks.refuse());
        assert!(!ranks.refuse(), "it is said once");
        assert!(ranks.clone().is_refused());
    }

    #[test]
    fn ranks_are_numbered_as_the_engine_numbers_them() {
        let ranks = RankAcceptance::default();
        assert_eq!(ranks.number_of(DpRank::new(3)), 3);
        ranks.set_first_number(4);
        assert_eq!(ranks.number_of(DpRank::new(3)), 7);
    }
}
