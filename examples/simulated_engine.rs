//! A simulated SGLang engine to point a router at: real HTTP, real load reports and cache events over ZMQ, no GPU.
//!
//! ```text
//! cargo run --release --example simulated_engine -- --port 30001 --dp-size 2 --kv-port 5557 --load-port 5559 --seconds 10
//! curl http://127.0.0.1:30001/v1/completions -d '{"prompt": "hello", "max_tokens": 8, "stream": true}'
//! ```
//!
//! prints, and ends with the second line after `--seconds` or on Ctrl-C:
//!
//! ```text
//! simulated_engine: http://127.0.0.1:30001 serves tiny, dp size 2; load stat11 on 5559..=5560; kv events on 5557..=5558
//! simulated_engine: 1 requests
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use fathom_router::sim::{
    KvEvents, KvPublishing, KvReplay, LoadForm, LoadPublishing, ServerInfoMode, SimConfig, SimEngine,
};

/// The options are those of an SGLang server where it has them.
#[derive(Debug, Parser)]
struct Options {
    /// The HTTP port; 0 = any.
    #[arg(long, default_value_t = 30001)]
    port: u16,
    /// The number of data-parallel ranks.
    #[arg(long, default_value_t = 1)]
    dp_size: u32,
    /// The load port of rank 0; any run of free ports by default.
    #[arg(long)]
    load_port: Option<u16>,
    /// The wire form of load reports.
    #[arg(long, value_enum, default_value_t = Form::Stat11)]
    load_form: Form,
    /// Publishes no load, like an engine without --load-publish-endpoint.
    #[arg(long)]
    no_load: bool,
    /// The tokens per page of the prefix cache, which is the block size of its events.
    #[arg(long, default_value_t = 16)]
    page_size: u32,
    /// The port of rank 0 for KV events; any run of free ports by default.
    #[arg(long)]
    kv_port: Option<u16>,
    /// The port of rank 0 for replays of KV events; 0 = any. No replays by default.
    #[arg(long)]
    kv_replay_port: Option<u16>,
    /// Publishes no KV events, like an engine without --kv-events-config. Then no load is advertised either.
    #[arg(long, conflicts_with_all = ["kv_port", "kv_replay_port"])]
    no_kv: bool,
    /// Answers /server_info with 404.
    #[arg(long)]
    no_server_info: bool,
    /// The served model name.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// The slots per rank; further requests wait.
    #[arg(long, default_value_t = 8)]
    max_running: usize,
    /// The time per output token, in milliseconds.
    #[arg(long, default_value_t = 20)]
    token_ms: u64,
    /// Ends after so many seconds instead of on Ctrl-C.
    #[arg(long)]
    seconds: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    Stat11,
    Stat6,
    Snapshot,
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let engine = SimEngine::start(config(&options)).await?;
    if options.no_server_info {
        engine.set_server_info(ServerInfoMode::NotFound);
    }
    println!(
        "simulated_engine: {} serves {}, dp size {}; {}; {}",
        engine.url(),
        options.model,
        options.dp_size,
        load_line(&options, &engine),
        kv_line(&options, &engine)
    );

    wait_for_end(options.seconds).await?;
    let num_requests = engine.stats().num_requests_in_total();
    engine.stop().await;
    println!("simulated_engine: {num_requests} requests");
    Ok(())
}

fn config(options: &Options) -> SimConfig {
    let form = match options.load_form {
        Form::Stat11 => LoadForm::Stat11,
        Form::Stat6 => LoadForm::Stat6,
        Form::Snapshot => LoadForm::Snapshot,
    };
    let load = LoadPublishing { port_base: options.load_port, form, ..LoadPublishing::default() };
    SimConfig {
        name: format!("sim-{}", options.port),
        model: options.model.clone(),
        port: options.port,
        dp_size: options.dp_size,
        page_size: options.page_size,
        max_running: options.max_running,
        token_time: Duration::from_millis(options.token_ms),
        load: (!options.no_load).then_some(load),
        kv_events: kv_events(options),
        ..SimConfig::default()
    }
}

fn kv_events(options: &Options) -> KvEvents {
    if options.no_kv {
        return KvEvents::Null;
    }
    let replay =
        options.kv_replay_port.map(|port| KvReplay { port_base: (port != 0).then_some(port), ..KvReplay::default() });
    KvEvents::Published(KvPublishing { port_base: options.kv_port, replay })
}

fn load_line(options: &Options, engine: &SimEngine) -> String {
    let Some(first) = engine.load_port_base() else { return "no load".to_owned() };
    let form = format!("{:?}", options.load_form).to_lowercase();
    let hint = if options.no_server_info || options.no_kv { ", not advertised" } else { "" };
    format!("load {form} on {}{hint}", run_of_ports(first, options))
}

fn kv_line(options: &Options, engine: &SimEngine) -> String {
    let Some(first) = engine.kv_port_base() else { return "no kv events".to_owned() };
    let events = format!("kv events on {}", run_of_ports(first, options));
    match engine.kv_replay_port_base() {
        Some(first) => format!("{events}, replays on {}", run_of_ports(first, options)),
        None => events,
    }
}

fn run_of_ports(first: u16, options: &Options) -> String {
    format!("{first}..={}", u32::from(first) + options.dp_size - 1)
}

async fn wait_for_end(seconds: Option<u64>) -> std::io::Result<()> {
    let Some(seconds) = seconds else { return tokio::signal::ctrl_c().await };
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        () = tokio::time::sleep(Duration::from_secs(seconds)) => Ok(()),
    }
}
