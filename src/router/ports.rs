//! What parts of a router are handed over as.

use std::time::Duration;

use actix::ArbiterHandle;
use actix::prelude::Recipient;

use crate::clock;
use crate::http::Tracer;
use crate::logic::rng::Rng;
use crate::messages::{FlushSpans, SelectWorker, SpanEnded, WorkersChanged};

/// How long the spans that are left may take to reach their collector.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The doors of the export of spans, and the thread that it has to itself.
#[derive(Debug, Clone)]
pub(super) struct SpanPorts {
    pub(super) ended: Recipient<SpanEnded>,
    pub(super) flush: Recipient<FlushSpans>,
    pub(super) arbiter: ArbiterHandle,
}

impl SpanPorts {
    /// Returns what gives requests their spans. Its ids are drawn apart from the configured seed, which several routers may share.
    pub(super) fn tracer(&self) -> Tracer {
        Tracer::new(self.ended.clone(), Rng::from_seed(clock::start_seed()))
    }

    /// Delivers what is left, as far as there is time, and stops.
    pub(super) async fn stop(self) {
        if tokio::time::timeout(FLUSH_TIMEOUT, self.flush.send(FlushSpans)).await.is_err() {
            tracing::warn!("the last spans were not taken in time");
        }
        self.arbiter.stop();
    }
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
