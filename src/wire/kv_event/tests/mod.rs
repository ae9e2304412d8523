//! Tests of [`super`].

mod forms;
mod limits;
mod recorded;

use serde_json::Value;

use crate::wire::golden::msgpack;
use crate::wire::kv_event::{BlockKey, KvBatch, KvEvent, Medium, RemovedBlocks, StoredBlocks, TokenIds, TokenUse};

/// Decodes a batch, tokens kept, that must have no bad events.
fn decode(value: &Value) -> KvBatch {
    let batch = super::decode_batch(&msgpack(value), TokenUse::Keep).unwrap();
    assert!(batch.bad_events.is_empty(), "{batch:?}");
    batch
}

/// Returns a store of one block of four tokens on the GPU.
fn one_block(hash: u64) -> StoredBlocks {
    StoredBlocks {
        hashes: vec![BlockKey::from(hash)],
        parent: None,
        token_ids: TokenIds::Flat(vec![1, 2, 3, 4]),
        block_size: 4,
        medium: Some(Medium::Gpu),
        lora_id: None,
        lora_name: None,
        cache_salt: None,
        has_extra_keys: false,
        group_idx: None,
    }
}

fn removed(hashes: &[BlockKey]) -> KvEvent {
    KvEvent::Removed(RemovedBlocks { hashes: hashes.to_vec(), medium: None, group_idx: None })
}
