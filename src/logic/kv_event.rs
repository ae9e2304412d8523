//! What engines tell of their KV caches: the events of a batch, whatever form they came in.

use std::sync::Arc;

/// A change of an engine's KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks were stored.
    Stored(StoredBlocks),
    /// Blocks were evicted.
    Removed(RemovedBlocks),
    /// The cache was emptied. The first event of a fresh SGLang engine.
    Cleared,
}

/// Blocks that a cache gained: a chain, each block the child of the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The blocks, first one first.
    pub hashes: Vec<BlockKey>,
    /// The block before the first. `None` where the chain starts a prompt.
    pub parent: Option<BlockKey>,
    /// Their tokens, where they were sent and asked for.
    pub token_ids: TokenIds,
    /// Tokens, or pairs, per block; at least one.
    pub block_size: u32,
    /// Where the blocks are. `None` where the engine does not say, which means its GPU.
    pub medium: Option<Medium>,
    /// Number of the LoRA adapter they were computed with.
    pub lora_id: Option<i64>,
    /// Name of the LoRA adapter they were computed with.
    pub lora_name: Option<Arc<str>>,
    /// Salt that keeps their prompt apart from equal ones.
    pub cache_salt: Option<Arc<str>>,
    /// Whether something beside tokens, salt and adapter (vLLM's `extra_keys`: images, embeddings) went into the hash of any of
    /// them, so that equal tokens do not mean an equal block.
    pub is_opaque: bool,
    /// Which of a hybrid model's caches they are in.
    pub group_idx: Option<u32>,
    /// What kind of attention that cache serves.
    pub attention: Attention,
}

/// Blocks that a cache lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedBlocks {
    /// The blocks, in no order.
    pub hashes: Vec<BlockKey>,
    /// Where they were. `None` where the engine does not say.
    pub medium: Option<Medium>,
    /// Which of a hybrid model's caches they were in.
    pub group_idx: Option<u32>,
}

/// Where a block is, in the words of the engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Medium {
    /// `GPU`, which vLLM says on a CPU too.
    Gpu,
    /// vLLM's `CPU`.
    Cpu,
    /// SGLang's `CPU_PINNED`.
    CpuPinned,
    /// SGLang's `DISK`.
    Disk,
    /// vLLM's `STORAGE`.
    Storage,
    /// SGLang's `EXTERNAL`.
    External,
    /// Anything else.
    Unknown,
}

/// What kind of attention a cache group serves (vLLM's `kv_cache_spec_kind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Attention {
    /// The engine does not say; it has one group only, or is older.
    #[default]
    Unsaid,
    /// Every token is attended to, so a block stays useful as long as it is cached.
    Full,
    /// Sliding windows, state spaces and the like.
    Other,
}

/// The engine's name of a cache block.
///
/// SGLang sends the first 64 bits of a digest as a signed number, vLLM the last 64 as an unsigned one, or the whole digest
/// (32 bytes of SHA-256, 16 of XXH3-128). The signed and the unsigned spelling of the same 64 bits are one key. A digest is
/// kept in full and equals no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockKey {
    /// A 64-bit number, signed or not.
    Word(u64),
    /// A digest of 128 bits.
    Digest128([u8; 16]),
    /// A digest of 256 bits.
    Digest256([u8; 32]),
}

impl From<u64> for BlockKey {
    fn from(value: u64) -> Self {
        Self::Word(value)
    }
}

impl From<i64> for BlockKey {
    fn from(value: i64) -> Self {
        Self::Word(value.cast_unsigned())
    }
}

/// The token ids of stored blocks, in the order of the blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenIds {
    /// One id per token.
    Flat(Vec<u32>),
    /// Overlapping pairs of ids.
    Pairs(Vec<[u32; 2]>),
    /// Ids that were not kept.
    Skipped {
        /// How many tokens, or pairs, there were.
        count: usize,
    },
    /// Pairs that were not kept.
    SkippedPairs {
        /// How many pairs there were.
        count: usize,
    },
}

impl TokenIds {
    /// Returns how many tokens, or pairs, there are: what block sizes count.
    pub fn len(&self) -> usize {
        match self {
            Self::Flat(ids) => ids.len(),
            Self::Pairs(pairs) => pairs.len(),
            Self::Skipped { count } | Self::SkippedPairs { count } => *count,
        }
    }

    /// Tells whether there are none. Engines send none for blocks that they moved to another medium.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells whether they are pairs, and so whether the engine hashes pairs.
    pub fn is_paired(&self) -> bool {
        matches!(self, Self::Pairs(_) | Self::SkippedPairs { .. })
    }
}
