//! Reading the configuration again: all of a change is obeyed, or nothing of it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures::{Stream, StreamExt, future, stream};

use crate::config::{CommandLine, ConfigError, FileVersion, RELOADABLE_KEYS, RawConfig, process_environment};
use crate::process::Order;
use crate::router::RouterHandle;
use crate::server::Certificate;

/// How often it is looked whether the configuration file has changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

type SetLogLevel = Box<dyn Fn(&str) -> Result<(), String>>;

/// Why a changed configuration is not obeyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// It cannot be read, or is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It changes what is fixed at start.
    #[error("{} cannot change while the router runs", .0.join(", "))]
    NeedsRestart(Vec<&'static str>),
    /// The log does not take the level.
    #[error("log_level = {level:?}: {reason}")]
    LogLevel {
        /// What was written.
        level: String,
        /// What the log says of it.
        reason: String,
    },
}

/// Reads the configuration again from where it came from.
pub struct Reloader {
    command_line: CommandLine,
    obeyed: RawConfig,
    router: RouterHandle,
    certificate: Option<Certificate>,
    set_log_level: SetLogLevel,
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").field("command_line", &self.command_line).finish_non_exhaustive()
    }
}

impl Reloader {
    /// Returns the reloader of a router that was started with `obeyed`. `set_log_level` is given a filter, and says why it
    /// cannot be used.
    pub fn new(
        command_line: CommandLine,
        obeyed: RawConfig,
        router: RouterHandle,
        certificate: Option<Certificate>,
        set_log_level: impl Fn(&str) -> Result<(), String> + 'static,
    ) -> Self {
        Self { command_line, obeyed, router, certificate, set_log_level: Box::new(set_log_level) }
    }

    /// Reads the configuration and the listener's certificate again, and says in the log what came of it.
    pub fn reload(&mut self) {
        match self.try_reload() {
            Ok(changed) => tracing::info!(changed = changed.join(","), "configuration read again"),
            Err(error) => tracing::error!(%error, "configuration read again and refused, nothing was changed"),
        }
    }

    /// Reads the configuration and the listener's certificate again. Returns the keys that changed.
    ///
    /// # Errors
    /// Changes nothing where any of it is refused.
    pub fn try_reload(&mut self) -> Result<Vec<&'static str>, ReloadError> {
        let read = self.command_line.read()?;
        let changed = read.differing_keys(&self.obeyed);
        let fixed: Vec<_> = changed.iter().copied().filter(|key| !RELOADABLE_KEYS.contains(key)).collect();
        if !fixed.is_empty() {
            return Err(ReloadError::NeedsRestart(fixed));
        }
        let (mut router, server) = read.clone().validate(process_environment)?;
        // It did not change, but may have been lowered to the file descriptors at start.
        router.http.max_concurrent_requests = self.router.max_concurrent_requests();
        if changed.contains(&"log_level") {
            (self.set_log_level)(&server.log_level)
                .map_err(|reason| ReloadError::LogLevel { level: server.log_level, reason })?;
        }
        if let Some(certificate) = &self.certificate {
            certificate.reload()?;
        }
        self.obeyed = read;
        let running = self.router.clone();
        actix::spawn(async move {
            if let Err(error) = running.reconfigure(router).await {
                tracing::error!(%error, "configuration read again and not obeyed");
            }
        });
        Ok(changed)
    }
}

/// Says to reload whenever the file has changed. One that is missing is waited for.
pub fn changes_of(file: Option<PathBuf>) -> impl Stream<Item = Order> + Unpin {
    let Some(path) = file else { return stream::pending().left_stream() };
    let mut known = FileVersion::of(&path);
    let looks = stream::unfold(tokio::time::interval(LOOK_INTERVAL), |mut interval| async move {
        interval.tick().await;
        Some(((), interval))
    });
    let changes = looks.filter_map(move |()| {
        let version = FileVersion::of(&path);
        let is_changed = version.is_some() && version != known;
        if is_changed {
            known = version;
        }
        future::ready(is_changed.then_some(Order::Reload))
    });
    Box::pin(changes).right_stream()
}
