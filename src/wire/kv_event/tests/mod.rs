//! Tests of [`super`].

mod forms;
mod hashes;
mod limits;
mod recorded;

use serde_json::Value;

use crate::logic::kv_event::{Attention, BlockKey, KvEvent, Medium, RemovedBlocks, StoredBlocks, TokenIds};
use crate::wire::golden::msgpack;
use crate::wire::kv_event::{KvBatch, TokenUse};

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
        is_opaque: false,
        group_idx: None,
        attention: Attention::Unsaid,
    }
}

fn removed(hashes: &[BlockKey]) -> KvEvent {
    KvEvent::Removed(RemovedBlocks { hashes: hashes.to_vec(), medium: None, group_idx: None })
}
