//! Requests of one round that share a prefix. The answers of a round were given before its first decision, so that none of them
//! tells what the round's earlier decisions will bring; without this a burst of siblings would scatter within its round.

use std::sync::Arc;

use crate::logic::ids::DpRank;
use crate::logic::policy::PrefixMatch;
use crate::logic::prompt_keys::PromptKeys;
use crate::logic::snapshot::WorkerSnapshot;

/// Earlier decisions of a round that are looked at, newest first: enough for a burst, and a bound on a round of thousands.
const MAX_SIBLINGS: usize = 64;

/// The prompts that a round has decided on so far, with the slots they went to.
#[derive(Debug, Default)]
pub struct Siblings {
    decided: Vec<(usize, Option<DpRank>, Arc<PromptKeys>)>,
}

impl Siblings {
    /// Begins a round.
    pub fn clear(&mut self) {
        self.decided.clear();
    }

    /// Notes a decision.
    pub fn note(&mut self, slot: usize, rank: Option<DpRank>, prompt: &Arc<PromptKeys>) {
        self.decided.push((slot, rank, Arc::clone(prompt)));
    }

    /// Raises what each slot will probably hold of the prompt by what earlier decisions bring there.
    pub fn raise(&self, prompt: &PromptKeys, slots: &[Option<Arc<WorkerSnapshot>>], matches: &mut [PrefixMatch]) {
        for (slot, _, sibling) in self.decided.iter().rev().take(MAX_SIBLINGS) {
            let Some(Some(snapshot)) = slots.get(*slot) else { continue };
            let Some(variant) = snapshot.kv.variant.filter(|_| prompt.is_same_namespace(sibling)) else { continue };
            let (Some(own), Some(others), Some(found)) =
                (prompt.keys(variant), sibling.keys(variant), matches.get_mut(*slot))
            else {
                continue;
            };
            let shared = shared_prefix(own, others) as u32;
            let known = found.matched_blocks + found.predicted_blocks;
            if shared > known {
                found.predicted_blocks += shared - known;
                found.prompt_blocks = own.len() as u32;
            }
        }
    }
}

impl Siblings {
    /// Raises what each rank of the slot's worker will probably hold of the prompt in the same way.
    pub fn raise_ranks(&self, prompt: &PromptKeys, slot: usize, worker: &WorkerSnapshot, held: &mut [u32]) {
        let Some(variant) = worker.kv.variant else { return };
        let newest = self.decided.iter().rev().take(MAX_SIBLINGS);
        for (_, rank, sibling) in newest.filter(|(other, ..)| *other == slot) {
            let Some(held) = rank.and_then(|rank| held.get_mut(rank.index())) else { continue };
            if let (true, Some(own), Some(others)) =
                (prompt.is_same_namespace(sibling), prompt.keys(variant), sibling.keys(variant))
            {
                *held = (*held).max(shared_prefix(own, others) as u32);
            }
        }
    }
}

