//! An actor of your own behind the selection port, in place of the built-in `SelectorActor`. It is told the fleet by
//! `WorkersChanged` and answers `SelectWorker`; the rest of the router (discovery, proxy, in-flight account) stays as it is.
//!
//! This one pins each model to a worker by a hash of its name, whatever the load, and names the others as fallbacks.
//!
//! Run: `cargo run --release --example custom_selector`. The last line is `custom_selector: 12 requests, 12 ok, 0 failed`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use actix::prelude::{Actor, Context, Handler};
use fathom_router::config::RouterConfig;
use fathom_router::logic::decide::NoWorker;
use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::logic::ids::DecisionId;
use fathom_router::logic::price::Basis;
use fathom_router::messages::{Decision, SelectWorker, WorkerPorts, WorkersChanged};
use fathom_router::router::{Router, SelectorPorts};
use fathom_router::sim::{SimConfig, SimEngine};

mod support;

use support::{Client, Failure, serve};

#[derive(Default)]
struct PinByModel {
    workers: Vec<Arc<WorkerPorts>>,
    num_decisions: u64,
}

impl Actor for PinByModel {
    type Context = Context<Self>;
}

impl Handler<WorkersChanged> for PinByModel {
    type Result = ();

    fn handle(&mut self, msg: WorkersChanged, _ctx: &mut Self::Context) {
        self.workers = msg.workers.to_vec();
    }
}

impl Handler<SelectWorker> for PinByModel {
    type Result = Result<Decision, NoWorker>;

    fn handle(&mut self, msg: SelectWorker, _ctx: &mut Self::Context) -> Self::Result {
        let mut order: Vec<Arc<WorkerPorts>> =
            self.workers.iter().filter(|worker| !msg.request.excluded.contains(&worker.id)).cloned().collect();
        if order.is_empty() {
            return Err(NoWorker::EmptyFleet);
        }
        let mut hasher = DefaultHasher::new();
        msg.request.model.hash(&mut hasher);
        let num_workers = order.len();
        order.rotate_left((hasher.finish() % num_workers as u64) as usize);
        let fallbacks = order.split_off(1);
        self.num_decisions += 1;
        let id = DecisionId::new(self.num_decisions);
        // The decision reserves its place at the worker; if the client has left meanwhile, dropping it gives the place back.
        Ok(Decision::new(id, order.swap_remove(0), &msg.request, "pinned", Basis::InFlight).with_fallbacks(fallbacks))
    }
}

#[actix::main]
async fn main() -> Result<(), Failure> {
    let mut config = RouterConfig::default();
    let mut engines = Vec::new();
    for name in ["red", "green", "blue"] {
        let engine = SimEngine::start(SimConfig { name: name.to_owned(), ..SimConfig::default() }).await?;
        config.workers.push(Endpoint::new(WorkerUrl::parse(&engine.url())?));
        engines.push(engine);
    }
    let selector = PinByModel::default().start();
    let ports = SelectorPorts::new(selector.clone().recipient()).with_workers(selector.recipient());
    let router = Router::builder().config(config).selector(ports).start().await?;

    let (url, server) = serve(router.configure(), 0)?;
    let client = Client::new();
    client.wait_until_serving(&url, engines.len()).await?;
    let requests = (0..12).map(|number| client.chat(&url, "hello", 4, number % 2 == 0));
    let answers = futures::future::try_join_all(requests).await?;
    let chosen: BTreeSet<&str> = answers.iter().map(|answer| answer.header("x-sim-engine")).collect();
    println!("one model, so one engine: {chosen:?}");
    server.stop(true).await;
    router.stop().await;
    let num_ok = answers.iter().filter(|answer| answer.status == 200).count();
    println!("custom_selector: {} requests, {num_ok} ok, {} failed", answers.len(), answers.len() - num_ok);
    Ok(())
}
