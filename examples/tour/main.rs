//! A fleet of eight simulated engines through what fleets go through, under traffic: workers join, drain, die, come back, lie, fall
//! silent and leave.
//!
//! Run: `cargo run --release --example tour`.
//!
//! After each step three places must tell the same truth: `/workers`, `/metrics` and the stream behind `/dashboard`. At the end each
//! engine's own cache is compared with what the router lists of it, and the engines' own counts with the clients'. The last line is
//! `tour: <n> requests, <n> ok, 0 lost`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::router::{Router, RouterHandle};
use fathom_router::sim::{FeedStop, Reported, ResponseMode, SimConfig, SimEngine};

mod picture;
#[path = "../support/mod.rs"]
mod support;
mod traffic;

use picture::{Picture, Watch};
use support::{Failure, serve};
use traffic::Traffic;

const NAMES: [&str; 8] = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"];
/// So many are there from the start; the others join.
const NUM_AT_START: usize = 6;
/// Has two DP ranks.
const BRAVO: usize = 1;
/// Dies and comes back.
const CHARLIE: usize = 2;
/// Lies.
const DELTA: usize = 3;
/// Falls silent.
const ECHO: usize = 4;
/// Is drained.
const FOXTROT: usize = 5;
/// Joins, and leaves again.
const HOTEL: usize = 7;

/// Longer than any answer of an engine that is not overloaded takes.
const ALL_ANSWERS: Duration = Duration::from_secs(1);
/// Long enough for some fifty requests.
const A_WHILE: Duration = Duration::from_millis(600);

#[actix::main]
async fn main() -> Result<(), Failure> {
    let mut engines = Vec::new();
    for number in 0..NAMES.len() {
        engines.push(engine(number, 0).await?);
    }
    let router = start_router(&engines[..NUM_AT_START]).await?;
    let (url, server) = serve(router.configure(), 0)?;
    let mut tour = Tour { watch: Watch::open(&url).await?, engines, url };

    println!("six engines, each asked what it serves:");
    tour.holds("six workers serve, with trusted load", |picture, urls| {
        picture.num_in("serving") == NUM_AT_START && urls[..NUM_AT_START].iter().all(|url| picture.is_trusted(url))
    })
    .await?;
    let traffic = Traffic::start(&tour.url);
    tour.join().await?;
    tour.drain().await?;
    tour.die_and_come_back().await?;
    tour.lie().await?;
    tour.fall_silent().await?;
    tour.leave().await?;
    let (num_sent, num_ok) = traffic.end().await?;
    tour.compare_caches().await?;
    tour.compare_counts(num_ok).await?;

    drop(tour);
    server.stop(false).await;
    router.stop().await;
    println!("\ntour: {num_sent} requests, {num_ok} ok, {} lost", num_sent - num_ok);
    Ok(())
}

async fn engine(number: usize, port: u16) -> Result<SimEngine, Failure> {
    let dp_size = if number == BRAVO { 2 } else { 1 };
    let token_time = Duration::from_millis(4);
    let name = NAMES[number].to_owned();
    Ok(SimEngine::start(SimConfig { name, dp_size, port, token_time, ..SimConfig::default() }).await?)
}

/// With shorter times than the defaults, so that the tour takes seconds.
async fn start_router(engines: &[SimEngine]) -> Result<RouterHandle, Failure> {
    let mut config = RouterConfig::default();
    for engine in engines {
        config.workers.push(Endpoint::new(WorkerUrl::parse(&engine.url())?));
    }
    config.load.freshness = Duration::from_millis(1_500);
    config.load.ramp_up = Duration::from_secs(1);
    config.introspection.pending_interval = Duration::from_millis(200);
    config.introspection.interval = Duration::from_secs(1);
    config.health.cooldown = Duration::from_secs(1);
    // A machine that builds something else meanwhile may need longer than the default.
    config.round_deadline = Duration::from_millis(100);
    Ok(Router::builder().config(config).start().await?)
}

struct Tour {
    url: String,
    watch: Watch,
    engines: Vec<SimEngine>,
}

