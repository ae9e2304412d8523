//! The RegistryActor owns the set of workers: which are wanted, which run, what their engines said, and what is to be done about
//! those that died. Discovery sends it full sets; it starts, suspends and removes workers by the difference, and tells the selector
//! the result.
//!
//! Removing a worker ends its actor, which owns everything that was known about it; a worker that comes back has another id and
//! inherits nothing. The router starts and stops this actor.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, ResponseFuture,
};

use crate::actors::gather::gather;
use crate::actors::introspection::introspect;
use crate::actors::worker::{WorkerActor, WorkerContext};
use crate::clock;
use crate::config::{IntrospectionSettings, ProbeSettings, UpstreamSettings};
use crate::logic::endpoint::{Endpoint, Readiness, WorkerFacts};
use crate::logic::ids::WorkerId;
use crate::logic::introspect::{AskIntervals, Failure};
use crate::logic::membership::{MemberChange, Membership};
use crate::logic::ranks::RankRange;
use crate::messages::{
    Describe, EndpointsChanged, FleetMember, HoldWorker, Introspection, ReportTrouble, RouterEvent, SetReadiness,
    ShowFleet, Shutdown, Stop, Trouble, WorkerPorts, WorkersChanged,
};
use crate::telemetry::Telemetry;
use crate::upstream::EngineClient;

mod probes;

use probes::ProbePlan;

/// How often due questions and dead workers are looked for.
const TICK: Duration = Duration::from_millis(50);
/// Engines asked at the same time; the others wait for the next tick.
const MAX_OPEN_QUESTIONS: usize = 64;

/// Builds the actor of a worker and returns its ports. Called on the registry's thread.
pub type WorkerFactory = Arc<dyn Fn(WorkerId, &Endpoint, WorkerContext) -> WorkerPorts + Send + Sync>;

/// What the registry needs to know.
#[derive(Clone)]
pub struct RegistrySettings {
    /// When and how engines are asked.
    pub introspection: IntrospectionSettings,
    /// When and how their health path is probed.
    pub probes: ProbeSettings,
    /// The client that asks them.
    pub upstream: UpstreamSettings,
    /// How long [`ShowFleet`] waits for a worker.
    pub round_deadline: Duration,
    /// Who builds workers.
    pub worker_factory: WorkerFactory,
}

impl fmt::Debug for RegistrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrySettings").field("introspection", &self.introspection).finish_non_exhaustive()
    }
}

impl RegistrySettings {
    /// Returns the factory of the built-in worker.
    pub fn built_in_workers() -> WorkerFactory {
        Arc::new(WorkerActor::start_ports)
    }
}

/// Owns the fleet; see the module's documentation.
#[derive(Debug)]
pub struct RegistryActor {
    settings: RegistrySettings,
    worker_context: WorkerContext,
    selector: Option<Recipient<WorkersChanged>>,
    client: EngineClient,
    membership: Membership,
    /// In order of ids, which is the order of the selector's slots.
    workers: BTreeMap<WorkerId, RunningWorker>,
}

#[derive(Debug)]
struct RunningWorker {
    ports: Arc<WorkerPorts>,
    endpoint: Endpoint,
    facts: Option<Arc<WorkerFacts>>,
    introspection: Introspection,
    is_being_asked: bool,
    ask_at: Instant,
    probes: ProbePlan,
}

/// Sets the selector, which needs the registry's address to be made itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct SetSelector(pub(crate) Recipient<WorkersChanged>);

impl RegistryActor {
    /// Returns a registry without workers.
    pub fn new(settings: RegistrySettings, worker_context: WorkerContext) -> Self {
        let client = EngineClient::new(&settings.upstream);
        Self {
            settings,
            worker_context,
            selector: None,
            client,
            membership: Membership::default(),
            workers: BTreeMap::new(),
        }
    }

    fn telemetry(&self) -> &Telemetry {
        &self.worker_context.telemetry
    }

