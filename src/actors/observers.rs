//! Observers of what the router does. They can be slow or gone: an event that does not fit their mailbox is counted and dropped.
//!
//! Each observer has one sender for its whole life: actix gives every copy of a sender, and so every upgrade of a weak one, a free
//! place in the mailbox, which would make the mailbox of an observer that does not read grow without bound.

use std::sync::Arc;

use actix::prelude::Recipient;

use crate::messages::RouterEvent;
use crate::telemetry::Telemetry;

/// The observers of one router. Cheap to clone.
#[derive(Clone, Default)]
pub struct Observers {
    recipients: Arc<[Recipient<RouterEvent>]>,
}

impl std::fmt::Debug for Observers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observers").field("num", &self.recipients.len()).finish()
    }
}

impl Observers {
    /// Returns the set of these observers.
    pub fn new(recipients: Vec<Recipient<RouterEvent>>) -> Self {
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
        for recipient in self.recipients.iter().filter(|recipient| recipient.connected()) {
            if recipient.try_send(event.clone()).is_err() {
                telemetry.observer_misses.inc();
            }
        }
    }
}
