//! Which ways of keying blocks are in use for a model, so that a prompt's keys are made once, before its round, and for no worker
//! that is not there.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashMap;

use crate::logic::ids::WorkerId;
use crate::logic::prompt_keys::HashVariant;

/// Names of models.
type Models = Arc<[Arc<str>]>;

/// What workers have posted. Cheap to clone; clones are the same board.
#[derive(Debug, Clone, Default)]
pub struct VariantBoard(Arc<RwLock<Posted>>);

#[derive(Debug, Default)]
struct Posted {
    workers: BTreeMap<WorkerId, (HashVariant, Models)>,
    /// Made anew at each change: read for every request, changed when a worker comes, goes or learns how its engine hashes.
    by_model: FxHashMap<Arc<str>, Arc<[HashVariant]>>,
    all: Arc<[HashVariant]>,
}

impl VariantBoard {
    /// Posts how a worker's blocks are keyed, and for which models. The post is taken down with the returned guard.
    pub fn post(&self, worker: WorkerId, variant: HashVariant, models: Models) -> Post {
        self.change(|posted| {
            posted.workers.insert(worker, (variant, models));
        });
        Post { board: self.clone(), worker, variant }
    }

    /// Returns the variants in use for the model, or for any where none is named.
    pub fn in_use(&self, model: Option<&str>) -> Arc<[HashVariant]> {
        let posted = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match model {
            Some(model) => posted.by_model.get(model).cloned().unwrap_or_default(),
            None => Arc::clone(&posted.all),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Posted)) {
        let mut posted = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut posted);
        let mut by_model: FxHashMap<Arc<str>, Vec<HashVariant>> = FxHashMap::default();
        let mut all = Vec::new();
        for (variant, models) in posted.workers.values() {
            add(&mut all, *variant);
            for model in models.iter() {
                add(by_model.entry(Arc::clone(model)).or_default(), *variant);
            }
        }
        posted.by_model = by_model.into_iter().map(|(model, variants)| (model, variants.into())).collect();
        posted.all = all.into();
    }
}

fn add(variants: &mut Vec<HashVariant>, variant: HashVariant) {
    if !variants.contains(&variant) {
        variants.push(variant);
    }
}

/// One worker's post; dropping it takes it down.
#[derive(Debug)]
pub struct Post {
    board: VariantBoard,
    worker: WorkerId,
    variant: HashVariant,
}

impl Post {
    /// Returns what is posted.
    pub fn variant(&self) -> HashVariant {
        self.variant
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let (worker, variant) = (self.worker, self.variant);
        self.board.change(|posted| {
            // A later post of the same worker is not this one's to take down.
            if posted.workers.get(&worker).is_some_and(|(posted, _)| *posted == variant) {
                posted.workers.remove(&worker);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::VariantBoard;
    use crate::logic::ids::WorkerId;
    use crate::logic::prompt_keys::{HashMode, HashVariant};

    fn variant(block_size: u32) -> HashVariant {
        HashVariant { block_size, mode: HashMode::Engine { is_bigram: false } }
    }

    #[test]
    fn a_model_has_the_variants_of_the_workers_that_serve_it() {
        let board = VariantBoard::default();
        let models = |names: &[&str]| -> Arc<[Arc<str>]> { names.iter().map(|name| Arc::from(*name)).collect() };
        let first = board.post(WorkerId::new(1), variant(16), models(&["a", "b"]));
        let second = board.post(WorkerId::new(2), variant(64), models(&["b"]));
        let third = board.post(WorkerId::new(3), variant(64), models(&["b"]));
        assert_eq!(*board.in_use(Some("a")), [variant(16)]);
        assert_eq!(*board.in_use(Some("b")), [variant(16), variant(64)], "each once");
        assert_eq!(*board.in_use(None), [variant(16), variant(64)]);
        assert!(board.in_use(Some("c")).is_empty());
        drop(first);
        assert!(board.in_use(Some("a")).is_empty());
        drop(second);
        assert_eq!(*board.in_use(Some("b")), [variant(64)]);
        let newer = board.post(WorkerId::new(3), variant(32), models(&["b"]));
        drop(third);
        assert_eq!(*board.in_use(Some("b")), [variant(32)], "the older post does not take down the newer one");
        drop(newer);
        assert!(board.in_use(None).is_empty());
    }
}
