//! What each rank of the worker holds of a prompt, for the choice among them.

use std::time::Instant;

use crate::logic::ids::DpRank;
use crate::logic::prefix_index::meaning::mix_of_name;
use crate::logic::prefix_index::{PrefixIndex, place_of};
use crate::logic::prompt_keys::PromptKeys;

impl PrefixIndex {
    /// Appends, for each of the first `num_ranks` ranks, how many blocks of the prompt it holds and will probably hold soon.
    pub fn match_ranks(
        &mut self,
        prompt: &PromptKeys,
        adapter: Option<&str>,
        num_ranks: usize,
        now: Instant,
        found: &mut Vec<u32>,
    ) {
        let end = found.len() + num_ranks;
        if let Some(keys) = self.variant().and_then(|variant| prompt.keys(variant)) {
            let mix = adapter.map_or(0, mix_of_name);
            self.predicted.expire(now);
            for rank in 0..num_ranks as u32 {
                let held = self.held_by(DpRank::new(rank), keys, mix);
                found.push((held + self.predicted.depth_at(rank, keys, mix, held)) as u32);
            }
        }
        found.resize(end, 0);
    }

    pub(super) fn held_by(&mut self, rank: DpRank, keys: &[u64], mix: u64) -> usize {
        let (table, lane) = place_of(rank);
        let believed = self.believed.get(table).copied().unwrap_or(0) & (1 << lane);
        self.tables
            .get_mut(table)
            .filter(|_| believed != 0)
            .map_or(0, |table| table.depth(keys, mix, believed).num_blocks)
    }
}
