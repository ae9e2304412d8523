//! Stored chains whose parent is not known yet, of workers whose keys are made here: a key needs the key before it. They wait with
//! their tokens, and count for no match, until the parent is stored.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::logic::ids::DpRank;
use crate::logic::kv_event::{BlockKey, StoredBlocks, TokenIds};
use crate::logic::prefix_index::table::Tier;

/// The most tokens that wait at one worker: a megabyte. Beyond, the chain that has waited longest is dropped.
const MAX_TOKENS: usize = 262_144;

/// A chain that waits.
#[derive(Debug, Clone)]
pub(super) struct Orphan {
    pub(super) rank: DpRank,
    pub(super) tier: Tier,
    pub(super) stored: StoredBlocks,
}

/// The chains that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    chains: VecDeque<(BlockKey, Orphan)>,
    /// How many chains wait for each parent: most stores have none that waits for them.
    waiting_for: FxHashMap<BlockKey, u32>,
    /// In how many chains each block is: most removals mean none of them.
    members: FxHashMap<(DpRank, BlockKey), u32>,
    num_tokens: usize,
    num_dropped_blocks: u64,
}

impl Orphans {
    /// Returns how many blocks of chains had to be dropped.
    pub(super) fn num_dropped_blocks(&self) -> u64 {
        self.num_dropped_blocks
    }

    /// Returns how many blocks wait.
    pub(super) fn num_blocks(&self) -> usize {
        self.members.len()
    }

    /// Keeps a chain until its parent comes.
    pub(super) fn add(&mut self, parent: BlockKey, orphan: Orphan) {
        let num_tokens = num_tokens(&orphan);
        if num_tokens == 0 || num_tokens > MAX_TOKENS {
            self.num_dropped_blocks += orphan.stored.hashes.len() as u64;
            return;
        }
        while self.num_tokens + num_tokens > MAX_TOKENS
            && let Some((waited_for, oldest)) = self.chains.pop_front()
        {
            self.forget(waited_for, &oldest);
            self.num_dropped_blocks += oldest.stored.hashes.len() as u64;
        }
        self.num_tokens += num_tokens;
        for id in &orphan.stored.hashes {
            *self.members.entry((orphan.rank, *id)).or_default() += 1;
        }
        *self.waiting_for.entry(parent).or_default() += 1;
        self.chains.push_back((parent, orphan));
    }

    /// Returns the chains that have waited for the block, and keeps them no longer.
    pub(super) fn take(&mut self, parent: BlockKey) -> Vec<Orphan> {
        if !self.waiting_for.contains_key(&parent) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for (waited_for, orphan) in std::mem::take(&mut self.chains) {
            if waited_for == parent {
                self.forget(waited_for, &orphan);
                taken.push(orphan);
            } else {
                self.chains.push_back((waited_for, orphan));
            }
        }
        taken
    }

    /// Notes that a rank has lost a block. What came after it in its chain waits for that block from now on.
    pub(super) fn remove(&mut self, rank: DpRank, tier: Option<Tier>, id: BlockKey) {
        if !self.members.contains_key(&(rank, id)) {
            return;
        }
        for (waited_for, mut orphan) in std::mem::take(&mut self.chains) {
            let is_meant = orphan.rank == rank && tier.is_none_or(|tier| tier == orphan.tier);
            let at = orphan.stored.hashes.iter().position(|hash| is_meant && *hash == id);
            let Some(at) = at else {
                self.chains.push_back((waited_for, orphan));
                continue;
            };
            self.forget(waited_for, &orphan);
            let tail = tail_after(&orphan, at);
            truncate(&mut orphan, at);
            for (parent, part) in [(waited_for, Some(orphan)), (id, tail)] {
                if let Some(part) = part.filter(|part| !part.stored.hashes.is_empty()) {
                    self.add(parent, part);
                }
            }
        }
    }

    /// Forgets all chains of the rank.
    pub(super) fn clear_rank(&mut self, rank: DpRank) {
        for (waited_for, orphan) in std::mem::take(&mut self.chains) {
            if orphan.rank == rank {
                self.forget(waited_for, &orphan);
            } else {
                self.chains.push_back((waited_for, orphan));
            }
        }
    }

    /// Forgets all chains.
    pub(super) fn clear(&mut self) {
        *self = Self { num_dropped_blocks: self.num_dropped_blocks, ..Self::default() };
    }

    fn forget(&mut self, waited_for: BlockKey, orphan: &Orphan) {
        self.num_tokens -= num_tokens(orphan);
        count_down(&mut self.waiting_for, waited_for);
        for id in &orphan.stored.hashes {
            count_down(&mut self.members, (orphan.rank, *id));
        }
    }
}

fn count_down<K: Eq + std::hash::Hash>(counts: &mut FxHashMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

fn num_tokens(orphan: &Orphan) -> usize {
    match &orphan.stored.token_ids {
        TokenIds::Flat(tokens) => tokens.len(),
        TokenIds::Pairs(pairs) => 2 * pairs.len(),
        TokenIds::Skipped { .. } | TokenIds::SkippedPairs { .. } => 0,
    }
}

/// Returns the blocks after the one at `at` as a chain of their own.
fn tail_after(orphan: &Orphan, at: usize) -> Option<Orphan> {
    let hashes = orphan.stored.hashes.get(at + 1..).filter(|rest| !rest.is_empty())?.to_vec();
    let from = (at + 1) * orphan.stored.block_size as usize;
    let token_ids = match &orphan.stored.token_ids {
        TokenIds::Flat(tokens) => TokenIds::Flat(tokens.get(from..)?.to_vec()),
        TokenIds::Pairs(pairs) => TokenIds::Pairs(pairs.get(from..)?.to_vec()),
        TokenIds::Skipped { .. } | TokenIds::SkippedPairs { .. } => return None,
    };
    let parent = orphan.stored.hashes.get(at).copied();
    Some(Orphan { stored: StoredBlocks { hashes, token_ids, parent, ..orphan.stored.clone() }, ..*orphan })
}

fn truncate(orphan: &mut Orphan, num_blocks: usize) {
    orphan.stored.hashes.truncate(num_blocks);
    let num_units = num_blocks * orphan.stored.block_size as usize;
    match &mut orphan.stored.token_ids {
        TokenIds::Flat(tokens) => tokens.truncate(num_units),
        TokenIds::Pairs(pairs) => pairs.truncate(num_units),
        TokenIds::Skipped { .. } | TokenIds::SkippedPairs { .. } => {}
    }
}
