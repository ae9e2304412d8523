//! The prefix cache of one rank as plain data: which pages it holds, which it gives up, and the events that say so.
//!
//! A page is `page_size` tokens (pairs of tokens where the model hashes bigrams) and stands for the whole prompt up to its
//! end; its name is the id that SGLang would publish. Two prompts with a common beginning share its pages, so that the pages
//! form a tree. When room is needed, the leaf that was unused for longest goes first, and a page of a running request
//! never: pinning the last page of a prompt keeps all before it, since only leaves go.
//!
//! It differs from SGLang's radix tree in two points. Eviction takes single pages, not whole edges, and hence no more than
//! is needed. And a prompt for which there is no room is stored as far as there is some; an engine would not have run it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::logic::block_hash::{Units, engine_keys};

/// What a cache counts in, and how much of it has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheShape {
    /// Tokens, or pairs, per page; at least one.
    pub(super) page_size: u32,
    /// Whether pages hold overlapping pairs, as with draft models of the EAGLE family.
    pub(super) is_bigram: bool,
    /// How many pages there is room for.
    pub(super) capacity: usize,
}

impl CacheShape {
    /// Returns how many full pages of so many tokens could ever be cached.
    fn num_pages(self, num_tokens: usize) -> usize {
        let num_units = num_tokens.saturating_sub(usize::from(self.is_bigram));
        (num_units / self.page_size as usize).min(self.capacity)
    }

    /// Returns how many tokens have to be known to name so many pages.
    fn num_tokens(self, num_pages: usize) -> usize {
        num_pages.saturating_mul(self.page_size as usize).saturating_add(usize::from(self.is_bigram))
    }
}

/// A prompt and what was generated from it, cut into full pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageChain {
    shape: CacheShape,
    tokens: Vec<u32>,
    salt: Option<Arc<str>>,
    /// The ids of the pages, first one first.
    keys: Vec<u64>,
}

impl PageChain {
    pub(super) fn new(shape: CacheShape, tokens: Vec<u32>, salt: Option<Arc<str>>) -> Self {
        let mut chain = Self { shape, tokens, salt, keys: Vec::new() };
        chain.name_pages();
        chain
    }

    /// Appends a token. Pages that it fills have no id yet.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Gives all full pages their ids. When there are new ones it begins at the first page, since an id does not say enough
    /// to go on from.
    pub(super) fn name_pages(&mut self) {
        let num_pages = self.shape.num_pages(self.tokens.len());
        if num_pages > self.keys.len() {
            let units = Units::of_prompt(&self.tokens[..self.shape.num_tokens(num_pages)], self.shape.is_bigram);
            self.keys = engine_keys(units, self.shape.page_size, self.salt.as_deref());
        }
    }

    /// Returns the ids of the pages that all but the last token fill.
    pub(super) fn keys_before_last_token(&self) -> &[u64] {
        let num_pages = self.shape.num_pages(self.tokens.len().saturating_sub(1));
        &self.keys[..num_pages.min(self.keys.len())]
    }

    /// Returns the ids of all pages that have one.
    pub(super) fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Returns the event for a run of pages.
    fn stored(&self, pages: Range<usize>) -> StoredPages {
        let page_size = self.shape.page_size as usize;
        let units = pages.start * page_size..pages.end * page_size;
        let tokens = if self.shape.is_bigram {
            let pairs = self.tokens[units.start..=units.end].windows(2);
            PageTokens::Pairs(pairs.map(|pair| [pair[0], pair[1]]).collect())
        } else {
            PageTokens::Single(self.tokens[units].to_vec())
        };
        StoredPages {
            parent: pages.start.checked_sub(1).map(|before| self.keys[before]),
            keys: self.keys[pages].to_vec(),
            tokens,
            page_size: self.shape.page_size,
            salt: self.salt.clone(),
        }
    }
}

/// A change of the cache, as it is to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CacheEvent {
    /// Pages were stored, each the child of the one before it.
    Stored(StoredPages),
    /// These pages were evicted.
    Removed(Vec<u64>),
    /// The cache was emptied.
    Cleared,
}

/// A run of pages of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredPages {
    pub(super) keys: Vec<u64>,
    /// The page before the first; `None` where the run starts a prompt.
    pub(super) parent: Option<u64>,
    pub(super) tokens: PageTokens,
    pub(super) page_size: u32,
    pub(super) salt: Option<Arc<str>>,
}

/// What stored pages hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PageTokens {
    Single(Vec<u32>),
    Pairs(Vec<[u32; 2]>),
}

/// What an insertion did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inserted {
    /// How many pages of the chain are in the cache now, counted from its start.
    pub(super) num_pages: usize,
    /// What changed: the evicted pages, then the stored ones.
    pub(super) events: Vec<CacheEvent>,
}

