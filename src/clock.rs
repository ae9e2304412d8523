//! The only reader of time. Everything else takes the time as an argument, so that tests can pause it.

use std::time::Instant;

/// Returns the current time. Under tokio's paused clock it is the paused time.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns the wall clock's time, for what people read; it may jump.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// Returns a number that differs from start to start, for seeds and ids; not for secrets.
pub fn start_seed() -> u64 {
    let since_epoch = wall_now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let process = u64::from(std::process::id());
    crate::logic::rng::Rng::from_seed((since_epoch.as_nanos() as u64) ^ (process << 32)).next_u64()
}
