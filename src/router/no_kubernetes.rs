//! In the place of the Kubernetes source, in a build without it. The configuration was checked, which refuses its settings.

use actix::prelude::{Addr, ArbiterHandle};

use crate::actors::RegistryActor;
use crate::config::DiscoverySettings;
use crate::error::StartError;
use crate::telemetry::Telemetry;

/// There is none.
pub(super) enum KubernetesSource {}

impl KubernetesSource {
    #[expect(clippy::unused_async, reason = "the real one asks")]
    pub(super) async fn open(_settings: &DiscoverySettings) -> Result<Option<Self>, StartError> {
        Ok(None)
    }

    pub(super) fn start(self, _registry: &Addr<RegistryActor>, _telemetry: &Telemetry, _seed: u64) -> ArbiterHandle {
        match self {}
    }
}
