//! Tests of [`super`].

use serde_json::{Value, json};

use super::{LoadFrameError, MAX_REQUESTS, MAX_TOKENS, MAX_TOTAL, decode_load};
use crate::logic::load::{LoadSource, RankLoad};
use crate::wire::golden::{self, msgpack, unhex};

fn decode(value: &Value) -> Result<RankLoad, &'static str> {
    decode_load(&msgpack(value)).map_err(|error| error.reason())
}

fn decode_hex(digits: &str) -> Result<RankLoad, &'static str> {
    decode_load(&unhex(digits)).map_err(|error| error.reason())
}

/// Returns what a recorded array means by the module's rules, from its numbers.
fn meaning_of_stat(wire: &Value) -> RankLoad {
    let number = |index: usize| wire[index].as_u64().unwrap();
    let later = |index: usize| wire.get(index).map(|count| count.as_u64().unwrap());
    let capacity = number(4);
    RankLoad {
        source: LoadSource::ZmqStat,
        running: number(1),
        waiting: number(2),
        used_tokens: Some(if capacity > 0 { number(3).min(capacity) } else { number(3) }),
        capacity_tokens: Some(capacity).filter(|capacity| *capacity > 0),
        waiting_uncached_tokens: later(6),
        total_tokens: later(7),
        max_running: later(8),
        prefill_uncached_tokens_total: later(9),
        prefill_busy_us_total: later(10),
    }
}

/// Returns what a recorded map means by the module's rules, from its numbers.
fn meaning_of_snapshot(wire: &Value) -> RankLoad {
    let number = |key: &str| wire.get(key).map_or(0, |count| count.as_u64().unwrap());
    let capacity = number("max_total_num_tokens");
    let used = number("num_used_tokens");
    RankLoad {
        source: LoadSource::ZmqSnapshot,
        running: number("num_running_reqs"),
        waiting: number("num_waiting_reqs"),
        used_tokens: Some(if capacity > 0 { used.min(capacity) } else { used }),
        capacity_tokens: Some(capacity).filter(|capacity| *capacity > 0),
        waiting_uncached_tokens: Some(number("num_waiting_uncached_tokens")),
        total_tokens: Some(number("num_total_tokens")),
        max_running: Some(number("max_running_requests")),
        prefill_uncached_tokens_total: Some(number("total_prefill_uncached_tokens")),
        prefill_busy_us_total: Some(number("total_prefill_busy_us")),
    }
}

#[test]
fn every_recorded_frame_decodes_to_what_it_means_or_is_refused_by_rule() {
    let refused = |name: &str| match name {
        "u32_edge" | "i64_max" | "u64_max" => Some("too_large"),
        "negative" => Some("negative"),
        _ => None,
    };
    for file in golden::LOAD_FILES.iter().chain(golden::SNAPSHOT_FILES) {
        for record in golden::read(file) {
            let found = decode_load(record.payload()).map_err(|error| error.reason());
            let wire = record.wire();
            let expected = match refused(&record.name) {
                Some(reason) => Err(reason),
                None if wire.is_array() => Ok(meaning_of_stat(wire)),
                None => Ok(meaning_of_snapshot(wire)),
            };
            assert_eq!(found, expected, "{file}: {} {wire}", record.name);
        }
    }
}

#[test]
fn both_forms_decode_from_hand_written_bytes() {
    let stat = RankLoad {
        source: LoadSource::ZmqStat,
        running: 2,
        waiting: 3,
        used_tokens: Some(4),
        capacity_tokens: Some(100),
        ..RankLoad::default()
    };
    let extended = RankLoad {
        waiting_uncached_tokens: Some(500),
        total_tokens: Some(600),
        max_running: Some(32),
        prefill_uncached_tokens_total: Some(1000),
        prefill_busy_us_total: Some(2000),
        ..stat
    };
    let idle = meaning_of_snapshot(&json!({}));
    let rows = [
        ("six elements", "96a84c6f6164537461740203046400", stat),
        ("eleven elements", "9ba84c6f61645374617402030464c0cd01f4cd025820cd03e8cd07d0", extended),
        ("one key", "81b06e756d5f72756e6e696e675f7265717307", RankLoad { running: 7, ..idle }),
        ("an empty map16", "de0000", idle),
        ("an empty map", "80", idle),
        ("a count in a signed form", "96a84c6f616453746174d30000000000000002030464c0", stat),
    ];
    for (sentence, digits, expected) in rows {
        assert_eq!(decode_hex(digits), Ok(expected), "{sentence}");
    }
}