/// The pages of one rank.
#[derive(Debug)]
pub(super) struct PrefixCache {
    capacity: usize,
    pages: HashMap<u64, Page>,
    /// The pages that may go, with the time of their last use: leaves that nobody has pinned.
    evictable: BTreeSet<(u64, u64)>,
    num_pins: usize,
    /// Counts operations; the only clock that an order of use needs.
    now: u64,
}

#[derive(Debug)]
struct Page {
    parent: Option<u64>,
    num_children: usize,
    num_pins: usize,
    last_used: u64,
}

impl Page {
    fn is_evictable(&self) -> bool {
        self.num_children == 0 && self.num_pins == 0
    }
}

impl PrefixCache {
    /// Returns an empty cache with room for so many pages.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, pages: HashMap::new(), evictable: BTreeSet::new(), num_pins: 0, now: 0 }
    }

    /// Returns how many of these pages are cached, counted from the first, and notes that they were used.
    pub(super) fn match_prefix(&mut self, keys: &[u64]) -> usize {
        self.now += 1;
        let num_cached = keys.iter().take_while(|key| self.pages.contains_key(*key)).count();
        for key in &keys[..num_cached] {
            self.change(*key, |page, now| page.last_used = now);
        }
        num_cached
    }

    /// Keeps a page, and with it all before it, until it is unpinned as often. A page that is not cached is let be.
    pub(super) fn pin(&mut self, key: u64) {
        self.num_pins += usize::from(self.change(key, |page, _| page.num_pins += 1));
    }

    /// Takes back one pin.
    pub(super) fn unpin(&mut self, key: u64) {
        let was_cached = self.change(key, |page, _| page.num_pins = page.num_pins.saturating_sub(1));
        self.num_pins = self.num_pins.saturating_sub(usize::from(was_cached));
    }

    /// Stores the first `num_pages` pages of a chain, unless they are cached already, as far as room can be made for them.
    pub(super) fn insert(&mut self, chain: &PageChain, num_pages: usize) -> Inserted {
        let keys = &chain.keys[..num_pages];
        let num_cached = self.match_prefix(keys);
        let num_missing = num_pages - num_cached;
        let last_cached = num_cached.checked_sub(1).map(|last| keys[last]);
        if let Some(last) = last_cached {
            self.pin(last);
        }
        let removed = self.evict(num_missing.saturating_sub(self.num_free()));
        let num_pages = num_cached + num_missing.min(self.num_free());
        let mut parent = last_cached;
        for key in &keys[num_cached..num_pages] {
            self.add(*key, parent);
            parent = Some(*key);
        }
        if let Some(last) = last_cached {
            self.unpin(last);
        }
        let mut events: Vec<_> = (!removed.is_empty()).then_some(CacheEvent::Removed(removed)).into_iter().collect();
        if num_pages > num_cached {
            events.push(CacheEvent::Stored(chain.stored(num_cached..num_pages)));
        }
        Inserted { num_pages, events }
    }

    /// Gives up so many pages, or as many as may go: leaf by leaf, the one that was unused for longest first.
    pub(super) fn evict(&mut self, num_pages: usize) -> Vec<u64> {
        let mut removed = Vec::new();
        while removed.len() < num_pages {
            let Some((_, key)) = self.evictable.pop_first() else { break };
            let parent = self.pages.remove(&key).and_then(|page| page.parent);
            if let Some(parent) = parent {
                self.change(parent, |page, _| page.num_children -= 1);
            }
            removed.push(key);
        }
        removed
    }

    /// Forgets everything, unless a page is pinned. Tells whether it did.
    pub(super) fn clear(&mut self) -> bool {
        if self.is_pinned() {
            return false;
        }
        self.pages.clear();
        self.evictable.clear();
        true
    }

    /// Tells whether a page is pinned.
    pub(super) fn is_pinned(&self) -> bool {
        self.num_pins > 0
    }

    /// Returns the ids of all pages.
    pub(super) fn keys(&self) -> BTreeSet<u64> {
        self.pages.keys().copied().collect()
    }

    fn num_free(&self) -> usize {
        self.capacity.saturating_sub(self.pages.len())
    }

    fn add(&mut self, key: u64, parent: Option<u64>) {
        if let Some(parent) = parent {
            self.change(parent, |page, _| page.num_children += 1);
        }
        self.pages.insert(key, Page { parent, num_children: 0, num_pins: 0, last_used: self.now });
        self.evictable.insert((self.now, key));
    }

    /// Changes a page and keeps the list of those that may go in step. Tells whether there is such a page.
    fn change(&mut self, key: u64, apply: impl FnOnce(&mut Page, u64)) -> bool {
        let Some(page) = self.pages.get_mut(&key) else { return false };
        self.evictable.remove(&(page.last_used, key));
        apply(page, self.now);
        if page.is_evictable() {
            self.evictable.insert((page.last_used, key));
        }
        true
    }
}

#[cfg(test)]
mod tests;
