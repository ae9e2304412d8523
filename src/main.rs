//! The `fathom` binary: arguments, environment and file become a configuration, and the configuration a running router.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use fathom_router::config::{LogFormat, RouterConfig, ServerConfig};
use fathom_router::error::StartError;
use fathom_router::router::Router;
use fathom_router::server::{listen, listen_metrics};
use tracing_subscriber::EnvFilter;

mod cli;

use cli::Arguments;

/// Each feed of each rank is a socket with three descriptors, and each open request has two.
const WANTED_DESCRIPTORS: u64 = 65_536;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(command) = arguments.command {
        return match actix::System::new().block_on(cli::run(command)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        };
    }
    let (router, server) = match arguments.serve.load() {
        Ok(loaded) => loaded,
        Err(error) => return fail(&error),
    };
    if let Err(error) = start_logging(&server) {
        return fail(&*error);
    }
    match actix::System::new().block_on(run(router, server)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn run(config: RouterConfig, server: ServerConfig) -> Result<(), StartError> {
    raise_descriptor_limit();
    for worker in &config.workers {
        tracing::info!(url = %worker.url, "worker configured");
    }
    let router = Router::builder().config(config).start().await?;
    // An error ends the process, and the actors with it: stopping them first would only add lines to the log.
    let clients = listen(&router, &server)?;
    let metrics = listen_metrics(&router, &server)?;
    for address in clients.addresses {
        tracing::info!(%address, scheme = clients.scheme, "listening");
    }
    let metrics = metrics.map(|metrics| {
        for address in metrics.addresses {
            tracing::info!(metrics_address = %address, "listening for readers of metrics");
        }
        let handle = metrics.server.handle();
        actix::spawn(metrics.server);
        handle
    });
    let served = clients.server.await;
    if let Some(metrics) = metrics {
        metrics.stop(false).await;
    }
    router.stop().await;
    served.map_err(StartError::Serve)
}

fn start_logging(server: &ServerConfig) -> Result<(), Box<dyn std::error::Error>> {
    let filter = EnvFilter::try_new(&server.log_level)?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        // It reports a log that cannot be written on the same closed pipe, and panics in whichever actor wrote the line.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match server.log_format {
        LogFormat::Text => logs.try_init().map_err(|error| error as Box<dyn std::error::Error>),
        LogFormat::Json => logs.json().try_init().map_err(|error| error as Box<dyn std::error::Error>),
    }
}

/// Raises the soft limit as far as the hard one allows. What that does not cover degrades: feeds that cannot be opened are tried
/// again, and their workers are priced by in-flight.
fn raise_descriptor_limit() {
    match rlimit::increase_nofile_limit(WANTED_DESCRIPTORS) {
        Ok(limit) if limit < WANTED_DESCRIPTORS => {
            tracing::warn!(limit, wanted = WANTED_DESCRIPTORS, "few file descriptors: each load feed takes three");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of file descriptors cannot be raised"),
    }
}

#[expect(clippy::print_stderr, reason = "logging may not have started, and whoever started the process reads this")]
fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprint!("fathom: {error}");
    let mut source = error.source();
    let mut shown = error.to_string();
    while let Some(cause) = source {
        // Some errors already say their cause.
        if !shown.ends_with(&cause.to_string()) {
            eprint!(": {cause}");
            shown = cause.to_string();
        }
        source = cause.source();
    }
    eprintln!();
    ExitCode::FAILURE
}
