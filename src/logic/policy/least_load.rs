//! Everything to the least loaded candidate.

use crate::logic::policy::{Pick, Policy, View};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;

/// Picks the least loaded candidate, a random one of several.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastLoad;

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        "least_load"
    }

    fn wants_prompts(&self) -> bool {
        false
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, rng: &mut Rng) -> Pick {
        Pick::new(view.least_loaded(|_| true, rng).unwrap_or(0), "least_loaded")
    }
}
