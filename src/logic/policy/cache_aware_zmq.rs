//! The policy of SGLang's router, on engine load.
//!
//! 1. The fleet is imbalanced (both the absolute and the relative threshold are passed): the least loaded candidate wins.
//! 2. Nobody holds enough of the prompt, or the prompt is not known as tokens: the least loaded candidate wins.
//! 3. Otherwise the least loaded of those that share the best match wins.
//!
//! Unlike the original, ties go to a random candidate rather than to the first, and every candidate counts with its own
//! contiguous match rather than only the owners of the deepest block.

use crate::logic::policy::{Pick, Policy, View};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;

/// Thresholds of [`CacheAwareZmq`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheAwareSettings {
    /// The part of the prompt, 0 to 1, of which a candidate must hold more before its cache counts.
    pub cache_threshold: f64,
    /// Requests by which the most loaded must exceed the least loaded before balance outranks the cache.
    pub balance_abs_threshold: f64,
    /// Factor by which it must exceed it as well.
    pub balance_rel_threshold: f64,
}

impl Default for CacheAwareSettings {
    fn default() -> Self {
        Self { cache_threshold: 0.5, balance_abs_threshold: 32.0, balance_rel_threshold: 1.1 }
    }
}

impl CacheAwareSettings {
    /// Tells whether loads that reach from `least` to `most` are out of balance.
    pub fn is_imbalanced(&self, least: f64, most: f64) -> bool {
        most - least > self.balance_abs_threshold && most > least * self.balance_rel_threshold
    }
}

/// Prefers the candidate that holds the prompt's prefix, unless the fleet is out of balance.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheAwareZmq {
    settings: CacheAwareSettings,
}

impl CacheAwareZmq {
    /// Returns the policy with the thresholds.
    pub fn new(settings: CacheAwareSettings) -> Self {
        Self { settings }
    }

    fn is_imbalanced(&self, view: &View<'_>) -> bool {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for candidate in 0..view.len() {
            least = least.min(view.load_of(candidate));
            most = most.max(view.load_of(candidate));
        }
        self.settings.is_imbalanced(least, most)
    }
}

impl Policy for CacheAwareZmq {
    fn name(&self) -> &'static str {
        "cache_aware_zmq"
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, rng: &mut Rng) -> Pick {
        if self.is_imbalanced(view) {
            return Pick::new(view.least_loaded(|_| true, rng).unwrap_or(0), "imbalanced");
        }
        let best = (0..view.len()).map(|candidate| view.prefix_match(candidate).ratio()).fold(0.0, f64::max);
        if best <= self.settings.cache_threshold {
            return Pick::new(view.least_loaded(|_| true, rng).unwrap_or(0), "no_match");
        }
        let shares_best = |candidate: usize| view.prefix_match(candidate).ratio() >= best;
        Pick::new(view.least_loaded(shares_best, rng).unwrap_or(0), "best_match")
    }
}
