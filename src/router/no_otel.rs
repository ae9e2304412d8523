//! In the place of the export of spans, in a build without it.

use crate::error::StartError;
use crate::router::ports::SpanPorts;
use crate::telemetry::Telemetry;

/// The configuration was checked, which refuses the setting in such a build.
pub(super) fn start(_endpoint: &str, _telemetry: &Telemetry) -> Result<SpanPorts, StartError> {
    Err(StartError::Actor("export of spans"))
}
