//! From a request's body to the token ids that the engine will see, so that its cached blocks can be looked up.
//!
//! Only the same tokens make the same blocks, so everything is done as the engine does it: the same fields of the body, the same
//! chat template in the same dialect, the same tokenizer. Whatever stands in the way, a slow disk, a template that fails, an
//! image in the prompt, costs the tokens and never the request: it is [`NoTokens`], counted by its reason, and the request is
//! routed by load.
//!
//! | question | place |
//! |---|---|
//! | which fields of a body count? | `body` |
//! | what does a template get to see? | `chat`, `chat_sglang`, `chat_vllm`, `content_format` |
//! | how does a template render? | `template`, `to_json`, `strftime` |
//! | where is a tokenizer looked for? | `files` |
//! | why is the next turn cheap? | `cuts`, `encoder`, `cache` |
//! | where does the work run? | `pool`, `model` |

mod body;
mod cache;
mod chat;
mod chat_sglang;
mod chat_vllm;
mod content_format;
mod cuts;
mod encoder;
mod error;
mod files;
mod json;
mod model;
mod pool;
mod settings;
mod strftime;
mod template;
#[cfg(test)]
mod tests;
mod to_json;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::oneshot;

use self::body::Source;
use self::cache::Cache;
use self::encoder::{Encoder, EncoderSetup};
pub use self::error::{NoTokens, PromptError};
use self::model::Model;
use self::pool::{Pool, Task};
use self::settings::ANY_MODEL;
pub use self::settings::{ChatStyle, ModelTokenizer, PromptSettings};

/// Which interface a body belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PromptKind {
    /// OpenAI chat completions: `messages`, or SGLang's `input_ids`.
    Chat,
    /// OpenAI completions: `prompt`.
    Completion,
    /// SGLang's `/generate`: `text` or `input_ids`.
    Generate,
}

/// Where tokens came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PromptSource {
    /// The body had them.
    TokenIds,
    /// They were encoded from a text.
    Text,
    /// They were encoded from a rendered chat.
    Chat,
}

/// A request's prompt as tokens, and what keeps its blocks apart from others with the same tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens. Of a batch, those of its first prompt.
    pub token_ids: Arc<[u32]>,
    /// The body's `cache_salt`, where it is text; of a list, its first.
    pub cache_salt: Option<Arc<str>>,
    /// The body's `lora_path` (SGLang), where it is text; of a list, its first.
    pub lora: Option<Arc<str>>,
    /// Where the tokens came from.
    pub source: PromptSource,
}

/// The tokenizers and their threads. Clones share them; the threads end with the last one.
#[derive(Clone)]
pub struct Prompts {
    inner: Arc<Inner>,
}

struct Inner {
    settings: PromptSettings,
    models: Vec<Arc<Model>>,
    /// `None` where there is nothing to load, or no thread could be started.
    pool: Option<Pool>,
}

/// What a thread encodes.
enum Work {
    Text(String),
    Chat(Bytes),
}

impl fmt::Debug for Prompts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> = self.inner.models.iter().map(|model| &model.entry).collect();
        formatter.debug_struct("Prompts").field("models", &entries).finish_non_exhaustive()
    }
}

impl Prompts {
    /// Starts the threads, which load the tokenizers first. Returns at once; a tokenizer that cannot be loaded is told in the log
    /// and to every request that wants it. `clock` is for templates that print the day.
    pub fn start(settings: PromptSettings, clock: fn() -> SystemTime) -> Self {
        if settings.models.is_empty() {
            return Self { inner: Arc::new(Inner { settings, models: Vec::new(), pool: None }) };
        }
        let models: Vec<Arc<Model>> =
            settings.models.iter().cloned().map(|entry| Arc::new(Model::new(entry))).collect();
        let cache = Arc::new(Cache::new(models.len(), settings.cache_bytes));
        let loads = models.iter().enumerate().map(|(slot, model)| -> Task {
            let setup = EncoderSetup {
                style: model.entry.style,
                clock,
                max_prompt_bytes: settings.max_prompt_bytes,
                cache: Arc::clone(&cache),
                slot,
            };
            let model = Arc::clone(model);
            Box::new(move || model.load(setup))
        });
        let pool = match Pool::start(settings.threads, settings.max_waiting, loads.collect()) {
            Ok(pool) => Some(pool),
            Err(error) => {
                let source = Arc::new(error);
                for model in &models {
                    model.settle(Err(Arc::new(PromptError::Spawn { source: Arc::clone(&source) })));
                }
                None
            }
        };
        Self { inner: Arc::new(Inner { settings, models, pool }) }
    }

