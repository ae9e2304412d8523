//! The manual: how the router works, what it does in which case, and how it is run, extended and moved to. The README says how to
//! begin, and lists every setting.
//!
//! | chapter | answers |
//! |---|---|
//! | [`life_of_a_request`] | what happens to a request, step by step, and where each step shows |
//! | [`policies`] | which policy for which fleet, what each one compares, and how it fails |
//! | [`degradations`] | what happens when a part of the picture is missing, and where that shows |
//! | [`extending`] | settings, a policy, an actor behind a port, a worker of your own: with code |
//! | [`operating`] | start, stop, reload, health, admission, keys, metrics; what to look at when something seems wrong |
//! | [`migrating_from_sglang_router`] | what each flag of sglang-router becomes |

#[doc = include_str!("life_of_a_request.md")]
pub mod life_of_a_request {}

#[doc = include_str!("policies.md")]
pub mod policies {}

#[doc = include_str!("degradations.md")]
pub mod degradations {}

#[doc = include_str!("extending.md")]
pub mod extending {}

#[doc = include_str!("operating.md")]
pub mod operating {}

#[doc = include_str!("migrating_from_sglang_router.md")]
pub mod migrating_from_sglang_router {}

#[cfg(test)]
mod tests;
