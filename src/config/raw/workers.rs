//! What people write about workers: which workers there are, and when they get no traffic.

use clap::Args;
use serde::Deserialize;

use crate::config::raw_worker::RawWorker;

const WORKERS: &str = "Workers";
const HEALTH: &str = "Health checks";

/// Which workers there are, and when one of them gets no traffic.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawWorkers {
    /// Addresses of engines (host:port or http://host:port), separated by commas or spaces; may be repeated. Workers that
    /// have a table of their own in the file come on top. Default: none.
    #[arg(long, env = "FATHOM_WORKER_URLS", value_name = "URL", num_args = 1.., help_heading = WORKERS)]
    pub worker_urls: Option<Vec<String>>,

    /// One table per worker that needs settings of its own. Only in the file.
    #[arg(skip)]
    pub worker: Option<Vec<RawWorker>>,

    /// Requests in a row that cannot reach a worker before it gets no more traffic, 1 to 1000. Default: 3.
    #[arg(long, env = "FATHOM_EJECT_AFTER_UNREACHABLE", value_name = "REQUESTS", help_heading = WORKERS)]
    pub eject_after_unreachable: Option<u32>,

    /// Part of the requests ended within the window that must have failed before a worker gets no more traffic, 0 (off) to
    /// 1. Default: 0.5.
    #[arg(long, env = "FATHOM_EJECT_FAILURE_RATIO", value_name = "PART", allow_negative_numbers = true, help_heading = WORKERS)]
    pub eject_failure_ratio: Option<f64>,

    /// Requests that must have ended at a worker within the window before their failures count, 1 to 1000000. Default: 10.
    #[arg(long, env = "FATHOM_EJECT_MIN_REQUESTS", value_name = "REQUESTS", help_heading = WORKERS)]
    pub eject_min_requests: Option<u32>,

    /// How long the end of a request counts for that, in milliseconds, 10 to 3600000. Default: 30000.
    #[arg(long, env = "FATHOM_EJECT_WINDOW_MS", value_name = "MS", help_heading = WORKERS)]
    pub eject_window_ms: Option<u64>,

    /// How long an ejected worker stays out before it is tried again, in milliseconds, 1 to 86400000; each further ejection
    /// in a row doubles it. Default: 5000.
    #[arg(long, env = "FATHOM_EJECT_COOLDOWN_MS", value_name = "MS", help_heading = WORKERS)]
    pub eject_cooldown_ms: Option<u64>,

    /// The most that the doubling comes to, and how long a worker must serve before its next ejection counts as the first
    /// again, in milliseconds, 1 to 86400000. Default: 60000.
    #[arg(long, env = "FATHOM_EJECT_MAX_COOLDOWN_MS", value_name = "MS", help_heading = WORKERS)]
    pub eject_max_cooldown_ms: Option<u64>,

    /// Successes that an ejected worker needs, one request or probe at a time, to serve again, 1 to 1000. Default: 3.
    #[arg(long, env = "FATHOM_PROBATION_SUCCESSES", value_name = "COUNT", help_heading = WORKERS)]
    pub probation_successes: Option<u32>,

    /// Path of the engines' health check. Default: /health.
    #[arg(long, env = "FATHOM_HEALTH_PATH", value_name = "PATH", help_heading = HEALTH)]
    pub health_path: Option<String>,

    /// Pause between two health checks of an engine, in milliseconds, 0 (never checked) to 86400000. Default: 10000.
    #[arg(long, env = "FATHOM_HEALTH_INTERVAL_MS", value_name = "MS", help_heading = HEALTH)]
    pub health_interval_ms: Option<u64>,

    /// How long an engine may take to answer a health check, in milliseconds, 1 to 60000. Default: 5000.
    #[arg(long, env = "FATHOM_HEALTH_TIMEOUT_MS", value_name = "MS", help_heading = HEALTH)]
    pub health_timeout_ms: Option<u64>,

    /// Failed health checks in a row, with nothing else coming from the worker, before it gets no more traffic, 1 to 1000.
    /// Default: 3.
    #[arg(long, env = "FATHOM_HEALTH_FAILURES", value_name = "COUNT", help_heading = HEALTH)]
    pub health_failures: Option<u32>,

    /// Health checks in a row that an engine must pass to be tried before its cool-down is over, where it failed them while
    /// it was out, 1 to 1000. Default: 2.
    #[arg(long, env = "FATHOM_HEALTH_SUCCESSES", value_name = "COUNT", help_heading = HEALTH)]
    pub health_successes: Option<u32>,
}

keys_of! { RawWorkers:
    worker_urls worker eject_after_unreachable eject_failure_ratio eject_min_requests eject_window_ms eject_cooldown_ms
    eject_max_cooldown_ms probation_successes health_path health_interval_ms health_timeout_ms health_failures
    health_successes
}
