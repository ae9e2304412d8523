//! The LoadPolling actor asks engines that publish no load for it, and hands what they say to their workers.
//!
//! The router starts it where `load_polling` says so. It owns the question that is open at each engine, and nothing of the load
//! itself: which paths are tried is decided in `logic::poll_plan`, and whether an answer counts by the worker. Engines do not
//! wait for each other. When it dies, polled loads grow old and are not trusted any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::{Actor, ActorFutureExt, AsyncContext, Context, Recipient, WrapFuture};

use crate::clock;
use crate::logic::ids::WorkerId;
use crate::logic::load::RankLoad;
use crate::logic::poll_plan::{LoadPath, PollPlan, Polled};
use crate::messages::{FleetMember, ReportPolledLoad, ShowFleet, WorkerPorts};
use crate::telemetry::Telemetry;
use crate::upstream::{EngineClient, UpstreamError};
use crate::wire::polled_load::loads_json::decode_loads;
use crate::wire::polled_load::prometheus::decode_metrics;

/// Questions under way at the same time; the others wait for the next look.
const MAX_OPEN_POLLS: usize = 256;
/// Bytes of the largest answer read. An exposition with its histograms has some hundred thousand.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// How often due questions are looked for, at least.
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Asks engines for their load; see the module's documentation.
#[derive(Debug)]
pub struct LoadPolling {
    interval: Duration,
    timeout: Duration,
    fleet: Recipient<ShowFleet>,
    client: EngineClient,
    plans: BTreeMap<WorkerId, PollPlan>,
    telemetry: Telemetry,
}

impl LoadPolling {
    /// Returns the actor. An answer that takes longer than `timeout` would be too old to be used.
    pub(crate) fn new(
        interval: Duration,
        timeout: Duration,
        fleet: Recipient<ShowFleet>,
        client: EngineClient,
        telemetry: Telemetry,
    ) -> Self {
        Self { interval, timeout, fleet, client, plans: BTreeMap::new(), telemetry }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        let shown = self.fleet.send(ShowFleet).into_actor(self).map(|shown, polling, ctx| {
            if let Ok(members) = shown {
                polling.ask_due(&members, ctx);
            }
            ctx.run_later(polling.interval.min(MAX_LOOK_INTERVAL), Self::look);
        });
        ctx.spawn(shown);
    }

    fn ask_due(&mut self, members: &[FleetMember], ctx: &mut Context<Self>) {
        let now = clock::now();
        let polled: BTreeMap<WorkerId, &FleetMember> =
            members.iter().filter(|member| is_polled(member)).map(|member| (member.id, member)).collect();
        // A worker that did not answer in time is still the same one.
        let is_there = |id: &WorkerId| members.iter().any(|member| member.id == *id);
        self.plans.retain(|id, plan| polled.contains_key(id) || (plan.is_open() && is_there(id)));
        let mut room = MAX_OPEN_POLLS.saturating_sub(self.plans.values().filter(|plan| plan.is_open()).count());
        for (id, member) in polled {
            if room == 0 {
                return;
            }
            let Some(path) = self.plans.entry(id).or_insert_with(|| PollPlan::new(now)).ask(now) else { continue };
            room -= 1;
            self.ask(Arc::clone(&member.ports), path, now, ctx);
        }
    }

    fn ask(&mut self, ports: Arc<WorkerPorts>, path: LoadPath, asked_at: Instant, ctx: &mut Context<Self>) {
        let (client, timeout, worker) = (self.client.clone(), self.timeout, ports.id);
        let asked = async move {
            let loads = poll(&client, &ports, path, timeout).await?;
            // A worker that is gone needs no load.
            if let Some(port) = &ports.report_polled_load {
                let _ = port.send(ReportPolledLoad { loads, asked_at }).await;
            }
            Ok(())
        };
        ctx.spawn(asked.into_actor(self).map(move |result: Result<(), Polled>, polling, _ctx| {
            let polled = result.err().unwrap_or(Polled::Told);
            Telemetry::count(&polling.telemetry.load_polls, polled.name());
            let Some(plan) = polling.plans.get_mut(&worker) else { return };
            plan.ended(polled, asked_at, polling.interval, clock::now());
            if polled == Polled::NoLoadThere {
                tracing::debug!(%worker, path = path.path(), "the engine tells no load there");
            }
        }));
    }
}

/// A worker is polled where its engine has said what it serves, and no load socket follows from that.
fn is_polled(member: &FleetMember) -> bool {
    let takes_reports = member.ports.report_polled_load.is_some();
    let is_silent =
        |facts: &crate::logic::endpoint::WorkerFacts| !facts.models.is_empty() && facts.load_feed.plan().is_none();
    takes_reports && member.snapshot.as_ref().is_some_and(|worker| is_silent(&worker.facts))
}

async fn poll(
    client: &EngineClient,
    ports: &WorkerPorts,
    path: LoadPath,
    timeout: Duration,
) -> Result<Vec<RankLoad>, Polled> {
    let url = format!("{}{}", ports.url, path.path());
    let api_key = ports.api_key.as_ref().map(|key| key.reveal());
    let body = client.fetch(&url, api_key, timeout, MAX_ANSWER_BYTES).await.map_err(|error| failure(&error))?;
    // An exposition takes a while to read, and others wait on this thread.
    let read = tokio::task::spawn_blocking(move || match path {
        LoadPath::V1Loads => decode_loads(&body),
        LoadPath::VllmMetrics => decode_metrics(&body),
    });
    match read.await {
        Ok(Ok(loads)) => Ok(loads),
        Ok(Err(error)) => {
            tracing::debug!(url = %ports.url, %error, "the engine's answer tells no load");
            Err(if error.is_foreign() { Polled::NoLoadThere } else { Polled::Failed })
        }
        Err(_) => Err(Polled::Failed),
    }
}

fn failure(error: &UpstreamError) -> Polled {
    match error {
        UpstreamError::Status(status) => match status.as_u16() {
            401 | 403 => Polled::Unauthorized,
            404 | 405 | 501 => Polled::NoLoadThere,
            _ => Polled::Failed,
        },
        UpstreamError::Connect(_)
        | UpstreamError::Local(_)
        | UpstreamError::Request(_)
        | UpstreamError::Timeout(_)
        | UpstreamError::Body(_)
        | UpstreamError::Invalid(_) => Polled::Failed,
    }
}

impl Actor for LoadPolling {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}
