//! Any candidate.

use crate::logic::policy::{Pick, Policy, View};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;

/// Picks any candidate, each with the same probability.
#[derive(Debug, Clone, Copy, Default)]
pub struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn wants_prompts(&self) -> bool {
        false
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, rng: &mut Rng) -> Pick {
        Pick::new(rng.below(view.len()), "random")
    }
}
