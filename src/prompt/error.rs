//! What can go wrong with a tokenizer, and why a request got no tokens.

use std::path::PathBuf;
use std::sync::Arc;

/// Why a model's tokenizer is not there. It is told once in the log; the model's requests are routed by load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than any tokenizer's.
    #[error("{path} has {bytes} bytes, more than {max}")]
    FileTooLarge {
        /// Which.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A file is not the JSON that it should be.
    #[error("{path} is not what it should be")]
    Json {
        /// Which.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The directory has neither `tokenizer.json` nor a snapshot in the layout of the Hugging Face cache.
    #[error("{path} has neither tokenizer.json nor a snapshot with one")]
    NoTokenizer {
        /// The directory.
        path: PathBuf,
    },
    /// The tokenizer cannot be built from its file.
    #[error("{path} is not a tokenizer: {reason}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What the library said.
        reason: String,
    },
    /// The library panicked while it loaded the tokenizer.
    #[error("loading {path} panicked")]
    Panicked {
        /// The directory.
        path: PathBuf,
    },
    /// None of the pool's threads could be started.
    #[error("cannot start the prompt threads")]
    Spawn {
        /// What the system said.
        source: Arc<std::io::Error>,
    },
}

/// Why a request has no tokens. It is never an error for the request: it is counted by [`NoTokens::reason`], and the request is
/// routed by load.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NoTokens {
    /// No tokenizer is configured for the model.
    #[error("no tokenizer is configured for the model")]
    NotConfigured,
    /// The model's tokenizer was still being loaded when the time was over.
    #[error("the tokenizer is still being loaded")]
    Loading,
    /// The model's tokenizer could not be loaded.
    #[error("the tokenizer could not be loaded: {0}")]
    LoadFailed(#[source] Arc<PromptError>),
    /// The model has no chat template, or one that cannot be read, or the request brings its own.
    #[error("there is no chat template for this request")]
    NoTemplate,
    /// The chat template refused the conversation, or the engine would refuse it before.
    #[error("the chat cannot be rendered: {reason}")]
    RenderFailed {
        /// What the template engine said.
        reason: String,
    },
    /// The prompt has images, audio or video: their blocks cannot be known from text.
    #[error("the prompt is not text alone")]
    Multimodal,
    /// The body has no prompt of a known form.
    #[error("the body has no usable {key:?}")]
    NoPrompt {
        /// The field that was looked for.
        key: &'static str,
    },
    /// The prompt is larger than the limit.
    #[error("the prompt is larger than max_prompt_bytes = {max_prompt_bytes}")]
    TooLong {
        /// The limit.
        max_prompt_bytes: usize,
    },
    /// Too many prompts wait already.
    #[error("max_waiting = {max_waiting} prompts wait already")]
    Busy {
        /// The limit.
        max_waiting: usize,
    },
    /// The tokens did not come in time.
    #[error("the tokens did not come in time")]
    TimedOut,
    /// The tokenizer failed on the text.
    #[error("the text cannot be encoded: {reason}")]
    EncodeFailed {
        /// What the library said.
        reason: String,
    },
}

impl NoTokens {
    /// Every value of [`NoTokens::reason`], for counters that show zeros too.
    pub const ALL: [&'static str; 11] = [
        "not_configured",
        "loading",
        "load_failed",
        "no_template",
        "render_failed",
        "multimodal",
        "no_prompt",
        "too_long",
        "busy",
        "timed_out",
        "encode_failed",
    ];

    /// Returns the name used in metrics; one of [`NoTokens::ALL`].
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotConfigured => "not_configured",
            Self::Loading => "loading",
            Self::LoadFailed(_) => "load_failed",
            Self::NoTemplate => "no_template",
            Self::RenderFailed { .. } => "render_failed",
            Self::Multimodal => "multimodal",
            Self::NoPrompt { .. } => "no_prompt",
            Self::TooLong { .. } => "too_long",
            Self::Busy { .. } => "busy",
            Self::TimedOut => "timed_out",
            Self::EncodeFailed { .. } => "encode_failed",
        }
    }

    pub(super) fn render_failed(reason: impl Into<String>) -> Self {
        Self::RenderFailed { reason: reason.into() }
    }
}
