//! Waiting for what other threads and sockets do, with a deadline and without guessing how long it takes.

use std::future::Future;
use std::time::{Duration, Instant};

/// Long enough for a machine that is busy with other builds; no test waits this long when it passes.
const DEADLINE: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls until `check` gives a value, and fails with the sentence if it never does.
#[expect(clippy::disallowed_methods, reason = "bounds the wait for real sockets")]
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(sentence: &str, mut check: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(started.elapsed() < DEADLINE, "this never became true: {sentence}");
        actix::clock::sleep(POLL_INTERVAL).await;
    }
}
