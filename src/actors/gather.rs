//! Asking every worker at once.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::future::poll_fn;

use crate::logic::round::{Prompts, Round};
use crate::logic::snapshot::WorkerSnapshot;
use crate::messages::{Collect, WorkerPorts};

/// Starts a round: asks each worker that `is_asked` accepts. The slots are those of `workers`.
pub(super) fn ask(
    workers: &[Arc<WorkerPorts>],
    is_asked: impl Fn(&WorkerPorts) -> bool,
    prompts: Prompts,
    on_complete: Waker,
) -> Arc<Round> {
    let round = Round::new(workers.len(), prompts, on_complete);
    for (slot, worker) in workers.iter().enumerate().filter(|(_, worker)| is_asked(worker)) {
        #[expect(
            clippy::disallowed_methods,
            reason = "a message that is lost drops its token, which completes the round"
        )]
        worker.collect.do_send(Collect(round.token(slot)));
    }
    round
}

/// Asks everyone and returns what has arrived when all have answered, or at the deadline.
pub(super) async fn gather(workers: Arc<[Arc<WorkerPorts>]>, deadline: Duration) -> Vec<Option<Arc<WorkerSnapshot>>> {
    let mut round: Option<Arc<Round>> = None;
    let answered = poll_fn(|context| {
        let round = round.get_or_insert_with(|| ask(&workers, |_| true, Prompts::default(), context.waker().clone()));
        if round.is_complete() { Poll::Ready(()) } else { Poll::Pending }
    });
    // Whether all have answered or time is up, the view is what has arrived.
    drop(tokio::time::timeout(deadline, answered).await);
    let mut view = Vec::new();
    if let Some(round) = round {
        round.freeze_into(&mut view);
    }
    view
}
