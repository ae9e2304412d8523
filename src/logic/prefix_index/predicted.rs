//! Blocks that a worker will probably hold soon, because a request with them was sent there: until its engine confirms them, or
//! a short time has passed. Without this a burst of requests that share a new prefix would scatter over the fleet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::logic::ids::DecisionId;

/// The most blocks that are predicted at one time for one worker; beyond, the oldest prediction goes.
const MAX_BLOCKS: usize = 65_536;

#[derive(Debug)]
struct Prediction {
    decision: DecisionId,
    expires_at: Instant,
    keys: Arc<[u64]>,
    /// The first block that was not confirmed when the request was sent.
    from: usize,
    /// The rank it was sent to, and the first block that was not confirmed there.
    at: Option<(u32, usize)>,
    mix: u64,
}

/// The predictions of one worker.
#[derive(Debug, Default)]
pub(super) struct Predicted {
    predictions: VecDeque<Prediction>,
    /// By how many predictions each block is named.
    counts: FxHashMap<u64, u32>,
    /// The same by rank.
    rank_counts: FxHashMap<(u32, u64), u32>,
    num_blocks: usize,
}

impl Predicted {
    /// Predicts the prompt's blocks from block `from` on, and those of the rank, where there is one, from its own block on.
    pub(super) fn add(
        &mut self,
        decision: DecisionId,
        keys: &Arc<[u64]>,
        mix: u64,
        from: usize,
        at: Option<(u32, usize)>,
        expires_at: Instant,
    ) {
        // A rank that lacks what another one holds is news as well.
        let from = at.map_or(from, |(_, from_there)| from.min(from_there));
        let num_new = keys.len().saturating_sub(from);
        if num_new == 0 || num_new > MAX_BLOCKS {
            return;
        }
        while self.num_blocks + num_new > MAX_BLOCKS {
            self.drop_first();
        }
        for key in &keys[from..] {
            *self.counts.entry(key ^ mix).or_default() += 1;
        }
        if let Some((rank, from)) = at {
            for key in &keys[from.min(keys.len())..] {
                *self.rank_counts.entry((rank, key ^ mix)).or_default() += 1;
            }
        }
        self.num_blocks += num_new;
        self.predictions.push_back(Prediction { decision, expires_at, keys: Arc::clone(keys), from, at, mix });
    }

    /// Takes back what was predicted of a request that never reached the engine.
    pub(super) fn withdraw(&mut self, decision: DecisionId) {
        // The newest are the likeliest to fail.
        if let Some(at) = self.predictions.iter().rposition(|prediction| prediction.decision == decision)
            && let Some(prediction) = self.predictions.remove(at)
        {
            self.uncount(&prediction);
        }
    }

    /// Drops what has expired.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.predictions.front().is_some_and(|prediction| prediction.expires_at <= now) {
            self.drop_first();
        }
    }

    /// Returns how many blocks of the prompt, from block `from` on, are predicted without a hole.
    pub(super) fn depth(&self, keys: &[u64], mix: u64, from: usize) -> usize {
        let rest = keys.get(from..).unwrap_or_default();
        if self.counts.is_empty() || rest.is_empty() {
            return 0;
        }
        // Each prediction names all blocks up to the end of its prompt, so what is named ends at one place.
        rest.partition_point(|key| self.counts.contains_key(&(key ^ mix)))
    }

    /// Returns the same of what was sent to the rank.
    pub(super) fn depth_at(&self, rank: u32, keys: &[u64], mix: u64, from: usize) -> usize {
        let rest = keys.get(from..).unwrap_or_default();
        if self.rank_counts.is_empty() || rest.is_empty() {
            return 0;
        }
        rest.partition_point(|key| self.rank_counts.contains_key(&(rank, key ^ mix)))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn drop_first(&mut self) {
        if let Some(prediction) = self.predictions.pop_front() {
            self.uncount(&prediction);
        }
    }

    fn uncount(&mut self, prediction: &Prediction) {
        self.num_blocks -= prediction.keys.len() - prediction.from;
        for key in &prediction.keys[prediction.from..] {
            let key = key ^ prediction.mix;
            uncount_one(&mut self.counts, key);
        }
        if let Some((rank, from)) = prediction.at {
            for key in &prediction.keys[from.min(prediction.keys.len())..] {
                uncount_one(&mut self.rank_counts, (rank, key ^ prediction.mix));
            }
        }
    }
}

fn uncount_one<K: Eq + std::hash::Hash>(counts: &mut FxHashMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}
