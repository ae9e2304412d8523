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

/// The right to one socket of a context. It must outlive the socket.
pub(super) struct ContextLease {
    pooled: Arc<PooledContext>,
}

impl ContextLease {
    /// Takes a place in a context that has one free, or in a new context.
    pub(super) fn take() -> Self {
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = contexts.iter().find(|pooled| pooled.num_sockets.load(Ordering::Relaxed) < MAX_SOCKETS_PER_CONTEXT);
        let pooled = match free {
            Some(pooled) => Arc::clone(pooled),
            None => {
                let pooled = Arc::new(PooledContext::default());
                contexts.push(Arc::clone(&pooled));
                pooled
            }
        };
        // Under the lock, so that two threads cannot both take the last place.
        pooled.num_sockets.fetch_add(1, Ordering::Relaxed);
        Self { pooled }
    }

    /// Opens the socket that the lease is for.
    pub(super) fn socket(&self, kind: zmq::SocketType) -> zmq::Result<zmq::Socket> {
        self.pooled.context.socket(kind)
    }
}

impl Drop for ContextLease {
    fn drop(&mut self) {
        self.pooled.num_sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{ContextLease, MAX_SOCKETS_PER_CONTEXT};

    #[test]
    fn more_sockets_than_one_context_allows_can_be_leased() {
        let leases: Vec<ContextLease> = (0..2 * MAX_SOCKETS_PER_CONTEXT).map(|_| ContextLease::take()).collect();
        let contexts =
            leases.iter().map(|lease| std::sync::Arc::as_ptr(&lease.pooled)).collect::<std::collections::BTreeSet<_>>();
        assert!(contexts.len() >= 2, "{} contexts", contexts.len());
        assert!(leases.iter().all(|lease| lease.socket(zmq::SUB).is_ok()));
    }
}
