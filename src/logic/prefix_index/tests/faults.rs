//! What other routers got wrong.

use super::{BLOCK_SIZE, Prompt, apply, index, matched, mode, rank, removal};
use crate::logic::kv_event::{Attention, BlockKey, KvEvent, Medium, RemovedBlocks, StoredBlocks, TokenIds};
use crate::logic::prefix_index::{Applied, PrefixIndex};
use crate::logic::prompt_keys::HashMode;

fn of_group(prompt: &Prompt, group: u32, attention: Attention) -> KvEvent {
    let stored = prompt.stored(0..prompt.num_blocks());
    KvEvent::Stored(StoredBlocks { group_idx: Some(group), attention, ..stored })
}

/// Seen in ai-dynamo/dynamo#3180, vllm-project/vllm#26264 and vllm-project/aibrix#1962.
#[test]
fn the_signed_and_the_unsigned_spelling_of_a_hash_are_one_key_and_digests_are_kept_whole() {
    let mut index = index();
    let ids = [BlockKey::from(1_i64), BlockKey::from(-1_i64), BlockKey::from((1_u64 << 63) + 5)];
    let base = Prompt::new(0, 1).stored(0..1);
    let store = |ids: &[BlockKey], parent| {
        let tokens = (0..ids.len() as u32 * BLOCK_SIZE).collect();
        KvEvent::Stored(StoredBlocks {
            hashes: ids.to_vec(),
            parent,
            token_ids: TokenIds::Flat(tokens),
            ..base.clone()
        })
    };
    let mut twin = [7; 32];
    let digests = [BlockKey::Digest256(twin), {
        twin[31] = 8;
        BlockKey::Digest256(twin)
    }];
    // Ids that nothing computed show in the first event that the hash is not SGLang's.
    apply(&mut index, 0, &[store(&ids, None), store(&digests, Some(ids[2]))]);
    assert_eq!(index.num_blocks(rank(0)), 5);
    let spelled = [BlockKey::from(1_u64), BlockKey::from(u64::MAX), BlockKey::from(i64::MIN + 5)];
    apply(&mut index, 0, &[removal(&digests[..1], None)]);
    assert_eq!(index.num_blocks(rank(0)), 4, "the other digest differs in its last byte only");
    apply(&mut index, 0, &[removal(&spelled, None), removal(&digests[1..], None)]);
    assert_eq!(index.num_blocks(rank(0)), 0);
}

/// Seen in sgl-project/sglang#38562.
#[test]
fn salted_blocks_are_kept_apart_from_plain_ones_of_the_same_tokens() {
    let mut index = index();
    let plain = Prompt::new(0, 3);
    let salted = Prompt { salt: Some("tenant"), ..plain.clone() };
    apply(&mut index, 0, &[salted.store(0..3)]);
    assert_eq!((matched(&mut index, &plain), matched(&mut index, &salted)), (0, 3));
    apply(&mut index, 0, &[plain.store(0..2)]);
    assert_eq!((matched(&mut index, &plain), matched(&mut index, &salted)), (2, 3));
    assert_eq!(mode(&index), HashMode::Engine { is_bigram: false });
}

/// Seen in llm-d/llm-d-kv-cache#645.
#[test]
fn events_of_odd_sizes_store_what_is_complete_and_harm_nothing() {
    let mut index = index();
    let prompt = Prompt::new(0, 4);
    let of_size = |size: u32, tokens: usize, num_hashes: usize| {
        let mut stored = prompt.stored(0..4);
        stored.block_size = size;
        stored.hashes.truncate(num_hashes);
        stored.token_ids = TokenIds::Flat((0..tokens as u32).collect());
        KvEvent::Stored(stored)
    };
    for event in [of_size(4, 2, 1), of_size(4, 0, 0), of_size(4, 9, 3), of_size(4, 0, 2), of_size(u32::MAX, 4, 1)] {
        let _ = index.apply(rank(0), &event);
    }
    let mut index = super::index();
    apply(&mut index, 0, &[of_size(4, 0, 0), prompt.store(0..4)]);
    assert_eq!(matched(&mut index, &prompt), 4);
}

/// Seen in ai-dynamo/dynamo#14652.
#[test]
fn an_unknown_hash_in_a_removal_does_not_keep_the_known_ones() {
    for is_foreign in [false, true] {
        let mut index = index();
        let prompt = Prompt { is_foreign, ..Prompt::new(0, 2) };
        let [known1, known2] = prompt.ids()[..] else { panic!("two blocks") };
        apply(&mut index, 0, &[prompt.store(0..2)]);
        apply(&mut index, 0, &[removal(&[known1, BlockKey::from(404_u64), known2, known1], None)]);
        assert_eq!(index.num_blocks(rank(0)), 0);
        assert_eq!(matched(&mut index, &prompt), 0);
    }
}

/// Seen in ai-dynamo/dynamo#11678 and ai-dynamo/dynamo#14878.
#[test]
fn evicted_suffixes_of_a_shared_prefix_leave_nothing_behind() {
    for is_foreign in [false, true] {
        let mut index = index();
        let shared = Prompt { is_foreign, ..Prompt::new(0, 4) };
        apply(&mut index, 0, &[shared.store(0..4)]);
        let mut bytes = 0;
        for turn in 0..20_000_u32 {
            let mut long = shared.clone();
            long.tokens.extend(1_000 + turn..1_000 + turn + 2 * BLOCK_SIZE);
            apply(&mut index, 0, &[long.store(4..6), long.remove(5..6), long.remove(4..5)]);
            if turn == 1_000 {
                bytes = index.counts().bytes;
            }
        }
        assert_eq!((index.num_blocks(rank(0)), matched(&mut index, &shared)), (4, 4));
        assert_eq!(index.counts().bytes, bytes, "memory is flat");
        assert_eq!(index.tables[0].num_blocks(), 4, "the count of what is really there");
    }
}

