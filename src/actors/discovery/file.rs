//! The FileDiscovery actor serves the workers that a file lists, and looks at the file each second.
//!
//! It reads the content each time and compares it, rather than watch for events: files are replaced by renames and by symbolic links
//! that point elsewhere (as Kubernetes does with a ConfigMap), and times of change are too coarse to tell two writes apart. Reading
//! is done on a thread that may wait. A file that is refused or missing changes nothing; that is logged once per content.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::{Actor, ActorFutureExt, AsyncContext, Context, Recipient, WrapFuture};

use crate::config::{ConfigError, process_environment, read_workers_text, workers_of};
use crate::logic::endpoint::Endpoint;
use crate::messages::EndpointsChanged;
use crate::telemetry::Telemetry;

/// The name under which this source sends its sets.
const SOURCE: &str = "file";
/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves what a file lists; see the module's documentation.
#[derive(Debug)]
pub struct FileDiscovery {
    path: PathBuf,
    endpoints: Vec<Endpoint>,
    /// What the file held, or why it could not be read, when it was last looked at.
    seen: Result<String, String>,
    registry: Recipient<EndpointsChanged>,
    telemetry: Telemetry,
}

/// What a look found that is not what the last one found.
struct Look {
    seen: Result<String, String>,
    endpoints: Result<Vec<Endpoint>, ConfigError>,
}

/// What the file held at start.
#[derive(Debug)]
pub struct FirstLook {
    path: PathBuf,
    text: String,
    endpoints: Vec<Endpoint>,
}

impl FirstLook {
    /// Reads the file. Waits for the disk.
    ///
    /// # Errors
    /// Where the file cannot be read, or is refused.
    pub fn new(path: &Path) -> Result<Self, ConfigError> {
        let text = read_workers_text(path)?;
        let endpoints = workers_of(path, &text, &process_environment)?;
        Ok(Self { path: path.to_owned(), text, endpoints })
    }
}

impl FileDiscovery {
    /// Returns the source of what was read, which goes on reading.
    pub fn new(first: FirstLook, registry: Recipient<EndpointsChanged>, telemetry: Telemetry) -> Self {
        let FirstLook { path, text, endpoints } = first;
        Self { path, endpoints, seen: Ok(text), registry, telemetry }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        let (path, seen) = (self.path.clone(), self.seen.clone());
        let looked = tokio::task::spawn_blocking(move || look(&path, &seen));
        let taken = looked.into_actor(self).map(|looked, source, ctx| {
            if let Ok(Some(look)) = looked {
                source.take(look, ctx);
            }
            // Only now: a disk that stands still is not asked twice.
            ctx.run_later(LOOK_INTERVAL, Self::look);
        });
        ctx.spawn(taken);
    }

    fn take(&mut self, look: Look, ctx: &mut Context<Self>) {
        self.seen = look.seen;
        match look.endpoints {
            Ok(endpoints) => {
                Telemetry::count(&self.telemetry.discovery_updates, "file_taken");
                tracing::info!(path = ?self.path, num_workers = endpoints.len(), "workers_file was read again");
                self.endpoints = endpoints;
                self.tell(ctx);
            }
            Err(error) => {
                Telemetry::count(&self.telemetry.discovery_updates, "file_refused");
                tracing::error!(%error, num_workers = self.endpoints.len(), "the workers listed so far stay");
            }
        }
    }

    fn tell(&self, ctx: &mut Context<Self>) {
        let set = EndpointsChanged { source: Arc::from(SOURCE), endpoints: self.endpoints.clone() };
        let registry = self.registry.clone();
        let told = async move {
            if registry.send(set).await.is_err() {
                tracing::error!("the registry is gone, the workers of workers_file are not served");
            }
        };
        ctx.wait(told.into_actor(self));
    }
}

fn look(path: &Path, seen: &Result<String, String>) -> Option<Look> {
    match read_workers_text(path) {
        Ok(text) if seen.as_ref() == Ok(&text) => None,
        Ok(text) => Some(Look { endpoints: workers_of(path, &text, &process_environment), seen: Ok(text) }),
        Err(error) if seen.as_ref() == Err(&error.to_string()) => None,
        Err(error) => Some(Look { seen: Err(error.to_string()), endpoints: Err(error) }),
    }
}

impl Actor for FileDiscovery {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.tell(ctx);
        ctx.run_later(LOOK_INTERVAL, Self::look);
    }
}
