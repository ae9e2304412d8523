//! What the fields of an event mean for keys.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::logic::block_hash::{Units, engine_keys};
use crate::logic::kv_event::{BlockKey, Medium, StoredBlocks, TokenIds};
use crate::logic::prefix_index::table::Tier;

const SEED_OF_NAMES: u64 = 0x6c6f_7261_6e61_6d65;
const SEED_OF_NUMBERS: u64 = 0x6c6f_7261_6e75_6d62;

/// Returns the tier of a medium, where it is known.
pub(super) fn tier_of(medium: Medium) -> Option<Tier> {
    match medium {
        Medium::Gpu => Some(Tier::Device),
        Medium::Cpu | Medium::CpuPinned => Some(Tier::Host),
        Medium::Disk | Medium::Storage => Some(Tier::Disk),
        Medium::External => Some(Tier::External),
        Medium::Unknown => None,
    }
}

/// Returns what an adapter of this name mixes into keys.
pub(super) fn mix_of_name(name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), SEED_OF_NAMES)
}

/// Returns what the event's adapter mixes into keys; nothing where there is none.
pub(super) fn mix_of_adapter(stored: &StoredBlocks) -> u64 {
    match (&stored.lora_name, stored.lora_id) {
        (Some(name), _) => mix_of_name(name),
        (None, Some(number)) => xxh3_64_with_seed(&number.to_le_bytes(), SEED_OF_NUMBERS),
        (None, None) => 0,
    }
}

/// Returns the number that is a block's id, where it is one.
pub(super) fn word_of(key: &BlockKey) -> Option<u64> {
    match key {
        BlockKey::Word(word) => Some(*word),
        BlockKey::Digest128(_) | BlockKey::Digest256(_) => None,
    }
}

/// Returns what makes the keys of an opaque block its own.
pub(super) fn seed_of(key: &BlockKey) -> u64 {
    match key {
        BlockKey::Word(word) => xxh3_64_with_seed(&word.to_le_bytes(), 1),
        BlockKey::Digest128(digest) => xxh3_64_with_seed(digest, 1),
        BlockKey::Digest256(digest) => xxh3_64_with_seed(digest, 1),
    }
}

/// Returns the tokens as what a block size counts, where they were kept.
pub(super) fn units_of(token_ids: &TokenIds) -> Option<Units<'_>> {
    match token_ids {
        TokenIds::Flat(tokens) => Some(Units::Tokens(tokens)),
        TokenIds::Pairs(pairs) => Some(Units::Pairs(pairs)),
        TokenIds::Skipped { .. } | TokenIds::SkippedPairs { .. } => None,
    }
}

/// Tells whether the event's ids are those that SGLang computes; `None` where the event cannot tell.
pub(super) fn is_engine_hash(stored: &StoredBlocks) -> Option<bool> {
    if stored.hashes.iter().any(|key| word_of(key).is_none()) {
        return Some(false);
    }
    let units = units_of(&stored.token_ids)?;
    let num_units = stored.hashes.len().checked_mul(stored.block_size as usize)?;
    if stored.parent.is_some() || stored.is_opaque || units.len() != num_units {
        return None;
    }
    let keys = engine_keys(units, stored.block_size, stored.cache_salt.as_deref());
    Some(keys.iter().zip(&stored.hashes).all(|(key, hash)| word_of(hash) == Some(*key)))
}
