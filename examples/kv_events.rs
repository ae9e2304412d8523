//! Watches what an engine says of its KV cache: batches per second, blocks, how they are keyed, and how far its stream can be
//! believed. The router is used without its HTTP edge: it follows the engine, and is asked for its fleet.
//!
//! Run: `cargo run --release --example kv_events` watches a simulated engine that is kept busy and loses some of its batches.
//! The last line is `kv_events: 256 of 256 blocks, exact`: as many are listed as the engine holds.
//!
//! A real one: `-- --url http://127.0.0.1:30000 --seconds 60` where the engine describes its sockets in `/server_info` (SGLang);
//! else with its ports, as for vLLM: `-- --url http://127.0.0.1:8000 --kv-port 5557 --replay-port 5558 --topic kv-events`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, FeedDescriptor, WorkerUrl};
use fathom_router::logic::kv_stream::StreamTrust;
use fathom_router::logic::snapshot::KvView;
use fathom_router::router::{Router, RouterHandle};
use fathom_router::sim::{KvEvents, KvPublishing, KvReplay, SimConfig, SimEngine};

mod support;

use support::{Client, Failure};

/// Watches an engine's KV events.
#[derive(Parser)]
struct Options {
    /// The engine. Without one, a simulated engine is started and watched.
    #[arg(long)]
    url: Option<String>,
    /// How long to watch.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The port of rank 0 for KV events, of an engine that does not say it itself.
    #[arg(long)]
    kv_port: Option<u16>,
    /// The port of rank 0 for replays.
    #[arg(long, requires = "kv_port")]
    replay_port: Option<u16>,
    /// The number of DP ranks.
    #[arg(long, default_value_t = 1, requires = "kv_port")]
    dp_size: u32,
    /// The ZMQ topic of the events.
    #[arg(long, default_value = "", requires = "kv_port")]
    topic: String,
}

#[actix::main]
async fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let engine = match options.url {
        Some(_) => None,
        None => Some(start_engine().await?),
    };
    let url = options.url.clone().or_else(|| engine.as_ref().map(SimEngine::url)).unwrap_or_default();
    let mut endpoint = Endpoint::new(WorkerUrl::parse(&url)?);
    endpoint.overrides.feeds = options.kv_port.map(|port| descriptor(&options, port));
    let mut config = RouterConfig::default();
    config.workers = vec![endpoint];
    let router = Router::builder().config(config).start().await?;
    let traffic = engine.as_ref().map(|engine| actix::spawn(send_prompts(engine.url())));

    let mut last = 0;
    for second in 1..=options.seconds {
        actix::clock::sleep(Duration::from_secs(1)).await;
        if let (Some(engine), 2) = (&engine, second) {
            println!("the engine's next three batches are lost on their way");
            engine.drop_next_kv_batches(0, 3)?;
        }
        let Some(kv) = kv_of(&router).await else {
            println!("the engine has not answered yet");
            continue;
        };
        print_line(&kv, kv.frames - last);
        last = kv.frames;
    }
    if let Some(traffic) = traffic {
        traffic.await??;
    }
    let (listed, trust) = settled(&router, engine.as_ref()).await;
    let held = engine.as_ref().and_then(|engine| engine.cached_blocks(0)).map_or(listed, |blocks| blocks.len() as u64);
    router.stop().await;
    println!("kv_events: {listed} of {held} blocks, {}", trust.name());
    Ok(())
}

async fn start_engine() -> Result<SimEngine, Failure> {
    let publishing = KvPublishing { port_base: None, replay: Some(KvReplay::default()) };
    let config = SimConfig {
        // Room for 256 blocks: after a while each prompt pushes an older one out.
        max_total_tokens: 256 * 16,
        kv_events: KvEvents::Published(publishing),
        ..SimConfig::default()
    };
    Ok(SimEngine::start(config).await?)
}

fn descriptor(options: &Options, port: u16) -> FeedDescriptor {
    FeedDescriptor {
        dp_size: options.dp_size,
        endpoint_host: "*".to_owned(),
        endpoint_port_base: Some(port),
        topic: options.topic.clone(),
        block_size: None,
        load_endpoint_port_base: None,
        load_topic: None,
        replay_endpoint_port_base: options.replay_port,
    }
}

/// Conversations that go straight to the engine: the router is not told of them by anybody but the engine.
async fn send_prompts(url: String) -> Result<(), Failure> {
    let client = Client::new();
    for number in 0..80_u32 {
        let prompt: String = (0..12).map(|part| format!("Part {part} of conversation {number}: ")).collect();
        let answer = client.chat(&url, &format!("{prompt} hello"), 8, false).await?;
        if answer.status != 200 {
            return Err(format!("the engine answered {}", answer.status).into());
        }
        actix::clock::sleep(Duration::from_millis(40)).await;
    }
    Ok(())
}

async fn kv_of(router: &RouterHandle) -> Option<Arc<KvView>> {
    let worker = router.fleet().await.into_iter().next()?.snapshot?;
    (!worker.kv.ranks.is_empty()).then(|| Arc::clone(&worker.kv))
}

fn print_line(kv: &KvView, num_batches: u64) {
    let mode =
        kv.variant.map_or("not known yet".to_owned(), |v| format!("{}, {} a block", v.mode.name(), v.block_size));
    let verified = if kv.is_hash_verified { ", verified" } else { "" };
    println!("{num_batches} batches/s; keyed by {mode}{verified}; {} bytes", kv.counts.bytes);
    for (number, rank) in kv.ranks.iter().enumerate() {
        let counters = &rank.counters;
        println!(
            "  rank {number}: {} blocks, {}; {} batches missed, {} replays closed their gap, {} did not, {} restarts",
            rank.num_blocks,
            rank.trust.name(),
            counters.missing,
            counters.repaired,
            counters.unrepaired,
            counters.restarts,
        );
    }
}

/// Waits a moment for the last batches, and returns how many blocks rank 0 lists and how far they can be believed.
async fn settled(router: &RouterHandle, engine: Option<&SimEngine>) -> (u64, StreamTrust) {
    let mut last = (0, StreamTrust::Cold);
    for _ in 0..100 {
        if let Some(rank) = kv_of(router).await.and_then(|kv| kv.ranks.first().copied()) {
            last = (rank.num_blocks, rank.trust);
        }
        let held = engine.and_then(|engine| engine.cached_blocks(0)).map_or(last.0, |blocks| blocks.len() as u64);
        if last == (held, StreamTrust::Exact) {
            break;
        }
        actix::clock::sleep(Duration::from_millis(20)).await;
    }
    last
}
