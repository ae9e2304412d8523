//! How the Kubernetes source is started.

use actix::prelude::{Actor, Addr, Arbiter, ArbiterHandle};

use crate::actors::{KubernetesConnection, KubernetesDiscovery, RegistryActor};
use crate::config::KubernetesSettings;
use crate::error::StartError;
use crate::telemetry::Telemetry;

/// Starts the Kubernetes source on a thread of its own: decoding a long list must not delay decisions.
pub(super) async fn start(
    settings: &KubernetesSettings,
    registry: &Addr<RegistryActor>,
    telemetry: &Telemetry,
    seed: u64,
) -> Result<ArbiterHandle, StartError> {
    let arbiter = Arbiter::new();
    let (settings, registry, telemetry) = (settings.clone(), registry.clone().recipient(), telemetry.clone());
    let (started, has_started) = tokio::sync::oneshot::channel();
    arbiter.spawn(async move {
        let opened = KubernetesConnection::open(&settings).await;
        let start = |connection| {
            KubernetesDiscovery::new(connection, settings, registry, telemetry, seed).start();
        };
        // Whoever waited for the start may have gone away.
        let _gone = started.send(opened.map(start));
    });
    let refused = match has_started.await {
        Ok(Ok(())) => return Ok(arbiter.handle()),
        Ok(Err(error)) => StartError::Kubernetes(Box::new(error)),
        Err(_) => StartError::Actor("kubernetes source"),
    };
    arbiter.stop();
    Err(refused)
}
