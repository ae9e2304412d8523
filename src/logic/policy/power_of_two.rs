//! The better of two random candidates (Mitzenmacher, "The power of two choices in randomized load balancing", 2001). Unlike the
//! minimum over all, it does not herd when loads are old.

use crate::logic::policy::{Pick, Policy, View};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;

/// Draws two different candidates and picks the less loaded, a random one where they are equal.
#[derive(Debug, Clone, Copy, Default)]
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power_of_two"
    }

    fn wants_prompts(&self) -> bool {
        false
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, rng: &mut Rng) -> Pick {
        if view.len() < 2 {
            return Pick::new(0, "only_candidate");
        }
        let first = rng.below(view.len());
        // A number below len-1, moved past the first, is uniform over all others.
        let other = rng.below(view.len() - 1);
        let second = if other >= first { other + 1 } else { other };
        // The order of the draw is random already, so the first may win a tie.
        let chosen = if view.load_of(second) < view.load_of(first) { second } else { first };
        Pick::new(chosen, "better_of_two")
    }
}
