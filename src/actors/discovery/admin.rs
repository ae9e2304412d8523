//! The AdminDiscovery actor is the source that the operator commands while the router runs. It owns the set of workers that were
//! added, and the file that keeps them over a restart, where one is configured.
//!
//! The router starts it; the HTTP edge sends it changes. A change is stored before it is made, and changes are made one after the
//! other, so that the file never says less than the operator was told. When the actor dies, what it named stays as it is until the
//! router ends.

use std::path::PathBuf;
use std::sync::Arc;

use actix::prelude::{Actor, ActorFutureExt, AsyncContext, AtomicResponse, Context, Handler, Recipient, WrapFuture};

use crate::config::write_admin_workers;
use crate::logic::admin_set::{ADMIN_SOURCE, AdminSet, AdminWorker, Change, ChangeRefusal, KnownWorker, WorkerChange};
use crate::logic::endpoint::{Readiness, WorkerUrl};
use crate::messages::{ChangeWorkers, EndpointsChanged, FleetMember, HoldWorker, ShowFleet, WorkersAfter};

/// Changes that may wait. An operator makes them one by one.
const MAILBOX_CAPACITY: usize = 64;

/// What the source asks the registry for, and tells it.
#[derive(Debug, Clone)]
pub struct AdminPorts {
    /// Takes the set.
    pub endpoints: Recipient<EndpointsChanged>,
    /// Takes what is held.
    pub hold: Recipient<HoldWorker>,
    /// Shows what is served.
    pub fleet: Recipient<ShowFleet>,
}

/// Owns what the operator added; see the module's documentation.
#[derive(Debug)]
pub struct AdminDiscovery {
    set: AdminSet,
    file: Option<PathBuf>,
    registry: AdminPorts,
}

impl AdminDiscovery {
    /// Returns the source of what was stored earlier. Changes are stored in `file` where there is one.
    pub fn new(stored: Vec<AdminWorker>, file: Option<PathBuf>, registry: AdminPorts) -> Self {
        Self { set: AdminSet::new(stored), file, registry }
    }
}

/// Makes the change in a copy of the set, which takes the set's place where everything went well.
async fn make(
    mut set: AdminSet,
    change: WorkerChange,
    file: Option<PathBuf>,
    registry: AdminPorts,
) -> Result<(AdminSet, WorkersAfter), ChangeRefusal> {
    let fleet = shown(&registry).await;
    let known: Vec<KnownWorker> = fleet.iter().map(known).collect();
    let is_removal = matches!(change, WorkerChange::Remove(_));
    let Change { url, is_set_changed, readiness } = set.apply(change, &known)?;
    if is_set_changed {
        store(&set, file).await?;
        tell(&registry, &set).await;
        tracing::info!(%url, num_workers = set.workers().len(), "the workers that the operator added changed");
    }
    // Whoever removes a worker has done with it: should another source keep it, or bring it back, it serves.
    let readiness = readiness.or_else(|| is_removal.then_some(Readiness::Ready));
    if let Some(readiness) = readiness {
        let hold = HoldWorker { url: url.clone(), readiness };
        if registry.hold.send(hold).await.is_err() {
            tracing::warn!(%url, "the registry is gone, nothing was held");
        }
    }
    let was_there = known.iter().any(|known| known.url == url);
    let member = member_at(shown(&registry).await, &url);
    let is_new = member.is_some() && !was_there;
    Ok((set, WorkersAfter::new(url, member, is_new)))
}

async fn store(set: &AdminSet, file: Option<PathBuf>) -> Result<(), ChangeRefusal> {
    let Some(file) = file else { return Ok(()) };
    let workers = set.workers().to_vec();
    // Files are written on threads that may wait for them.
    let written = tokio::task::spawn_blocking(move || write_admin_workers(&file, &workers)).await;
    let reason = match written {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::error!(reason, "admin_workers_file could not be written");
    Err(ChangeRefusal::NotStored { reason })
}

async fn tell(registry: &AdminPorts, set: &AdminSet) {
    let endpoints = set.workers().iter().map(|worker| worker.endpoint.clone()).collect();
    let set = EndpointsChanged { source: Arc::from(ADMIN_SOURCE), endpoints };
    if registry.endpoints.send(set).await.is_err() {
        tracing::error!("the registry is gone, the workers that the operator added are not served");
    }
}

async fn shown(registry: &AdminPorts) -> Vec<FleetMember> {
    registry.fleet.send(ShowFleet).await.unwrap_or_default()
}

fn known(member: &FleetMember) -> KnownWorker {
    KnownWorker { id: member.id, url: member.url.clone(), sources: member.sources.clone() }
}

fn member_at(fleet: Vec<FleetMember>, url: &WorkerUrl) -> Option<FleetMember> {
    fleet.into_iter().find(|member| member.url == *url)
}

impl Actor for AdminDiscovery {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX_CAPACITY);
        if self.set.workers().is_empty() {
            return;
        }
        let (registry, set) = (self.registry.clone(), self.set.clone());
        ctx.wait(async move { tell(&registry, &set).await }.into_actor(self));
    }
}

impl Handler<ChangeWorkers> for AdminDiscovery {
    type Result = AtomicResponse<Self, Result<WorkersAfter, ChangeRefusal>>;

    fn handle(&mut self, ChangeWorkers(change): ChangeWorkers, _ctx: &mut Self::Context) -> Self::Result {
        let changed = make(self.set.clone(), change, self.file.clone(), self.registry.clone());
        AtomicResponse::new(Box::pin(changed.into_actor(self).map(|made, source, _ctx| {
            let (set, after) = made?;
            source.set = set;
            Ok(after)
        })))
    }
}