/// Seen in ai-dynamo/dynamo#1233.
#[test]
fn the_block_size_of_the_events_outranks_the_advertised_one() {
    let prompt = Prompt::new(0, 3);
    let mut index = PrefixIndex::new(super::BUDGET, Some(64));
    index.believe(rank(0), true);
    apply(&mut index, 0, &[prompt.store(0..3)]);
    assert_eq!(index.variant().unwrap().block_size, BLOCK_SIZE);
    assert_eq!(matched(&mut index, &prompt), 3);
    // The engine was restarted with larger blocks: what was listed is void.
    let mut larger = prompt.stored(0..1);
    larger.block_size = 12;
    larger.token_ids = TokenIds::Flat(prompt.tokens.clone());
    assert_eq!(index.apply(rank(0), &KvEvent::Stored(larger)), Applied::KeysChanged);
    assert_eq!(index.variant().unwrap().block_size, 12);
    assert_eq!((index.num_blocks(rank(0)), index.counts().key_changes), (1, 1));
}

#[test]
fn a_worker_whose_block_size_keeps_changing_is_given_up() {
    let mut index = index();
    for turn in 0..40_u32 {
        let mut stored = Prompt::new(turn, 2).stored(0..1);
        stored.block_size = 4 + turn % 2 * 4;
        stored.token_ids = TokenIds::Flat((0..stored.block_size).collect());
        let _ = index.apply(rank(0), &KvEvent::Stored(stored));
    }
    assert!(index.is_given_up());
    assert_eq!((index.variant(), index.num_blocks(rank(0))), (None, 0), "it is refused rather than matched at zero");
}

/// Seen in ai-dynamo/dynamo#14314.
#[test]
fn an_orphan_counts_for_nothing_until_its_parent_comes() {
    for is_foreign in [false, true] {
        let mut index = index();
        let settled = Prompt { is_foreign, ..Prompt::new(900, 1) };
        let prompt = Prompt { is_foreign, ..Prompt::new(0, 6) };
        apply(&mut index, 0, &[settled.store(0..1), prompt.store(4..6), prompt.store(2..4)]);
        assert_eq!(matched(&mut index, &prompt), 0);
        apply(&mut index, 1, &[prompt.store(0..2)]);
        assert_eq!(matched(&mut index, &prompt), 2, "never attached to another rank's chain");
        apply(&mut index, 0, &[prompt.store(0..2)]);
        assert_eq!(matched(&mut index, &prompt), 6);
        assert_eq!((index.counts().lost, index.counts().orphans), (0, 0));
    }
}

/// Seen in vllm-project/aibrix#2285.
#[test]
fn caches_of_a_hybrid_model_are_kept_apart() {
    let prompt = Prompt::foreign(0, 3);
    let remove =
        |group| KvEvent::Removed(RemovedBlocks { hashes: prompt.ids(), medium: Some(Medium::Gpu), group_idx: group });
    let rows = [
        ("group 0, where no kind is said", [Attention::Unsaid, Attention::Unsaid], 0, 1),
        ("the group with full attention", [Attention::Other, Attention::Full], 1, 0),
    ];
    for (sentence, kinds, listed, other) in rows {
        let mut index = index();
        apply(&mut index, 0, &[of_group(&prompt, 0, kinds[0]), of_group(&prompt, 1, kinds[1])]);
        apply(&mut index, 0, &[remove(Some(other))]);
        assert_eq!(matched(&mut index, &prompt), 3, "{sentence}");
        apply(&mut index, 0, &[remove(Some(listed))]);
        assert_eq!(matched(&mut index, &prompt), 0, "{sentence}");
        assert_eq!(index.counts().skipped_events, 2, "{sentence}");
        apply(&mut index, 0, &[of_group(&prompt, listed, kinds[listed as usize]), remove(None)]);
        assert_eq!(matched(&mut index, &prompt), 0, "a removal that names no group means all");
    }
}

/// Seen in llm-d/llm-d-router#1887 and ai-dynamo/dynamo#8473.
#[test]
fn a_block_that_was_stored_twice_is_gone_after_one_removal() {
    for is_foreign in [false, true] {
        let mut index = index();
        let prompt = Prompt { is_foreign, ..Prompt::new(0, 3) };
        apply(&mut index, 0, &[prompt.store(0..3), prompt.store(0..3), prompt.store(2..3), prompt.remove(2..3)]);
        assert_eq!((matched(&mut index, &prompt), index.num_blocks(rank(0))), (2, 2));
    }
}

#[test]
fn a_middle_block_that_goes_ends_the_match_and_its_return_restores_it() {
    for is_foreign in [false, true] {
        let mut index = index();
        let prompt = Prompt { is_foreign, ..Prompt::new(0, 40) };
        apply(&mut index, 0, &[prompt.store(0..40), prompt.remove(17..18)]);
        assert_eq!(matched(&mut index, &prompt), 17);
        apply(&mut index, 0, &[prompt.store(17..18)]);
        assert_eq!(matched(&mut index, &prompt), 40);
    }
}
