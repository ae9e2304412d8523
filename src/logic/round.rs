//! One round of questions: a slot for each worker's answer, and a count of who is still to answer.
//!
//! Each worker gets a [`Token`]. It answers by filling its slot, and either way the token's drop counts it as done, so that a
//! dead actor, a full mailbox or a panicking handler completes the round with an empty slot instead of holding it up. Tokens of
//! workers that the round does not wait for (they missed an earlier one) fill their slot if they are in time and hold up nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crate::logic::snapshot::WorkerSnapshot;

/// The slots of one round.
#[derive(Debug)]
pub struct Round {
    slots: Box<[OnceLock<Arc<WorkerSnapshot>>]>,
    num_awaited: AtomicUsize,
    on_complete: Waker,
}

impl Round {
    /// Returns a round with one empty slot per worker, of whom none is awaited yet. `on_complete` is woken when the last awaited
    /// token is gone.
    pub fn new(num_workers: usize, on_complete: Waker) -> Arc<Self> {
        let slots = (0..num_workers).map(|_| OnceLock::new()).collect();
        Arc::new(Self { slots, num_awaited: AtomicUsize::new(0), on_complete })
    }

    /// Hands out the token of a slot.
    pub fn token(self: &Arc<Self>, slot: usize, is_awaited: bool) -> Token {
        if is_awaited {
            self.num_awaited.fetch_add(1, Ordering::Relaxed);
        }
        Token { round: Arc::clone(self), slot, is_awaited }
    }

    /// Tells whether nobody is awaited any more.
    pub fn is_complete(&self) -> bool {
        self.num_awaited.load(Ordering::Acquire) == 0
    }

    /// Returns the number of answers so far.
    pub fn num_filled(&self) -> usize {
        self.slots.iter().filter(|slot| slot.get().is_some()).count()
    }

    /// Copies the answers so far into the buffer, one entry per slot. Answers that come later do not change it: the view stays
    /// frozen.
    pub fn freeze_into(&self, view: &mut Vec<Option<Arc<WorkerSnapshot>>>) {
        view.clear();
        view.extend(self.slots.iter().map(|slot| slot.get().cloned()));
    }
}

/// The right to fill one slot, once.
#[derive(Debug)]
pub struct Token {
    round: Arc<Round>,
    slot: usize,
    is_awaited: bool,
}

impl Token {
    /// Answers for this slot.
    pub fn fill(self, snapshot: Arc<WorkerSnapshot>) {
        if let Some(slot) = self.round.slots.get(self.slot) {
            // A slot has one token and `fill` consumes it, so the slot is empty.
            drop(slot.set(snapshot));
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if self.is_awaited && self.round.num_awaited.fetch_sub(1, Ordering::AcqRel) == 1 {
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
        let round = Round::new(2, Waker::from(Arc::clone(&wakes)));
        let (answers, dies) = (round.token(0, true), round.token(1, true));
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
    fn a_token_that_is_not_awaited_holds_up_nothing() {
        let round = Round::new(2, Waker::noop().clone());
        let _hangs = round.token(0, false);
        round.token(1, true).fill(snapshot(1));
        assert!(round.is_complete());
        assert_eq!(round.num_filled(), 1);
    }

    #[test]
    fn an_answer_after_the_freeze_does_not_change_the_view() {
        let round = Round::new(1, Waker::noop().clone());
        let late = round.token(0, true);
        let mut view = Vec::new();
        round.freeze_into(&mut view);
        late.fill(snapshot(1));
        assert!(view[0].is_none());
    }
}
