//! What people write about the process itself.

use clap::Args;
use serde::Deserialize;

const PROCESS: &str = "Process";

/// The process itself.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawProcess {
    /// How long new requests are still taken once the router was told to stop, in seconds, 0 to 3600; /readyz says 503 meanwhile,
    /// so that whatever sends requests here can notice. Default: 0.
    #[arg(long, env = "FATHOM_DRAIN_DELAY_SECS", value_name = "SECS", help_heading = PROCESS)]
    pub drain_delay_secs: Option<u64>,

    /// How long requests in flight may go on when the router stops, in seconds, 0 (cut at once) to
    /// 86400. Default: 30.
    #[arg(long, env = "FATHOM_DRAIN_TIMEOUT_SECS", value_name = "SECS", help_heading = PROCESS)]
    pub drain_timeout_secs: Option<u64>,

    /// Which log lines are written: error, warn, info, debug or trace, or levels per module (info,fathom_router::http=debug).
    /// Default: info.
    #[arg(long, env = "FATHOM_LOG_LEVEL", value_name = "FILTER", help_heading = PROCESS)]
    pub log_level: Option<String>,

    /// How log lines look: text, or json (one object per line). Default: text.
    #[arg(long, env = "FATHOM_LOG_FORMAT", value_name = "NAME", help_heading = PROCESS)]
    pub log_format: Option<String>,

    /// Whether each request of a client is logged when it has ended, with one line at level info: who ended it and how, where it
    /// went and why, and how long each part took. Default: false.
    #[arg(long, env = "FATHOM_REQUEST_LOG", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = PROCESS)]
    pub request_log: Option<bool>,

    /// Address of an OpenTelemetry collector that gets a span for each request, as OTLP over HTTP (http://collector:4318); /v1/traces is
    /// added where it has no path. Takes a build with the feature otel. Default: none.
    #[arg(long, env = "FATHOM_OTLP_ENDPOINT", value_name = "URL", help_heading = PROCESS)]
    pub otlp_endpoint: Option<String>,
}

keys_of! { RawProcess:
    drain_delay_secs drain_timeout_secs log_level log_format request_log otlp_endpoint
}
