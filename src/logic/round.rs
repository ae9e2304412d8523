//! One round of questions: a slot for each worker's answer, and a count of who is still to answer.
//!
//! Each worker gets a [`Token`]. It answers by filling its slot, and either way the token's drop counts it as done, so that a
//! dead actor, a full mailbox or a panicking handler completes the round with an empty slot instead of holding it up. A round that
//! nobody reads any more can still be filled: that is how a worker that was late shows that it is alive.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crate::logic::policy::PrefixMatch;
use crate::logic::prompt_keys::PromptKeys;
use crate::logic::snapshot::WorkerSnapshot;

/// The prompts of one round's requests that are known as tokens. Their places in here are those of the answers.
pub type Prompts = Arc<[Arc<PromptKeys>]>;

/// What one worker said in one round.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its state.
    pub snapshot: Arc<WorkerSnapshot>,
    /// What it holds of each of the round's prompts; may be shorter where it holds nothing of the rest.
    pub matches: Vec<PrefixMatch>,
    /// What each of its ranks holds of them in blocks, prompt by prompt; empty where its engine takes no rank.
    pub rank_blocks: Vec<u32>,
}

/// The slots of one round.
#[derive(Debug)]
pub struct Round {
    slots: Box<[OnceLock<Answer>]>,
    prompts: Prompts,
    num_open: AtomicUsize,
    on_complete: Waker,
}

impl Round {
    /// Returns a round with one empty slot per worker. `on_complete` is woken when no token is open any more.
    pub fn new(num_workers: usize, prompts: Prompts, on_complete: Waker) -> Arc<Self> {
        let slots = (0..num_workers).map(|_| OnceLock::new()).collect();
        Arc::new(Self { slots, prompts, num_open: AtomicUsize::new(0), on_complete })
    }

    /// Hands out the token of a slot.
    pub fn token(self: &Arc<Self>, slot: usize) -> Token {
        self.num_open.fetch_add(1, Ordering::Relaxed);
        Token { round: Arc::clone(self), slot }
    }

    /// Tells whether every token that was handed out is gone.
    pub fn is_complete(&self) -> bool {
        self.num_open.load(Ordering::Acquire) == 0
    }

    /// Returns the number of answers so far.
    pub fn num_filled(&self) -> usize {
        self.slots.iter().filter(|slot| slot.get().is_some()).count()
    }

    /// Tells whether the slot was filled, in time or not.
    pub fn is_filled(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.get().is_some())
    }

    /// Copies the answers so far into the buffer, one entry per slot. Answers that come later do not change it: the view stays
    /// frozen.
    pub fn freeze_into(&self, view: &mut Vec<Option<Arc<WorkerSnapshot>>>) {
        view.clear();
        view.extend(self.slots.iter().map(|slot| slot.get().map(|answer| Arc::clone(&answer.snapshot))));
    }

    /// Copies what each worker holds of one of the round's prompts into the buffer, one entry per slot.
    pub fn matches_into(&self, prompt: usize, matches: &mut Vec<PrefixMatch>) {
        let of_slot = |slot: &OnceLock<Answer>| slot.get().and_then(|answer| answer.matches.get(prompt).copied());
        matches.clear();
        matches.extend(self.slots.iter().map(|slot| of_slot(slot).unwrap_or_default()));
    }

    /// Returns what each rank of the slot's worker holds of one of the round's prompts.
    pub fn rank_blocks(&self, slot: usize, prompt: usize) -> &[u32] {
        let Some(answer) = self.slots.get(slot).and_then(OnceLock::get) else { return &[] };
        let num_ranks = answer.snapshot.addressed_ranks as usize;
        answer.rank_blocks.get(prompt * num_ranks..(prompt + 1) * num_ranks).unwrap_or_default()
    }
}

/// The right to fill one slot, once.
#[derive(Debug)]
pub struct Token {
    round: Arc<Round>,
    slot: usize,
}

impl Token {
    /// Returns the prompts of the round's requests.
    pub fn prompts(&self) -> &Prompts {
        &self.round.prompts
    }

    /// Answers for this slot, knowing nothing of the prompts.
    pub fn fill(self, snapshot: Arc<WorkerSnapshot>) {
        self.fill_with(Answer { snapshot, matches: Vec::new(), rank_blocks: Vec::new() });
    }

    /// Answers for this slot, with what the worker holds of each of the round's prompts.
    pub fn fill_with(self, answer: Answer) {
        if let Some(slot) = self.round.slots.get(self.slot) {
            // A slot has one token and this consumes it, so the slot is empty.
            drop(slot.set(answer));
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if self.round.num_open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.round.on_complete.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use super::Round;
    use crate::logic::endpoint::WorkerUrl;
    use crate::logic::ids::WorkerId;
    use crate::logic::snapshot::WorkerSnapshot;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn snapshot(number: u64) -> Arc<WorkerSnapshot> {
        let url = WorkerUrl::parse("http://127.0.0.1:1").expect("a valid address");
        Arc::new(WorkerSnapshot::new(WorkerId::new(number), url))
    }

    #[test]
    fn a_dropped_token_completes_the_round_with_an_empty_slot() {
        let wakes = Arc::new(CountingWaker::default());
        let round = Round::new(2, Arc::default(), Waker::from(Arc::clone(&wakes)));
        let (answers, dies) = (round.token(0), round.token(1));
        answers.fill(snapshot(7));
        assert!(!round.is_complete());
        drop(dies);
        assert!(round.is_complete());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the selector is woken once, by the last token");
        let mut view = Vec::new();
        round.freeze_into(&mut view);
        assert_eq!(view[0].as_ref().map(|worker| worker.id), Some(WorkerId::new(7)));
        assert!(view[1].is_none());
    }

    #[test]
    fn an_answer_after_the_freeze_does_not_change_the_view() {
        let round = Round::new(1, Arc::default(), Waker::noop().clone());
        let late = round.token(0);
        let mut view = Vec::new();
        round.freeze_into(&mut view);
        late.fill(snapshot(1));
        assert!(view[0].is_none());
        assert!(round.is_filled(0), "the late answer still shows that the worker lives");
    }
}
