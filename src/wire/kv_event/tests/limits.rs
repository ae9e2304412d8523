//! Events that cannot be applied, and frames that want too much.

use serde_json::{Value, json};

use super::one_block;
use crate::logic::kv_event::{BlockKey, KvEvent, StoredBlocks, TokenIds};
use crate::wire::golden::{self, msgpack};
use crate::wire::kv_event::{BadEvent, MAX_HASHES_PER_EVENT, TokenUse, decode_batch};

/// Decodes an event between two clears and returns why it was not applied, if so.
fn refusal(event: &Value, tokens: TokenUse) -> Option<BadEvent> {
    let payload = msgpack(&json!([1.5, [["AllBlocksCleared"], event, ["AllBlocksCleared"]], 0]));
    let batch = decode_batch(&payload, tokens).unwrap();
    let refused: Vec<_> = batch.bad_events.iter().collect();
    assert_eq!(batch.events.len() + refused.len(), 3, "{event}");
    assert_eq!(batch.events.first(), Some(&KvEvent::Cleared), "{event}");
    assert_eq!(batch.events.last(), Some(&KvEvent::Cleared), "{event}");
    refused.first().map(|(reason, _)| *reason)
}

#[test]
fn an_event_that_cannot_be_read_is_counted_by_its_reason_and_spoils_no_other() {
    let rows = [
        ("an integer", json!(7), BadEvent::Shape),
        ("nil", json!(null), BadEvent::Shape),
        ("an empty array", json!([]), BadEvent::Untagged),
        ("an empty map", json!({}), BadEvent::Untagged),
        ("a tag that is no text", json!([7, [1]]), BadEvent::Untagged),
        ("no hashes", json!(["BlockRemoved"]), BadEvent::Hashes),
        ("a hash instead of a list", json!(["BlockRemoved", 7]), BadEvent::Hashes),
        ("a float among hashes", json!(["BlockRemoved", [1, 2.5, 3]]), BadEvent::Hashes),
        ("text among hashes", json!(["BlockRemoved", ["short"]]), BadEvent::Hashes),
        ("a nested hash", json!(["BlockRemoved", [[1]]]), BadEvent::Hashes),
        ("a group that is no number", json!(["BlockRemoved", [1], "GPU", "x"]), BadEvent::Group),
        ("a parent that is no hash", json!(["BlockStored", [1], true, [1], 1, null]), BadEvent::Parent),
        ("tokens that are no list", json!(["BlockStored", [1], null, 7, 1, null]), BadEvent::Tokens),
        ("a negative token", json!(["BlockStored", [1], null, [-1], 1, null]), BadEvent::Tokens),
        ("a token beyond 32 bits", json!(["BlockStored", [1], null, [1_u64 << 32], 1, null]), BadEvent::Tokens),
        ("a triple", json!(["BlockStored", [1], null, [[1, 2, 3]], 1, null]), BadEvent::Tokens),
        ("a single token", json!(["BlockStored", [1], null, [[1]], 1, null]), BadEvent::Tokens),
        ("tokens and pairs", json!(["BlockStored", [1], null, [1, [1, 2]], 1, null]), BadEvent::Tokens),
        ("pairs and tokens", json!(["BlockStored", [1], null, [[1, 2], 1], 1, null]), BadEvent::Tokens),
        ("an adapter that is no number", json!(["BlockStored", [1], null, [1], 1, 2.5]), BadEvent::Namespace),
        (
            "an adapter name that is none",
            json!(["BlockStored", [1], null, [1], 1, null, "GPU", 7]),
            BadEvent::Namespace,
        ),
        (
            "a salt that is no text",
            json!(["BlockStored", [1], null, [1], 1, null, "GPU", {"cache_salt": 7}]),
            BadEvent::Namespace,
        ),
    ];
    for (sentence, event, reason) in rows {
        assert_eq!(refusal(&event, TokenUse::Keep), Some(reason), "{sentence}");
    }
}

