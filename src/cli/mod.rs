//! What the binary does beside serving: check a configuration, and look at a running router through its admin paths.

use std::io::{self, Write};

use clap::{Args, Parser, Subcommand};
use fathom_router::config::{CommandLine, ConfigError};

mod client;
mod show;

use client::{AdminClient, AskError};

/// Without a command, it serves.
#[derive(Debug, Parser)]
#[command(name = "fathom", version, about = "Routes requests to the LLM inference engine that will answer soonest")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// The settings of the router.
    #[command(flatten)]
    pub(crate) serve: CommandLine,
}

/// What to do instead of serving.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Checks the settings of flags, environment and configuration file without serving. Files that they name are not opened.
    Check {
        #[command(flatten)]
        settings: Box<CommandLine>,
    },
    /// Shows a running router in the terminal, once a second, until Ctrl-C.
    Top {
        #[command(flatten)]
        at: At,
        /// Shows one picture and ends.
        #[arg(long)]
        once: bool,
    },
    /// Lists the workers of a running router.
    Workers {
        #[command(flatten)]
        at: At,
    },
    /// Gives a worker no new requests; those that run go on.
    Drain {
        /// The worker's id or address, as `workers` lists them.
        worker: String,
        #[command(flatten)]
        at: At,
    },
    /// Gives a drained worker requests again.
    Resume {
        /// The worker's id or address.
        worker: String,
        #[command(flatten)]
        at: At,
    },
}

/// Which router is meant.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// Where the router listens. Its admin key, if it has one, is read from the environment variable FATHOM_ADMIN_KEY.
    #[arg(long, env = "FATHOM_URL", value_name = "URL", default_value = "http://127.0.0.1:30000")]
    url: String,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The router cannot be asked, or refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Nobody reads what is shown.
    #[error("cannot write")]
    Write(#[from] io::Error),
}

/// Carries the command out.
pub(crate) async fn run(command: Command) -> Result<(), CommandError> {
    let mut out = io::stdout();
    match command {
        Command::Check { settings } => check(*settings, &mut out),
        Command::Workers { at } => {
            let fleet = AdminClient::new(&at.url)?.get("/workers").await?;
            Ok(out.write_all(show::workers(&fleet).as_bytes())?)
        }
        Command::Drain { worker, at } => set_drained(&at, &worker, true, &mut out).await,
        Command::Resume { worker, at } => set_drained(&at, &worker, false, &mut out).await,
        Command::Top { at, once } => top(&at, once, &mut out).await,
    }
}

fn check(settings: CommandLine, out: &mut impl Write) -> Result<(), CommandError> {
    let (router, server) = settings.load()?;
    writeln!(
        out,
        "good: {} workers, policy {}, listens on {} port {}",
        router.workers.len(),
        router.policy.name(),
        server.host,
        server.port
    )?;
    Ok(())
}

async fn set_drained(at: &At, worker: &str, is_drained: bool, out: &mut impl Write) -> Result<(), CommandError> {
    let path = format!("/workers/{worker}/drain");
    let client = AdminClient::new(&at.url)?;
    let answer = if is_drained { client.post(&path).await? } else { client.delete(&path).await? };
    let url = answer["url"].as_str().unwrap_or(worker);
    match answer["left"].as_u64() {
        Some(left) if is_drained => writeln!(out, "{} takes no new requests, {left} still run", show::plain(url))?,
        _ if is_drained => writeln!(out, "{} takes no new requests", show::plain(url))?,
        _ => writeln!(out, "{} takes requests again", show::plain(url))?,
    }
    Ok(())
}

async fn top(at: &At, once: bool, out: &mut impl Write) -> Result<(), CommandError> {
    /// Clears the screen and goes to its first line (ECMA-48).
    const CLEAR: &str = "\u{1b}[H\u{1b}[J";
    let client = AdminClient::new(&at.url)?;
    let mut before = None;
    loop {
        // The router ends its streams after a while; the next one goes on where it ended.
        let mut frames = client.frames().await?;
        while let Some(frame) = frames.next().await? {
            let picture = show::picture(&frame, before.as_ref());
            if !once {
                out.write_all(CLEAR.as_bytes())?;
            }
            out.write_all(picture.as_bytes())?;
            out.flush()?;
            if once {
                return Ok(());
            }
            before = Some(frame);
        }
    }
}
