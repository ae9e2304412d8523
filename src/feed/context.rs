//! ZMQ contexts for any number of sockets.
//!
//! A context serves at most 1,023 sockets, and neither crate exposes the option that raises this; the next socket fails as if the
//! process were out of descriptors. So sockets are spread over as many contexts as it takes. Contexts are kept for the life of
//! the process: ending one waits for its sockets to be closed by the reaper, and would do so on an actor's thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sockets per context. Closing is asynchronous, so under churn closed sockets count for a while after their lease has ended; the
/// room up to 1,023 is for those.
const MAX_SOCKETS_PER_CONTEXT: usize = 400;

/// A socket to the engine, beside the waking end of each ZMQ socket.
const CONNECTIONS_PER_LEASE: usize = 1;

static POOL: Mutex<Pool> = Mutex::new(Pool { contexts: Vec::new(), num_descriptors: 0, max_descriptors: usize::MAX });

struct Pool {
    contexts: Vec<Arc<PooledContext>>,
    num_descriptors: usize,
    /// Where the process runs out of descriptors, libzmq ends it in places; so it is kept from there.
    max_descriptors: usize,
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Limits the descriptors of all sockets to engines' feeds in this process. Those that are open stay.
pub(crate) fn limit_descriptors(max: usize) {
    pool().max_descriptors = max;
}

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
        let mut pool = pool();
        let num_descriptors = pool.num_descriptors + num_sockets + CONNECTIONS_PER_LEASE;
        if num_descriptors > pool.max_descriptors {
            return Err(zmq::Error::EMFILE);
        }
        pool.num_descriptors = num_descriptors;
        let has_room = |pooled: &&Arc<PooledContext>| {
            pooled.num_sockets.load(Ordering::Relaxed) + num_sockets <= MAX_SOCKETS_PER_CONTEXT
        };
        let free = pool.contexts.iter().find(has_room);
        let pooled = match free {
            Some(pooled) => Arc::clone(pooled),
            None => {
                let pooled = Arc::new(PooledContext::default());
                pool.contexts.push(Arc::clone(&pooled));
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
        self.pooled.num_sockets.fetch_sub(self.num_sockets, Ordering::Relaxed);
        pool().num_descriptors -= self.num_sockets + CONNECTIONS_PER_LEASE;
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
