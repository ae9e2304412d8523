//! Budgets, and what an adversary may send.

use super::{BLOCK_SIZE, Prompt, apply, index, matched, rank};
use crate::logic::ids::DecisionId;
use crate::logic::kv_event::{BlockKey, KvEvent, StoredBlocks};
use crate::logic::prefix_index::PrefixIndex;
use crate::logic::testing::{secs, start};

fn small_index(max_bytes: usize) -> PrefixIndex {
    let mut index = PrefixIndex::new(max_bytes, Some(BLOCK_SIZE));
    index.believe(rank(0), true);
    index
}

#[test]
fn the_budget_is_kept_and_the_least_recently_used_prompts_go_first() {
    for is_foreign in [false, true] {
        let max_bytes = 1 << 20;
        let mut index = small_index(max_bytes);
        let kept = Prompt { is_foreign, ..Prompt::new(0, 8) };
        let forgotten = Prompt { is_foreign, ..Prompt::new(50, 8) };
        apply(&mut index, 0, &[kept.store(0..8), forgotten.store(0..8)]);
        for turn in 0..10_000_u32 {
            let other = Prompt { is_foreign, ..Prompt::new(1_000 + 64 * turn, 8) };
            apply(&mut index, 0, &[other.store(0..8)]);
            assert_eq!(matched(&mut index, &kept), 8, "it is in use");
            assert_eq!(matched(&mut index, &other), 8, "it has just come");
            let counts = index.counts();
            assert!(counts.bytes <= max_bytes as u64, "{counts:?} after {turn}");
        }
        assert_eq!(matched(&mut index, &forgotten), 0);
        let counts = index.counts();
        assert!(counts.evicted > 40_000, "{counts:?}");
        assert_eq!(index.keys(rank(0)).len(), index.num_blocks(rank(0)));
    }
}

#[test]
fn one_prompt_longer_than_the_budget_is_listed_as_far_as_there_is_room() {
    let mut index = small_index(1);
    let long = Prompt::new(0, 5_000);
    apply(&mut index, 0, &[long.store(0..5_000)]);
    assert_eq!(matched(&mut index, &long), 1_024, "one piece of the arena is the least");
    apply(&mut index, 0, &[Prompt::new(70_000, 10).store(0..10)]);
    assert_eq!(matched(&mut index, &Prompt::new(70_000, 10)), 10, "and it makes room");
}

#[test]
fn blocks_that_are_each_others_parents_do_not_outlive_their_removal() {
    let mut index = index();
    let base = Prompt::new(0, 1).stored(0..1);
    let link = |id: u64, parent: u64| {
        let (hashes, parent) = (vec![BlockKey::from(id)], Some(BlockKey::from(parent)));
        KvEvent::Stored(StoredBlocks { hashes, parent, ..base.clone() })
    };
    for _ in 0..3 {
        apply(&mut index, 0, &[link(1, 2), link(2, 3), link(3, 1), link(4, 4)]);
        assert_eq!(index.num_blocks(rank(0)), 4);
        let ids = [1_u64, 2, 3, 4].map(BlockKey::from);
        apply(&mut index, 0, &[super::removal(&ids, None)]);
        assert_eq!((index.num_blocks(rank(0)), index.tables[0].num_blocks()), (0, 0));
    }
}

#[test]
fn orphans_are_bounded_and_those_that_had_to_go_are_counted() {
    let mut index = index();
    apply(&mut index, 0, &[Prompt::foreign(0, 1).store(0..1)]);
    for turn in 1..200_u32 {
        apply(&mut index, 0, &[Prompt::foreign(10_000 * turn, 1_001).store(1..1_001)]);
    }
    let counts = index.counts();
    assert_eq!(counts.orphans + counts.lost, 199_000);
    assert!(counts.orphans <= 66_000, "{counts:?}");
    index.clear_rank(rank(0));
    assert_eq!(index.counts().orphans, 0);
}

#[test]
fn predictions_are_bounded() {
    let mut index = index();
    for number in 0..100 {
        let keys = Prompt::new(100_000 * number, 1_000).keys(index.variant().unwrap());
        index.predict(DecisionId::new(number.into()), &keys, None, None, start(), secs(10));
    }
    let predicted = |index: &mut PrefixIndex, number: u32| {
        super::matched_at(index, &Prompt::new(100_000 * number, 1_000), start()).1
    };
    assert_eq!(predicted(&mut index, 99), 1_000);
    assert_eq!(predicted(&mut index, 0), 0, "the oldest has gone");
}

#[test]
fn clearing_one_rank_leaves_the_others_as_they_are() {
    for is_foreign in [false, true] {
        let mut index = index();
        let prompt = Prompt { is_foreign, ..Prompt::new(0, 4) };
        let own = Prompt { is_foreign, ..Prompt::new(300, 2) };
        apply(&mut index, 0, &[prompt.store(0..4), own.store(0..2)]);
        apply(&mut index, 1, &[prompt.store(0..3)]);
        apply(&mut index, 0, &[KvEvent::Cleared]);
        assert_eq!((index.num_blocks(rank(0)), index.num_blocks(rank(1))), (0, 3));
        assert_eq!((matched(&mut index, &prompt), matched(&mut index, &own)), (3, 0));
        apply(&mut index, 1, &[KvEvent::Cleared]);
        assert_eq!(index.tables[0].num_blocks(), 0);
    }
}
