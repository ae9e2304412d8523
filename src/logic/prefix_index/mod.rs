//! What one worker has cached: which of its DP ranks hold which blocks, by key, and how far they hold a prompt.
//!
//! *Keys.* A worker is taken for one that hashes as SGLang does, and the ids it publishes are the keys. Whenever tokens are at hand
//! (always at first, later in one batch of many) the ids of blocks that start a prompt are computed and compared; where they
//! differ, the engine's hash is not known, and from then on keys are made here from the tokens of each event, with a map from the
//! engine's ids to them. Block size and pairs are learnt from the events, whatever was advertised. Each of these changes makes
//! everything listed so far void: it was listed under other keys.
//!
//! *Namespaces.* A salt is part of the hash. An adapter is mixed into the key, since engines publish the same id for the same
//! tokens whatever the adapter; a removal, which names no adapter, takes the block from all of them.
//!
//! *Groups.* A hybrid model has several caches. Only one with full attention is listed: the first that is seen, or group 0 where
//! the engine does not say. *Ranks.* The socket says whose a batch is, never the batch.
//!
//! *Limits.* The blocks, and the ids where there are any, have a budget of bytes; the least recently used leaves go first.

use std::time::{Duration, Instant};

use crate::logic::block_hash::{own_keys_into, own_root};
use crate::logic::ids::{DecisionId, DpRank};
use crate::logic::kv_event::{Attention, BlockKey, KvEvent, RemovedBlocks, StoredBlocks};
use crate::logic::policy::PrefixMatch;
use crate::logic::prefix_index::ids::{Ids, MAX_BYTES_PER_DIGEST, MAX_BYTES_PER_NUMBER};
use crate::logic::prefix_index::meaning::{
    is_engine_hash, mix_of_adapter, mix_of_name, seed_of, tier_of, units_of, word_of,
};
use crate::logic::prefix_index::orphans::{Orphan, Orphans};
use crate::logic::prefix_index::predicted::Predicted;
use crate::logic::prefix_index::table::{BlockTable, Depth, LANES, MAX_BYTES_PER_BLOCK};
use crate::logic::prompt_keys::{HashMode, HashVariant, PromptKeys};

mod ids;
mod meaning;
mod orphans;
mod predicted;
mod ranks;
mod table;

pub use table::Tier;

/// After the hash has proved known, tokens are looked at in one of so many batches.
const BATCHES_PER_CHECK: u32 = 64;
/// Changes of block size or hashing after which a worker's cache is given up: nothing listed would last.
const MAX_CHANGES: u32 = 8;
/// Adapters of one worker that are told apart; blocks of further ones are not listed.
const MAX_NAMESPACES: usize = 1_024;

/// What is listed, and what was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexCounts {
    /// Bytes taken by what is listed.
    pub bytes: u64,
    /// Blocks that had to go to keep the budget.
    pub evicted: u64,
    /// Blocks that wait for their parent.
    pub orphans: u64,
    /// Blocks that could not be listed: their parent never came, or their tokens were needed and missing.
    pub lost: u64,
    /// Events of other caches of a hybrid model, or of media that are not known; not listed.
    pub skipped_events: u64,
    /// Times the keys changed: another block size, pairs, or a hash that proved unknown.
    pub key_changes: u32,
}

/// Whether everything that was listed has become void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Applied {
    /// The event is listed, or was skipped.
    Listed,
    /// Keys are made in another way from this event on. What was listed of all ranks is forgotten and should be asked for again.
    KeysChanged,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct PrefixIndex {
    max_bytes: usize,
    block_size: Option<u32>,
    mode: HashMode,
    is_mode_verified: bool,
    batches_to_check: u32,
    tables: Vec<BlockTable>,
    /// Per table, the lanes whose streams may be believed.
    believed: Vec<u8>,
    ids: Ids,
    orphans: Orphans,
    predicted: Predicted,
    /// What adapters mix into keys; the first is that of no adapter.
    mixes: Vec<u64>,
    group: Option<u32>,
    num_lost: u64,
    num_skipped: u64,
    num_changes: u32,
}

impl PrefixIndex {
    /// Returns an empty index of at most so many bytes. `block_size` is what the engine advertises; its events outrank it.
    pub fn new(max_bytes: usize, block_size: Option<u32>) -> Self {
        Self {
            max_bytes,
            block_size,
            mode: HashMode::Engine { is_bigram: false },
            is_mode_verified: false,
            batches_to_check: 0,
            tables: Vec::new(),
            believed: Vec::new(),
            ids: Ids::default(),
            orphans: Orphans::default(),
            predicted: Predicted::default(),
            mixes: vec![0],
            group: None,
            num_lost: 0,
            num_skipped: 0,
            num_changes: 0,
        }
    }

