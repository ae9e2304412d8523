//! What an index lists after the events that engines send, and after those that they should not send.

use std::sync::Arc;
use std::time::Instant;

use super::{Applied, PrefixIndex};
use crate::logic::block_hash::{Units, engine_keys, prompt_keys};
use crate::logic::ids::DpRank;
use crate::logic::kv_event::{Attention, BlockKey, KvEvent, Medium, RemovedBlocks, StoredBlocks, TokenIds};
use crate::logic::prompt_keys::{HashMode, HashVariant, PromptKeys};
use crate::logic::testing::start;

mod faults;
mod limits;
mod model;
mod names;

const BLOCK_SIZE: u32 = 4;
const BUDGET: usize = 64 << 20;

/// A prompt as an engine sees it, block by block.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Prompt {
    tokens: Vec<u32>,
    salt: Option<&'static str>,
    lora: Option<&'static str>,
    /// Whether its engine hashes in a way that cannot be computed here.
    is_foreign: bool,
}

impl Prompt {
    fn new(first: u32, num_blocks: usize) -> Self {
        let tokens = (0..num_blocks as u32 * BLOCK_SIZE).map(|token| first + token).collect();
        Self { tokens, ..Self::default() }
    }

    fn foreign(first: u32, num_blocks: usize) -> Self {
        Self { is_foreign: true, ..Self::new(first, num_blocks) }
    }

    fn num_blocks(&self) -> usize {
        self.tokens.len() / BLOCK_SIZE as usize
    }

    fn ids(&self) -> Vec<BlockKey> {
        let keys = engine_keys(Units::Tokens(&self.tokens), BLOCK_SIZE, self.salt);
        // Like vLLM: other numbers, which an adapter is part of.
        let lora = self.lora.map_or(0, |lora| 31 * lora.len() as u64 + u64::from(lora.as_bytes()[0]));
        let foreign = |key: u64| key.rotate_left(17).wrapping_add(lora);
        keys.into_iter().map(|key| BlockKey::from(if self.is_foreign { foreign(key) } else { key })).collect()
    }

    fn stored(&self, blocks: std::ops::Range<usize>) -> StoredBlocks {
        let size = BLOCK_SIZE as usize;
        StoredBlocks {
            hashes: self.ids()[blocks.clone()].to_vec(),
            parent: blocks.start.checked_sub(1).map(|parent| self.ids()[parent]),
            token_ids: TokenIds::Flat(self.tokens[blocks.start * size..blocks.end * size].to_vec()),
            block_size: BLOCK_SIZE,
            medium: Some(Medium::Gpu),
            lora_id: None,
            lora_name: self.lora.map(Arc::from),
            cache_salt: self.salt.map(Arc::from),
            is_opaque: false,
            group_idx: None,
            attention: Attention::Unsaid,
        }
    }

    fn store(&self, blocks: std::ops::Range<usize>) -> KvEvent {
        KvEvent::Stored(self.stored(blocks))
    }

    fn remove(&self, blocks: std::ops::Range<usize>) -> KvEvent {
        removal(&self.ids()[blocks], None)
    }

    fn keys(&self, variant: HashVariant) -> PromptKeys {
        let keys = prompt_keys(&self.tokens, variant, self.salt);
        PromptKeys::new(self.tokens.len() as u32, vec![(variant, keys.into())])
    }
}

fn removal(hashes: &[BlockKey], medium: Option<Medium>) -> KvEvent {
    KvEvent::Removed(RemovedBlocks { hashes: hashes.to_vec(), medium, group_idx: None })
}

fn rank(number: u32) -> DpRank {
    DpRank::new(number)
}

/// Returns an index that believes its first ranks.
fn index() -> PrefixIndex {
    let mut index = PrefixIndex::new(BUDGET, Some(BLOCK_SIZE));
    (0..16).for_each(|number| index.believe(rank(number), true));
    index
}

fn apply(index: &mut PrefixIndex, number: u32, events: &[KvEvent]) {
    for event in events {
        assert_eq!(index.apply(rank(number), event), Applied::Listed, "{event:?}");
    }
}

fn matched_at(index: &mut PrefixIndex, prompt: &Prompt, now: Instant) -> (u32, u32) {
    let Some(variant) = index.variant() else { return (0, 0) };
    let found = index.match_prompt(&prompt.keys(variant), prompt.lora, now);
    (found.matched_blocks, found.predicted_blocks)
}

/// Returns how many blocks of the prompt are confirmed.
fn matched(index: &mut PrefixIndex, prompt: &Prompt) -> u32 {
    matched_at(index, prompt, start()).0
}

fn mode(index: &PrefixIndex) -> HashMode {
    index.variant().unwrap().mode
}
