//! Spans that wait to be delivered: a bounded queue, from which one batch at a time is under way.
//!
//! A collector that is away for a moment loses nothing: its batch goes back to the front. While it is away the queue fills, and then
//! what comes is dropped; nobody waits for room. Every span ends under exactly one of the kinds that are counted: exported, rejected
//! (the collector took the batch without it), failed (it was refused, or could not be delivered until the end), dropped.

use std::collections::VecDeque;

use crate::logic::span::Span;

/// Spans kept, those under way included. One has some two kilobytes.
pub const MAX_SPANS: usize = 2_048;
/// Spans delivered at a time, at most.
pub const MAX_BATCH_SPANS: usize = 512;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The collector took it, but for so many spans.
    Taken {
        /// How many.
        num_rejected: u64,
    },
    /// The collector does not want it, and never will.
    Refused,
    /// The collector cannot be reached, or has no room now.
    Later,
}

impl Delivery {
    /// Returns what follows from the status of an answer that is not a success, by the rules of OTLP.
    pub fn of_refusal(status: u16) -> Self {
        if matches!(status, 429 | 502 | 503 | 504) { Self::Later } else { Self::Refused }
    }
}

/// How many spans have ended, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    /// The collector has them.
    pub exported: u64,
    /// The collector took their batch without them.
    pub rejected: u64,
    /// They could not be delivered.
    pub failed: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct SpanQueue {
    waiting: VecDeque<Span>,
    num_under_way: usize,
}

impl SpanQueue {
    /// Takes a span, unless there is no room. Returns whether it did.
    #[must_use]
    pub fn admit(&mut self, span: Span) -> bool {
        let has_room = self.waiting.len() + self.num_under_way < MAX_SPANS;
        if has_room {
            self.waiting.push_back(span);
        }
        has_room
    }

    /// Tells whether enough has come that it should not wait any longer.
    pub fn holds_a_batch(&self) -> bool {
        self.waiting.len() >= MAX_BATCH_SPANS
    }

    /// Tells whether a batch is under way.
    pub fn is_under_way(&self) -> bool {
        self.num_under_way > 0
    }

    /// Returns the next batch, which is under way until [`SpanQueue::settle`]. `None` where there is nothing, or one is under way.
    pub fn take(&mut self) -> Option<Vec<Span>> {
        if self.is_under_way() || self.waiting.is_empty() {
            return None;
        }
        let batch: Vec<Span> = self.waiting.drain(..self.waiting.len().min(MAX_BATCH_SPANS)).collect();
        self.num_under_way = batch.len();
        Some(batch)
    }

    /// Notes what became of the batch that was under way.
    pub fn settle(&mut self, batch: Vec<Span>, delivery: Delivery) -> Ended {
        debug_assert_eq!(batch.len(), self.num_under_way);
        self.num_under_way = 0;
        let num_spans = batch.len() as u64;
        match delivery {
            Delivery::Taken { num_rejected } => {
                let rejected = num_rejected.min(num_spans);
                Ended { exported: num_spans - rejected, rejected, failed: 0 }
            }
            Delivery::Refused => Ended { failed: num_spans, ..Ended::default() },
            Delivery::Later => {
                for span in batch.into_iter().rev() {
                    self.waiting.push_front(span);
                }
                Ended::default()
            }
        }
    }

    /// Gives up on what waits.
    pub fn give_up(&mut self) -> Ended {
        let failed = self.waiting.len() as u64;
        self.waiting.clear();
        Ended { failed, ..Ended::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Delivery, Ended, MAX_BATCH_SPANS, MAX_SPANS, SpanQueue};
    use crate::logic::rng::Rng;
    use crate::logic::span::Span;
    use crate::logic::trace_context::Place;

    fn span(number: u64) -> Span {
        let Place::Root(context) = Place::of(std::iter::empty(), &mut Rng::from_seed(number)) else { unreachable!() };
        Span {
            context,
            parent: None,
            name: String::new(),
            started_at_nanos: number,
            ended_at_nanos: number,
            is_failure: false,
            attributes: Vec::new(),
        }
    }

    fn full() -> SpanQueue {
        let mut queue = SpanQueue::default();
        assert!((0..MAX_SPANS as u64).all(|number| queue.admit(span(number))));
        queue
    }

    #[test]
    fn a_full_queue_takes_nothing_until_a_batch_is_delivered() {
        let mut queue = full();
        assert!(!queue.admit(span(0)));
        let batch = queue.take().expect("a batch");
        assert_eq!(batch.len(), MAX_BATCH_SPANS);
        assert!(!queue.admit(span(0)), "what is under way may come back");
        let ended = queue.settle(batch, Delivery::Taken { num_rejected: 0 });
        assert_eq!(ended, Ended { exported: MAX_BATCH_SPANS as u64, ..Ended::default() });
        assert!(queue.admit(span(0)));
    }

    #[test]
    fn one_batch_is_under_way_at_a_time() {
        let mut queue = full();
        let batch = queue.take().expect("a batch");
        assert!(queue.is_under_way() && queue.take().is_none());
        queue.settle(batch, Delivery::Refused);
        assert!(queue.take().is_some());
        assert!(SpanQueue::default().take().is_none());
    }

    #[test]
    fn a_batch_that_could_not_be_delivered_is_the_next_one_again() {
        let mut queue = full();
        let batch = queue.take().expect("a batch");
        assert_eq!(queue.settle(batch.clone(), Delivery::Later), Ended::default());
        assert_eq!(queue.take(), Some(batch));
    }

    #[test]
    fn every_span_ends_under_one_kind() {
        let of = |delivery| {
            let mut queue = SpanQueue::default();
            assert!(queue.admit(span(1)) && queue.admit(span(2)) && queue.admit(span(3)));
            let batch = queue.take().expect("a batch");
            let (settled, given_up) = (queue.settle(batch, delivery), queue.give_up());
            [settled.exported, settled.rejected, settled.failed + given_up.failed]
        };
        assert_eq!(of(Delivery::Taken { num_rejected: 0 }), [3, 0, 0]);
        assert_eq!(of(Delivery::Taken { num_rejected: 2 }), [1, 2, 0]);
        assert_eq!(of(Delivery::Taken { num_rejected: u64::MAX }), [0, 3, 0]);
        assert_eq!(of(Delivery::Refused), [0, 0, 3]);
        assert_eq!(of(Delivery::Later), [0, 0, 3]);
    }

    #[test]
    fn only_a_collector_without_room_is_asked_again() {
        for status in [429, 502, 503, 504] {
            assert_eq!(Delivery::of_refusal(status), Delivery::Later, "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500] {
            assert_eq!(Delivery::of_refusal(status), Delivery::Refused, "{status}");
        }
    }
}