    /// Returns how the worker's blocks are keyed; `None` where that is not known yet, or changes too often to be of use.
    pub fn variant(&self) -> Option<HashVariant> {
        let block_size = self.block_size.filter(|_| !self.is_given_up())?;
        Some(HashVariant { block_size, mode: self.mode })
    }

    /// Tells whether the keys changed so often that nothing is listed any more.
    pub fn is_given_up(&self) -> bool {
        self.num_changes > MAX_CHANGES
    }

    /// Tells whether the ids of this worker proved to be SGLang's.
    pub fn is_hash_verified(&self) -> bool {
        self.is_mode_verified
    }

    /// Tells whether the next batch is to be read with its tokens. To be asked once per batch.
    pub fn wants_tokens(&mut self) -> bool {
        if !self.is_mode_verified || matches!(self.mode, HashMode::Rehash { .. }) {
            return true;
        }
        self.batches_to_check = self.batches_to_check.checked_sub(1).unwrap_or(BATCHES_PER_CHECK);
        self.batches_to_check == 0
    }

    /// Tells whether blocks of the adapter were listed.
    pub fn knows_adapter(&self, name: &str) -> bool {
        self.mixes.len() > 1 && self.mixes.contains(&mix_of_name(name))
    }

    /// Sets whether what the rank lists may count as a match.
    pub fn believe(&mut self, rank: DpRank, is_believed: bool) {
        let (table, lane) = place_of(rank);
        if self.believed.len() <= table {
            self.believed.resize(table + 1, 0);
        }
        if is_believed {
            self.believed[table] |= 1 << lane;
        } else {
            self.believed[table] &= !(1 << lane);
        }
    }

    /// Applies one event of the rank's stream.
    pub fn apply(&mut self, rank: DpRank, event: &KvEvent) -> Applied {
        if self.is_given_up() {
            return Applied::Listed;
        }
        match event {
            KvEvent::Stored(stored) => self.store(rank, stored),
            KvEvent::Removed(removed) => {
                self.remove(rank, removed);
                Applied::Listed
            }
            KvEvent::Cleared => {
                self.clear_rank(rank);
                Applied::Listed
            }
        }
    }

    /// Forgets what the rank lists.
    pub fn clear_rank(&mut self, rank: DpRank) {
        let (table, lane) = place_of(rank);
        if let Some(table) = self.tables.get_mut(table) {
            table.clear(lane);
        }
        self.orphans.clear_rank(rank);
        self.drop_unused_ids();
    }

    /// Returns how many blocks the rank lists.
    pub fn num_blocks(&self, rank: DpRank) -> usize {
        let (table, lane) = place_of(rank);
        self.tables.get(table).map_or(0, |table| table.num_held(lane))
    }

    /// Returns the keys that the rank lists, in no order.
    pub fn keys(&self, rank: DpRank) -> Vec<u64> {
        let (table, lane) = place_of(rank);
        self.tables.get(table).map(|table| table.keys(lane).collect()).unwrap_or_default()
    }

    /// Returns what is listed and what was left out.
    pub fn counts(&self) -> IndexCounts {
        let bytes: usize = self.tables.iter().map(BlockTable::num_bytes).sum();
        IndexCounts {
            bytes: (bytes + self.ids.num_bytes()) as u64,
            evicted: self.tables.iter().map(BlockTable::num_evicted).sum(),
            orphans: self.orphans.num_blocks() as u64,
            lost: self.num_lost + self.orphans.num_dropped_blocks(),
            skipped_events: self.num_skipped,
            key_changes: self.num_changes,
        }
    }

    /// Returns how much of a prompt the worker holds, at the best of those ranks that are believed. `adapter` is the LoRA adapter
    /// that the request wants of this worker.
    pub fn match_prompt(&mut self, prompt: &PromptKeys, adapter: Option<&str>, now: Instant) -> PrefixMatch {
        let Some(keys) = self.variant().and_then(|variant| prompt.keys(variant)) else {
            return PrefixMatch::default();
        };
        let mix = adapter.map_or(0, mix_of_name);
        let (mut best, mut best_table) = (Depth::default(), 0);
        for (at, (table, lanes)) in self.tables.iter_mut().zip(&self.believed).enumerate() {
            let depth = table.depth(keys, mix, *lanes);
            if depth.num_blocks > best.num_blocks {
                (best, best_table) = (depth, at);
            }
        }
        let device = self.tables.get(best_table).map_or(0, |table| table.device_depth(keys, mix, best));
        self.predicted.expire(now);
        let rank = (best.num_blocks > 0).then(|| best_table * LANES + best.lanes.trailing_zeros() as usize);
        PrefixMatch {
            matched_blocks: best.num_blocks as u32,
            device_blocks: device as u32,
            predicted_blocks: self.predicted.depth(keys, mix, best.num_blocks) as u32,
            prompt_blocks: keys.len() as u32,
            rank: rank.map(|rank| DpRank::new(rank as u32)),
        }
    }

