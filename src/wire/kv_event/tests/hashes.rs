//! Block hashing against what SGLang itself computed, and against what its running engine published.

use serde_json::Value;

use crate::logic::block_hash::{Units, engine_keys};
use crate::logic::kv_event::{BlockKey, KvEvent, TokenIds};
use crate::wire::golden;
use crate::wire::kv_event::{TokenUse, decode_batch};

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

fn signed(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|key| key.as_i64().unwrap().cast_unsigned()).collect()
}

#[test]
fn every_vector_of_sglang_is_hashed_alike() {
    let lines: Vec<Value> = golden::lines("sglang-0.5.23-hash");
    let (mut num_plain, mut num_bigram, mut num_salted) = (0, 0, 0);
    for line in &lines {
        let tokens = numbers(&line["tokens"]);
        let block_size = line["page_size"].as_u64().unwrap() as u32;
        let (units, salt, expected) = match line["events"].as_array() {
            Some(events) => (Units::Tokens(&tokens), line["cache_salt"].as_str(), signed(&events[0]["block_hashes"])),
            None => {
                let is_bigram = line["bigram"].as_bool().unwrap();
                num_bigram += usize::from(is_bigram);
                (Units::of_prompt(&tokens, is_bigram), None, signed(&line["block_hashes"]))
            }
        };
        num_plain += usize::from(salt.is_none());
        num_salted += usize::from(salt.is_some());
        assert_eq!(engine_keys(units, block_size, salt), expected, "{}", line["name"]);
    }
    assert!(num_plain > 100 && num_bigram > 50 && num_salted == 3, "{num_plain} {num_bigram} {num_salted}");
}

#[test]
fn every_prompt_that_a_running_engine_stored_is_hashed_alike() {
    let mut num_checked = 0;
    for payload in golden::payloads(&["sglang-0.5.23-kv-engine"]) {
        for event in decode_batch(&payload, TokenUse::Keep).unwrap().events {
            let KvEvent::Stored(stored) = event else { continue };
            let (TokenIds::Flat(tokens), None) = (&stored.token_ids, stored.parent) else { continue };
            let keys = engine_keys(Units::Tokens(tokens), stored.block_size, stored.cache_salt.as_deref());
            let expected: Vec<BlockKey> = keys.into_iter().map(BlockKey::from).collect();
            assert_eq!(stored.hashes, expected);
            num_checked += 1;
        }
    }
    assert!(num_checked > 10, "{num_checked} prompts");
}
