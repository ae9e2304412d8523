//! The output of one request, token by token, while its slot is held.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{self, Stream};

use super::call::Delivery;
use super::cut::Cut;
use super::kv_cache::Lease;
use super::reply::Reply;
use super::slot::Slot;
use super::tokens;

/// What a generation is to produce, and how fast.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) output_tokens: u64,
    pub(super) token_time: Duration,
    pub(super) delivery: Delivery,
    /// Breaks a stream after so many chunks, at the latest before the closing one.
    pub(super) break_after: Option<u64>,
}

/// A request whose prompt has been computed. Dropping it aborts the request.
///
/// However it ends, its lease ends before its slot is free and before the last byte of the answer leaves: whoever sees
/// either sees a cache that has what was generated.
pub(super) struct Generation {
    lease: Lease,
    slot: Slot,
    reply: Reply,
    plan: Plan,
    started: Instant,
    opening: Option<Bytes>,
    num_generated: u64,
    num_chunks: u64,
}

impl Generation {
    pub(super) fn new(lease: Lease, slot: Slot, reply: Reply, plan: Plan, now: Instant) -> Self {
        let opening = reply.opening();
        Self { lease, slot, reply, plan, started: now, opening, num_generated: 0, num_chunks: 0 }
    }

    /// Generates everything and returns the body together with the slot, whose outcome is still open.
    pub(super) async fn into_unary(mut self) -> (Bytes, Slot) {
        while self.num_generated < self.plan.output_tokens {
            self.generate().await;
        }
        (self.reply.unary(self.num_generated), self.slot)
    }

    /// Generates as fast as the plan allows and the client reads. The slot is free once the closing chunk is ready.
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Cut>> {
        stream::unfold(Some(self), |generation| async move { Some(generation?.next_chunk().await) })
    }

    async fn next_chunk(mut self) -> (Result<Bytes, Cut>, Option<Self>) {
        if self.breaks_now() {
            let cut = Cut::after_flush().await;
            drop(self.lease);
            self.slot.fail();
            return (cut, None);
        }
        self.num_chunks += 1;
        if let Some(opening) = self.opening.take() {
            return (Ok(opening), Some(self));
        }
        if self.num_generated < self.plan.output_tokens {
            self.generate().await;
            return (Ok(self.reply.token(self.num_generated - 1)), Some(self));
        }
        let closing = self.reply.closing(self.num_generated, self.plan.delivery);
        drop(self.lease);
        self.slot.complete();
        (Ok(closing), None)
    }

    fn breaks_now(&self) -> bool {
        let only_closing_left = self.opening.is_none() && self.num_generated == self.plan.output_tokens;
        self.plan.break_after.is_some_and(|num_chunks| self.num_chunks >= num_chunks || only_closing_left)
    }

    async fn generate(&mut self) {
        let token = tokens::generated(self.num_generated);
        self.num_generated += 1;
        if !self.plan.token_time.is_zero() {
            self.wait_for_token().await;
        }
        self.lease.generated(token);
        self.slot.generated();
    }

    /// Tokens are due at fixed times after the start, so that timers that fire late do not add up.
    async fn wait_for_token(&self) {
        let num_tokens = u32::try_from(self.num_generated).unwrap_or(u32::MAX);
        match self.started.checked_add(self.plan.token_time.saturating_mul(num_tokens)) {
            Some(due) => tokio::time::sleep_until(due.into()).await,
            None => std::future::pending().await,
        }
    }
}