/// Keys stand for whole prefixes: where two are equal, so are all before them.
fn shared_prefix(own: &[u64], others: &[u64]) -> usize {
    let (mut low, mut high) = (0, own.len().min(others.len()));
    if high == 0 || own[0] != others[0] {
        return 0;
    }
    // The first `low` are equal, and no more than `high` are.
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if own[middle - 1] == others[middle - 1] {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Siblings, shared_prefix};
    use crate::logic::block_hash::prompt_keys;
    use crate::logic::ids::{DpRank, WorkerId};
    use crate::logic::policy::PrefixMatch;
    use crate::logic::prompt_keys::{HashMode, HashVariant, PromptKeys};
    use crate::logic::snapshot::{KvView, WorkerSnapshot};
    use crate::logic::testing::url;

    const VARIANT: HashVariant = HashVariant { block_size: 4, mode: HashMode::Engine { is_bigram: false } };

    fn prompt(tokens: &[u32]) -> Arc<PromptKeys> {
        let keys = prompt_keys(tokens, VARIANT, None);
        Arc::new(PromptKeys::new(tokens.len() as u32, vec![(VARIANT, keys.into())]))
    }

    fn slots() -> Vec<Option<Arc<WorkerSnapshot>>> {
        let worker = |number, variant| {
            let mut snapshot = WorkerSnapshot::new(WorkerId::new(number), url("10.0.0.1:1"));
            snapshot.kv = Arc::new(KvView { variant, ..KvView::default() });
            Some(Arc::new(snapshot))
        };
        vec![worker(0, Some(VARIANT)), worker(1, Some(VARIANT)), None, worker(3, None)]
    }

    #[test]
    fn a_sibling_of_the_same_round_counts_where_it_went() {
        let (first, second): (Vec<u32>, Vec<u32>) = ((0..40).collect(), (0..20).chain(90..110).collect());
        let mut siblings = Siblings::default();
        siblings.note(1, None, &prompt(&first));
        siblings.note(2, None, &prompt(&first));
        siblings.note(3, None, &prompt(&first));
        siblings.note(99, None, &prompt(&first));
        let mut matches = vec![PrefixMatch::of_blocks(3, 10), PrefixMatch::of_blocks(3, 10), PrefixMatch::default()];
        siblings.raise(&prompt(&second), &slots(), &mut matches);
        let found: Vec<_> = matches.iter().map(|found| (found.matched_blocks, found.predicted_blocks)).collect();
        assert_eq!(found, [(3, 0), (3, 2), (0, 0)], "two more than are confirmed, at that worker only");
        siblings.raise(&prompt(&second), &slots(), &mut matches);
        assert_eq!(matches[1].predicted_blocks, 2, "and no more by looking twice");
        siblings.clear();
        let mut matches = vec![PrefixMatch::default(); 2];
        siblings.raise(&prompt(&second), &slots(), &mut matches);
        assert_eq!(matches, [PrefixMatch::default(); 2]);
    }

    #[test]
    fn a_sibling_of_another_adapter_is_none() {
        let tokens: Vec<u32> = (0..40).collect();
        let adapter = PromptKeys::clone(&prompt(&tokens)).with_adapter(Some("a".into()));
        let mut siblings = Siblings::default();
        siblings.note(1, None, &Arc::new(adapter));
        let mut matches = vec![PrefixMatch::default(); 2];
        siblings.raise(&prompt(&tokens), &slots(), &mut matches);
        assert_eq!(matches[1].predicted_blocks, 0);
    }

    #[test]
    fn the_shared_prefix_is_found_wherever_it_ends() {
        let own: Vec<u64> = (1..=9).collect();
        for len in 0..=9 {
            let others: Vec<u64> = (1..=len).chain(100..105).collect();
            assert_eq!(shared_prefix(&own, &others), len as usize);
            assert_eq!(shared_prefix(&others, &own), len as usize);
        }
        assert_eq!(shared_prefix(&own, &own), 9);
        assert_eq!(shared_prefix(&own, &[]), 0);
    }

    #[test]
    fn a_sibling_counts_at_the_rank_it_went_to() {
        let (first, second): (Vec<u32>, Vec<u32>) = ((0..40).collect(), (0..20).chain(90..110).collect());
        let slots = slots();
        let worker = slots[1].as_deref().expect("a worker");
        let mut siblings = Siblings::default();
        siblings.note(1, Some(DpRank::new(2)), &prompt(&first));
        siblings.note(0, Some(DpRank::new(0)), &prompt(&first));
        siblings.note(1, None, &prompt(&first));
        siblings.note(1, Some(DpRank::new(9)), &prompt(&first));
        let mut held = [1, 0, 3, 0];
        siblings.raise_ranks(&prompt(&second), 1, worker, &mut held);
        assert_eq!(held, [1, 0, 5, 0]);
    }
}
