//! Adapters, pairs, tiers, and the hash that proves unknown.

use std::sync::Arc;

use super::{BLOCK_SIZE, Prompt, apply, index, matched, matched_at, mode, rank, removal};
use crate::logic::ids::{DecisionId, DpRank};
use crate::logic::kv_event::{KvEvent, Medium, StoredBlocks, TokenIds};
use crate::logic::prefix_index::{Applied, PrefixIndex};
use crate::logic::prompt_keys::HashMode;
use crate::logic::testing::{secs, start};

/// Seen in llm-d/llm-d-router#2927, NVIDIA/TensorRT-LLM#18156 and llm-d/llm-d-kv-cache#243.
#[test]
fn each_adapter_matches_only_its_own_blocks() {
    for is_foreign in [false, true] {
        let base = Prompt { is_foreign, ..Prompt::new(0, 32) };
        let adapters = [None, Some("a"), Some("b"), Some("6d6d2d68617368")];
        let prompts = adapters.map(|lora| Prompt { lora, ..base.clone() });
        for owner in &prompts {
            let mut index = index();
            apply(&mut index, 0, &[owner.store(0..32)]);
            for asked in &prompts {
                assert_eq!(matched(&mut index, asked), if asked == owner { 32 } else { 0 }, "{owner:?} {asked:?}");
            }
            apply(&mut index, 0, &[owner.remove(0..32)]);
            assert_eq!(index.num_blocks(rank(0)), 0, "a removal names no adapter");
        }
    }
}

#[test]
fn an_adapter_that_has_only_a_number_is_matched_by_nobody() {
    let mut index = index();
    let prompt = Prompt::new(0, 2);
    apply(&mut index, 0, &[KvEvent::Stored(StoredBlocks { lora_id: Some(7), ..prompt.stored(0..2) })]);
    assert_eq!((index.num_blocks(rank(0)), matched(&mut index, &prompt)), (2, 0));
    apply(&mut index, 0, &[prompt.remove(0..2)]);
    assert_eq!(index.num_blocks(rank(0)), 0);
}

#[test]
fn a_hash_that_proves_unknown_moves_the_worker_to_keys_of_our_own() {
    let mut index = index();
    let prompt = Prompt::foreign(0, 3);
    assert!(index.wants_tokens());
    // What does not start a prompt cannot be checked.
    apply(&mut index, 0, &[prompt.store(1..3)]);
    assert_eq!(mode(&index), HashMode::Engine { is_bigram: false });
    assert!(!index.is_hash_verified());
    assert_eq!(index.apply(rank(0), &prompt.store(0..3)), Applied::KeysChanged);
    assert_eq!(mode(&index), HashMode::Rehash { is_bigram: false });
    assert_eq!(matched(&mut index, &prompt), 3, "the event that gave it away is listed");
    assert!((0..200).all(|_| index.wants_tokens()));
}

#[test]
fn a_hash_that_is_known_is_checked_now_and_then_only() {
    let mut index = index();
    apply(&mut index, 0, &[Prompt::new(0, 2).store(0..2)]);
    assert!(index.is_hash_verified());
    let num_checks = (0..650).filter(|_| index.wants_tokens()).count();
    assert_eq!(num_checks, 10);
    // An engine that was restarted as another one.
    assert_eq!(index.apply(rank(0), &Prompt::foreign(9, 2).store(0..2)), Applied::KeysChanged);
}

/// Seen in llm-d/llm-d-kv-cache#603 and ai-dynamo/dynamo#6872.
#[test]
fn pairs_in_an_event_make_the_worker_one_of_pairs() {
    for skips in [false, true] {
        let mut index = index();
        let tokens: Vec<u32> = (0..3 * BLOCK_SIZE + 1).collect();
        let pairs: Vec<[u32; 2]> = tokens.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        let ids = crate::logic::block_hash::engine_keys(
            crate::logic::block_hash::Units::Overlapping(&tokens),
            BLOCK_SIZE,
            None,
        );
        let token_ids = if skips { TokenIds::SkippedPairs { count: pairs.len() } } else { TokenIds::Pairs(pairs) };
        let hashes = ids.into_iter().map(Into::into).collect();
        let stored = StoredBlocks { hashes, token_ids, ..Prompt::new(0, 3).stored(0..3) };
        apply(&mut index, 0, &[KvEvent::Stored(stored)]);
        assert_eq!(mode(&index), HashMode::Engine { is_bigram: true });
        assert_eq!(matched(&mut index, &Prompt { tokens, ..Prompt::default() }), 3);
    }
}

#[test]
fn a_block_counts_until_it_is_gone_from_every_tier() {
    let prompt = Prompt::new(0, 3);
    let of = |medium| KvEvent::Stored(StoredBlocks { medium: Some(medium), ..prompt.stored(0..3) });
    let gone = |medium| removal(&prompt.ids(), medium);
    let rows = [
        ("write-through", vec![of(Medium::Gpu), of(Medium::CpuPinned), gone(Some(Medium::Gpu))], (3, 0)),
        ("write-back", vec![of(Medium::Gpu), gone(Some(Medium::Gpu)), of(Medium::Cpu)], (3, 0)),
        ("still on the device", vec![of(Medium::Gpu), of(Medium::Disk), gone(Some(Medium::Storage))], (3, 3)),
        ("an untagged removal means all", vec![of(Medium::Gpu), of(Medium::External), gone(None)], (0, 0)),
        ("a removal from an unknown medium means all", vec![of(Medium::Gpu), gone(Some(Medium::Unknown))], (0, 0)),
        ("a store in an unknown medium is none", vec![of(Medium::Unknown)], (0, 0)),
    ];
    for (sentence, events, (in_any, on_device)) in rows {
        let mut index = index();
        apply(&mut index, 0, &events);
        let variant = index.variant().unwrap();
        let found = index.match_prompt(&prompt.keys(variant), None, start());
        assert_eq!((found.matched_blocks, found.device_blocks), (in_any, on_device), "{sentence}");
    }
}

