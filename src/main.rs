//! The `fathom` binary: arguments, environment and file become a configuration, and the configuration a running router.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use fathom_router::config::{
    CommandLine, ConfigError, LogFormat, RawConfig, RouterConfig, ServerConfig, process_environment,
};
use fathom_router::error::StartError;
use fathom_router::process::{End, Reloader, changes_of, fit_descriptors, serve, signals};
use fathom_router::router::Router;
use fathom_router::server::{listen, listen_metrics};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

mod cli;

use cli::Arguments;

type LogFilter = reload::Handle<EnvFilter, Registry>;

fn main() -> ExitCode {
    let Arguments { command, serve: command_line } = Arguments::parse();
    if let Some(command) = command {
        return match actix::System::new().block_on(cli::run(command)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        };
    }
    let (raw, (router, server)) = match configuration(&command_line) {
        Ok(loaded) => loaded,
        Err(error) => return fail(&error),
    };
    let log_filter = match start_logging(&server) {
        Ok(log_filter) => log_filter,
        Err(error) => return fail(&*error),
    };
    let start = Start { command_line, raw, router, server, log_filter };
    match actix::System::new().block_on(run(start)) {
        Ok(End::Drained) => ExitCode::SUCCESS,
        Ok(End::AtOnce) => ExitCode::FAILURE,
        Err(error) => fail(&error),
    }
}

struct Start {
    command_line: CommandLine,
    raw: RawConfig,
    router: RouterConfig,
    server: ServerConfig,
    log_filter: LogFilter,
}

fn configuration(command_line: &CommandLine) -> Result<(RawConfig, (RouterConfig, ServerConfig)), ConfigError> {
    let raw = command_line.read()?;
    let validated = raw.clone().validate(process_environment)?;
    Ok((raw, validated))
}

async fn run(start: Start) -> Result<End, StartError> {
    let Start { command_line, raw, router: mut config, mut server, log_filter } = start;
    fit_descriptors(&mut config, &mut server);
    for worker in &config.workers {
        tracing::info!(url = %worker.url, "worker configured");
    }
    // From here on: a signal during the start must not leave sockets behind half-closed.
    let signals = signals().map_err(StartError::Serve)?;
    let router = Router::builder().config(config).start().await?;
    // An error ends the process, and the actors with it: stopping them first would only add lines to the log.
    let listening = listen(&router, &server)?;
    let metrics = listen_metrics(&router, &server)?;
    for address in &listening.addresses {
        tracing::info!(%address, scheme = listening.scheme, "listening");
    }
    let metrics = metrics.map(|metrics| {
        for address in metrics.addresses {
            tracing::info!(metrics_address = %address, "listening for readers of metrics");
        }
        let handle = metrics.server.handle();
        actix::spawn(metrics.server);
        handle
    });
    let orders = futures::stream::select(signals, changes_of(command_line.config.clone()));
    let set_log_level = move |level: &str| {
        let filter = EnvFilter::try_new(level).map_err(|error| error.to_string())?;
        log_filter.reload(filter).map_err(|error| error.to_string())
    };
    let mut reloader = Reloader::new(command_line, raw, router.clone(), listening.certificate.clone(), set_log_level);
    let served = serve(router, listening, orders, || reloader.reload()).await;
    if let Some(metrics) = metrics {
        metrics.stop(false).await;
    }
    served
}

fn start_logging(server: &ServerConfig) -> Result<LogFilter, Box<dyn std::error::Error>> {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(&server.log_level)?);
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        // It reports a log that cannot be written on the same closed pipe, and panics in whichever actor wrote the line.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match server.log_format {
        LogFormat::Text => registry.with(lines).try_init()?,
        LogFormat::Json => registry.with(lines.json()).try_init()?,
    }
    Ok(handle)
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
