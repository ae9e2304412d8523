//! Every form of batch and event, written by hand.

use serde_json::json;

use super::{decode, one_block, removed};
use crate::logic::ids::DpRank;
use crate::logic::kv_event::{Attention, BlockKey, KvEvent, Medium, RemovedBlocks, StoredBlocks, TokenIds};
use crate::wire::golden::{msgpack, unhex};
use crate::wire::kv_event::{BadEvent, KvFrameError, TokenUse, decode_batch};

#[test]
fn both_encodings_decode_from_hand_written_bytes() {
    let array = "93cb3ff00000000000009197ab426c6f636b53746f72656491d3cf97adeedb59e05bc0940102030404c0a347505500";
    let map = "93cb3ff00000000000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391d3cf97adeedb59e05b\
               b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f\
               6964c0a66d656469756da347505500";
    for digits in [array, map] {
        let batch = decode_batch(&unhex(digits), TokenUse::Keep).unwrap();
        assert_eq!(batch.timestamp, Some(1.0));
        assert_eq!(batch.rank, Some(DpRank::new(0)));
        let hash = BlockKey::from(-3_488_128_144_981_237_669_i64);
        assert_eq!(batch.events, [KvEvent::Stored(StoredBlocks { hashes: vec![hash], ..one_block(0) })], "{digits}");
    }
    let cleared = decode_batch(&unhex("93cb00000000000000009191b0416c6c426c6f636b73436c6561726564c0"), TokenUse::Keep);
    let cleared = cleared.unwrap();
    assert_eq!((cleared.rank, cleared.events), (None, vec![KvEvent::Cleared]));
}

/// Seen in llm-d/llm-d-kv-cache#661.
#[test]
fn an_event_means_the_same_as_array_and_as_map_and_an_untagged_one_spoils_no_other() {
    let payload = msgpack(&json!([
        1.5,
        [
            ["BlockStored", [7], null, [1, 2, 3, 4], 4, null, "GPU"],
            {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": null, "token_ids": [1, 2, 3, 4],
             "block_size": 4, "lora_id": null, "medium": "GPU"},
            {"block_hashes": [8], "token_ids": [1, 2, 3, 4], "block_size": 4},
            ["AllBlocksCleared"],
        ],
        0,
    ]));
    let batch = decode_batch(&payload, TokenUse::Keep).unwrap();
    let stored = KvEvent::Stored(one_block(7));
    assert_eq!(batch.events, [stored.clone(), stored, KvEvent::Cleared]);
    assert_eq!(batch.bad_events.iter().collect::<Vec<_>>(), [(BadEvent::Untagged, 1)]);
}

/// Seen in ai-dynamo/dynamo#3180.
#[test]
fn both_spellings_of_64_bits_are_one_key_and_a_digest_is_another() {
    let digest: Vec<u8> = (0..32).collect();
    let event = |tag: &str, hashes: &[&[u8]], rest: &[u8]| {
        let mut bytes = vec![0x93, 0x00, 0x91, 0x92 + u8::from(!rest.is_empty()) * 3, 0xa0 + tag.len() as u8];
        bytes.extend(tag.as_bytes());
        bytes.push(0x90 + hashes.len() as u8);
        bytes.extend(hashes.concat());
        bytes.extend(rest);
        bytes.push(0xc0);
        decode_batch(&bytes, TokenUse::Keep).unwrap().events
    };
    let unsigned = |value: u64| [&[0xcf][..], &value.to_be_bytes()].concat();
    let signed = |value: i64| [&[0xd3][..], &value.to_be_bytes()].concat();
    let binary = [&[0xc4, 32][..], &digest].concat();
    let text = [&[0xd9, 32][..], &digest].concat();
    let high = (1_u64 << 63) + 5;
    let stored = event("BlockStored", &[&[1], &[0xff], &unsigned(high), &binary], &[0xc0, 0x94, 1, 2, 3, 4, 0x01]);
    let gone = event("BlockRemoved", &[&[1], &unsigned(u64::MAX), &signed(high.cast_signed()), &text], &[]);
    let keys = [
        BlockKey::from(1_u64),
        BlockKey::from(-1_i64),
        BlockKey::from(high),
        BlockKey::Digest256(digest.try_into().unwrap()),
    ];
    let [KvEvent::Stored(stored)] = &stored[..] else { panic!("{stored:?}") };
    assert_eq!(stored.hashes, keys);
    assert_eq!(gone, [removed(&keys)]);
}

