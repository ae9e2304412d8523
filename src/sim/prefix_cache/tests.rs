//! Tests of [`super`]: its rules one by one, then all of them against a model that is too simple to be wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CacheEvent, CacheShape, Inserted, PageChain, PageTokens, PrefixCache, StoredPages};
use crate::logic::block_hash::{Units, engine_keys};
use crate::logic::rng::Rng;

fn shape(capacity: usize) -> CacheShape {
    CacheShape { page_size: 2, is_bigram: false, capacity }
}

fn cache(capacity: usize) -> PrefixCache {
    PrefixCache::new(capacity)
}

fn insert(cache: &mut PrefixCache, tokens: &[u32]) -> Inserted {
    insert_chain(cache, &PageChain::new(shape(cache.capacity), tokens.to_vec(), None))
}

fn insert_chain(cache: &mut PrefixCache, chain: &PageChain) -> Inserted {
    cache.insert(chain, chain.keys().len())
}

fn keys(tokens: &[u32]) -> Vec<u64> {
    engine_keys(Units::Tokens(tokens), 2, None)
}

fn stored(all: &[u32], from: usize) -> CacheEvent {
    let mut keys = keys(all);
    let parent = from.checked_sub(1).map(|before| keys[before]);
    CacheEvent::Stored(StoredPages {
        keys: keys.split_off(from),
        parent,
        tokens: PageTokens::Single(all[from * 2..].to_vec()),
        page_size: 2,
        salt: None,
    })
}

