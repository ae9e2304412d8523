//! A discovery source of your own: an actor that is given the registry's recipient and sends **full sets**. The registry works out
//! what changed: unchanged workers keep their state, an endpoint that is not ready is suspended, a missing one is removed with all
//! that was known about it.
//!
//! An observer prints what the router made of each set.
//!
//! Run: `cargo run --release --example custom_discovery`. The last line is `custom_discovery: 4 sets, 4 ok, 0 failed`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::{Actor, Context, Handler, Recipient};
use fathom_router::logic::endpoint::{Endpoint, Readiness, WorkerUrl};
use fathom_router::logic::health::WorkerState;
use fathom_router::messages::{EndpointsChanged, RouterEvent};
use fathom_router::router::{Router, RouterHandle};
use fathom_router::sim::{SimConfig, SimEngine};

mod support;

use support::Failure;

/// Hands sets that it is given to the registry. A real source would watch a file, a database or an orchestrator.
struct Announcer {
    registry: Recipient<EndpointsChanged>,
}

/// Tells the source what there is now.
#[derive(actix::Message)]
#[rtype(result = "()")]
struct Announce(Vec<Endpoint>);

impl Actor for Announcer {
    type Context = Context<Self>;
}

impl Handler<Announce> for Announcer {
    type Result = actix::ResponseFuture<()>;

    fn handle(&mut self, Announce(endpoints): Announce, _ctx: &mut Self::Context) -> Self::Result {
        let set = self.registry.send(EndpointsChanged { source: Arc::from("announcer"), endpoints });
        Box::pin(async move {
            if set.await.is_err() {
                println!("  the router has stopped");
            }
        })
    }
}

struct Narrator;

impl Actor for Narrator {
    type Context = Context<Self>;
}

impl Handler<RouterEvent> for Narrator {
    type Result = ();

    fn handle(&mut self, event: RouterEvent, _ctx: &mut Self::Context) {
        match event {
            RouterEvent::WorkerStarted { worker, url } => println!("  {worker} started at {url}"),
            RouterEvent::WorkerStateChanged { worker, from, to, cause, .. } => {
                println!("  {worker}: {} -> {} ({})", from.name(), to.name(), cause.name())
            }
            RouterEvent::WorkerRemoved { worker, url } => println!("  {worker} removed from {url}"),
            _ => {}
        }
    }
}

/// Waits until the fleet has as many workers in each of the two states.
async fn settled(router: &RouterHandle, num_serving: usize, num_suspended: usize) -> bool {
    for _ in 0..200 {
        let fleet = router.fleet().await;
        let count = |state| {
            fleet.iter().filter_map(|member| member.snapshot.as_ref()).filter(|worker| worker.state == state).count()
        };
        if fleet.len() == num_serving + num_suspended
            && (count(WorkerState::Serving), count(WorkerState::Suspended)) == (num_serving, num_suspended)
        {
            return true;
        }
        actix::clock::sleep(Duration::from_millis(25)).await;
    }
    false
}

#[actix::main]
async fn main() -> Result<(), Failure> {
    let (first, second) =
        (SimEngine::start(SimConfig::default()).await?, SimEngine::start(SimConfig::default()).await?);
    let first = Endpoint::new(WorkerUrl::parse(&first.url())?);
    let second = Endpoint::new(WorkerUrl::parse(&second.url())?);
    let suspended = Endpoint { readiness: Readiness::Suspended, ..first.clone() };

    let narrator = Narrator.start();
    let router = Router::builder().subscribe(narrator.recipient()).start().await?;
    let source = Announcer { registry: router.endpoints() }.start();
    let sets = [
        ("two engines", vec![first.clone(), second.clone()], (2, 0)),
        ("the first is not ready", vec![suspended, second.clone()], (1, 1)),
        ("the first is ready again", vec![first, second.clone()], (2, 0)),
        ("the first is gone", vec![second], (1, 0)),
    ];
    let (num_sets, mut num_ok) = (sets.len(), 0);
    for (sentence, endpoints, (num_serving, num_suspended)) in sets {
        println!("{sentence}:");
        source.send(Announce(endpoints)).await?;
        num_ok += usize::from(settled(&router, num_serving, num_suspended).await);
    }
    router.stop().await;
    println!("custom_discovery: {num_sets} sets, {num_ok} ok, {} failed", num_sets - num_ok);
    Ok(())
}
