//! A policy of your own: a pure function from (request, frozen view, random numbers) to a pick. No actor is involved, and the
//! same view and seed always give the same pick.
//!
//! This one knows that one engine is twice as fast as the other and so compares queue depth per unit of speed.
//!
//! Run: `cargo run --release --example custom_policy`. The last line is `custom_policy: 30 requests, 30 ok, 0 failed`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::BTreeMap;
use std::time::Duration;

use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::router::Router;
use fathom_router::sim::{SimConfig, SimEngine};
use fathom_router::{Pick, Policy, RequestFacts, Rng, View};

mod support;

use support::{Client, Failure, serve};

/// Least depth per unit of speed; workers that are not listed have speed 1.
#[derive(Debug)]
struct LeastDepthPerSpeed {
    speeds: BTreeMap<String, f64>,
}

impl Policy for LeastDepthPerSpeed {
    fn name(&self) -> &'static str {
        "least_depth_per_speed"
    }

    fn pick(&self, _request: &RequestFacts, view: &View<'_>, rng: &mut Rng) -> Pick {
        let cost = |candidate: usize| {
            let speed = self.speeds.get(view.snapshot(candidate).url.as_str()).copied().unwrap_or(1.0);
            // One more for the request itself: an idle slow engine is not as good as an idle fast one.
            (view.load_of(candidate) + 1.0) / speed
        };
        let least = (0..view.len()).map(cost).fold(f64::INFINITY, f64::min);
        let ties: Vec<usize> = (0..view.len()).filter(|candidate| cost(*candidate) <= least).collect();
        Pick::new(ties[rng.below(ties.len())], "least_depth_per_speed")
    }
}

#[actix::main]
async fn main() -> Result<(), Failure> {
    let token_time = Duration::from_millis(5);
    let fast = SimEngine::start(SimConfig { name: "fast".to_owned(), token_time, ..SimConfig::default() }).await?;
    let slow =
        SimEngine::start(SimConfig { name: "slow".to_owned(), token_time: token_time * 2, ..SimConfig::default() })
            .await?;
    let mut config = RouterConfig::default();
    config.workers = vec![Endpoint::new(WorkerUrl::parse(&fast.url())?), Endpoint::new(WorkerUrl::parse(&slow.url())?)];

    let policy = LeastDepthPerSpeed { speeds: BTreeMap::from([(fast.url(), 2.0)]) };
    let router = Router::builder().config(config).policy(policy).start().await?;

    let (url, server) = serve(router.configure(), 0)?;
    let client = Client::new();
    client.wait_until_trusted(&url, 2).await?;
    let requests = (0..30).map(|number| client.chat(&url, "hello", 40, number % 2 == 0));
    let answers = futures::future::try_join_all(requests).await?;
    let mut counts = BTreeMap::new();
    for answer in &answers {
        *counts.entry(answer.header("x-sim-engine")).or_insert(0) += 1;
    }
    println!("the fast engine should get about twice as many: {counts:?}");
    server.stop(true).await;
    router.stop().await;
    let num_ok = answers.iter().filter(|answer| answer.status == 200).count();
    println!("custom_policy: {} requests, {num_ok} ok, {} failed", answers.len(), answers.len() - num_ok);
    Ok(())
}