    /// Notes that a request with this prompt was sent to the worker, and to which rank: until `expires_at` its blocks count as predicted.
    pub fn predict(
        &mut self,
        decision: DecisionId,
        prompt: &PromptKeys,
        adapter: Option<&str>,
        rank: Option<DpRank>,
        now: Instant,
        lasts: Duration,
    ) {
        let matched = self.match_prompt(prompt, adapter, now).matched_blocks as usize;
        if let Some(keys) = self.variant().and_then(|variant| prompt.keys(variant)) {
            let mix = adapter.map_or(0, mix_of_name);
            let at = rank.map(|rank| (rank.number(), self.held_by(rank, keys, mix)));
            self.predicted.add(decision, keys, mix, matched, at, now + lasts);
        }
    }

    /// Takes back what was predicted for a request that the engine never got.
    pub fn withdraw(&mut self, decision: DecisionId) {
        self.predicted.withdraw(decision);
    }

    /// Forgets what was predicted: the engine is another one.
    pub fn clear_predictions(&mut self) {
        self.predicted.clear();
    }

    fn store(&mut self, rank: DpRank, stored: &StoredBlocks) -> Applied {
        let Some(tier) = stored.medium.map_or(Some(Tier::Device), tier_of).filter(|_| self.is_listed_group(stored))
        else {
            self.num_skipped += 1;
            return Applied::Listed;
        };
        if stored.hashes.is_empty() {
            return Applied::Listed;
        }
        let Some(mix) = self.mix_of_event(stored) else {
            self.num_lost += stored.hashes.len() as u64;
            return Applied::Listed;
        };
        let applied = self.check_keys(stored);
        if self.is_given_up() {
            return applied;
        }
        match self.mode {
            HashMode::Engine { .. } => self.store_by_ids(rank, tier, stored, mix),
            HashMode::Rehash { .. } => self.store_by_tokens(Orphan { rank, tier, stored: stored.clone() }, mix),
        }
        applied
    }

    /// Makes sure that blocks are keyed as this event wants it.
    fn check_keys(&mut self, stored: &StoredBlocks) -> Applied {
        let says_bigram = (!stored.token_ids.is_empty()).then(|| stored.token_ids.is_paired());
        let is_bigram = says_bigram.unwrap_or(self.mode.is_bigram());
        let mut mode = self.mode.with_bigram(is_bigram);
        if matches!(mode, HashMode::Engine { .. }) {
            match is_engine_hash(stored) {
                Some(true) => self.is_mode_verified = true,
                Some(false) => mode = HashMode::Rehash { is_bigram },
                None => {}
            }
        }
        let is_same_size = self.block_size.is_none_or(|size| size == stored.block_size);
        self.block_size = Some(stored.block_size);
        if mode == self.mode && is_same_size {
            return Applied::Listed;
        }
        let had_listed = self.tables.iter().any(|table| table.num_blocks() > 0);
        self.mode = mode;
        self.is_mode_verified = false;
        self.forget_all();
        // What an engine advertises wrongly it says once; only keys that change under what is listed are trouble.
        self.num_changes += u32::from(had_listed);
        if had_listed { Applied::KeysChanged } else { Applied::Listed }
    }

    fn forget_all(&mut self) {
        self.tables.clear();
        self.ids = Ids::default();
        self.orphans.clear();
        self.predicted.clear();
    }

    fn store_by_ids(&mut self, rank: DpRank, tier: Tier, stored: &StoredBlocks, mix: u64) {
        let words = stored.hashes.iter().filter_map(word_of).map(|key| key ^ mix);
        let parent = stored.parent.as_ref().and_then(word_of).map(|key| key ^ mix);
        let (table, lane) = place_of(rank);
        self.table_mut(table).store(lane, tier, parent, words);
    }

    /// Lists a chain under keys of our own, and then whatever has waited for its blocks.
    fn store_by_tokens(&mut self, chain: Orphan, mix: u64) {
        let mut ready = vec![chain];
        while let Some(chain) = ready.pop() {
            let before = match chain.stored.parent {
                None => Some(own_root(chain.stored.cache_salt.as_deref())),
                Some(parent) => self.ids.get(parent, mix),
            };
            match (before, chain.stored.parent) {
                (Some(before), _) => {
                    self.list_by_tokens(&chain, before, mix);
                    ready.extend(chain.stored.hashes.iter().flat_map(|id| self.orphans.take(*id)));
                }
                (None, Some(parent)) => self.orphans.add(parent, chain),
                (None, None) => {}
            }
        }
    }