/// Seen in sgl-project/sglang#32070.
#[test]
fn an_array_is_refused_where_a_count_cannot_be_right() {
    let rows = [
        ("a negative count", json!(["LoadStat", -1, 0, 0, 100, 0]), "negative"),
        ("a negative capacity", json!(["LoadStat", 0, 0, 0, -100, 0]), "negative"),
        ("an overflow", json!(["LoadStat", 0, 1_u64 << 63, 0, 100, 0]), "too_large"),
        ("more requests than any engine holds", json!(["LoadStat", MAX_REQUESTS + 1, 0, 0, 0, 0]), "too_large"),
        ("more tokens than any engine holds", json!(["LoadStat", 0, 0, MAX_TOKENS + 1, 0, 0]), "too_large"),
        ("a float", json!(["LoadStat", 0, 1.0, 0, 100, 0]), "not_an_integer"),
        ("nil", json!(["LoadStat", null, 0, 0, 100, 0]), "not_an_integer"),
        ("a boolean", json!(["LoadStat", true, 0, 0, 100, 0]), "not_an_integer"),
        ("text", json!(["LoadStat", "7", 0, 0, 100, 0]), "not_an_integer"),
        ("an array", json!(["LoadStat", [7], 0, 0, 100, 0]), "not_an_integer"),
        ("nil as a later count", json!(["LoadStat", 0, 0, 0, 0, 0, 0, 0, null, 0, 0]), "not_an_integer"),
        ("a negative later count", json!(["LoadStat", 0, 0, 0, 0, 0, 0, 0, 0, 0, -1]), "negative"),
        ("a total beyond 63 bits", json!(["LoadStat", 0, 0, 0, 0, 0, 0, 0, 0, MAX_TOTAL + 1, 0]), "too_large"),
        ("no counts", json!(["LoadStat"]), "too_few_counts"),
        ("three counts", json!(["LoadStat", 1, 2, 3]), "too_few_counts"),
        ("one later count", json!(["LoadStat", 1, 2, 3, 4, 0, 5]), "partial_counts"),
        ("four later counts", json!(["LoadStat", 1, 2, 3, 4, 0, 5, 6, 7, 8]), "partial_counts"),
        ("another tag", json!(["LoadStats", 1, 2, 3, 4, 0]), "tag"),
        ("no tag", json!([1, 2, 3, 4, 0]), "tag"),
        ("nothing", json!([]), "tag"),
        ("a KV event batch", json!([1.5, [["AllBlocksCleared"]], 0]), "tag"),
    ];
    for (sentence, value, reason) in rows {
        assert_eq!(decode(&value), Err(reason), "{sentence}");
    }
    let nan = "96a84c6f616453746174cb7ff800000000000000000000";
    assert_eq!(decode_hex(nan), Err("not_an_integer"), "NaN");
}

#[test]
fn an_array_may_lack_the_rank_and_end_in_unknown_elements() {
    let short = json!(["LoadStat", 1, 2, 3, 4]);
    assert_eq!(decode(&short), Ok(meaning_of_stat(&short)));
    let long = json!(["LoadStat", 1, 2, 3, 4, [null], 5, 6, 7, 8, 9, {"more": [1]}, "later"]);
    assert_eq!(decode(&long), Ok(meaning_of_stat(&long)));
}

#[test]
fn a_map_is_refused_where_a_count_cannot_be_right() {
    let rows = [
        ("a negative count", json!({"num_running_reqs": -1}), "negative"),
        ("an overflow", json!({"num_waiting_reqs": 1_u64 << 63}), "too_large"),
        ("a float", json!({"num_running_reqs": 3.5}), "not_an_integer"),
        ("nil", json!({"num_used_tokens": null}), "not_an_integer"),
        ("text", json!({"max_running_requests": "many"}), "not_an_integer"),
        ("a KV event batch", json!({"ts": 1.5, "events": [], "data_parallel_rank": 0}), "foreign_map"),
        ("another report", json!({"running": 3}), "foreign_map"),
    ];
    for (sentence, value, reason) in rows {
        assert_eq!(decode(&value), Err(reason), "{sentence}");
    }
    assert_eq!(decode_hex("8107c3"), Err("foreign_map"), "an integer key");
}

#[test]
fn a_map_may_hold_what_is_not_known() {
    let value = json!({
        "num_running_reqs": 4,
        "gen_throughput": 12.5,
        "queues": [1, 2, 3, 4],
        "lora": {"nested": {"deeper": []}},
        "added_later": [[[]]],
    });
    assert_eq!(decode(&value), Ok(meaning_of_snapshot(&json!({"num_running_reqs": 4}))));
}

