//! The prefix caches of all ranks, as requests use them, and the events that follow from it.
//!
//! A request that has a slot takes out a [`Lease`]: it finds what is cached of its prompt and pins that. Pages are stored as
//! in SGLang, those of the prompt when it has been computed and those of the output when the request ends, however it
//! ends. The last output token is never part of a page, since no engine computes the state of a token that nothing
//! follows. Nor is a prompt ever found whole: at least its last token is computed, to have something to go on from.
//!
//! Changes and their events happen under one lock, so that a rank's events are published in the order of its changes, and
//! whoever has seen an answer can compare the cache with what was published.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::config::SimConfig;
use super::error::SimError;
use super::kv_publisher::KvPublisher;
use super::lock::lock;
use super::prefix_cache::{CacheEvent, CacheShape, PageChain, PrefixCache};

/// The caches and the publisher of an engine.
pub(super) struct KvCache {
    shape: CacheShape,
    state: Mutex<State>,
}

struct State {
    ranks: Vec<PrefixCache>,
    publisher: KvPublisher,
}

impl KvCache {
    /// Opens the sockets for events. All caches are empty.
    pub(super) fn open(config: &SimConfig) -> Result<Self, SimError> {
        let num_pages = config.max_total_tokens / u64::from(config.page_size.max(1));
        let capacity = if config.prefix_cache { usize::try_from(num_pages).unwrap_or(usize::MAX) } else { 0 };
        let shape = CacheShape { page_size: config.page_size, is_bigram: config.bigram, capacity };
        let ranks = (0..config.dp_size).map(|_| PrefixCache::new(capacity)).collect();
        Ok(Self { shape, state: Mutex::new(State { ranks, publisher: KvPublisher::open(config)? }) })
    }

    /// Returns the event port and the replay port of rank 0.
    pub(super) fn port_bases(&self) -> (Option<u16>, Option<u16>) {
        let state = lock(&self.state);
        (state.publisher.port_base(), state.publisher.replay_port_base())
    }

    /// Looks a prompt up for a request that is about to run, and keeps what it found until the lease ends.
    pub(super) fn lease(self: &Arc<Self>, rank: u32, prompt: Vec<u32>, salt: Option<Arc<str>>) -> Lease {
        let chain = PageChain::new(self.shape, prompt, salt);
        let cache = Arc::clone(self);
        let mut lease = Lease { cache, rank, chain, pinned: None, cached_tokens: 0, holds: Holds::Nothing };
        lease.look_up();
        lease
    }

    /// Empties all caches and says so, unless a request is running. Tells whether it did.
    pub(super) fn flush(&self) -> bool {
        let state = &mut *lock(&self.state);
        if state.ranks.iter().any(PrefixCache::is_pinned) {
            return false;
        }
        for (rank, cache) in (0..).zip(&mut state.ranks) {
            cache.clear();
            state.publisher.publish(rank, &[CacheEvent::Cleared]);
        }
        true
    }

    /// Evicts so many pages of a rank, or as many as may go, and says so. Returns how many went.
    pub(super) fn evict(&self, rank: u32, num_pages: usize) -> usize {
        let state = &mut *lock(&self.state);
        let Some(cache) = state.ranks.get_mut(rank as usize) else { return 0 };
        let removed = cache.evict(num_pages);
        let num_removed = removed.len();
        if num_removed > 0 {
            state.publisher.publish(rank, &[CacheEvent::Removed(removed)]);
        }
        num_removed
    }

    /// Returns the ids of the pages that a rank holds.
    pub(super) fn keys(&self, rank: u32) -> Option<BTreeSet<u64>> {
        Some(lock(&self.state).ranks.get(rank as usize)?.keys())
    }

    pub(super) fn num_batches(&self, rank: u32) -> Option<u64> {
        lock(&self.state).publisher.num_batches(rank)
    }

    pub(super) fn drop_next_batches(&self, rank: u32, num_batches: u64) -> Result<(), SimError> {
        lock(&self.state).publisher.drop_next(rank, num_batches)
    }

    /// Closes the sockets; their ports are free when it returns.
    pub(super) fn close(&self) {
        lock(&self.state).publisher.close();
    }
}

/// What a running request has to do with the cache of its rank. Dropping it stores what was generated and lets go of
/// everything.
pub(super) struct Lease {
    cache: Arc<KvCache>,
    rank: u32,
    /// The prompt, then what was generated.
    chain: PageChain,
    /// The last page that is pinned, and with it all before it.
    pinned: Option<u64>,
    cached_tokens: u64,
    holds: Holds,
}

/// Of which tokens the engine has computed the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Of none but those that were cached.
    Nothing,
    /// Of the prompt and all that was generated, except for the last token.
    Output,
}

impl Lease {
    /// Returns how many prompt tokens were cached when the request started.
    pub(super) fn cached_tokens(&self) -> u64 {
        self.cached_tokens
    }

    /// Notes that the prompt has been computed, and stores its full pages.
    pub(super) fn prefilled(&mut self) {
        self.store(self.chain.keys().len());
        self.holds = Holds::Output;
    }

    /// Notes a generated token.
    pub(super) fn generated(&mut self, token: u32) {
        self.chain.push(token);
    }

    fn look_up(&mut self) {
        let state = &mut *lock(&self.cache.state);
        let Some(cache) = state.ranks.get_mut(self.rank as usize) else { return };
        let keys = self.chain.keys_before_last_token();
        let num_cached = cache.match_prefix(keys);
        self.cached_tokens = num_cached as u64 * u64::from(self.cache.shape.page_size);
        self.pinned = num_cached.checked_sub(1).map(|last| keys[last]);
        if let Some(last) = self.pinned {
            cache.pin(last);
        }
    }

    /// Stores the first pages of the chain, pins the last of them and publishes what changed.
    fn store(&mut self, num_pages: usize) {
        let state = &mut *lock(&self.cache.state);
        let Some(cache) = state.ranks.get_mut(self.rank as usize) else { return };
        let inserted = cache.insert(&self.chain, num_pages);
        let last = inserted.num_pages.checked_sub(1).map(|last| self.chain.keys()[last]);
        if let Some(last) = last {
            cache.pin(last);
        }
        if let Some(before) = std::mem::replace(&mut self.pinned, last) {
            cache.unpin(before);
        }
        state.publisher.publish(self.rank, &inserted.events);
    }

    fn let_go(&mut self) {
        let state = &mut *lock(&self.cache.state);
        if let Some((cache, last)) = state.ranks.get_mut(self.rank as usize).zip(self.pinned.take()) {
            cache.unpin(last);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.holds == Holds::Output {
            self.chain.name_pages();
            self.store(self.chain.keys_before_last_token().len());
        }
        self.let_go();
    }
}