#[test]
fn only_full_pages_are_stored_and_only_those_that_are_new() {
    let mut cache = cache(10);
    let first = insert(&mut cache, &[1, 2, 3, 4, 5]);
    assert_eq!(first, Inserted { num_pages: 2, events: vec![stored(&[1, 2, 3, 4], 0)] });

    let longer = insert(&mut cache, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(longer, Inserted { num_pages: 3, events: vec![stored(&[1, 2, 3, 4, 5, 6], 2)] });

    let branch = insert(&mut cache, &[1, 2, 9, 9]);
    assert_eq!(branch, Inserted { num_pages: 2, events: vec![stored(&[1, 2, 9, 9], 1)] });

    assert_eq!(insert(&mut cache, &[1, 2, 9, 9]).events, []);
    assert_eq!(insert(&mut cache, &[1]), Inserted { num_pages: 0, events: Vec::new() });
}

#[test]
fn a_match_goes_as_far_as_the_pages_are_cached_without_a_gap() {
    let mut cache = cache(10);
    insert(&mut cache, &[1, 2, 3, 4]);
    let cases: [(&[u32], usize); 4] = [(&[1, 2], 1), (&[1, 2, 3, 4, 5, 6], 2), (&[1, 2, 4, 4], 1), (&[3, 4], 0)];
    for (tokens, expected) in cases {
        assert_eq!(cache.match_prefix(&keys(tokens)), expected, "{tokens:?}");
    }
}

#[test]
fn room_is_made_leaf_by_leaf_from_what_was_unused_for_longest_and_said_before_the_store() {
    let mut cache = cache(4);
    insert(&mut cache, &[1, 1, 2, 2]);
    insert(&mut cache, &[3, 3, 4, 4]);
    cache.match_prefix(&keys(&[1, 1]));

    let inserted = insert(&mut cache, &[5, 5, 6, 6]);
    let old = [keys(&[1, 1, 2, 2])[1], keys(&[3, 3, 4, 4])[1]];
    assert_eq!(inserted.events, [CacheEvent::Removed(old.into()), stored(&[5, 5, 6, 6], 0)]);

    let removed = cache.evict(9);
    let expected = [vec![keys(&[3, 3])[0], keys(&[1, 1])[0]], keys(&[5, 5, 6, 6]).into_iter().rev().collect()].concat();
    assert_eq!(removed, expected);
    assert_eq!(cache.evict(1), [0_u64; 0]);
}

#[test]
fn a_pinned_page_keeps_all_before_it_and_what_has_no_room_is_not_stored() {
    let mut cache = cache(3);
    insert(&mut cache, &[1, 1, 2, 2]);
    let last = keys(&[1, 1, 2, 2])[1];
    cache.pin(last);
    cache.pin(last);

    let inserted = insert(&mut cache, &[3, 3, 4, 4, 5, 5]);
    assert_eq!(inserted, Inserted { num_pages: 1, events: vec![stored(&[3, 3], 0)] });
    assert_eq!(cache.evict(9), keys(&[3, 3]));
    cache.unpin(last);
    assert_eq!(cache.evict(9), [0_u64; 0]);
    assert!(!cache.clear(), "a page is still pinned");
    cache.unpin(last);
    assert_eq!(cache.evict(9).len(), 2);
    assert!(cache.clear());
}

#[test]
fn the_prompt_that_needs_the_room_is_not_evicted_for_its_own_end() {
    let mut cache = cache(3);
    insert(&mut cache, &[1, 1, 2, 2]);
    let inserted = insert(&mut cache, &[1, 1, 2, 2, 3, 3, 4, 4]);
    assert_eq!(inserted, Inserted { num_pages: 3, events: vec![stored(&[1, 1, 2, 2, 3, 3], 2)] });
    cache.evict(1);
    insert(&mut cache, &[9, 9]);
    cache.pin(keys(&[9, 9])[0]);
    let inserted = insert(&mut cache, &[1, 1, 2, 2, 3, 3]);
    assert_eq!(inserted, Inserted { num_pages: 2, events: Vec::new() }, "all else is pinned");
    assert_eq!(insert(&mut PrefixCache::new(0), &[1, 1]).events, [], "without room nothing is stored");
}

#[test]
fn salts_keep_equal_prompts_apart_and_are_told() {
    let mut cache = cache(10);
    insert(&mut cache, &[1, 2]);
    let salt: Arc<str> = "tenant-a".into();
    let inserted = insert_chain(&mut cache, &PageChain::new(shape(10), vec![1, 2], Some(salt)));
    let [CacheEvent::Stored(pages)] = inserted.events.as_slice() else { panic!("{inserted:?}") };
    assert_eq!(pages.keys, engine_keys(Units::Tokens(&[1, 2]), 2, Some("tenant-a")));
    assert_eq!(pages.salt.as_deref(), Some("tenant-a"));
    assert_eq!(cache.keys().len(), 2);
}

#[test]
fn bigram_pages_hold_pairs_and_need_one_token_more() {
    let shape = CacheShape { page_size: 2, is_bigram: true, capacity: 10 };
    let mut cache = PrefixCache::new(10);
    let mut chain = PageChain::new(shape, vec![10, 20], None);
    assert_eq!(insert_chain(&mut cache, &chain).events, []);
    for token in [30, 40, 50] {
        chain.push(token);
    }
    assert_eq!(chain.keys(), [0_u64; 0], "pages have no id before they are asked for");
    chain.name_pages();
    let inserted = insert_chain(&mut cache, &chain);
    let [CacheEvent::Stored(pages)] = inserted.events.as_slice() else { panic!("{inserted:?}") };
    assert_eq!(pages.tokens, PageTokens::Pairs(vec![[10, 20], [20, 30], [30, 40], [40, 50]]));
    assert_eq!(pages.keys, engine_keys(Units::Overlapping(&[10, 20, 30, 40, 50]), 2, None));
    assert_eq!(chain.keys_before_last_token(), &pages.keys[..1]);
}

#[test]
fn a_chain_names_no_more_pages_than_there_is_room_for() {
    let chain = PageChain::new(shape(2), vec![7; 9], None);
    assert_eq!(chain.keys(), keys(&[7; 4]));
    assert_eq!(chain.keys_before_last_token(), chain.keys());
    assert_eq!(PageChain::new(shape(2), Vec::new(), None).keys_before_last_token(), [0_u64; 0]);
}

/// The same rules over a list, found again by looking at everything each time.
#[derive(Default)]
struct Model {
    pages: Vec<ModelPage>,
    pins: Vec<u64>,
    now: u64,
}

struct ModelPage {
    key: u64,
    parent: Option<u64>,
    last_used: u64,
}

impl Model {
    fn holds(&self, key: u64) -> bool {
        self.pages.iter().any(|page| page.key == key)
    }

    fn matched(&mut self, keys: &[u64]) -> usize {
        self.now += 1;
        let found = keys.iter().take_while(|key| self.holds(**key)).count();
        for page in self.pages.iter_mut().filter(|page| keys[..found].contains(&page.key)) {
            page.last_used = self.now;
        }
        found
    }

    fn evict_one(&mut self, kept: &[u64]) -> Option<u64> {
        let is_parent = |key| self.pages.iter().any(|page| page.parent == Some(key));
        let may_go = |key| !is_parent(key) && !self.pins.contains(&key) && !kept.contains(&key);
        let oldest = self.pages.iter().filter(|page| may_go(page.key)).min_by_key(|page| page.last_used)?.key;
        self.pages.retain(|page| page.key != oldest);
        Some(oldest)
    }

    /// Returns what was evicted and what was stored.
    fn insert(&mut self, keys: &[u64], capacity: usize) -> (Vec<u64>, Vec<u64>) {
        let found = self.matched(keys);
        let mut removed = Vec::new();
        while self.pages.len() + keys.len() - found > capacity {
            let Some(key) = self.evict_one(keys) else { break };
            removed.push(key);
        }
        let mut added = Vec::new();
        for at in found..keys.len() {
            if self.pages.len() < capacity {
                let parent = at.checked_sub(1).map(|before| keys[before]);
                self.pages.push(ModelPage { key: keys[at], parent, last_used: self.now });
                added.push(keys[at]);
            }
        }
        (removed, added)
    }
}

fn by_kind(events: &[CacheEvent]) -> (Vec<u64>, Vec<u64>) {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            CacheEvent::Removed(keys) => {
                assert!(added.is_empty(), "removals come before the store");
                removed.extend(keys);
            }
            CacheEvent::Stored(pages) => added.extend(&pages.keys),
            CacheEvent::Cleared => panic!("an insertion clears nothing"),
        }
    }
    (removed, added)
}

