//! In the place of the export of spans, in a build without it.

use crate::error::StartError;
use crate::router::ports::SpanPorts;
use crate::telemetry::Telemetry;

/// The configuration was checked, which refuses the setting in such a build.
pub(super) fn start(endpoint: Option<&str>, _telemetry: &Telemetry) -> Result<Option<SpanPorts>, StartError> {
    if endpoint.is_some() { Err(StartError::Actor("export of spans")) } else { Ok(None) }
}
