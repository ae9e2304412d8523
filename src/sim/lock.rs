//! Locking without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after another thread panicked while it held the lock.
///
/// Every critical section of the simulated engine leaves its data whole between two statements, and a test that has
/// already failed should not fail a second time in here.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
