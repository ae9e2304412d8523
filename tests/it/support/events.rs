//! An observer whose events a test can await, in order.

use actix::prelude::{Actor, Addr, Context, Handler, Recipient};
use fathom_router::messages::RouterEvent;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What an observer was told.
pub(crate) struct Events {
    observer: Addr<Recorder>,
    received: UnboundedReceiver<RouterEvent>,
}

impl Events {
    /// Starts an observer on this thread.
    pub(crate) fn record() -> Self {
        let (send, received) = unbounded_channel();
        Self { observer: Recorder { events: send }.start(), received }
    }

    /// Returns what a router's builder subscribes.
    pub(crate) fn observer(&self) -> Recipient<RouterEvent> {
        self.observer.clone().recipient()
    }

    /// Awaits the next event for which `read` has a value; events before it are dropped.
    pub(crate) async fn next<T>(&mut self, read: impl Fn(&RouterEvent) -> Option<T>) -> T {
        loop {
            let event = self.received.recv().await.expect("the observer lives");
            if let Some(value) = read(&event) {
                return value;
            }
        }
    }
}

struct Recorder {
    events: UnboundedSender<RouterEvent>,
}

impl Actor for Recorder {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // The router drops events for which there is no room.
        ctx.set_mailbox_capacity(1 << 20);
    }
}

impl Handler<RouterEvent> for Recorder {
    type Result = ();

    fn handle(&mut self, event: RouterEvent, _ctx: &mut Self::Context) {
        // A test that has stopped listening needs no more of them.
        drop(self.events.send(event));
    }
}
