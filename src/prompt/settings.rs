//! What the prompt module is told at start.

use std::path::PathBuf;
use std::time::Duration;

/// The `model` of an entry that serves every model without an entry of its own.
pub(super) const ANY_MODEL: &str = "*";

/// How an engine turns the messages of a chat into what the template sees. The engines differ, and one differing byte makes
/// other blocks, so this must name the engine that serves the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChatStyle {
    /// As SGLang 0.5 does.
    #[default]
    SgLang,
    /// As vLLM does (V1 front end).
    Vllm,
}

/// Where a model's tokenizer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTokenizer {
    /// The name that requests use, or `*` for every model without an entry.
    pub model: String,
    /// A directory with `tokenizer.json` and, for chats, a template in `chat_template.jinja`, `chat_template.json` or
    /// `tokenizer_config.json`; or a model's directory in a Hugging Face cache (`refs/main` and `snapshots/`).
    pub path: PathBuf,
    /// The engine whose prompts are to be met.
    pub style: ChatStyle,
}

/// Settings of [`Prompts`](super::Prompts).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptSettings {
    /// The tokenizers. None means that only token arrays give tokens.
    pub models: Vec<ModelTokenizer>,
    /// Threads that load tokenizers, render chats and encode text. Zero counts as one.
    pub threads: usize,
    /// Prompts that may wait for a thread. Further ones are turned away at once.
    pub max_waiting: usize,
    /// Time a request waits for its tokens: for the tokenizer to be loaded, for a thread, and for the work.
    pub timeout: Duration,
    /// Bytes of memory for tokens of earlier turns, over all models. Zero switches the cache off.
    pub cache_bytes: usize,
    /// Bytes of a prompt's text, of a chat's body, and of a rendered chat, beyond which there are no tokens. A token array may
    /// have as many tokens. Bounds the time that one prompt holds a thread.
    pub max_prompt_bytes: usize,
}

impl Default for PromptSettings {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            threads: 1,
            max_waiting: 64,
            timeout: Duration::from_millis(500),
            cache_bytes: 64 << 20,
            max_prompt_bytes: 4 << 20,
        }
    }
}
