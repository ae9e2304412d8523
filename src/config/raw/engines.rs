//! What people write about how engines are asked and reached.

use clap::Args;
use serde::Deserialize;

const INTROSPECTION: &str = "Introspection";
const ENGINES: &str = "Engines";

/// How engines are asked, and how requests reach them.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawEngines {
    /// How long an engine may take to answer what it serves, in milliseconds, 1 to 60000. Default: 2000.
    #[arg(long, env = "FATHOM_INTROSPECTION_ATTEMPT_TIMEOUT_MS", value_name = "MS", help_heading = INTROSPECTION)]
    pub introspection_attempt_timeout_ms: Option<u64>,

    /// Questions in a row before an engine counts as not answering, 1 to 10. Default: 3.
    #[arg(long, env = "FATHOM_INTROSPECTION_ATTEMPTS", value_name = "COUNT", help_heading = INTROSPECTION)]
    pub introspection_attempts: Option<u32>,

    /// Pause before an engine that has never answered is asked again, in milliseconds, 100 to 86400000. Default: 2000.
    #[arg(long, env = "FATHOM_INTROSPECTION_PENDING_INTERVAL_MS", value_name = "MS", help_heading = INTROSPECTION)]
    pub introspection_pending_interval_ms: Option<u64>,

    /// Pause before an engine that answers is asked again, which notices a restart with other settings, in seconds, 1 to 86400.
    /// Default: 30.
    #[arg(long, env = "FATHOM_INTROSPECTION_INTERVAL_SECS", value_name = "SECS", help_heading = INTROSPECTION)]
    pub introspection_interval_secs: Option<u64>,

    /// Pause before an engine that refused the key is asked again, in seconds, 1 to 86400. Default: 30.
    #[arg(long, env = "FATHOM_INTROSPECTION_UNAUTHORIZED_INTERVAL_SECS", value_name = "SECS", help_heading = INTROSPECTION)]
    pub introspection_unauthorized_interval_secs: Option<u64>,

    /// Name of an environment variable, in capitals, that holds the bearer key sent to every engine that has none of its own.
    /// Default: none.
    #[arg(long, env = "FATHOM_ENGINE_API_KEY_ENV", value_name = "VARIABLE", hide_env_values = true, help_heading = ENGINES)]
    pub engine_api_key_env: Option<String>,

    /// How long a connection to an engine may take to open before it counts as unreachable, in milliseconds, 1 to 60000.
    /// Default: 2000.
    #[arg(long, env = "FATHOM_CONNECT_TIMEOUT_MS", value_name = "MS", help_heading = ENGINES)]
    pub connect_timeout_ms: Option<u64>,

    /// How long an engine may take until its response begins, in seconds, 1 to 86400; a response that is not streamed begins
    /// when it is complete. Default: 600.
    #[arg(long, env = "FATHOM_RESPONSE_HEADER_TIMEOUT_SECS", value_name = "SECS", help_heading = ENGINES)]
    pub response_header_timeout_secs: Option<u64>,

    /// How long an engine may send nothing in the middle of its response before that counts as broken off, in seconds, 1 to 86400; a
    /// response that goes on has no limit. Default: 300.
    #[arg(long, env = "FATHOM_STREAM_IDLE_TIMEOUT_SECS", value_name = "SECS", help_heading = ENGINES)]
    pub stream_idle_timeout_secs: Option<u64>,

    /// How long an idle connection to an engine is kept, in milliseconds, 1 to 3600000. Keep it below the time after which the
    /// engines close it, commonly 5000. Default: 4000.
    #[arg(long, env = "FATHOM_POOL_IDLE_TIMEOUT_MS", value_name = "MS", help_heading = ENGINES)]
    pub pool_idle_timeout_ms: Option<u64>,

    /// Idle connections kept per worker and HTTP thread, 0 (a new one per request) to 65536. Default: 256.
    #[arg(long, env = "FATHOM_MAX_IDLE_PER_WORKER", value_name = "COUNT", help_heading = ENGINES)]
    pub max_idle_per_worker: Option<usize>,
}

keys_of! { RawEngines:
    introspection_attempt_timeout_ms introspection_attempts introspection_pending_interval_ms
    introspection_interval_secs introspection_unauthorized_interval_secs engine_api_key_env connect_timeout_ms
    response_header_timeout_secs stream_idle_timeout_secs pool_idle_timeout_ms max_idle_per_worker
}