    /// Returns a handle without tokenizers: only token arrays give tokens.
    pub fn none() -> Self {
        Self::start(PromptSettings::default(), || SystemTime::UNIX_EPOCH)
    }

    /// Returns the tokens of a request's body. `model` is the name that the request uses; without one, the tokenizer is the one
    /// for every model, or the only one.
    ///
    /// Dropping the future is fine: work that has not begun is skipped then.
    ///
    /// # Errors
    /// There are none, for the reason told; the request itself may be well.
    pub async fn tokens(&self, model: Option<&str>, kind: PromptKind, body: &Bytes) -> Result<Prompt, NoTokens> {
        let asked = body::read(kind, body, &self.inner.settings)?;
        let (token_ids, source) = match asked.source {
            Source::Ids(ids) => (ids, PromptSource::TokenIds),
            Source::Text(text) => (self.encode(model, Work::Text(text)).await?, PromptSource::Text),
            Source::Chat => (self.encode(model, Work::Chat(body.clone())).await?, PromptSource::Chat),
        };
        Ok(Prompt {
            token_ids: token_ids.into(),
            cache_salt: asked.cache_salt.map(Arc::from),
            lora: asked.lora.map(Arc::from),
            source,
        })
    }

    async fn encode(&self, model: Option<&str>, work: Work) -> Result<Vec<u32>, NoTokens> {
        let model = self.inner.model(model).ok_or(NoTokens::NotConfigured)?;
        let tokens = async { self.inner.submit(model.encoder().await?, work).await };
        match tokio::time::timeout(self.inner.settings.timeout, tokens).await {
            Ok(tokens) => tokens,
            Err(_) if model.is_loading() => Err(NoTokens::Loading),
            Err(_) => Err(NoTokens::TimedOut),
        }
    }
}

impl Inner {
    fn model(&self, name: Option<&str>) -> Option<&Arc<Model>> {
        let named = |name: &str| self.models.iter().find(|model| model.entry.model == name);
        match (name, self.models.as_slice()) {
            (Some(name), _) => named(name).or_else(|| named(ANY_MODEL)),
            (None, [only]) => Some(only),
            (None, _) => named(ANY_MODEL),
        }
    }

    async fn submit(&self, encoder: Arc<Encoder>, work: Work) -> Result<Vec<u32>, NoTokens> {
        let max_waiting = self.settings.max_waiting;
        let pool = self.pool.as_ref().ok_or(NoTokens::NotConfigured)?;
        let (sender, receiver) = oneshot::channel();
        let task: Task = Box::new(move || {
            if sender.is_closed() {
                return;
            }
            let is_wanted = || !sender.is_closed();
            let tokens = match work {
                Work::Text(text) => encoder.text(&text, is_wanted),
                Work::Chat(body) => encoder.chat(&body, is_wanted),
            };
            // Whoever asked may have left meanwhile.
            let _ = sender.send(tokens);
        });
        if !pool.submit(task) {
            return Err(NoTokens::Busy { max_waiting });
        }
        let no_answer = |_| Err(NoTokens::EncodeFailed { reason: "the tokenizer panicked".to_owned() });
        receiver.await.unwrap_or_else(no_answer)
    }
}
