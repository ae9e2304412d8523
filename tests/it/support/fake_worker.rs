//! A worker whose answers a test decides on, in the place of the built-in one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use actix::ArbiterHandle;
use actix::prelude::{Actor, ActorContext, Context, Handler};
use fathom_router::actors::{WorkerActor, WorkerContext};
use fathom_router::logic::endpoint::Endpoint;
use fathom_router::logic::ids::{DecisionId, WorkerId};
use fathom_router::logic::round::Token;
use fathom_router::logic::snapshot::WorkerSnapshot;
use fathom_router::messages::{Collect, Describe, Drain, RequestFinished, Reserve, SetReadiness, Stop, WorkerPorts};

/// What a fake worker does when it is asked; it is given the right to answer and what it would say.
type Answering = Box<dyn FnMut(Token, Arc<WorkerSnapshot>) + Send>;

/// A worker that keeps an account like the built-in one, and answers as it is told.
pub(crate) struct FakeWorker {
    snapshot: WorkerSnapshot,
    in_flight: BTreeSet<DecisionId>,
    answer: Answering,
}

impl FakeWorker {
    /// Starts one on this thread.
    pub(crate) fn start_here(
        id: WorkerId,
        endpoint: &Endpoint,
        answer: impl FnMut(Token, Arc<WorkerSnapshot>) + Send + 'static,
    ) -> WorkerPorts {
        WorkerPorts::new(id, endpoint, &Self::new(id, endpoint, answer).start())
    }

    /// Starts one on a thread of its own.
    pub(crate) fn start_on(
        arbiter: &ArbiterHandle,
        id: WorkerId,
        endpoint: &Endpoint,
        answer: impl FnMut(Token, Arc<WorkerSnapshot>) + Send + 'static,
    ) -> WorkerPorts {
        let worker = Self::new(id, endpoint, answer);
        WorkerPorts::new(id, endpoint, &Self::start_in_arbiter(arbiter, |_| worker))
    }

    fn new(id: WorkerId, endpoint: &Endpoint, answer: impl FnMut(Token, Arc<WorkerSnapshot>) + Send + 'static) -> Self {
        let snapshot = WorkerSnapshot::new(id, endpoint.url.clone());
        Self { snapshot, in_flight: BTreeSet::new(), answer: Box::new(answer) }
    }
}

impl Actor for FakeWorker {
    type Context = Context<Self>;
}

impl Handler<Collect> for FakeWorker {
    type Result = ();

    fn handle(&mut self, Collect(token): Collect, _ctx: &mut Self::Context) {
        self.snapshot.in_flight = self.in_flight.len() as u32;
        (self.answer)(token, Arc::new(self.snapshot.clone()));
    }
}

impl Handler<Reserve> for FakeWorker {
    type Result = ();

    fn handle(&mut self, msg: Reserve, _ctx: &mut Self::Context) {
        self.in_flight.insert(msg.decision);
    }
}

impl Handler<RequestFinished> for FakeWorker {
    type Result = ();

    fn handle(&mut self, msg: RequestFinished, _ctx: &mut Self::Context) {
        self.in_flight.remove(&msg.decision);
    }
}

impl Handler<Describe> for FakeWorker {
    type Result = ();

    fn handle(&mut self, Describe(facts): Describe, _ctx: &mut Self::Context) {
        self.snapshot.facts = facts;
    }
}

impl Handler<SetReadiness> for FakeWorker {
    type Result = ();

    fn handle(&mut self, _msg: SetReadiness, _ctx: &mut Self::Context) {}
}

impl Handler<Drain> for FakeWorker {
    type Result = ();

    fn handle(&mut self, _msg: Drain, _ctx: &mut Self::Context) {}
}

impl Handler<Stop> for FakeWorker {
    type Result = ();

    fn handle(&mut self, _msg: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

/// A switch that turns a worker from answering to misbehaving, and counts how often it was asked since.
#[derive(Clone, Default)]
pub(crate) struct Switch {
    is_on: Arc<AtomicBool>,
    num_asked: Arc<AtomicUsize>,
}

impl Switch {
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::SeqCst);
    }

    pub(crate) fn num_asked(&self) -> usize {
        self.num_asked.load(Ordering::SeqCst)
    }

    /// Answers while the switch is off; after that, `misbehave` has the token.
    pub(crate) fn answering(
        &self,
        mut misbehave: impl FnMut(Token, Arc<WorkerSnapshot>) + Send + 'static,
    ) -> impl FnMut(Token, Arc<WorkerSnapshot>) + Send + 'static {
        let switch = self.clone();
        move |token, snapshot| {
            if switch.is_on.load(Ordering::SeqCst) {
                switch.num_asked.fetch_add(1, Ordering::SeqCst);
                misbehave(token, snapshot);
            } else {
                token.fill(snapshot);
            }
        }
    }
}

/// Builds the first worker of the address by `first`, and every other one as the router would.
pub(crate) fn first_worker_at(
    url: String,
    first: impl Fn(WorkerId, &Endpoint) -> WorkerPorts + Send + Sync + 'static,
) -> impl Fn(WorkerId, &Endpoint, WorkerContext) -> WorkerPorts + Send + Sync + 'static {
    let was_built = AtomicBool::new(false);
    move |id, endpoint, context| {
        if endpoint.url.as_str() == url && !was_built.swap(true, Ordering::SeqCst) {
            first(id, endpoint)
        } else {
            WorkerActor::start_ports(id, endpoint, context)
        }
    }
}