    fn list_by_tokens(&mut self, chain: &Orphan, before: u64, mix: u64) {
        let stored = &chain.stored;
        let mut keys = Vec::with_capacity(stored.hashes.len());
        // An opaque block equals only itself.
        let opaque_seed = stored.is_opaque.then(|| stored.hashes.first().map_or(0, seed_of));
        let seed = opaque_seed.map_or(before, |seed| before ^ seed);
        match units_of(&stored.token_ids) {
            Some(units) if !units.is_empty() => own_keys_into(units, stored.block_size, seed, &mut keys),
            // Blocks that were moved come without tokens: they are known, or cannot be.
            _ => keys.extend(stored.hashes.iter().map_while(|id| self.ids.get(*id, mix))),
        }
        keys.truncate(stored.hashes.len());
        self.num_lost += (stored.hashes.len() - keys.len()) as u64;
        for (id, key) in stored.hashes.iter().zip(&keys) {
            self.ids.insert(*id, mix, *key);
        }
        let parent = stored.parent.map(|_| before ^ mix);
        let (table, lane) = place_of(chain.rank);
        let table = self.table_mut(table);
        let num_evicted = table.num_evicted();
        table.store(lane, chain.tier, parent, keys.iter().map(|key| key ^ mix));
        if table.num_evicted() != num_evicted {
            self.drop_unused_ids();
        }
    }

    fn remove(&mut self, rank: DpRank, removed: &RemovedBlocks) {
        let is_other_group = match (removed.group_idx, self.group) {
            (Some(group), Some(listed)) => group != listed,
            (Some(group), None) => group != 0,
            (None, _) => false,
        };
        if is_other_group {
            self.num_skipped += 1;
            return;
        }
        // Of a medium that is not known, nothing may stay listed.
        let tier = removed.medium.and_then(tier_of);
        let (table, lane) = place_of(rank);
        for id in &removed.hashes {
            if matches!(self.mode, HashMode::Rehash { .. }) {
                self.remove_by_id(rank, tier, *id);
            } else if let (Some(table), Some(word)) = (self.tables.get_mut(table), word_of(id)) {
                for mix in &self.mixes {
                    table.remove(lane, tier, word ^ mix);
                }
            }
        }
    }

    fn remove_by_id(&mut self, rank: DpRank, tier: Option<Tier>, id: BlockKey) {
        let (table, lane) = place_of(rank);
        for at in 0..self.mixes.len() {
            let mix = self.mixes[at];
            let Some(key) = self.ids.get(id, mix) else { continue };
            if let Some(table) = self.tables.get_mut(table) {
                table.remove(lane, tier, key ^ mix);
            }
            if !self.tables.iter().any(|table| table.is_held(key ^ mix)) {
                self.ids.remove(id, mix);
            }
        }
        self.orphans.remove(rank, tier, id);
    }

    fn drop_unused_ids(&mut self) {
        let (tables, mixes) = (&self.tables, &self.mixes);
        self.ids.retain(|key| mixes.iter().any(|mix| tables.iter().any(|table| table.is_held(key ^ mix))));
    }

    fn is_listed_group(&mut self, stored: &StoredBlocks) -> bool {
        let Some(group) = stored.group_idx else {
            return stored.attention != Attention::Other;
        };
        let listed = self.group.or(match stored.attention {
            Attention::Full => Some(group),
            Attention::Unsaid => Some(0),
            Attention::Other => None,
        });
        self.group = listed;
        listed == Some(group)
    }

    /// Returns what the event's adapter mixes into keys; `None` where there are too many adapters.
    fn mix_of_event(&mut self, stored: &StoredBlocks) -> Option<u64> {
        let mix = mix_of_adapter(stored);
        if !self.mixes.contains(&mix) {
            if self.mixes.len() >= MAX_NAMESPACES {
                return None;
            }
            self.mixes.push(mix);
        }
        Some(mix)
    }

    fn table_mut(&mut self, at: usize) -> &mut BlockTable {
        let id_bytes = match self.mode {
            HashMode::Engine { .. } => 0,
            HashMode::Rehash { .. } if self.ids.has_digests() => MAX_BYTES_PER_DIGEST,
            HashMode::Rehash { .. } => MAX_BYTES_PER_NUMBER,
        };
        while self.tables.len() <= at {
            self.tables.push(BlockTable::new(0));
        }
        let max_blocks = self.max_bytes / self.tables.len() / (MAX_BYTES_PER_BLOCK + id_bytes);
        for table in &mut self.tables {
            table.limit(max_blocks);
        }
        &mut self.tables[at]
    }
}

/// Returns the table and the lane of a rank.
fn place_of(rank: DpRank) -> (usize, usize) {
    (rank.index() / LANES, rank.index() % LANES)
}

#[cfg(test)]
mod tests;
