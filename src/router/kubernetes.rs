//! How the Kubernetes source is started: on a thread of its own, because decoding a long list must not delay decisions.

use actix::prelude::{Actor, Addr, Arbiter, ArbiterHandle};

use crate::actors::{KubernetesConnection, KubernetesDiscovery, RegistryActor};
use crate::config::{DiscoverySettings, KubernetesSettings};
use crate::error::StartError;
use crate::telemetry::Telemetry;

/// The thread of the source, and its way to the API.
pub(super) struct KubernetesSource {
    arbiter: ArbiterHandle,
    connection: KubernetesConnection,
    settings: KubernetesSettings,
}

impl KubernetesSource {
    /// Finds the way to the API, where the settings want one; nothing is sent yet.
    pub(super) async fn open(settings: &DiscoverySettings) -> Result<Option<Self>, StartError> {
        let Some(settings) = settings.kubernetes.clone() else { return Ok(None) };
        let arbiter = Arbiter::new();
        let (opened, has_opened) = tokio::sync::oneshot::channel();
        let wanted = settings.clone();
        arbiter.spawn(async move {
            // Whoever waited for the start may have gone away.
            let _gone = opened.send(KubernetesConnection::open(&wanted).await);
        });
        let refused = match has_opened.await {
            Ok(Ok(connection)) => return Ok(Some(Self { arbiter: arbiter.handle(), connection, settings })),
            Ok(Err(error)) => StartError::Kubernetes(Box::new(error)),
            Err(_) => StartError::Actor("kubernetes source"),
        };
        arbiter.stop();
        Err(refused)
    }

    /// Starts the source, and returns what ends its thread.
    pub(super) fn start(self, registry: &Addr<RegistryActor>, telemetry: &Telemetry, seed: u64) -> ArbiterHandle {
        let (registry, telemetry) = (registry.clone().recipient(), telemetry.clone());
        let Self { arbiter, connection, settings } = self;
        KubernetesDiscovery::start_in_arbiter(&arbiter, move |_| {
            KubernetesDiscovery::new(connection, settings, registry, telemetry, seed)
        });
        arbiter
    }
}
