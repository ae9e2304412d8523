//! Runs one round after the other, as long as requests wait.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use actix::prelude::{ActorFuture, Context};
use futures::Future;

use crate::actors::selector::{SelectorActor, Waiting};
use crate::clock;
use crate::logic::round::Round;
use crate::messages::WorkerPorts;

/// A round in which nobody has answered by its deadline goes on waiting for a first answer, up to this long: a decision needs one.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before requests that wait for room are tried again.
const PAUSE_WHILE_FULL: Duration = Duration::from_millis(5);

/// A round that is under way, and whom it will serve.
pub(super) struct OpenRound {
    pub(super) round: Arc<Round>,
    pub(super) workers: Arc<[Arc<WorkerPorts>]>,
    pub(super) requests: VecDeque<Waiting>,
    pub(super) started_at: Instant,
}

/// Runs one round after the other as long as requests wait. The actor's context polls it after each batch of messages, so every
/// request that was in the mailbox joins the round that starts then.
pub(super) struct RoundDriver {
    open: Option<OpenRound>,
    alarm: Pin<Box<tokio::time::Sleep>>,
    /// Whether the alarm is set for requests that wait for room.
    is_pausing: bool,
}

impl RoundDriver {
    pub(super) fn new() -> Self {
        Self { open: None, alarm: Box::pin(tokio::time::sleep(Duration::ZERO)), is_pausing: false }
    }

    fn set_alarm(&mut self, at: Instant) {
        self.alarm.as_mut().reset(tokio::time::Instant::from_std(at));
    }

    /// Tells whether it is time to see whether a worker has room again, and arms the alarm for when it is.
    fn may_try_again(&mut self, context: &mut TaskContext<'_>) -> bool {
        if !std::mem::replace(&mut self.is_pausing, true) {
            self.set_alarm(clock::now() + PAUSE_WHILE_FULL);
        }
        let is_time = self.alarm.as_mut().poll(context).is_ready();
        self.is_pausing = !is_time;
        is_time
    }

    /// Tells whether the open round may end, and arms the alarm for when that may change.
    fn is_over(&mut self, open: &OpenRound, deadline: Duration, context: &mut TaskContext<'_>) -> bool {
        if open.round.is_complete() {
            return true;
        }
        while self.alarm.as_mut().poll(context).is_ready() {
            let waited = clock::now().saturating_duration_since(open.started_at);
            if waited >= FIRST_ANSWER_TIMEOUT || (waited >= deadline && open.round.num_filled() > 0) {
                return true;
            }
            self.set_alarm(clock::now() + deadline.max(Duration::from_millis(1)));
        }
        false
    }
}

impl ActorFuture<SelectorActor> for RoundDriver {
    type Output = ();

    fn poll(
        mut self: Pin<&mut Self>,
        selector: &mut SelectorActor,
        _ctx: &mut Context<SelectorActor>,
        context: &mut TaskContext<'_>,
    ) -> Poll<()> {
        loop {
            let Some(open) = self.open.take() else {
                let is_idle = selector.waiting.borrow().is_empty();
                if is_idle && (selector.parked.is_empty() || !self.may_try_again(context)) {
                    return Poll::Pending;
                }
                self.is_pausing = false;
                let open = selector.start_round(context);
                self.set_alarm(open.started_at + selector.settings.round_deadline);
                self.open = Some(open);
                continue;
            };
            if !self.is_over(&open, selector.settings.round_deadline, context) {
                self.open = Some(open);
                return Poll::Pending;
            }
            selector.end_round(open);
        }
    }
}