impl Tour {
    /// Waits until a statement about the fleet holds in each of the three places.
    async fn holds(&mut self, statement: &str, is_true: impl Fn(&Picture, &[String]) -> bool) -> Result<(), Failure> {
        let urls: Vec<String> = self.engines.iter().map(SimEngine::url).collect();
        self.watch.until(statement, |picture| is_true(picture, &urls)).await?;
        println!("  {statement}");
        Ok(())
    }

    /// Requests that reached an engine, and those that it answered.
    fn num_arrived(&self, number: usize) -> u64 {
        let stats = self.engines[number].stats();
        stats.num_requests(traffic::CHATS) + stats.num_requests(traffic::COMPLETIONS)
    }

    async fn gets_nothing(&self, number: usize) -> Result<(), Failure> {
        let before = self.num_arrived(number);
        actix::clock::sleep(A_WHILE).await;
        let num_new = self.num_arrived(number) - before;
        if num_new > 0 {
            return Err(format!("{} got {num_new} requests", NAMES[number]).into());
        }
        println!("  {} gets no request", NAMES[number]);
        Ok(())
    }

    async fn gets_some(&self, number: usize) -> Result<(), Failure> {
        let before = self.num_arrived(number);
        for _ in 0..200 {
            if self.num_arrived(number) > before {
                println!("  {} gets requests", NAMES[number]);
                return Ok(());
            }
            actix::clock::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("{} got no request within ten seconds", NAMES[number]).into())
    }

    async fn join(&mut self) -> Result<(), Failure> {
        println!("\ngolf and hotel join (POST /workers):");
        for number in NUM_AT_START..NAMES.len() {
            let body = serde_json::json!({ "url": self.engines[number].url() });
            self.watch.client.expect(201, "POST", &format!("{}/workers", self.url), &body.to_string()).await?;
        }
        let all_serve = |picture: &Picture, urls: &[String]| {
            picture.num_in("serving") == NAMES.len() && urls.iter().all(|url| picture.is_trusted(url))
        };
        self.holds("eight workers serve, with trusted load", all_serve).await?;
        self.gets_some(HOTEL).await
    }

    async fn drain(&mut self) -> Result<(), Failure> {
        println!("\nfoxtrot is drained (POST /workers/foxtrot/drain):");
        let path = format!("{}/workers/{}/drain", self.url, self.engines[FOXTROT].url());
        self.watch.client.expect(200, "POST", &path, "").await?;
        self.holds("it is suspended, and what ran there has ended", |picture, urls| {
            picture.state(&urls[FOXTROT]) == Some("suspended") && picture.in_flight(&urls[FOXTROT]) == Some(0)
        })
        .await?;
        self.gets_nothing(FOXTROT).await?;
        self.watch.client.expect(200, "DELETE", &path, "").await?;
        self.holds("it serves again", |picture, urls| picture.state(&urls[FOXTROT]) == Some("serving")).await?;
        self.gets_some(FOXTROT).await
    }

    /// A stream that has begun is broken by the death of its engine, whatever a router does: so charlie hangs before it dies.
    async fn die_and_come_back(&mut self) -> Result<(), Failure> {
        println!("\ncharlie hangs, and dies with the requests that it has not begun to answer:");
        self.engines[CHARLIE].set_response_mode(ResponseMode::HangBeforeHeaders);
        actix::clock::sleep(ALL_ANSWERS).await;
        let stats = self.engines[CHARLIE].stats();
        println!("  {} requests hang there", stats.running + stats.waiting);
        let charlie = self.engines.remove(CHARLIE);
        let (port, url) = (charlie.port(), charlie.url());
        charlie.kill().await;
        let is_out =
            |picture: &Picture, _: &[String]| picture.state(&url) == Some("ejected") && !picture.is_trusted(&url);
        self.holds("it is ejected, and its load is not believed", is_out).await?;

        println!("\ncharlie comes back at its address, with an empty cache and other ports for its feeds:");
        self.engines.insert(CHARLIE, engine(CHARLIE, port).await?);
        self.holds("it serves, with trusted load", |picture, urls| {
            picture.state(&urls[CHARLIE]) == Some("serving") && picture.is_trusted(&urls[CHARLIE])
        })
        .await?;
        self.gets_some(CHARLIE).await
    }

