//! ZMQ contexts for any number of sockets.
//!
//! A context serves at most 1,023 sockets, and neither crate exposes the option that raises this; the next socket fails as if the
//! process were out of descriptors. So sockets are spread over as many contexts as it takes. Contexts are kept for the life of
//! the process: ending one waits for its sockets to be closed by the reaper, and would do so on an actor's thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Sockets per context. Closing is asynchronous, so under churn closed sockets count for a while after their lease has ended; the
/// room up to 1,023 is for those.
const MAX_SOCKETS_PER_CONTEXT: usize = 400;

static CONTEXTS: Mutex<Vec<Arc<PooledContext>>> = Mutex::new(Vec::new());

#[derive(Default)]
struct PooledContext {
    context: zmq::Context,
    num_sockets: AtomicUsize,
}

/// The right to some sockets of one context. It must outlive them.
pub(super) struct ContextLease {
    pooled: Arc<PooledContext>,
    num_sockets: usize,
}

impl ContextLease {
    /// Takes places for so many sockets in a context that has room, or in a new context.
    pub(super) fn take(num_sockets: usize) -> Self {
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = |pooled: &&Arc<PooledContext>| {
            pooled.num_sockets.load(Ordering::Relaxed) + num_sockets <= MAX_SOCKETS_PER_CONTEXT
        };
        let free = contexts.iter().find(has_room);
        let pooled = match free {
            Some(pooled) => Arc::clone(pooled),
            None => {
                let pooled = Arc::new(PooledContext::default());
                contexts.push(Arc::clone(&pooled));
                pooled
            }
        };
        // Under the lock, so that two threads cannot both take the last place.
        pooled.num_sockets.fetch_add(num_sockets, Ordering::Relaxed);
        Self { pooled, num_sockets }
    }

    /// Opens one of the sockets that the lease is for.
    pub(super) fn socket(&self, kind: zmq::SocketType) -> zmq::Result<zmq::Socket> {
        self.pooled.context.socket(kind)
    }
}

impl Drop for ContextLease {
    fn drop(&mut self) {
        self.pooled.num_sockets.fetch_sub(self.num_sockets, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{ContextLease, MAX_SOCKETS_PER_CONTEXT};

    #[test]
    fn more_sockets_than_one_context_allows_can_be_leased() {
        let leases: Vec<ContextLease> = (0..2 * MAX_SOCKETS_PER_CONTEXT).map(|_| ContextLease::take(1)).collect();
        let contexts =
            leases.iter().map(|lease| std::sync::Arc::as_ptr(&lease.pooled)).collect::<std::collections::BTreeSet<_>>();
        assert!(contexts.len() >= 2, "{} contexts", contexts.len());
        assert!(leases.iter().all(|lease| lease.socket(zmq::SUB).is_ok()));
    }
}
