//! How the export of spans is started.

use actix::prelude::{Actor, Arbiter};

use crate::actors::SpanExport;
use crate::config::otlp::traces_url;
use crate::error::StartError;
use crate::router::ports::SpanPorts;
use crate::telemetry::Telemetry;

/// Starts the export, where there is somebody to export to, on a thread of its own: encoding a batch must not delay decisions.
pub(super) fn start(endpoint: Option<&str>, telemetry: &Telemetry) -> Result<Option<SpanPorts>, StartError> {
    let Some(endpoint) = endpoint else { return Ok(None) };
    let (traces_url, telemetry) = (traces_url(endpoint)?, telemetry.clone());
    let arbiter = Arbiter::new();
    let export = SpanExport::start_in_arbiter(&arbiter.handle(), move |_| SpanExport::new(traces_url, telemetry));
    let (ended, flush) = (export.clone().recipient(), export.recipient());
    Ok(Some(SpanPorts { ended, flush, arbiter: arbiter.handle() }))
}