#[test]
fn any_sequence_of_operations_leaves_what_a_simple_model_leaves() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let capacity = 1 + rng.below(24);
        let (mut cache, mut model) = (cache(capacity), Model::default());
        for step in 0..400 {
            // Few different tokens, so that prompts share beginnings of every length.
            let tokens: Vec<u32> = (0..rng.below(20)).map(|at| (rng.below(2) * (1 + at / 4)) as u32).collect();
            let keys = keys(&tokens);
            match rng.below(8) {
                0 => assert_eq!(cache.match_prefix(&keys), model.matched(&keys)),
                1 => {
                    if let Some(last) = keys.last().filter(|last| model.holds(**last)) {
                        cache.pin(*last);
                        model.pins.push(*last);
                    }
                }
                2 | 3 if !model.pins.is_empty() => {
                    let pin = model.pins.swap_remove(rng.below(model.pins.len()));
                    cache.unpin(pin);
                }
                4 => {
                    let wanted = rng.below(3);
                    let expected: Vec<u64> = std::iter::from_fn(|| model.evict_one(&[])).take(wanted).collect();
                    assert_eq!(cache.evict(wanted), expected);
                }
                5 if rng.below(20) == 0 => {
                    assert_eq!(cache.clear(), model.pins.is_empty());
                    if model.pins.is_empty() {
                        model.pages.clear();
                    }
                }
                _ => {
                    let inserted = insert(&mut cache, &tokens);
                    assert_eq!(by_kind(&inserted.events), model.insert(&keys, capacity), "seed {seed}, step {step}");
                }
            }
            let expected: BTreeSet<u64> = model.pages.iter().map(|page| page.key).collect();
            assert_eq!(cache.keys(), expected, "seed {seed}, step {step}");
        }
    }
}
