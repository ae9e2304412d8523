//! A simulated SGLang engine to point a router at: real HTTP, real load reports over ZMQ, no GPU.
//!
//! ```text
//! cargo run --release --example simulated_engine -- --port 30001 --dp-size 2 --load-port 5559 --seconds 10
//! curl http://127.0.0.1:30001/v1/completions -d '{"prompt": "hello", "max_tokens": 8, "stream": true}'
//! ```
//!
//! prints, and ends with the second line after `--seconds` or on Ctrl-C:
//!
//! ```text
//! simulated_engine: http://127.0.0.1:30001 serves tiny, dp size 2; load stat11 on 5559..=5560
//! simulated_engine: 1 requests
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use fathom_router::sim::{LoadForm, LoadPublishing, ServerInfoMode, SimConfig, SimEngine};

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
        "simulated_engine: {} serves {}, dp size {}; {}",
        engine.url(),
        options.model,
        options.dp_size,
        load_line(&options, &engine)
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
        max_running: options.max_running,
        token_time: Duration::from_millis(options.token_ms),
        load: (!options.no_load).then_some(load),
        ..SimConfig::default()
    }
}

fn load_line(options: &Options, engine: &SimEngine) -> String {
    let Some(first) = engine.load_port_base() else { return "no load".to_owned() };
    let last = u32::from(first) + options.dp_size - 1;
    let form = format!("{:?}", options.load_form).to_lowercase();
    let hint = if options.no_server_info { ", not advertised" } else { "" };
    format!("load {form} on {first}..={last}{hint}")
}

async fn wait_for_end(seconds: Option<u64>) -> std::io::Result<()> {
    let Some(seconds) = seconds else { return tokio::signal::ctrl_c().await };
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        () = tokio::time::sleep(Duration::from_secs(seconds)) => Ok(()),
    }
}