#[test]
fn a_digest_of_128_bits_is_a_key_and_one_of_another_length_is_none() {
    let key = |length: u8| {
        crate::wire::kv_event::hash::read_key(&crate::wire::lenient::Scalar::Bytes(vec![3; length.into()].into()))
    };
    assert_eq!(key(16), Some(BlockKey::Digest128([3; 16])));
    assert_eq!(key(32), Some(BlockKey::Digest256([3; 32])));
    for length in [0, 8, 15, 17, 31, 33, 64] {
        assert_eq!(key(length), None, "{length} bytes");
    }
}

/// Seen in sgl-project/sglang#38562.
#[test]
fn plain_and_salted_stores_of_one_stream_all_decode_and_stay_apart() {
    let plain = json!(["BlockStored", [7], null, [1, 2, 3, 4], 4, null, "GPU"]);
    let salted =
        json!(["BlockStored", [8], null, [1, 2, 3, 4], 4, null, "GPU", {"cache_salt": "tenant-a", "new": [1]}]);
    let events: Vec<_> = (0..20).map(|index| if index % 2 == 0 { plain.clone() } else { salted.clone() }).collect();
    let batch = decode(&json!([1.5, events, 0]));
    let expected = [one_block(7), StoredBlocks { cache_salt: Some("tenant-a".into()), ..one_block(8) }];
    assert_eq!(batch.events.len(), 20);
    for (index, event) in batch.events.into_iter().enumerate() {
        assert_eq!(event, KvEvent::Stored(expected[index % 2].clone()), "event {index}");
    }
}

#[test]
fn every_length_of_the_array_form_decodes() {
    let tokens = json!([1, 2, 3, 4]);
    let base = one_block(7);
    let rows = [
        (
            "no medium",
            json!(["BlockStored", [7], null, tokens, 4, null]),
            StoredBlocks { medium: None, ..base.clone() },
        ),
        ("no adapter", json!(["BlockStored", [7], null, tokens, 4]), StoredBlocks { medium: None, ..base.clone() }),
        ("medium", json!(["BlockStored", [7], null, tokens, 4, null, "GPU"]), base.clone()),
        ("no metadata", json!(["BlockStored", [7], null, tokens, 4, null, "GPU", null]), base.clone()),
        (
            "all that vLLM sent",
            json!(["BlockStored", [7], 6, tokens, 4, 3, "CPU", "adapter", [["adapter"]], 1, "sliding_window", 128]),
            StoredBlocks {
                parent: Some(BlockKey::from(6_u64)),
                medium: Some(Medium::Cpu),
                lora_id: Some(3),
                lora_name: Some("adapter".into()),
                group_idx: Some(1),
                attention: Attention::Other,
                ..base.clone()
            },
        ),
    ];
    for (sentence, event, expected) in rows {
        assert_eq!(decode(&json!([1.5, [event], 0])).events, [KvEvent::Stored(expected)], "{sentence}");
    }
    let removals = [
        ("hashes alone", json!(["BlockRemoved", [7]]), None, None),
        ("medium", json!(["BlockRemoved", [7], "DISK"]), Some(Medium::Disk), None),
        ("group", json!(["BlockRemoved", [7], "STORAGE", 2, "more"]), Some(Medium::Storage), Some(2)),
    ];
    for (sentence, event, medium, group_idx) in removals {
        let expected = RemovedBlocks { hashes: vec![BlockKey::from(7_u64)], medium, group_idx };
        assert_eq!(decode(&json!([1.5, [event], 0])).events, [KvEvent::Removed(expected)], "{sentence}");
    }
}

#[test]
fn a_batch_may_be_an_array_or_a_map_and_lack_all_but_its_events() {
    let events = json!([{"type": "AllBlocksCleared"}]);
    let rank = |number| Some(DpRank::new(number));
    let rows = [
        ("array", json!([1.5, events, 2]), Some(1.5), rank(2)),
        ("array with an integer time", json!([3, events, null]), Some(3.0), None),
        ("array without rank", json!([1.5, events]), Some(1.5), None),
        ("longer array", json!([1.5, events, 2, "more", {}]), Some(1.5), rank(2)),
        ("array without time", json!([null, events, 2]), None, rank(2)),
        ("map", json!({"ts": 1.5, "events": events, "data_parallel_rank": 2}), Some(1.5), rank(2)),
        ("map with SGLang's rank", json!({"ts": 1.5, "events": events, "attn_dp_rank": 2}), Some(1.5), rank(2)),
        ("tagged map without rank", json!({"type": "KVEventBatch", "ts": 1.5, "events": events}), Some(1.5), None),
        ("map of events alone", json!({"events": events}), None, None),
        ("odd time and rank", json!(["now", events, -1]), None, None),
        ("a rank beyond 32 bits", json!([1.5, events, 1_u64 << 32]), Some(1.5), None),
    ];
    for (sentence, value, timestamp, rank) in rows {
        let batch = decode(&value);
        assert_eq!(batch.events, [KvEvent::Cleared], "{sentence}");
        assert_eq!((batch.timestamp, batch.rank), (timestamp, rank), "{sentence}");
    }
}

