//! What parts of a router are handed over as.

use actix::ArbiterHandle;
use actix::prelude::Recipient;

use crate::messages::{FlushSpans, SelectWorker, SpanEnded, WorkersChanged};

/// The doors of the export of spans, and the thread that it has to itself.
#[derive(Debug, Clone)]
pub(super) struct SpanPorts {
    pub(super) ended: Recipient<SpanEnded>,
    pub(super) flush: Recipient<FlushSpans>,
    pub(super) arbiter: ArbiterHandle,
}

/// The doors of a selector of your own.
#[derive(Debug, Clone)]
pub struct SelectorPorts {
    pub(super) select: Recipient<SelectWorker>,
    pub(super) workers_changed: Option<Recipient<WorkersChanged>>,
}

impl SelectorPorts {
    /// Returns the ports of a selector that is told nothing of the fleet.
    pub fn new(select: Recipient<SelectWorker>) -> Self {
        Self { select, workers_changed: None }
    }

    /// Adds where to tell which workers there are.
    #[must_use]
    pub fn with_workers(mut self, workers_changed: Recipient<WorkersChanged>) -> Self {
        self.workers_changed = Some(workers_changed);
        self
    }
}
