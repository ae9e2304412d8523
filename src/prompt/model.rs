//! One configured model: its tokenizer is loaded once, for everyone who waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::watch;

use super::encoder::{Encoder, EncoderSetup};
use super::error::{NoTokens, PromptError};
use super::settings::ModelTokenizer;

/// A model and how far its tokenizer is.
pub(super) struct Model {
    pub(super) entry: ModelTokenizer,
    loaded: watch::Sender<Loaded>,
}

/// `None` while it is being loaded. A failure stays: only new settings can end it.
type Loaded = Option<Result<Arc<Encoder>, Arc<PromptError>>>;

impl Model {
    /// Returns a model that is not loaded yet.
    pub(super) fn new(entry: ModelTokenizer) -> Self {
        Self { entry, loaded: watch::Sender::new(None) }
    }

    /// Loads the tokenizer, tells the log, and wakes everyone who waits. Blocks.
    pub(super) fn load(&self, setup: EncoderSetup) {
        let path = &self.entry.path;
        let loaded = catch_unwind(AssertUnwindSafe(|| Encoder::load(path, setup)));
        let loaded = loaded.unwrap_or_else(|_| Err(PromptError::Panicked { path: path.clone() }));
        self.settle(loaded.map(Arc::new).map_err(Arc::new));
    }

    /// Ends the loading.
    pub(super) fn settle(&self, loaded: Result<Arc<Encoder>, Arc<PromptError>>) {
        let (model, path) = (&self.entry.model, self.entry.path.display());
        match &loaded {
            Ok(encoder) => tracing::info!(model, %path, cuts = encoder.num_cuts(), "tokenizer loaded"),
            Err(error) => {
                let source = std::error::Error::source(error.as_ref()).map(ToString::to_string);
                tracing::warn!(model, %path, %error, source, "no tokenizer: the model's requests are routed by load");
            }
        }
        self.loaded.send_replace(Some(loaded));
    }

    /// Tells whether the tokenizer is still being loaded.
    pub(super) fn is_loading(&self) -> bool {
        self.loaded.borrow().is_none()
    }

    /// Waits for the tokenizer.
    ///
    /// # Errors
    /// It could not be loaded.
    pub(super) async fn encoder(&self) -> Result<Arc<Encoder>, NoTokens> {
        let mut watching = self.loaded.subscribe();
        let loaded = watching.wait_for(Option::is_some).await.ok().and_then(|loaded| loaded.clone());
        loaded.ok_or(NoTokens::Loading)?.map_err(NoTokens::LoadFailed)
    }
}
