//! Which of our own keys an engine's block id stands for, of workers whose keys are made here.

use rustc_hash::FxHashMap;

use crate::logic::kv_event::BlockKey;

/// See the module's documentation. Numbers, which are the rule, take a third of the memory of digests.
#[derive(Debug, Default)]
pub(super) struct Ids {
    numbers: FxHashMap<u64, u64>,
    digests: FxHashMap<BlockKey, u64>,
}

/// Bytes that a number takes at most in its map, and a digest in its: an entry and a byte per bucket, 7/16 of them full.
pub(super) const MAX_BYTES_PER_NUMBER: usize = 39;
pub(super) const MAX_BYTES_PER_DIGEST: usize = 112;

impl Ids {
    /// Returns the key of the block, in the namespace that `mix` stands for. A digest contains its namespace.
    pub(super) fn get(&self, id: BlockKey, mix: u64) -> Option<u64> {
        match id {
            BlockKey::Word(number) => self.numbers.get(&(number ^ mix)).copied(),
            BlockKey::Digest128(_) | BlockKey::Digest256(_) => self.digests.get(&id).copied(),
        }
    }

    pub(super) fn insert(&mut self, id: BlockKey, mix: u64, key: u64) {
        match id {
            BlockKey::Word(number) => self.numbers.insert(number ^ mix, key),
            BlockKey::Digest128(_) | BlockKey::Digest256(_) => self.digests.insert(id, key),
        };
    }

    pub(super) fn remove(&mut self, id: BlockKey, mix: u64) {
        match id {
            BlockKey::Word(number) => self.numbers.remove(&(number ^ mix)),
            BlockKey::Digest128(_) | BlockKey::Digest256(_) => self.digests.remove(&id),
        };
    }

    pub(super) fn has_digests(&self) -> bool {
        !self.digests.is_empty()
    }

    /// Drops the ids whose keys are not wanted any more.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(u64) -> bool) {
        self.numbers.retain(|_, key| is_wanted(*key));
        self.digests.retain(|_, key| is_wanted(*key));
        self.numbers.shrink_to(2 * self.numbers.len());
        self.digests.shrink_to(2 * self.digests.len());
    }

    pub(super) fn num_bytes(&self) -> usize {
        // hashbrown keeps at most 7/8 of its buckets full, and a control byte for each.
        let buckets = |capacity: usize| capacity + capacity / 7;
        buckets(self.numbers.capacity()) * 17 + buckets(self.digests.capacity()) * 49
    }
}
