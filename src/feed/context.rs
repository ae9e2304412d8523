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

/// A socket to the engine, beside the waking end of each ZMQ socket.
const CONNECTIONS_PER_LEASE: usize = 1;

/// Where the process runs out of descriptors, libzmq ends it in places; so it is kept from there.
static MAX_DESCRIPTORS: AtomicUsize = AtomicUsize::new(usize::MAX);
static NUM_DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);

/// Limits the descriptors of all sockets to engines' feeds in this process. Those that are open stay.
pub(crate) fn limit_descriptors(max: usize) {
    MAX_DESCRIPTORS.store(max, Ordering::Relaxed);
}

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
    ///
    /// # Errors
    /// Where their descriptors would be too many.
    pub(super) fn take(num_sockets: usize) -> zmq::Result<Self> {
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let num_descriptors = NUM_DESCRIPTORS.load(Ordering::Relaxed) + num_sockets + CONNECTIONS_PER_LEASE;
        if num_descriptors > MAX_DESCRIPTORS.load(Ordering::Relaxed) {
            return Err(zmq::Error::EMFILE);
        }
        NUM_DESCRIPTORS.store(num_descriptors, Ordering::Relaxed);
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
        Ok(Self { pooled, num_sockets })
    }

    /// Opens one of the sockets that the lease is for.
    pub(super) fn socket(&self, kind: zmq::SocketType) -> zmq::Result<zmq::Socket> {
        self.pooled.context.socket(kind)
    }
}

impl Drop for ContextLease {
    fn drop(&mut self) {
        let _contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        self.pooled.num_sockets.fetch_sub(self.num_sockets, Ordering::Relaxed);
        NUM_DESCRIPTORS.fetch_sub(self.num_sockets + CONNECTIONS_PER_LEASE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{ContextLease, MAX_SOCKETS_PER_CONTEXT};

    #[test]
    fn more_sockets_than_one_context_allows_can_be_leased() {
        let leases: Vec<ContextLease> =
            (0..2 * MAX_SOCKETS_PER_CONTEXT).filter_map(|_| ContextLease::take(1).ok()).collect();
        assert_eq!(leases.len(), 2 * MAX_SOCKETS_PER_CONTEXT);
        let contexts =
            leases.iter().map(|lease| std::sync::Arc::as_ptr(&lease.pooled)).collect::<std::collections::BTreeSet<_>>();
        assert!(contexts.len() >= 2, "{} contexts", contexts.len());
        assert!(leases.iter().all(|lease| lease.socket(zmq::SUB).is_ok()));
    }
}
