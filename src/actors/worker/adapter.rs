//! Which LoRA adapter's blocks count for a request at one worker.

use crate::logic::endpoint::WorkerFacts;
use crate::logic::prefix_index::PrefixIndex;
use crate::logic::prompt_keys::PromptKeys;

/// Returns the LoRA adapter that the request wants of this worker: one that it names beside the model, or a model that this worker
/// serves as an adapter.
pub(super) fn adapter_of<'a>(prompt: &'a PromptKeys, facts: &WorkerFacts, index: &PrefixIndex) -> Option<&'a str> {
    let is_adapter =
        |model: &&str| facts.adapters.iter().any(|adapter| **adapter == **model) || index.knows_adapter(model);
    prompt.adapter().or_else(|| prompt.model().filter(is_adapter))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::adapter_of;
    use crate::logic::endpoint::WorkerFacts;
    use crate::logic::ids::DpRank;
    use crate::logic::kv_event::{Attention, BlockKey, KvEvent, StoredBlocks, TokenIds};
    use crate::logic::prefix_index::PrefixIndex;
    use crate::logic::prompt_keys::PromptKeys;

    fn stored_for(adapter: &str) -> KvEvent {
        KvEvent::Stored(StoredBlocks {
            hashes: vec![BlockKey::from(1_u64)],
            parent: None,
            token_ids: TokenIds::Skipped { count: 4 },
            block_size: 4,
            medium: None,
            lora_id: None,
            lora_name: Some(adapter.into()),
            cache_salt: None,
            is_opaque: false,
            group_idx: None,
            attention: Attention::Unsaid,
        })
    }

    #[test]
    fn a_model_is_an_adapter_where_the_worker_lists_it_as_one_or_has_its_blocks() {
        let facts = WorkerFacts { adapters: Arc::from([Arc::from("listed")]), ..WorkerFacts::default() };
        let mut index = PrefixIndex::new(1 << 20, None);
        let _ = index.apply(DpRank::new(0), &stored_for("seen"));
        let rows = [
            ("the base model", Some("base"), None, None),
            ("no model", None, None, None),
            ("an adapter of the model list", Some("listed"), None, Some("listed")),
            ("an adapter that only events name", Some("seen"), None, Some("seen")),
            ("an adapter named beside the model", Some("base"), Some("a"), Some("a")),
        ];
        for (sentence, model, adapter, expected) in rows {
            let prompt =
                PromptKeys::new(4, Vec::new()).of_model(model.map(Arc::from)).with_adapter(adapter.map(Arc::from));
            assert_eq!(adapter_of(&prompt, &facts, &index), expected, "{sentence}");
        }
    }
}
