//! A request's prompt as block keys, where some worker's cache can be looked up with them.
//!
//! Whatever stands in the way costs the keys and never the request: it is counted by its reason, and the request goes by load.

use std::sync::Arc;

use bytes::Bytes;

use crate::http::Edge;
use crate::logic::block_hash::prompt_keys;
use crate::logic::prompt_keys::{HashVariant, PromptKeys};
use crate::prompt::{Prompt, PromptKind, PromptSource};
use crate::telemetry::Telemetry;

/// Tokens that are hashed on an HTTP thread: some 2 ms at a token per block. More go to a thread that may take its time.
const MAX_TOKENS_HERE: usize = 16_384;

/// Returns the keys of the prompt in every way in which workers of the model key their blocks.
pub(super) async fn keys(
    edge: &Edge,
    kind: PromptKind,
    model: Option<&Arc<str>>,
    body: &Bytes,
) -> Option<Arc<PromptKeys>> {
    if !edge.ports.wants_prompts {
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
    let keys = if prompt.token_ids.len() <= MAX_TOKENS_HERE {
        hashed(prompt, &variants, model)
    } else {
        actix_web::web::block(move || hashed(prompt, &variants, model)).await.ok()?
    };
    Some(Arc::new(keys))
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