#[test]
fn only_ranks_that_are_believed_match_and_the_best_of_them_is_named() {
    let mut index = index();
    let prompt = Prompt::new(0, 5);
    apply(&mut index, 3, &[prompt.store(0..2)]);
    apply(&mut index, 11, &[prompt.store(0..5)]);
    let best = |index: &mut super::PrefixIndex| {
        let variant = index.variant().unwrap();
        let found = index.match_prompt(&prompt.keys(variant), None, start());
        (found.matched_blocks, found.rank.map(DpRank::number))
    };
    assert_eq!(best(&mut index), (5, Some(11)));
    index.believe(rank(11), false);
    assert_eq!(best(&mut index), (2, Some(3)));
    index.believe(rank(3), false);
    assert_eq!(best(&mut index), (0, None));
}

#[test]
fn opaque_blocks_match_no_prompt_and_neither_does_what_follows_them() {
    let mut index = index();
    let prompt = Prompt::foreign(0, 4);
    apply(&mut index, 0, &[Prompt::foreign(500, 1).store(0..1)]);
    let opaque = StoredBlocks { is_opaque: true, ..prompt.stored(0..2) };
    apply(&mut index, 0, &[KvEvent::Stored(opaque), prompt.store(2..4)]);
    assert_eq!((index.num_blocks(rank(0)), matched(&mut index, &prompt)), (5, 0));
    apply(&mut index, 0, &[prompt.remove(0..4)]);
    assert_eq!(index.num_blocks(rank(0)), 1);
}

#[test]
fn a_prediction_counts_until_it_is_confirmed_withdrawn_or_too_old() {
    let now = start();
    let mut index = index();
    let prompt = Prompt::new(0, 8);
    let sibling =
        Prompt { tokens: [&prompt.tokens[..5 * BLOCK_SIZE as usize], &[7; 12]].concat(), ..Prompt::default() };
    let keys = prompt.keys(index.variant().unwrap());
    index.predict(DecisionId::new(1), &keys, None, None, now, secs(10));
    assert_eq!(matched_at(&mut index, &prompt, now), (0, 8));
    assert_eq!(matched_at(&mut index, &sibling, now), (0, 5));
    assert_eq!(matched_at(&mut index, &Prompt { lora: Some("a"), ..prompt.clone() }, now), (0, 0));
    apply(&mut index, 0, &[prompt.store(0..6)]);
    assert_eq!(matched_at(&mut index, &prompt, now), (6, 2), "confirmed and predicted are told apart");
    assert_eq!(matched_at(&mut index, &prompt, now + secs(10)), (6, 0));
    index.predict(DecisionId::new(2), &keys, None, None, now + secs(20), secs(10));
    index.predict(DecisionId::new(3), &keys, None, None, now + secs(20), secs(10));
    index.withdraw(DecisionId::new(2));
    assert_eq!(matched_at(&mut index, &prompt, now + secs(21)), (6, 2), "the other request still counts");
    index.withdraw(DecisionId::new(3));
    assert_eq!(matched_at(&mut index, &prompt, now + secs(21)), (6, 0));
    assert_eq!(Arc::strong_count(keys.keys(index.variant().unwrap()).unwrap()), 1, "nothing is kept");
}

#[test]
fn each_rank_has_what_it_holds_and_what_was_sent_to_it() {
    let now = start();
    let mut index = index();
    let prompt = Prompt::new(0, 8);
    let keys = prompt.keys(index.variant().unwrap());
    let ranks = |index: &mut PrefixIndex, at| {
        let mut found = vec![77];
        index.match_ranks(&keys, None, 11, at, &mut found);
        found
    };
    apply(&mut index, 1, &[prompt.store(0..3)]);
    apply(&mut index, 10, &[prompt.store(0..6)]);
    assert_eq!(ranks(&mut index, now), [77, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 6]);
    index.predict(DecisionId::new(1), &keys, None, Some(DpRank::new(1)), now, secs(10));
    index.predict(DecisionId::new(2), &keys, None, Some(DpRank::new(4)), now, secs(10));
    assert_eq!(ranks(&mut index, now), [77, 0, 8, 0, 0, 8, 0, 0, 0, 0, 0, 6]);
    assert_eq!(matched_at(&mut index, &prompt, now), (6, 2), "the worker as a whole is as good as its best rank");
    index.believe(DpRank::new(10), false);
    index.withdraw(DecisionId::new(1));
    assert_eq!(ranks(&mut index, now), [77, 0, 3, 0, 0, 8, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ranks(&mut index, now + secs(10)), [77, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}