#[test]
fn keys_that_are_not_text_are_ignored_and_the_last_of_equal_keys_counts() {
    let running = "b06e756d5f72756e6e696e675f72657173";
    let expected = Ok(meaning_of_snapshot(&json!({"num_running_reqs": 7})));
    let rows = [
        ("a key of bad UTF-8", format!("82a2c32801{running}07")),
        ("an integer key", format!("820001{running}07")),
        ("a binary key", format!("82c4020102c0{running}07")),
        ("an array as a key", format!("82920102c0{running}07")),
        ("an extension value as a key", format!("82d40100c0{running}07")),
        ("equal keys", format!("82{running}09{running}07")),
        ("equal keys, the first one bad", format!("82{running}c0{running}07")),
    ];
    for (sentence, digits) in rows {
        assert_eq!(decode_hex(&digits), expected, "{sentence}");
    }
    assert_eq!(decode_hex(&format!("82{running}07{running}c0")), Err("not_an_integer"));
}

#[test]
fn used_tokens_are_cut_to_a_known_capacity() {
    let full = decode(&json!(["LoadStat", 9, 0, 200_000, 100_000, 0])).unwrap();
    assert_eq!((full.used_tokens, full.capacity_tokens), (Some(100_000), Some(100_000)));
    let unknown = decode(&json!(["LoadStat", 9, 0, 200_000, 0, 0])).unwrap();
    assert_eq!((unknown.used_tokens, unknown.capacity_tokens), (Some(200_000), None));
}

#[test]
fn what_is_not_one_array_or_map_is_refused() {
    let rows = [
        ("nothing", "", "malformed"),
        ("an unused marker", "c1", "malformed"),
        ("a cut array", "96a84c6f61645374617402", "malformed"),
        ("a cut map", "de0001", "malformed"),
        ("an array of four billion", "ddffffffff", "malformed"),
        ("a map of four billion", "dfffffffff", "malformed"),
        ("a text of four billion bytes", "91dbffffffff00", "malformed"),
        ("an integer", "07", "shape"),
        ("nil", "c0", "shape"),
        ("text", "a161", "shape"),
        ("bytes", "c40161", "shape"),
        ("an extension value", "d40161", "shape"),
        ("a byte after an empty map", "8000", "trailing_bytes"),
        ("the start of a value after an array", "96a84c6f616453746174020304640091", "trailing_bytes"),
        ("half a number after an array", "96a84c6f6164537461740203046400cd", "trailing_bytes"),
        ("an unused marker after an array", "96a84c6f6164537461740203046400c1", "trailing_bytes"),
    ];
    for (sentence, digits, reason) in rows {
        assert_eq!(decode_hex(digits), Err(reason), "{sentence}");
    }
}

#[test]
fn deep_nesting_is_refused_without_exhausting_the_stack() {
    let mut frame = unhex("81ae6465636f64655f6d6f6d656e7473");
    frame.extend(std::iter::repeat_n(0x91, 1_000_000));
    assert_eq!(decode_load(&frame).map_err(|error| error.reason()), Err("malformed"));
}

#[test]
fn every_reason_is_in_the_closed_set() {
    let errors = [
        decode_load(b"\xc1").unwrap_err(),
        decode_load(b"\x80\x00").unwrap_err(),
        LoadFrameError::Shape,
        LoadFrameError::Tag,
        LoadFrameError::ForeignMap,
        LoadFrameError::TooFewCounts { found: 3 },
        LoadFrameError::PartialCounts { found: 1 },
        LoadFrameError::NotAnInteger { field: "num_running_reqs", found: "nil" },
        LoadFrameError::Negative { field: "num_running_reqs", value: -1 },
        LoadFrameError::TooLarge { field: "num_running_reqs", value: 9, limit: 8 },
    ];
    assert_eq!(errors.map(|error| error.reason()), LoadFrameError::REASONS);
}

fn no_bytes_break_the_bounds(cases: u32) {
    let payloads = golden::payloads(&[golden::LOAD_FILES, golden::SNAPSHOT_FILES].concat());
    golden::check_bytes(cases, payloads, |bytes| {
        let Ok(load) = decode_load(bytes) else {
            return;
        };
        assert!(load.running <= MAX_REQUESTS && load.waiting <= MAX_REQUESTS, "{load:?}");
        assert!(load.max_running.is_none_or(|count| count <= MAX_REQUESTS), "{load:?}");
        assert!(load.used_tokens.is_some_and(|used| used <= load.capacity_tokens.unwrap_or(MAX_TOKENS)), "{load:?}");
        assert!(load.capacity_tokens.is_none_or(|count| (1..=MAX_TOKENS).contains(&count)), "{load:?}");
        for count in [load.waiting_uncached_tokens, load.total_tokens] {
            assert!(count.is_none_or(|count| count <= MAX_TOKENS), "{load:?}");
        }
        for count in [load.prefill_uncached_tokens_total, load.prefill_busy_us_total] {
            assert!(count.is_none_or(|count| count <= MAX_TOTAL), "{load:?}");
        }
    });
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
