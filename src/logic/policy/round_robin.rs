//! One candidate after the other, whatever their load.

use crate::logic::policy::{Pick, Policy, View};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;

/// Picks candidates in turn. The turn is counted per model, so that interleaved models do not pin each other to one worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn wants_prompts(&self) -> bool {
        false
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, _rng: &mut Rng) -> Pick {
        let candidate = view.turn().checked_rem(view.len() as u64).unwrap_or(0);
        Pick::new(candidate as usize, "turn")
    }
}