#[test]
fn unknown_event_types_are_counted_and_skipped() {
    let batch = decode(&json!([
        1.5,
        [
            ["BlockTransferred", {"anything": [1]}, 2.5],
            {"type": "BlockTransferred", "block_hashes": "odd", "token_ids": 7},
            ["BlockRemoved", [7]],
        ],
        0,
    ]));
    assert_eq!(batch.num_unknown_events, 2);
    assert_eq!(batch.events, [removed(&[BlockKey::from(7_u64)])]);
}

#[test]
fn media_are_told_apart_and_an_unknown_one_is_not_none() {
    let rows = [
        (json!("GPU"), Some(Medium::Gpu)),
        (json!("CPU"), Some(Medium::Cpu)),
        (json!("CPU_PINNED"), Some(Medium::CpuPinned)),
        (json!("DISK"), Some(Medium::Disk)),
        (json!("STORAGE"), Some(Medium::Storage)),
        (json!("EXTERNAL"), Some(Medium::External)),
        (json!("TAPE"), Some(Medium::Unknown)),
        (json!(3), Some(Medium::Unknown)),
        (json!(null), None),
    ];
    for (name, medium) in rows {
        let expected = RemovedBlocks { hashes: vec![BlockKey::from(7_u64)], medium, group_idx: None };
        assert_eq!(decode(&json!([1.5, [["BlockRemoved", [7], name]], 0])).events, [KvEvent::Removed(expected)]);
    }
}

#[test]
fn skipped_tokens_are_counted_and_tell_whether_they_are_pairs() {
    let rows = [
        (json!([5, 6, 7, 8]), TokenIds::Skipped { count: 4 }, false),
        (json!([[5, 6], [6, 7], [7, 8], [8, 9]]), TokenIds::SkippedPairs { count: 4 }, true),
        (json!(null), TokenIds::Skipped { count: 0 }, false),
        (json!("odd"), TokenIds::Skipped { count: 0 }, false),
    ];
    for (tokens, expected, is_paired) in rows {
        let payload = msgpack(&json!([1.5, [["BlockStored", [7], null, tokens, 4, null, "GPU"]], 0]));
        let batch = decode_batch(&payload, TokenUse::Skip).unwrap();
        assert_eq!(expected.is_paired(), is_paired);
        assert_eq!(batch.events, [KvEvent::Stored(StoredBlocks { token_ids: expected, ..one_block(7) })]);
    }
}

#[test]
fn extra_keys_beyond_a_salt_make_an_event_opaque() {
    let rows = [
        (json!(null), None, false),
        (json!([]), None, false),
        (json!([null, null]), None, false),
        (json!([["salt"], null]), Some("salt"), false),
        (json!([null, ["salt"]]), None, true),
        (json!("odd"), None, true),
    ];
    for (keys, salt, is_opaque) in rows {
        let event = json!({"type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2, 3, 4], "block_size": 4,
                           "medium": "GPU", "extra_keys": keys});
        let expected = StoredBlocks { cache_salt: salt.map(Into::into), is_opaque, ..one_block(7) };
        assert_eq!(decode(&json!([1.5, [event], 0])).events, [KvEvent::Stored(expected)], "{keys}");
    }
}

/// Seen in ROCm/ATOM#1316.
#[test]
fn what_is_not_a_batch_is_refused() {
    let rows = [
        ("nothing", vec![], "malformed"),
        ("a cut batch", unhex("93cb3ff00000000000009191b0416c6c"), "malformed"),
        ("an integer", msgpack(&json!(7)), "shape"),
        ("text", msgpack(&json!("BlockStored")), "shape"),
        ("nil", msgpack(&json!(null)), "shape"),
        ("an empty array", msgpack(&json!([])), "no_events"),
        ("a time alone", msgpack(&json!([1.5])), "no_events"),
        ("a load report", msgpack(&json!(["LoadStat", 1, 2, 3, 4, 0])), "no_events"),
        ("a load snapshot", msgpack(&json!({"num_running_reqs": 1})), "no_events"),
        ("an empty map", msgpack(&json!({})), "no_events"),
        ("two values", [msgpack(&json!([1.5, [], 0])), vec![0xc0]].concat(), "trailing_bytes"),
    ];
    for (sentence, payload, reason) in rows {
        let found = decode_batch(&payload, TokenUse::Keep).map_err(|error| error.reason());
        assert_eq!(found, Err(reason), "{sentence}");
        assert!(KvFrameError::REASONS.contains(&reason), "{sentence}");
    }
}
