//! Observers of what the router does. They can be slow or gone: an event that does not fit their mailbox is counted and dropped.

use std::sync::Arc;

use actix::WeakRecipient;
use actix::prelude::Recipient;

use crate::messages::RouterEvent;
use crate::telemetry::Telemetry;

/// The observers of one router. Cheap to clone.
#[derive(Clone, Default)]
pub struct Observers {
    recipients: Arc<[WeakRecipient<RouterEvent>]>,
}

impl std::fmt::Debug for Observers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observers").field("num", &self.recipients.len()).finish()
    }
}

impl Observers {
    /// Returns the set of these observers. They are not kept alive by it.
    pub fn new(recipients: Vec<WeakRecipient<RouterEvent>>) -> Self {
        Self { recipients: recipients.into() }
    }

    /// Tells whether nobody observes, so that an event need not be made.
    pub fn is_empty(&self) -> bool {
        self.recipients.is_empty()
    }

    /// Sends the event to everyone who has room for it.
    pub fn tell(&self, telemetry: &Telemetry, event: impl FnOnce() -> RouterEvent) {
        if self.is_empty() {
            return;
        }
        let event = event();
        for recipient in self.recipients.iter().filter_map(WeakRecipient::upgrade) {
            if send(&recipient, event.clone()).is_err() {
                telemetry.observer_misses.inc();
            }
        }
    }
}

fn send(recipient: &Recipient<RouterEvent>, event: RouterEvent) -> Result<(), ()> {
    recipient.try_send(event).map_err(drop)
}