    fn carry_out(&mut self, changes: Vec<MemberChange>) {
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                MemberChange::Start { id, endpoint } => self.start_worker(id, endpoint),
                MemberChange::Remove { id } => self.remove_worker(id),
                MemberChange::Suspend { id } => self.set_readiness(id, Readiness::Suspended),
                MemberChange::Resume { id } => self.set_readiness(id, Readiness::Ready),
            }
        }
        self.tell_selector();
    }

    fn start_worker(&mut self, id: WorkerId, mut endpoint: Endpoint) {
        let overrides = &mut endpoint.overrides;
        overrides.api_key = overrides.api_key.take().or_else(|| self.settings.upstream.api_key.clone());
        let ports = (self.settings.worker_factory)(id, &endpoint, self.worker_context.clone());
        tracing::info!(worker = %id, url = %endpoint.url, "worker started");
        let url = endpoint.url.clone();
        self.worker_context.observers.tell(self.telemetry(), || RouterEvent::WorkerStarted { worker: id, url });
        let now = clock::now();
        let worker = RunningWorker {
            ports: Arc::new(ports),
            endpoint,
            facts: None,
            introspection: Introspection::Asking,
            is_being_asked: false,
            ask_at: now,
            probes: ProbePlan::new(id, self.settings.probes.interval, now),
        };
        self.workers.insert(id, worker);
    }

    fn remove_worker(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.remove(&id) else { return };
        deliver(&worker.ports.stop, Stop);
        let url = worker.endpoint.url;
        tracing::info!(worker = %id, %url, "worker removed");
        self.worker_context.observers.tell(self.telemetry(), || RouterEvent::WorkerRemoved { worker: id, url });
    }

    fn set_readiness(&mut self, id: WorkerId, readiness: Readiness) {
        if let Some(worker) = self.workers.get(&id) {
            deliver(&worker.ports.readiness, SetReadiness(readiness));
        }
    }

    fn ports(&self) -> Arc<[Arc<WorkerPorts>]> {
        self.workers.values().map(|worker| Arc::clone(&worker.ports)).collect()
    }

    fn tell_selector(&self) {
        if let Some(selector) = &self.selector {
            deliver(selector, WorkersChanged { workers: self.ports() });
        }
    }

    /// Starts another worker in the place of one that is of no use any more. What its engine said is kept only where the engine
    /// is still the same.
    fn replace(&mut self, id: WorkerId, facts: Option<Arc<WorkerFacts>>, cause: &'static str) {
        tracing::warn!(worker = %id, cause, "worker replaced");
        Telemetry::count(&self.telemetry().worker_replacements, cause);
        let changes = self.membership.replace(id);
        let started = changes.iter().find_map(|change| match change {
            MemberChange::Start { id, .. } => Some(*id),
            MemberChange::Remove { .. } | MemberChange::Suspend { .. } | MemberChange::Resume { .. } => None,
        });
        self.carry_out(changes);
        if let (Some(id), Some(facts)) = (started, facts) {
            self.describe(id, facts);
        }
    }

    fn describe(&mut self, id: WorkerId, facts: Arc<WorkerFacts>) {
        let ask_at = clock::now() + self.settings.introspection.interval;
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.ports.set_http2(facts.speaks_http2);
            worker.ports.ranks.set_first_number(facts.ranks.map_or(0, RankRange::first));
            deliver(&worker.ports.describe, Describe(Arc::clone(&facts)));
            worker.facts = Some(facts);
            worker.introspection = Introspection::Answered;
            worker.ask_at = ask_at;
        }
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        let is_dead = |worker: &&RunningWorker| !worker.ports.collect.connected();
        let dead: Vec<_> = self.workers.values().filter(is_dead).map(|w| (w.ports.id, w.facts.clone())).collect();
        for (id, facts) in dead {
            self.replace(id, facts, "dead");
        }
        let now = clock::now();
        let num_open = self.workers.values().filter(|worker| worker.is_being_asked).count();
        let room = MAX_OPEN_QUESTIONS.saturating_sub(num_open);
        let is_due = |worker: &&mut RunningWorker| !worker.is_being_asked && worker.ask_at <= now;
        for (id, worker) in self.workers.iter_mut().filter(|(_, worker)| is_due(worker)).take(room) {
            worker.is_being_asked = true;
            let is_newcomer = worker.facts.is_none() && !self.settings.probes.interval.is_zero();
            let health_path = is_newcomer.then(|| Arc::clone(&self.settings.probes.path));
            ask_engine(*id, worker.endpoint.clone(), &self.client, &self.settings.introspection, health_path, ctx);
        }
        self.send_probes(now, ctx);
    }

    fn engine_asked(&mut self, id: WorkerId, result: Result<WorkerFacts, Failure>) {
        Telemetry::count(&self.telemetry().introspections, result_name(&result));
        let settings = &self.settings.introspection;
        let intervals = AskIntervals {
            pending: settings.pending_interval,
            unauthorized: settings.unauthorized_interval,
            answered: settings.interval,
        };
        let pause = intervals.after(result.as_ref().map(drop).map_err(|failure| *failure));
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.is_being_asked = false;
        worker.ask_at = clock::now() + pause;
        match result {
            Ok(facts) => self.engine_answered(id, Arc::new(facts)),
            Err(failure) => {
                let state = failed_introspection(failure);
                if worker.introspection != state {
                    tracing::warn!(worker = %id, url = %worker.endpoint.url, reason = failure.text(), "engine asked without success");
                    worker.introspection = state;
                }
            }
        }
    }

    fn engine_answered(&mut self, id: WorkerId, facts: Arc<WorkerFacts>) {
        let is_another_engine = self
            .workers
            .get(&id)
            .and_then(|worker| worker.facts.as_ref())
            .is_some_and(|known| !known.is_same_engine(&facts));
        if is_another_engine {
            self.replace(id, Some(facts), "another_engine");
        } else {
            self.describe(id, facts);
        }
    }
}

