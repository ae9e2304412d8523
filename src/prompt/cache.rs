//! Tokens of pieces of text, so that the next turn of a conversation costs its new part alone.
//!
//! The key is the text itself: a match is a match, whatever its hash. Pieces are shared by all conversations that have them, and
//! the least recently used go first when the bytes run out.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a piece beside its text and tokens: two table entries and two allocations, roughly.
const OVERHEAD_BYTES: usize = 256;

/// Tokens of pieces of text, for several tokenizers.
pub(super) struct Cache {
    max_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// One table for each tokenizer.
    tables: Vec<HashMap<Arc<str>, Entry>>,
    /// Every piece by its last use.
    by_use: BTreeMap<u64, (usize, Arc<str>)>,
    num_uses: u64,
    bytes: usize,
}

struct Entry {
    ids: Arc<[u32]>,
    last_use: u64,
}

impl fmt::Debug for Cache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        formatter.debug_struct("Cache").field("pieces", &state.by_use.len()).field("bytes", &state.bytes).finish()
    }
}

impl Cache {
    /// Returns an empty cache for so many tokenizers.
    pub(super) fn new(num_tokenizers: usize, max_bytes: usize) -> Self {
        let mut state = State::default();
        state.tables.resize_with(num_tokenizers, HashMap::new);
        Self { max_bytes, state: Mutex::new(state) }
    }

    /// Tells whether nothing is ever kept.
    pub(super) fn is_off(&self) -> bool {
        self.max_bytes == 0
    }

    /// Returns the number of pieces.
    #[cfg(test)]
    pub(super) fn num_pieces(&self) -> usize {
        self.state().by_use.len()
    }

    /// Returns the tokens of a piece.
    pub(super) fn get(&self, tokenizer: usize, piece: &str) -> Option<Arc<[u32]>> {
        let mut state = self.state();
        let state = &mut *state;
        let entry = state.tables.get_mut(tokenizer)?.get_mut(piece)?;
        let key = state.by_use.remove(&entry.last_use)?;
        state.num_uses += 1;
        entry.last_use = state.num_uses;
        state.by_use.insert(state.num_uses, key);
        Some(Arc::clone(&entry.ids))
    }

    /// Keeps the tokens of a piece.
    pub(super) fn put(&self, tokenizer: usize, piece: &str, ids: Arc<[u32]>) {
        let bytes = size_of(piece, &ids);
        if bytes > self.max_bytes {
            return;
        }
        let mut state = self.state();
        let state = &mut *state;
        let Some(table) = state.tables.get_mut(tokenizer).filter(|table| !table.contains_key(piece)) else {
            return;
        };
        let key: Arc<str> = piece.into();
        state.num_uses += 1;
        table.insert(Arc::clone(&key), Entry { ids, last_use: state.num_uses });
        state.by_use.insert(state.num_uses, (tokenizer, key));
        state.bytes += bytes;
        while state.bytes > self.max_bytes {
            let Some((_, (tokenizer, key))) = state.by_use.pop_first() else {
                break;
            };
            if let Some(entry) = state.tables.get_mut(tokenizer).and_then(|table| table.remove(&key)) {
                state.bytes -= size_of(&key, &entry.ids);
            }
        }
    }

    /// A thread that panicked elsewhere leaves the tables whole: nothing in here panics between two changes.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size_of(piece: &str, ids: &[u32]) -> usize {
    piece.len() + size_of_val(ids) + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::{Cache, OVERHEAD_BYTES};

    #[test]
    fn the_least_recently_used_piece_goes_first() {
        let cache = Cache::new(1, 2 * (OVERHEAD_BYTES + 5));
        cache.put(0, "a", [1].into());
        cache.put(0, "b", [2].into());
        assert_eq!(cache.get(0, "a").as_deref(), Some(&[1][..]));
        cache.put(0, "c", [3].into());
        assert_eq!(cache.get(0, "b"), None);
        assert!(cache.get(0, "a").is_some() && cache.get(0, "c").is_some());
    }

    #[test]
    fn tokenizers_do_not_share_pieces() {
        let cache = Cache::new(2, 10_000);
        cache.put(0, "a", [1].into());
        assert_eq!(cache.get(1, "a"), None);
        assert_eq!(cache.get(2, "a"), None);
    }

    #[test]
    fn bytes_are_counted_and_a_piece_beyond_them_is_not_kept() {
        let cache = Cache::new(1, OVERHEAD_BYTES + 10);
        cache.put(0, "a text too long", [1].into());
        assert_eq!(cache.get(0, "a text too long"), None);
        for text in ["a", "b", "a", "b"] {
            cache.put(0, text, [1].into());
            cache.put(0, text, [1].into());
        }
        let state = cache.state();
        assert_eq!((state.by_use.len(), state.tables[0].len(), state.bytes), (1, 1, OVERHEAD_BYTES + 5));
    }
}
