//! A batch of KV events as msgpack, in the form of SGLang 0.5.20 and later.
//!
//! A batch is an array of time, events and rank. An event is a map that begins with its type; ids are signed, parent and
//! adapter are there even when there is none, and a salt only when there is one.

use rmp_serde::Serializer;
use rmp_serde::encode::Error;
use serde::Serialize;

use super::prefix_cache::{CacheEvent, PageTokens, StoredPages};

/// Where all pages of the simulation are.
const MEDIUM: &str = "GPU";

/// Encodes a batch of one rank.
pub(super) fn encode_batch(events: &[CacheEvent], rank: u32, wall_seconds: f64) -> Result<Vec<u8>, Error> {
    let events: Vec<_> = events.iter().map(Event::from).collect();
    let mut bytes = Vec::new();
    (wall_seconds, events, rank).serialize(&mut Serializer::new(&mut bytes).with_struct_map())?;
    Ok(bytes)
}

/// An event as it is written; its fields are in the order of the engines.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Event<'a> {
    BlockStored {
        block_hashes: Vec<i64>,
        parent_block_hash: Option<i64>,
        token_ids: TokenIds<'a>,
        block_size: u32,
        lora_id: Option<i64>,
        medium: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_salt: Option<&'a str>,
    },
    BlockRemoved {
        block_hashes: Vec<i64>,
        medium: &'static str,
    },
    AllBlocksCleared,
}

#[derive(Serialize)]
#[serde(untagged)]
enum TokenIds<'a> {
    Single(&'a [u32]),
    Pairs(&'a [[u32; 2]]),
}

impl<'a> From<&'a CacheEvent> for Event<'a> {
    fn from(event: &'a CacheEvent) -> Self {
        match event {
            CacheEvent::Stored(StoredPages { keys, parent, tokens, page_size, salt }) => Self::BlockStored {
                block_hashes: signed(keys),
                parent_block_hash: parent.map(u64::cast_signed),
                token_ids: tokens.into(),
                block_size: *page_size,
                lora_id: None,
                medium: MEDIUM,
                cache_salt: salt.as_deref(),
            },
            CacheEvent::Removed(keys) => Self::BlockRemoved { block_hashes: signed(keys), medium: MEDIUM },
            CacheEvent::Cleared => Self::AllBlocksCleared,
        }
    }
}

impl<'a> From<&'a PageTokens> for TokenIds<'a> {
    fn from(tokens: &'a PageTokens) -> Self {
        match tokens {
            PageTokens::Single(tokens) => Self::Single(tokens),
            PageTokens::Pairs(pairs) => Self::Pairs(pairs),
        }
    }
}

fn signed(keys: &[u64]) -> Vec<i64> {
    keys.iter().map(|key| key.cast_signed()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::logic::kv_event::{KvEvent, Medium, TokenIds as DecodedIds};
    use crate::wire::kv_event::{TokenUse, decode_batch};

    const RECORDINGS: [&str; 2] = ["sglang-0.5.23-kv", "sglang-0.5.23-kv-engine"];

    fn recorded() -> Vec<Vec<u8>> {
        let texts = RECORDINGS.map(|name| {
            std::fs::read_to_string(format!("{}/tests/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"))).unwrap()
        });
        let lines: Vec<Value> = texts.iter().flat_map(|text| text.lines()).map(|line| line.parse().unwrap()).collect();
        lines.iter().map(|line| unhex(line["frames"][2].as_str().unwrap())).collect()
    }

    fn unhex(digits: &str) -> Vec<u8> {
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    fn words(keys: &[crate::logic::kv_event::BlockKey]) -> Vec<u64> {
        let word = |key: &_| match key {
            crate::logic::kv_event::BlockKey::Word(word) => *word,
            digest => panic!("{digest:?} in a recording of SGLang"),
        };
        keys.iter().map(word).collect()
    }

    /// Returns the event of this cache that a decoded one is, if this cache could have had it.
    fn own_event(event: &KvEvent) -> Option<CacheEvent> {
        match event {
            KvEvent::Cleared => Some(CacheEvent::Cleared),
            KvEvent::Removed(removed) => {
                (removed.medium == Some(Medium::Gpu)).then(|| CacheEvent::Removed(words(&removed.hashes)))
            }
            KvEvent::Stored(stored) => {
                let is_plain = stored.lora_id.is_none() && stored.lora_name.is_none() && !stored.hashes.is_empty();
                (is_plain && stored.medium == Some(Medium::Gpu)).then(|| {
                    CacheEvent::Stored(StoredPages {
                        keys: words(&stored.hashes),
                        parent: stored.parent.map(|parent| words(&[parent])[0]),
                        tokens: match &stored.token_ids {
                            DecodedIds::Flat(tokens) => PageTokens::Single(tokens.clone()),
                            DecodedIds::Pairs(pairs) => PageTokens::Pairs(pairs.clone()),
                            skipped => panic!("{skipped:?} although tokens are kept"),
                        },
                        page_size: stored.block_size,
                        salt: stored.cache_salt.clone(),
                    })
                })
            }
        }
    }

    #[test]
    fn batches_of_real_engines_are_encoded_to_the_same_bytes() {
        let mut num_equal = 0;
        for payload in recorded() {
            let batch = decode_batch(&payload, TokenUse::Keep).unwrap();
            let own: Vec<_> = batch.events.iter().map_while(own_event).collect();
            let rank = batch.rank.map(crate::logic::ids::DpRank::number);
            // Sessions are not decoded, and ids beyond 63 bits are no engine's: the recording has them as a test of decoders.
            let is_foreign = payload.windows(10).any(|name| name == b"session_id")
                || payload.windows(2).any(|integer| integer == [0xcf, 0xff] || integer == [0xcf, 0x80]);
            let (Some(rank), Some(wall_seconds), false) = (rank, batch.timestamp, is_foreign) else { continue };
            if own.len() == batch.events.len() && batch.bad_events.is_empty() && batch.num_unknown_events == 0 {
                assert_eq!(encode_batch(&own, rank, wall_seconds).unwrap(), payload, "{own:?}");
                num_equal += 1;
            }
        }
        assert!(num_equal >= 40, "only {num_equal} batches could be compared");
    }

    #[test]
    fn the_decoder_of_the_router_reads_every_kind_of_event_back() {
        let run = |tokens, salt: Option<&str>, parent| {
            CacheEvent::Stored(StoredPages {
                keys: vec![1, u64::MAX],
                parent,
                tokens,
                page_size: 1,
                salt: salt.map(Arc::from),
            })
        };
        let events = [
            CacheEvent::Cleared,
            run(PageTokens::Single(vec![0, u32::MAX]), None, None),
            run(PageTokens::Pairs(vec![[1, 2], [2, 3]]), Some(""), Some(1 << 63)),
            CacheEvent::Removed(vec![7, 1 << 63]),
        ];
        let batch = decode_batch(&encode_batch(&events, 3, 1.5).unwrap(), TokenUse::Keep).unwrap();
        assert!(batch.bad_events.is_empty());
        assert_eq!((batch.timestamp, batch.rank.map(crate::logic::ids::DpRank::number)), (Some(1.5), Some(3)));
        assert_eq!(batch.events.iter().filter_map(own_event).collect::<Vec<_>>(), events);
    }

    #[test]
    fn the_first_batch_of_an_engine_is_an_array_with_one_tagged_map() {
        let mut expected = vec![0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x91, 0x81, 0xa4];
        expected.extend(b"type\xb0AllBlocksCleared\x01");
        assert_eq!(encode_batch(&[CacheEvent::Cleared], 1, 1.0).unwrap(), expected);
    }
}
