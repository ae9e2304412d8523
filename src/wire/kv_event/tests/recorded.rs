//! Recorded frames against what another decoder read in them.

use serde_json::Value;

use crate::logic::ids::DpRank;
use crate::logic::kv_event::{Attention, BlockKey, KvEvent, Medium, RemovedBlocks, StoredBlocks, TokenIds};
use crate::wire::golden::{self, unhex};
use crate::wire::kv_event::{TokenUse, decode_batch};

/// Returns a field of a recorded event by its key or, in the array form, by its position.
fn field<'a>(event: &'a Value, key: &str, position: usize) -> &'a Value {
    const ABSENT: &Value = &Value::Null;
    event.get(key).or_else(|| event.get(position)).unwrap_or(ABSENT)
}

fn key(hash: &Value) -> BlockKey {
    if let Some(digits) = hash.get("hex") {
        return BlockKey::Digest256(unhex(digits.as_str().unwrap()).try_into().unwrap());
    }
    hash.as_u64().map(BlockKey::from).or_else(|| hash.as_i64().map(BlockKey::from)).unwrap()
}

fn keys(hashes: &Value) -> Vec<BlockKey> {
    hashes.as_array().unwrap().iter().map(key).collect()
}

fn medium(name: &Value) -> Option<Medium> {
    name.as_str().map(|name| match name {
        "GPU" => Medium::Gpu,
        "CPU" => Medium::Cpu,
        "CPU_PINNED" => Medium::CpuPinned,
        "DISK" => Medium::Disk,
        "STORAGE" => Medium::Storage,
        "EXTERNAL" => Medium::External,
        other => panic!("{other} is in no recording"),
    })
}

fn tokens(ids: &Value) -> TokenIds {
    let id = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let ids = ids.as_array().unwrap();
    if ids.first().is_some_and(Value::is_array) {
        return TokenIds::Pairs(ids.iter().map(|pair| [id(&pair[0]), id(&pair[1])]).collect());
    }
    TokenIds::Flat(ids.iter().map(id).collect())
}

fn meaning(event: &Value) -> KvEvent {
    let group = |value: &Value| value.as_u64().map(|group| group as u32);
    match field(event, "type", 0).as_str().unwrap() {
        "AllBlocksCleared" => KvEvent::Cleared,
        "BlockRemoved" => KvEvent::Removed(RemovedBlocks {
            hashes: keys(field(event, "block_hashes", 1)),
            medium: medium(field(event, "medium", 2)),
            group_idx: group(field(event, "group_idx", 3)),
        }),
        "BlockStored" => KvEvent::Stored(StoredBlocks {
            hashes: keys(field(event, "block_hashes", 1)),
            parent: Some(field(event, "parent_block_hash", 2)).filter(|parent| !parent.is_null()).map(key),
            token_ids: tokens(field(event, "token_ids", 3)),
            block_size: field(event, "block_size", 4).as_u64().unwrap() as u32,
            medium: medium(field(event, "medium", 6)),
            lora_id: field(event, "lora_id", 5).as_i64(),
            lora_name: event.get("lora_name").and_then(Value::as_str).map(Into::into),
            cache_salt: salt(event).map(Into::into),
            is_opaque: event["extra_keys"].to_string().contains(r#"[["mm-hash",4]]"#),
            group_idx: group(event.get("group_idx").unwrap_or(&Value::Null)),
            attention: match event["kv_cache_spec_kind"].as_str() {
                None => Attention::Unsaid,
                Some("full_attention") => Attention::Full,
                Some(_) => Attention::Other,
            },
        }),
        other => panic!("{other} is in no recording"),
    }
}

/// SGLang names the salt; the vLLM engine of the recordings had no adapter, so that a lone text is one.
fn salt(event: &Value) -> Option<&str> {
    let named = event.get(7).unwrap_or(event).get("cache_salt");
    let is_opaque = event["extra_keys"].to_string().contains("mm-hash");
    let lone = Some(&event["extra_keys"][0][0]).filter(|_| event["lora_name"].is_null() && !is_opaque);
    named.or(lone).and_then(Value::as_str)
}

/// Returns the event as a caller that skips tokens gets it.
fn without_tokens(mut event: KvEvent) -> KvEvent {
    if let KvEvent::Stored(stored) = &mut event {
        let count = stored.token_ids.len();
        let is_paired = stored.token_ids.is_paired();
        stored.token_ids = if is_paired { TokenIds::SkippedPairs { count } } else { TokenIds::Skipped { count } };
    }
    event
}

#[test]
fn every_recorded_batch_decodes_to_what_it_means() {
    for file in golden::KV_FILES {
        for record in golden::read(file) {
            let wire = record.wire();
            let batch = decode_batch(record.payload(), TokenUse::Keep).unwrap();
            let expected: Vec<_> = wire[1].as_array().unwrap().iter().map(meaning).collect();
            // The JSON parser rounds the last digit of some times another way.
            let lag = batch.timestamp.unwrap() - wire[0].as_f64().unwrap();
            assert!(lag.abs() < 1e-6, "{file}: {}", record.name);
            assert_eq!(batch.rank, wire[2].as_u64().map(|rank| DpRank::new(rank as u32)), "{file}: {}", record.name);
            assert_eq!(batch.events, expected, "{file}: {}", record.name);
            assert!(batch.bad_events.is_empty() && batch.num_unknown_events == 0, "{file}: {}", record.name);
            let skipped = decode_batch(record.payload(), TokenUse::Skip).unwrap();
            let expected: Vec<_> = expected.into_iter().map(without_tokens).collect();
            assert_eq!(skipped.events, expected, "{file}: {}, tokens skipped", record.name);
        }
    }
}

#[test]
fn every_recorded_replay_payload_is_a_batch() {
    for payload in golden::payloads(golden::REPLAY_FILES).iter().filter(|payload| !payload.is_empty()) {
        let batch = decode_batch(payload, TokenUse::Skip).unwrap();
        assert!(!batch.events.is_empty() && batch.bad_events.is_empty(), "{batch:?}");
    }
}
