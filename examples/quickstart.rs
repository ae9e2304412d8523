//! The whole router on one machine, without a GPU: three simulated SGLang engines that publish their load over ZMQ, the router in
//! front of them, and traffic of which a part goes **around** the router, straight to one engine.
//!
//! Run: `cargo run --release --example quickstart` (add `-- --serve` to keep it up on port 30000).
//!
//! It prints where each request went and why. In the first half every engine publishes: the router sees the traffic that goes
//! around it and avoids that engine. Then one engine stops publishing: its picture grows old, and all are priced by what the
//! router itself has in flight. The last line is `quickstart: <n> requests, <n> ok, 0 failed`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::Actor;
use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::messages::DecisionRecord;
use fathom_router::router::{Router, RouterHandle};
use fathom_router::sim::{FeedStop, SimConfig, SimEngine};

mod support;

use support::{Answer, Client, DecisionLog, Failure, serve};

const NUM_PER_HALF: usize = 18;
const NUM_AROUND: usize = 12;
/// Short, so that the example need not wait five seconds for a report to grow old.
const FRESHNESS: Duration = Duration::from_millis(1_500);

#[actix::main]
async fn main() -> Result<(), Failure> {
    let serve_on = std::env::args().any(|argument| argument == "--serve").then_some(30_000);
    let engines = [engine("alpha", 1).await?, engine("bravo", 2).await?, engine("charlie", 1).await?];
    let records = Arc::default();
    let observer = DecisionLog { records: Arc::clone(&records) }.start();
    let router = start_router(&engines, observer.recipient()).await?;
    let (url, server) = serve(router.configure(), serve_on.unwrap_or(0))?;
    let client = Client::new();
    client.wait_until_trusted(&url, engines.len()).await?;
    let names: Vec<(String, String)> = engines.iter().map(|engine| (engine.url(), engine.name().to_owned())).collect();
    println!(
        "three engines, each with room for 8 requests per rank; {NUM_AROUND} long streams go around the router to alpha\n"
    );

    println!("all engines publish their load:");
    let around = go_around(&client, &engines[0]);
    actix::clock::sleep(Duration::from_millis(300)).await;
    let mut sent = send_mix(&client, &url).await;
    print_table(&sent, &records, &names);

    engines[2].stop_publishing(FeedStop::Close);
    actix::clock::sleep(FRESHNESS + Duration::from_millis(200)).await;
    println!("\ncharlie has stopped publishing, so nobody's depth is used:");
    let second_half = send_mix(&client, &url).await;
    print_table(&second_half, &records, &names);
    sent.extend(second_half);
    sent.extend(around.await?);

    if serve_on.is_some() {
        engines[2].resume_publishing()?;
        println!(
            "\nserving on {url}, end with Ctrl-C; try:\n  curl {url}/v1/chat/completions -H 'content-type: application/json' \\"
        );
        println!(
            "    -d '{{\"model\": \"tiny\", \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}]}}'\n  curl {url}/workers"
        );
        tokio::signal::ctrl_c().await?;
    }
    server.stop(true).await;
    router.stop().await;
    let num_ok = sent.iter().filter(|answer| answer.as_ref().is_ok_and(|answer| answer.status == 200)).count();
    println!("\nquickstart: {} requests, {num_ok} ok, {} failed", sent.len(), sent.len() - num_ok);
    Ok(())
}

async fn engine(name: &str, dp_size: u32) -> Result<SimEngine, Failure> {
    let token_time = Duration::from_millis(8);
    Ok(SimEngine::start(SimConfig { name: name.to_owned(), dp_size, token_time, ..SimConfig::default() }).await?)
}

async fn start_router(
    engines: &[SimEngine],
    observer: actix::Recipient<fathom_router::messages::RouterEvent>,
) -> Result<RouterHandle, Failure> {
    let mut config = RouterConfig::default();
    for engine in engines {
        config.workers.push(Endpoint::new(WorkerUrl::parse(&engine.url())?));
    }
    config.load.freshness = FRESHNESS;
    config.http.expose_decision = true;
    Ok(Router::builder().config(config).subscribe(observer).start().await?)
}

/// Long streams straight to the engine, as another router or an impatient colleague would send them.
fn go_around(client: &Client, engine: &SimEngine) -> tokio::task::JoinHandle<Vec<Result<Answer, Failure>>> {
    let (client, url) = (client.clone(), engine.url());
    actix::spawn(async move {
        let streams = (0..NUM_AROUND).map(|_| client.chat(&url, "a long story, please", 300, true));
        futures::future::join_all(streams).await
    })
}

/// Half of the requests stream, and a new one starts every 20 ms.
async fn send_mix(client: &Client, url: &str) -> Vec<Result<Answer, Failure>> {
    let mut open = Vec::new();
    for number in 0..NUM_PER_HALF {
        let (client, url) = (client.clone(), url.to_owned());
        open.push(actix::spawn(async move { client.chat(&url, "hello, how are you?", 24, number % 2 == 0).await }));
        actix::clock::sleep(Duration::from_millis(20)).await;
    }
    let mut answers = Vec::new();
    for answer in open {
        answers.push(answer.await.unwrap_or_else(|error| Err(error.into())));
    }
    answers
}

fn print_table(
    sent: &[Result<Answer, Failure>],
    records: &Mutex<Vec<Arc<DecisionRecord>>>,
    names: &[(String, String)],
) {
    let name_of = |url: &str| names.iter().find(|(known, _)| known == url).map_or("?", |(_, name)| name.as_str());
    println!(
        "{:>3}  {:<8} {:<15} {:<13} {:<10} load of each candidate (age of its oldest report)",
        "#", "went to", "policy", "reason", "basis"
    );
    let Ok(records) = records.lock() else { return };
    for (number, answer) in sent.iter().enumerate() {
        let id = answer.as_ref().map_or("", |answer| answer.header("x-fathom-decision-id"));
        let Some(record) = records.iter().find(|record| record.id.to_string() == id) else { continue };
        let mut loads = String::new();
        for candidate in &record.candidates {
            let age = candidate.report_age.map_or("none".to_owned(), |age| format!("{} ms", age.as_millis()));
            loads += &format!("{} {} ({age})  ", name_of(candidate.snapshot.url.as_str()), candidate.load);
        }
        let worker = name_of(record.url.as_str());
        let (policy, reason, basis) = (record.policy, record.reason, record.basis.name());
        println!("{number:>3}  {worker:<8} {policy:<15} {reason:<13} {basis:<10} {loads}");
    }
}