    async fn lie(&mut self) -> Result<(), Failure> {
        println!("\ndelta says that 500 requests wait there:");
        let lie = Reported { num_waiting_reqs: 500, max_running_requests: 8, ..Reported::default() };
        self.engines[DELTA].set_reported_load(0, Some(lie))?;
        self.holds("that is shown as it says it", |picture, urls| picture.depth(&urls[DELTA]) == Some(500)).await?;
        self.gets_nothing(DELTA).await?;
        for _ in 0..3 {
            self.engines[DELTA].publish_raw(0, vec![b"load".to_vec(), vec![0; 8], b"no report".to_vec()])?;
        }
        self.holds("what is no report is counted, and changes nothing", |picture, urls| {
            picture.bad_frames(&urls[DELTA]) == Some(3) && picture.is_trusted(&urls[DELTA])
        })
        .await?;
        self.engines[DELTA].set_reported_load(0, None)?;
        self.holds("its own load is believed again", |picture, urls| {
            picture.depth(&urls[DELTA]).is_some_and(|depth| depth < 500)
        })
        .await?;
        self.gets_some(DELTA).await
    }

    async fn fall_silent(&mut self) -> Result<(), Failure> {
        println!("\necho serves on, but reports nothing any more:");
        self.engines[ECHO].stop_publishing(FeedStop::Silence);
        self.holds("its load is not believed, and all are priced by in-flight", |picture, urls| {
            picture.state(&urls[ECHO]) == Some("serving")
                && !picture.is_trusted(&urls[ECHO])
                && picture.is_on_fallback()
        })
        .await?;
        self.gets_some(ECHO).await?;
        self.engines[ECHO].resume_publishing()?;
        self.holds("with its reports, depth counts again", |picture, urls| {
            picture.is_trusted(&urls[ECHO]) && !picture.is_on_fallback()
        })
        .await
    }

    async fn leave(&mut self) -> Result<(), Failure> {
        println!("\nhotel leaves (DELETE /workers/hotel):");
        let path = format!("{}/workers/{}", self.url, self.engines[HOTEL].url());
        self.watch.client.expect(200, "DELETE", &path, "").await?;
        self.holds("nothing is left of it, seven serve", |picture, urls| {
            picture.num_in("serving") == NAMES.len() - 1 && picture.is_gone(&urls[HOTEL])
        })
        .await?;
        self.gets_nothing(HOTEL).await
    }

    /// What the router lists of each rank's cache is what the engine has cached.
    async fn compare_caches(&mut self) -> Result<(), Failure> {
        println!("\nthe traffic has ended:");
        let counts: Vec<u64> = (0..HOTEL).map(|number| num_cached(&self.engines[number])).collect();
        let is_listed = |picture: &Picture, urls: &[String]| {
            urls[..HOTEL].iter().zip(&counts).all(|(url, count)| picture.num_blocks(url) == Some(*count))
        };
        self.holds("all blocks that the engines cache are listed, and no other", is_listed).await?;
        let idle = |picture: &Picture, urls: &[String]| {
            let mut urls = urls[..HOTEL].iter();
            urls.all(|url| picture.depth(url) == Some(0) && picture.in_flight(url) == Some(0))
        };
        self.holds("every worker is idle", idle).await
    }

    async fn compare_counts(&mut self, num_ok: usize) -> Result<(), Failure> {
        self.holds("the router counts as many good answers as the clients", |picture, _| {
            picture.num_answered() == Some(num_ok as u64)
        })
        .await
    }
}

fn num_cached(engine: &SimEngine) -> u64 {
    (0..2).filter_map(|rank| engine.cached_blocks(rank)).map(|blocks| blocks.len() as u64).sum()
}