/// Seen in llm-d/llm-d-kv-cache#645.
#[test]
fn a_store_whose_blocks_are_not_complete_is_refused() {
    let eight: Vec<u32> = (0..8).collect();
    let rows = [
        ("fewer tokens than a block", json!(["BlockStored", [1], null, eight, 16, null]), Some(BadEvent::TooFewTokens)),
        (
            "tokens for two blocks of three",
            json!(["BlockStored", [1, 2, 3], null, eight, 4, null]),
            Some(BadEvent::TooFewTokens),
        ),
        ("a block size of zero", json!(["BlockStored", [1], null, eight, 0, null]), Some(BadEvent::BlockSize)),
        ("a negative block size", json!(["BlockStored", [1], null, eight, -4, null]), Some(BadEvent::BlockSize)),
        ("a fractional block size", json!(["BlockStored", [1], null, eight, 4.0, null]), Some(BadEvent::BlockSize)),
        ("no block size", json!(["BlockStored", [1], null, eight]), Some(BadEvent::BlockSize)),
        ("a huge block size", json!(["BlockStored", [1], null, eight, u32::MAX, null]), Some(BadEvent::TooFewTokens)),
        ("tokens to spare", json!(["BlockStored", [1], null, eight, 4, null]), None),
        ("an empty hash list", json!(["BlockStored", [], null, [], 16, null]), None),
        ("tokens that were not sent", json!(["BlockStored", [1, 2], null, [], 16, null]), None),
        ("tokens that are nil", json!(["BlockStored", [1, 2], null, null, 16, null]), None),
    ];
    for (sentence, event, reason) in rows {
        assert_eq!(refusal(&event, TokenUse::Keep), reason, "{sentence}");
        assert_eq!(refusal(&event, TokenUse::Skip), reason, "{sentence}, tokens skipped");
    }
}

#[test]
fn tokens_that_cannot_be_read_refuse_nothing_where_nobody_needs_them() {
    for tokens in [json!("odd"), json!([1.5, null]), json!([[1, 2, 3], 7])] {
        let event = json!(["BlockStored", [1], null, tokens, 2, null]);
        assert_eq!(refusal(&event, TokenUse::Skip), None, "{tokens}");
    }
}

#[test]
fn hashes_are_limited_per_event_and_tokens_are_not() {
    let tokens = |count: usize| (0..count).map(|id| (id % 50_000) as u32).collect::<Vec<_>>();
    let hashes = |count: usize| (0..count).map(|hash| hash as u64).collect::<Vec<_>>();
    let at_limit = json!(["BlockStored", hashes(MAX_HASHES_PER_EVENT), null, tokens(MAX_HASHES_PER_EVENT), 1, null]);
    assert_eq!(refusal(&at_limit, TokenUse::Keep), None);
    let beyond = json!(["BlockRemoved", hashes(MAX_HASHES_PER_EVENT + 1)]);
    assert_eq!(refusal(&beyond, TokenUse::Keep), Some(BadEvent::TooManyHashes));
    let long = json!(["BlockStored", [7], null, tokens(300_000), 300_000, null]);
    assert_eq!(refusal(&long, TokenUse::Keep), None);
}

#[test]
fn announced_lengths_reserve_nothing() {
    let rows: [(&str, &[u8]); 5] = [
        ("four billion events", b"\x93\x00\xdd\xff\xff\xff\xff"),
        ("four billion hashes", b"\x93\x00\x91\x92\xacBlockRemoved\xdd\xff\xff\xff\xff"),
        ("a hash of four billion bytes", b"\x93\x00\x91\x92\xacBlockRemoved\x91\xc6\xff\xff\xff\xff"),
        ("four billion tokens", b"\x93\x00\x91\x96\xabBlockStored\x91\x01\xc0\xdd\xff\xff\xff\xff\x01"),
        ("four billion fields", b"\x93\x00\x91\xdf\xff\xff\xff\xff\xa4type"),
    ];
    for (sentence, payload) in rows {
        let found = decode_batch(payload, TokenUse::Keep).map_err(|error| error.reason());
        assert_eq!(found, Err("malformed"), "{sentence}");
    }
}

