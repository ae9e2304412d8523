//! How many requests are open, with a limit, and whether new ones are let in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;

use crate::error::RouteError;

/// The gate that every forwarded request passes. Shared by all HTTP threads.
#[derive(Debug)]
pub(crate) struct Gate {
    num_open: AtomicUsize,
    max_open: usize,
    /// Whether balancers are told to send nothing more.
    is_leaving: AtomicBool,
    is_draining: AtomicBool,
    /// Shows the number of open requests.
    gauge: Gauge,
}

impl Gate {
    pub(crate) fn new(max_open: usize, gauge: Gauge) -> Self {
        Self {
            num_open: AtomicUsize::new(0),
            max_open,
            is_leaving: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            gauge,
        }
    }

    /// Goes on as before, but is not ready any more.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// Lets no new request in from now on.
    pub(crate) fn drain(&self) {
        self.leave();
        self.is_draining.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Returns the number of requests that are open.
    pub(crate) fn num_open(&self) -> usize {
        self.num_open.load(Ordering::SeqCst)
    }

    /// Lets a request in until the pass is dropped.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Pass, RouteError> {
        if self.is_draining() {
            return Err(RouteError::ShuttingDown);
        }
        if self.num_open.fetch_add(1, Ordering::SeqCst) >= self.max_open {
            self.num_open.fetch_sub(1, Ordering::SeqCst);
            return Err(RouteError::Overloaded);
        }
        self.gauge.inc();
        Ok(Pass { gate: Arc::clone(self) })
    }
}

/// One open request. It travels with the response's body, so it ends with the last byte or with the client.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.num_open.fetch_sub(1, Ordering::SeqCst);
        self.gate.gauge.dec();
    }
}
