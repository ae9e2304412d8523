//! A request's prompt as block keys, where some worker's cache can be looked up with them.
//!
//! Whatever stands in the way costs the keys and never the request: it is counted by its reason, and the request goes by load.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::http::Edge;
use crate::logic::block_hash::prompt_keys;
use crate::logic::prompt_keys::{HashVariant, PromptKeys};
use crate::prompt::{Prompt, PromptKind, PromptSource};
use crate::telemetry::Telemetry;
use crate::wire::token_prompt::with_token_ids;

/// Tokens that are hashed on an HTTP thread: some 2 ms at a token per block. More go to a thread that may take its time.
const MAX_TOKENS_HERE: usize = 16_384;

/// A prompt that is known as tokens.
pub(super) struct KnownPrompt {
    /// Its keys in every way in which workers of the model key their blocks.
    pub(super) keys: Arc<PromptKeys>,
    /// The body with the tokens in the place of the text, where they are to be sent.
    pub(super) body: Option<Bytes>,
}

/// Returns what is known of the request's prompt.
pub(super) async fn known(
    edge: &Edge,
    kind: PromptKind,
    model: Option<&Arc<str>>,
    body: &Bytes,
) -> Option<KnownPrompt> {
    if !edge.ports.wants_prompts.load(Ordering::Relaxed) {
        return None;
    }
    let count = |kind| Telemetry::count(&edge.ports.telemetry.prompts, kind);
    let variants = edge.ports.variants.in_use(model.map(|model| &**model));
    if variants.is_empty() {
        count("no_kv_events");
        return None;
    }
    let prompt = match edge.ports.prompts.tokens(model.map(|model| &**model), kind, body).await {
        Ok(prompt) => prompt,
        Err(reason) => {
            count(reason.reason());
            return None;
        }
    };
    count(name_of(prompt.source));
    let model = model.cloned();
    let body = edge.ports.settings.forward_token_ids.then(|| body_of_tokens(kind, &prompt, body)).flatten();
    let keys = if prompt.token_ids.len() <= MAX_TOKENS_HERE {
        hashed(prompt, &variants, model)
    } else {
        actix_web::web::block(move || hashed(prompt, &variants, model)).await.ok()?
    };
    Some(KnownPrompt { keys: Arc::new(keys), body })
}

/// Only a text becomes tokens: of a chat, an engine also wants the messages.
fn body_of_tokens(kind: PromptKind, prompt: &Prompt, body: &Bytes) -> Option<Bytes> {
    let (text_key, ids_key) = match kind {
        PromptKind::Completion => ("prompt", "prompt"),
        PromptKind::Generate => ("text", "input_ids"),
        PromptKind::Chat => return None,
    };
    with_token_ids(body, text_key, ids_key, &prompt.token_ids).map(Bytes::from)
}

fn name_of(source: PromptSource) -> &'static str {
    match source {
        PromptSource::TokenIds => "token_ids",
        PromptSource::Text => "text",
        PromptSource::Chat => "chat",
    }
}

fn hashed(prompt: Prompt, variants: &[HashVariant], model: Option<Arc<str>>) -> PromptKeys {
    let salt = prompt.cache_salt.as_deref();
    let keys = variants.iter().map(|variant| (*variant, prompt_keys(&prompt.token_ids, *variant, salt).into()));
    let num_tokens = u32::try_from(prompt.token_ids.len()).unwrap_or(u32::MAX);
    PromptKeys::new(num_tokens, keys.collect()).of_model(model).with_adapter(prompt.lora)
}
