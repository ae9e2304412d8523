//! A prompt as the keys of its KV blocks, once for each way in which the fleet's workers key theirs.

use std::sync::Arc;

/// How a worker's blocks are keyed. Workers of one fleet may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashVariant {
    /// Tokens per block; pairs of tokens where `mode` says bigram.
    pub block_size: u32,
    /// How tokens become keys.
    pub mode: HashMode,
}

/// How tokens become keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HashMode {
    /// The engine's published ids are the keys: its hash is known and can be computed here.
    Engine {
        /// Whether blocks are made of overlapping pairs of tokens (EAGLE family).
        is_bigram: bool,
    },
    /// Keys are made here from the tokens of each event: the engine's hash cannot be reproduced.
    Rehash {
        /// Whether blocks are made of overlapping pairs of tokens.
        is_bigram: bool,
    },
}

impl HashMode {
    /// Tells whether blocks are made of pairs.
    pub fn is_bigram(self) -> bool {
        match self {
            Self::Engine { is_bigram } | Self::Rehash { is_bigram } => is_bigram,
        }
    }

    /// Returns the same mode for blocks of pairs, or of single tokens.
    #[must_use]
    pub fn with_bigram(self, is_bigram: bool) -> Self {
        match self {
            Self::Engine { .. } => Self::Engine { is_bigram },
            Self::Rehash { .. } => Self::Rehash { is_bigram },
        }
    }

    /// Returns the name used in metrics and the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine { is_bigram: false } => "engine",
            Self::Engine { is_bigram: true } => "engine_bigram",
            Self::Rehash { is_bigram: false } => "rehash",
            Self::Rehash { is_bigram: true } => "rehash_bigram",
        }
    }
}

/// A prompt's keys. Made once per request, before its round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptKeys {
    num_tokens: u32,
    model: Option<Arc<str>>,
    adapter: Option<Arc<str>>,
    by_variant: Vec<(HashVariant, Arc<[u64]>)>,
}

impl PromptKeys {
    /// Returns the keys of a prompt of `num_tokens` tokens.
    pub fn new(num_tokens: u32, by_variant: Vec<(HashVariant, Arc<[u64]>)>) -> Self {
        Self { num_tokens, model: None, adapter: None, by_variant }
    }

    /// Names the model that the request wants. Where a worker serves it as a LoRA adapter, only that adapter's blocks count.
    #[must_use]
    pub fn of_model(self, model: Option<Arc<str>>) -> Self {
        Self { model, ..self }
    }

    /// Names the LoRA adapter that the request wants beside its model.
    #[must_use]
    pub fn with_adapter(self, adapter: Option<Arc<str>>) -> Self {
        Self { adapter, ..self }
    }

    /// Returns the name of the model.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Returns the name of the adapter.
    pub fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }

    /// Tells whether equal keys of both mean equal blocks at any worker.
    pub fn is_same_namespace(&self, other: &Self) -> bool {
        self.model == other.model && self.adapter == other.adapter
    }

    /// Returns the number of tokens.
    pub fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// Returns the keys of the full blocks in order; `None` where they were not made for this variant.
    pub fn keys(&self, variant: HashVariant) -> Option<&Arc<[u64]>> {
        self.by_variant.iter().find(|(known, _)| *known == variant).map(|(_, keys)| keys)
    }
}
