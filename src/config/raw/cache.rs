//! What people write about what is known of caches and prompts.

use clap::Args;
use serde::Deserialize;

const CACHE: &str = "Cache";
const PROMPTS: &str = "Prompts";

/// What is known of the engines' caches, and how prompts are made into tokens.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawCache {
    /// Bytes that the list of one worker's cached blocks may take, some 36 per block, 1048576 to 68719476736; the least recently
    /// used go first. Default: 134217728.
    #[arg(long, env = "FATHOM_KV_INDEX_BYTES", value_name = "BYTES", help_heading = CACHE)]
    pub kv_index_bytes: Option<usize>,

    /// How long a request's blocks count as cached where it was sent before its engine has said so, in milliseconds, 0 (not at
    /// all) to 600000. Default: 10000.
    #[arg(long, env = "FATHOM_PREDICTION_LIFETIME_MS", value_name = "MS", help_heading = CACHE)]
    pub prediction_lifetime_ms: Option<u64>,

    /// How long an engine may take to send KV events again that were missed, in milliseconds, 1 to 60000. Default: 2000.
    #[arg(long, env = "FATHOM_KV_REPLAY_TIMEOUT_MS", value_name = "MS", help_heading = CACHE)]
    pub kv_replay_timeout_ms: Option<u64>,

    /// Directories with tokenizer.json and, for chats, a chat template, each after the name of its model: MODEL=DIR; a directory
    /// alone is that of every other model. Without one, only prompts that come as tokens are looked up in the engines' caches.
    /// May be repeated. Default: none.
    #[arg(long, env = "FATHOM_TOKENIZERS", value_name = "[MODEL=]DIR", num_args = 1.., value_delimiter = ',', help_heading = PROMPTS)]
    pub tokenizers: Option<Vec<String>>,

    /// Whose way of rendering chats is followed: sglang or vllm. Default: sglang.
    #[arg(long, env = "FATHOM_CHAT_STYLE", value_name = "NAME", help_heading = PROMPTS)]
    pub chat_style: Option<String>,

    /// Threads that make prompts into tokens, 1 to 1024. Default: 1.
    #[arg(long, env = "FATHOM_PROMPT_THREADS", value_name = "COUNT", help_heading = PROMPTS)]
    pub prompt_threads: Option<usize>,

    /// How long a request waits for its tokens before it is routed without, in milliseconds, 1 to 60000. Default: 500.
    #[arg(long, env = "FATHOM_PROMPT_TIMEOUT_MS", value_name = "MS", help_heading = PROMPTS)]
    pub prompt_timeout_ms: Option<u64>,

    /// Bytes of memory for the tokens of earlier turns of conversations, 0 (off) to 68719476736. Default: 67108864.
    #[arg(long, env = "FATHOM_PROMPT_CACHE_BYTES", value_name = "BYTES", help_heading = PROMPTS)]
    pub prompt_cache_bytes: Option<usize>,

    /// Whether the tokens of a text prompt (completions, /generate), where they are known, are sent to the engine in its place, so
    /// that it need not encode it again. Default: false.
    #[arg(long, env = "FATHOM_FORWARD_TOKEN_IDS", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = PROMPTS)]
    pub forward_token_ids: Option<bool>,
}

keys_of! { RawCache:
    kv_index_bytes prediction_lifetime_ms kv_replay_timeout_ms tokenizers chat_style prompt_threads prompt_timeout_ms
    prompt_cache_bytes forward_token_ids
}
