//! Probing the engines' health path: the registry sends the probes, since it has the client, and tells each worker the result.
//!
//! Only a worker that has said what it serves is probed; before that, introspection looks at the health path itself.

use std::time::{Duration, Instant};

use actix::prelude::{ActorFutureExt, AsyncContext, Context};

use super::{RegistryActor, deliver};
use crate::logic::endpoint::Endpoint;
use crate::logic::ids::WorkerId;
use crate::logic::probe::{ProbeClock, ProbeResult};
use crate::messages::ProbeEnded;
use crate::telemetry::Telemetry;
use crate::upstream::{EngineClient, UpstreamError};

/// Probes under way at the same time; the others wait for the next tick.
const MAX_OPEN_PROBES: usize = 64;
/// Bytes of the largest answer read. What it says does not matter.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// When one worker is probed, and whether a probe is under way.
#[derive(Debug)]
pub(super) struct ProbePlan {
    clock: ProbeClock,
    is_under_way: bool,
}

impl ProbePlan {
    pub(super) fn new(worker: WorkerId, interval: Duration, now: Instant) -> Self {
        Self { clock: ProbeClock::new(worker, interval, now), is_under_way: false }
    }
}

impl RegistryActor {
    /// Sends the probes that are due.
    pub(super) fn send_probes(&mut self, now: Instant, ctx: &mut Context<Self>) {
        let num_open = self.workers.values().filter(|worker| worker.probes.is_under_way).count();
        let due = self.workers.iter_mut().filter(|(_, worker)| {
            let may_be_probed = worker.facts.is_some() && worker.ports.probe_ended.is_some();
            may_be_probed && !worker.probes.is_under_way && worker.probes.clock.is_due(now)
        });
        for (id, worker) in due.take(MAX_OPEN_PROBES.saturating_sub(num_open)) {
            worker.probes.clock.sent(now);
            worker.probes.is_under_way = true;
            let (id, client, endpoint) = (*id, self.client.clone(), worker.endpoint.clone());
            let (path, timeout) = (self.settings.probes.path.clone(), self.settings.probes.timeout);
            let probed = async move { probe(&client, &endpoint, &path, timeout).await };
            ctx.spawn(
                actix::fut::wrap_future::<_, Self>(probed)
                    .map(move |result, registry, _ctx| registry.probe_ended(id, result)),
            );
        }
    }

    fn probe_ended(&mut self, id: WorkerId, result: ProbeResult) {
        Telemetry::count(&self.telemetry().health_probes, result.name());
        let path = &self.settings.probes.path;
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.probes.is_under_way = false;
        if result == ProbeResult::NoPath {
            worker.probes.clock.stop();
            tracing::info!(worker = %id, url = %worker.endpoint.url, %path, "the engine has no such health path, it is not probed");
        }
        if let Some(port) = &worker.ports.probe_ended {
            deliver(port, ProbeEnded(result));
        }
    }
}

async fn probe(client: &EngineClient, endpoint: &Endpoint, path: &str, timeout: Duration) -> ProbeResult {
    let url = format!("{}{path}", endpoint.url);
    let api_key = endpoint.overrides.api_key.as_ref().map(|key| key.reveal());
    match client.fetch(&url, api_key, timeout, MAX_ANSWER_BYTES).await {
        Ok(_) => ProbeResult::Healthy,
        Err(UpstreamError::Status(status)) => ProbeResult::of_status(status.as_u16()),
        Err(error) if error.is_refusal() => ProbeResult::Refused,
        Err(UpstreamError::Timeout(_) | UpstreamError::Connect(_) | UpstreamError::Local(_)) => ProbeResult::Slow,
        Err(UpstreamError::Request(_) | UpstreamError::Body(_) | UpstreamError::Invalid(_)) => ProbeResult::Failed,
    }
}
