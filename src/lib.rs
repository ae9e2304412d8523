//! x
pub mod logic;
pub use logic::policy::{Pick, Policy, View};
pub use logic::request::RequestFacts;
pub use logic::rng::Rng;
