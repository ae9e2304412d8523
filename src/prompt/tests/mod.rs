//! The module as a whole, on small tokenizers trained for it. What they should give was made by Hugging Face's libraries.

mod cached;
mod golden;
mod handle;
mod refused;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::cache::Cache;
use super::encoder::{Encoder, EncoderSetup};
use super::{ChatStyle, ModelTokenizer, PromptSettings, Prompts};

/// Every fixture.
const MODELS: [&str; 6] = ["chatml", "deepseek", "gemma", "llama3", "mistral", "qwen3"];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/tokenizers/")).join(name)
}

fn clock() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_735_689_600)
}

fn encoder(model: &str, style: ChatStyle, cache_bytes: usize) -> Encoder {
    encoder_with(model, style, Arc::new(Cache::new(1, cache_bytes)))
}

fn encoder_with(model: &str, style: ChatStyle, cache: Arc<Cache>) -> Encoder {
    let setup = EncoderSetup { style, clock, max_prompt_bytes: 1 << 20, cache, slot: 0 };
    Encoder::load(&fixture(model), setup).unwrap()
}

fn settings(models: &[(&str, &str)]) -> PromptSettings {
    let entry = |(model, directory): &(&str, &str)| ModelTokenizer {
        model: (*model).to_owned(),
        path: fixture(directory),
        style: ChatStyle::SgLang,
    };
    // Paused clocks jump over this long time where nothing is left to do.
    let timeout = Duration::from_secs(60);
    PromptSettings { models: models.iter().map(entry).collect(), timeout, ..PromptSettings::default() }
}

fn prompts(models: &[(&str, &str)]) -> Prompts {
    Prompts::start(settings(models), clock)
}
