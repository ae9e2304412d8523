//! Waiting for one event that must come.

use std::future::Future;
use std::time::Duration;

/// Long enough for a machine that is busy with other builds; no test waits this long when it passes.
const DEADLINE: Duration = Duration::from_secs(20);

/// Returns what the future gives, and fails with the sentence if it does not come.
pub(crate) async fn soon<T>(sentence: &str, event: impl Future<Output = T>) -> T {
    match actix::clock::timeout(DEADLINE, event).await {
        Ok(value) => value,
        Err(_) => panic!("this never happened: {sentence}"),
    }
}
