//! In the place of the Kubernetes source, in a build without it.

use actix::prelude::{Addr, ArbiterHandle};

use crate::actors::RegistryActor;
use crate::config::KubernetesSettings;
use crate::error::StartError;
use crate::telemetry::Telemetry;

/// The configuration was checked, which refuses these settings in such a build.
pub(super) async fn start(
    _settings: &KubernetesSettings,
    _registry: &Addr<RegistryActor>,
    _telemetry: &Telemetry,
    _seed: u64,
) -> Result<ArbiterHandle, StartError> {
    Err(StartError::Actor("kubernetes source"))
}