fn ask_engine(
    id: WorkerId,
    endpoint: Endpoint,
    client: &EngineClient,
    settings: &IntrospectionSettings,
    health_path: Option<Arc<str>>,
    ctx: &mut Context<RegistryActor>,
) {
    let (client, settings) = (client.clone(), *settings);
    let asked = async move { introspect(&client, &endpoint, &settings, health_path.as_deref()).await };
    ctx.spawn(
        actix::fut::wrap_future::<_, RegistryActor>(asked)
            .map(move |result, registry, _ctx| registry.engine_asked(id, result)),
    );
}

fn failed_introspection(failure: Failure) -> Introspection {
    match failure {
        Failure::Unauthorized => Introspection::Unauthorized,
        other => Introspection::Failed(other.text().into()),
    }
}

fn result_name(result: &Result<WorkerFacts, Failure>) -> &'static str {
    match result {
        Ok(_) => "answered",
        Err(Failure::Unreachable) => "unreachable",
        Err(Failure::ServerError) => "server_error",
        Err(Failure::BrokenBody) => "broken_body",
        Err(Failure::NotReady) => "not_ready",
        Err(Failure::NotFound) => "not_found",
        Err(Failure::Unauthorized) => "unauthorized",
        Err(Failure::Refused) => "refused",
        Err(Failure::Unreadable) => "unreadable",
    }
}

/// Sends a message that must not be lost while the receiver lives.
#[expect(
    clippy::disallowed_methods,
    reason = "only a dead receiver loses it, and the tick notices and replaces the dead"
)]
fn deliver<M>(recipient: &Recipient<M>, message: M)
where
    M: Message + Send,
    M::Result: Send,
{
    recipient.do_send(message);
}

impl Actor for RegistryActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(TICK, Self::tick);
    }
}

impl Handler<SetSelector> for RegistryActor {
    type Result = ();

    fn handle(&mut self, SetSelector(selector): SetSelector, _ctx: &mut Self::Context) {
        self.selector = Some(selector);
        self.tell_selector();
    }
}

impl Handler<EndpointsChanged> for RegistryActor {
    type Result = ();

    fn handle(&mut self, msg: EndpointsChanged, ctx: &mut Self::Context) {
        let changes = self.membership.apply(&msg.source, msg.endpoints);
        self.carry_out(changes);
        self.tick(ctx);
    }
}

impl Handler<HoldWorker> for RegistryActor {
    type Result = ();

    fn handle(&mut self, msg: HoldWorker, _ctx: &mut Self::Context) {
        let changes = self.membership.hold(&msg.url, msg.readiness);
        self.carry_out(changes);
    }
}

impl Handler<ReportTrouble> for RegistryActor {
    type Result = ();

    fn handle(&mut self, msg: ReportTrouble, _ctx: &mut Self::Context) {
        let Some(worker) = self.workers.get_mut(&msg.worker) else { return };
        match msg.trouble {
            Trouble::EngineUnreachable => worker.ask_at = clock::now(),
            Trouble::Unresponsive => {
                let facts = worker.facts.clone();
                self.replace(msg.worker, facts, "unresponsive");
            }
        }
    }
}

impl Handler<ShowFleet> for RegistryActor {
    type Result = ResponseFuture<Vec<FleetMember>>;

    fn handle(&mut self, _msg: ShowFleet, _ctx: &mut Self::Context) -> Self::Result {
        let known = self.workers.values().map(|worker| FleetMember {
            id: worker.ports.id,
            url: worker.ports.url.clone(),
            snapshot: None,
            introspection: worker.introspection.clone(),
            sources: self.membership.sources_of(&worker.ports.url).to_vec(),
            ports: Arc::clone(&worker.ports),
        });
        let known: Vec<_> = known.collect();
        let answers = gather(self.ports(), self.settings.round_deadline);
        Box::pin(async move {
            let answers = answers.await;
            let members = known.into_iter().zip(answers);
            members.map(|(member, snapshot)| FleetMember { snapshot, ..member }).collect()
        })
    }
}

impl Handler<Shutdown> for RegistryActor {
    type Result = ();

    fn handle(&mut self, _msg: Shutdown, ctx: &mut Self::Context) {
        let changes = self.membership.clear();
        self.carry_out(changes);
        ctx.stop();
    }
}
