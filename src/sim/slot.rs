//! The guard that holds a request's place, in the queue or in a slot, for as long as somebody waits for the answer.
//!
//! A handler or a response body owns its [`Slot`]. When the client leaves, actix-web drops either of them, and the
//! slot with it: the place is free at once and the request counts as aborted. Nothing has to notice, and nothing can
//! forget.

use std::collections::HashMap;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::oneshot;

use super::clock;
use super::load_frame::Reported;
use super::lock::lock;
use super::scheduler::{Outcome, Prefill, RankOutOfRange, Scheduler, Start, Ticket};
use super::stats::RankStats;

/// The scheduler as the threads of an engine share it.
pub(super) struct SlotPool {
    queue: Mutex<Queue>,
    /// Rung after every change. It holds one ring: the publisher reads the loads themselves, so that a second ring
    /// before the first is heard says nothing new, and a ring that nobody hears is no loss.
    changed: SyncSender<()>,
}

struct Queue {
    scheduler: Scheduler,
    turns: HashMap<Ticket, oneshot::Sender<()>>,
}

impl SlotPool {
    pub(super) fn new(scheduler: Scheduler, changed: SyncSender<()>) -> Self {
        Self { queue: Mutex::new(Queue { scheduler, turns: HashMap::new() }), changed }
    }

    /// Queues a request and waits until it has a slot.
    pub(super) async fn admit(
        self: &Arc<Self>,
        named_rank: Option<u32>,
        prompt_tokens: u64,
    ) -> Result<Slot, RankOutOfRange> {
        let (slot, turn) = self.enqueue(named_rank, prompt_tokens)?;
        if let Some(turn) = turn {
            // The other end is dropped by `finish` only, which this very slot calls: an error cannot arrive here.
            let _ = turn.await;
        }
        Ok(slot)
    }

    /// Tells the publisher to look at the loads again.
    pub(super) fn ring(&self) {
        // Full or without a listener: see `changed`.
        let _ = self.changed.try_send(());
    }

    pub(super) fn loads(&self) -> Vec<Reported> {
        lock(&self.queue).scheduler.loads()
    }

    pub(super) fn rank_stats(&self) -> Vec<RankStats> {
        lock(&self.queue).scheduler.rank_stats()
    }

    pub(super) fn recent_aborts(&self) -> Vec<Instant> {
        lock(&self.queue).scheduler.recent_aborts()
    }

    fn enqueue(
        self: &Arc<Self>,
        named_rank: Option<u32>,
        prompt_tokens: u64,
    ) -> Result<(Slot, Option<oneshot::Receiver<()>>), RankOutOfRange> {
        let mut queue = lock(&self.queue);
        let (ticket, start) = queue.scheduler.place(named_rank, prompt_tokens)?;
        let turn = match start {
            Start::Now => None,
            Start::Queued => {
                let (sender, turn) = oneshot::channel();
                queue.turns.insert(ticket, sender);
                Some(turn)
            }
        };
        drop(queue);
        self.ring();
        Ok((Slot { pool: Arc::clone(self), ticket, outcome: Outcome::Aborted }, turn))
    }

    fn change(&self, apply: impl FnOnce(&mut Scheduler)) {
        apply(&mut lock(&self.queue).scheduler);
        self.ring();
    }

    fn finish(&self, ticket: Ticket, outcome: Outcome) {
        let mut queue = lock(&self.queue);
        queue.turns.remove(&ticket);
        let next = queue.scheduler.finish(ticket, outcome, clock::now());
        if let Some(turn) = next.and_then(|next| queue.turns.remove(&next)) {
            // A client that left at this moment drops its own slot, which promotes the one after it.
            let _ = turn.send(());
        }
        drop(queue);
        self.ring();
    }
}

/// A request's place. Dropping it aborts the request.
pub(super) struct Slot {
    pool: Arc<SlotPool>,
    ticket: Ticket,
    outcome: Outcome,
}

impl Slot {
    /// Returns a number that no other request of this engine has.
    pub(super) fn id(&self) -> u64 {
        self.ticket.id
    }

    /// Returns the rank that the request was given to.
    pub(super) fn rank(&self) -> u32 {
        self.ticket.rank
    }

    pub(super) fn prefilled(&self, prefill: Prefill) {
        self.pool.change(|scheduler| scheduler.prefilled(self.ticket, prefill));
    }

    pub(super) fn generated(&self) {
        self.pool.change(|scheduler| scheduler.generated(self.ticket));
    }

    /// Frees the place of a request that got all its tokens.
    pub(super) fn complete(mut self) {
        self.outcome = Outcome::Completed;
    }

    /// Frees the place of a request that the engine broke off.
    pub(super) fn fail(mut self) {
        self.outcome = Outcome::Failed;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.finish(self.ticket, self.outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use futures::FutureExt;

    use super::super::scheduler::RankLimits;
    use super::*;

    fn pool_of_one_slot() -> Arc<SlotPool> {
        let limits = RankLimits { max_running: 1, max_total_tokens: 1000 };
        let (changed, _) = sync_channel(1);
        Arc::new(SlotPool::new(Scheduler::new(1, limits), changed))
    }

    fn counts(pool: &SlotPool) -> RankStats {
        pool.rank_stats()[0]
    }

    #[test]
    fn a_dropped_slot_is_an_abort_and_lets_the_next_request_in() {
        let pool = pool_of_one_slot();
        let first = pool.admit(None, 1).now_or_never().unwrap().unwrap();
        let mut second = Box::pin(pool.admit(None, 1));
        assert!(second.as_mut().now_or_never().is_none());

        drop(first);
        second.now_or_never().unwrap().unwrap().complete();
        assert_eq!(counts(&pool), RankStats { completed: 1, aborted: 1, ..RankStats::default() });
    }

    #[test]
    fn a_waiting_request_that_is_dropped_leaves_the_queue() {
        let pool = pool_of_one_slot();
        let first = pool.admit(None, 1).now_or_never().unwrap().unwrap();
        assert!(pool.admit(None, 1).now_or_never().is_none());
        assert_eq!(counts(&pool), RankStats { running: 1, aborted: 1, ..RankStats::default() });

        first.fail();
        assert_eq!(counts(&pool), RankStats { failed: 1, aborted: 1, ..RankStats::default() });
        assert!(lock(&pool.queue).turns.is_empty());
    }

    #[test]
    fn a_request_that_leaves_between_its_promotion_and_its_next_poll_passes_the_slot_on() {
        let pool = pool_of_one_slot();
        let first = pool.admit(None, 1).now_or_never().unwrap().unwrap();
        let mut second = Box::pin(pool.admit(None, 1));
        assert!(second.as_mut().now_or_never().is_none());
        let mut third = Box::pin(pool.admit(None, 1));
        assert!(third.as_mut().now_or_never().is_none());

        first.complete();
        drop(second);
        assert!(third.now_or_never().is_some());
    }
}
