//! The simulated engine's own clock.
//!
//! The engine stands for another process, with a clock that the router does not share; hence it does not go through
//! the router's. Everything else in the module takes time as an argument.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "the simulated engine stands for another process with its own clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Returns the seconds since 1970, as engines stamp them into frames and bodies.
#[expect(clippy::disallowed_methods, reason = "the simulated engine stands for another process with its own clock")]
pub(super) fn wall_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