#[test]
fn deep_nesting_is_refused_without_exhausting_the_stack() {
    let mut payload = b"\x93\x00\x91\x82\xa4type\xa1x\xa1y".to_vec();
    payload.extend(std::iter::repeat_n(0x91, 1_000_000));
    assert_eq!(decode_batch(&payload, TokenUse::Keep).map_err(|error| error.reason()), Err("malformed"));
}

#[test]
fn the_last_of_equal_fields_counts() {
    let mut payload = b"\x91\x84\xa4type\xacBlockRemoved\xa4type\xb0AllBlocksCleared".to_vec();
    payload.extend(b"\xa6medium\x07\xa6medium\xc0");
    payload.splice(0..0, *b"\x92\x00");
    assert_eq!(decode_batch(&payload, TokenUse::Keep).unwrap().events, [KvEvent::Cleared]);
}

#[test]
fn every_reason_has_a_label_of_its_own() {
    let mut labels: Vec<_> = BadEvent::ALL.iter().map(|reason| reason.reason()).collect();
    for (index, reason) in BadEvent::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, index, "counts are indexed by the order of ALL");
    }
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), BadEvent::ALL.len());
}

#[test]
fn a_large_store_keeps_its_order() {
    let hashes: Vec<i64> = (0..2_000).map(|index| index - 1_000).collect();
    let tokens: Vec<u32> = (0..8_000).collect();
    let payload = msgpack(&json!([1.5, [["BlockStored", hashes, null, tokens, 4, null, "GPU"]], 0]));
    let expected = StoredBlocks {
        hashes: hashes.into_iter().map(BlockKey::from).collect(),
        token_ids: TokenIds::Flat(tokens),
        ..one_block(0)
    };
    assert_eq!(decode_batch(&payload, TokenUse::Keep).unwrap().events, [KvEvent::Stored(expected)]);
}

fn no_bytes_break_the_bounds(cases: u32) {
    let payloads = golden::payloads(golden::KV_FILES).into_iter().filter(|payload| payload.len() < 2_000).collect();
    golden::check_bytes(cases, payloads, |bytes| {
        for tokens in [TokenUse::Keep, TokenUse::Skip] {
            let Ok(batch) = decode_batch(bytes, tokens) else {
                continue;
            };
            assert!(batch.timestamp.is_none_or(f64::is_finite), "{batch:?}");
            for event in &batch.events {
                check_event(event, bytes.len());
            }
        }
    });
}

fn check_event(event: &KvEvent, num_bytes: usize) {
    match event {
        KvEvent::Stored(stored) => {
            let num_needed = stored.hashes.len() as u64 * u64::from(stored.block_size);
            let num_tokens = stored.token_ids.len();
            assert!(stored.hashes.len() <= MAX_HASHES_PER_EVENT.min(num_bytes), "{stored:?}");
            assert!(stored.block_size > 0 && num_tokens <= num_bytes, "{stored:?}");
            assert!(num_tokens == 0 || num_tokens as u64 >= num_needed, "{stored:?}");
        }
        KvEvent::Removed(removed) => assert!(removed.hashes.len() <= MAX_HASHES_PER_EVENT.min(num_bytes)),
        KvEvent::Cleared => {}
    }
}

#[test]
fn no_bytes_make_the_decoder_panic_or_exceed_a_bound() {
    no_bytes_break_the_bounds(10_000);
}

#[test]
#[ignore = "a million cases take minutes; run by hand"]
fn no_million_of_frames_makes_the_decoder_panic_or_exceed_a_bound() {
    no_bytes_break_the_bounds(1_000_000);
}
