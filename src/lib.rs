//! x
pub mod actors;
pub mod clock;
pub mod config;
pub mod error;
mod feed;
mod http;
pub mod logic;
pub mod messages;
pub mod router;
#[cfg(feature = "sim")]
pub mod sim;
pub mod telemetry;
mod upstream;
pub mod wire;
pub use logic::policy::{Pick, Policy, View};
pub use logic::request::RequestFacts;
pub use logic::rng::Rng;
