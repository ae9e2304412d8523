//! What people write about how a worker is chosen.

use clap::Args;
use serde::Deserialize;

const POLICY: &str = "Policy";
const LOAD: &str = "Load";
const ADMISSION: &str = "Admission";

/// How the worker of a request is chosen, and when there is none.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawRouting {
    /// Who picks the worker of a request: cache_aware_zmq (who holds the prompt's prefix, unless the fleet is out of balance),
    /// least_load, power_of_two (the less loaded of two random workers), round_robin or random. Default: cache_aware_zmq.
    #[arg(long, env = "FATHOM_POLICY", value_name = "NAME", help_heading = POLICY)]
    pub policy: Option<String>,

    /// Part of a prompt, 0 to 1, of which a worker must hold more before its cache counts (cache_aware_zmq). Default: 0.5.
    #[arg(long, env = "FATHOM_CACHE_THRESHOLD", value_name = "PART", allow_negative_numbers = true, help_heading = POLICY)]
    pub cache_threshold: Option<f64>,

    /// Requests, 0 or more, by which the most loaded worker must exceed the least loaded before balance outranks the cache
    /// (cache_aware_zmq). Default: 32.
    #[arg(long, env = "FATHOM_BALANCE_ABS_THRESHOLD", value_name = "REQUESTS", allow_negative_numbers = true, help_heading = POLICY)]
    pub balance_abs_threshold: Option<f64>,

    /// Factor, 1 or more, by which the most loaded worker must exceed the least loaded as well (cache_aware_zmq). Default: 1.1.
    #[arg(long, env = "FATHOM_BALANCE_REL_THRESHOLD", value_name = "FACTOR", allow_negative_numbers = true, help_heading = POLICY)]
    pub balance_rel_threshold: Option<f64>,

    /// How long a decision waits for the workers' load before it does without the missing ones, in milliseconds, 1 to 1000.
    /// Default: 5.
    #[arg(long, env = "FATHOM_ROUND_DEADLINE_MS", value_name = "MS", help_heading = POLICY)]
    pub round_deadline_ms: Option<u64>,

    /// Seed of all random choices; the same seed and the same loads give the same decisions. Default: drawn at start.
    #[arg(long, env = "FATHOM_SEED", value_name = "NUMBER", help_heading = POLICY)]
    pub seed: Option<u64>,

    /// How workers are compared when some have no fresh load report: uniform (all by the requests that this router has in
    /// flight there), scaled (these by their requests in flight, scaled to the others' reports) or mixed (these by their
    /// requests in flight, unscaled; misleading, for comparison only). Default: uniform.
    #[arg(long, env = "FATHOM_BASIS", value_name = "NAME", help_heading = LOAD)]
    pub basis: Option<String>,

    /// How old a load report may be before it is not used, in milliseconds, 1 to 86400000. Default: 5000.
    #[arg(long, env = "FATHOM_LOAD_FRESHNESS_MS", value_name = "MS", help_heading = LOAD)]
    pub load_freshness_ms: Option<u64>,

    /// Whether engines that publish no load are asked for it (/v1/loads of SGLang, /metrics of vLLM): off or auto. Default: off.
    #[arg(long, env = "FATHOM_LOAD_POLLING", value_name = "NAME", help_heading = LOAD)]
    pub load_polling: Option<String>,

    /// Pause between two questions to the same engine, in milliseconds, 50 to 60000; a fifth of load_freshness_ms leaves room for
    /// answers that are late. Default: 1000.
    #[arg(long, env = "FATHOM_LOAD_POLLING_INTERVAL_MS", value_name = "MS", help_heading = LOAD)]
    pub load_polling_interval_ms: Option<u64>,

    /// How long a request may take to show in its engine's load reports, and counts on top of them, in milliseconds, 0 to 60000.
    /// Longer counts requests twice for a while; shorter sends bursts to one worker. Default: 50.
    #[arg(long, env = "FATHOM_DISPATCH_VISIBILITY_MS", value_name = "MS", help_heading = LOAD)]
    pub dispatch_visibility_ms: Option<u64>,

    /// How long a worker that begins to serve is priced as if it were as loaded as the others, in milliseconds, 0 (off) to
    /// 86400000. Default: 10000.
    #[arg(long, env = "FATHOM_RAMP_UP_MS", value_name = "MS", help_heading = LOAD)]
    pub ramp_up_ms: Option<u64>,

    /// Requests of this router that a worker may have in flight, 1 to 1000000; a request that finds every worker full is refused
    /// with 503. Default: none.
    #[arg(long, env = "FATHOM_MAX_IN_FLIGHT_PER_WORKER", value_name = "REQUESTS", help_heading = ADMISSION)]
    pub max_in_flight_per_worker: Option<u32>,

    /// Requests in an engine's queues as it reports them, running ones included, from which on its worker takes no more, 1 to
    /// 1000000. Default: none.
    #[arg(long, env = "FATHOM_MAX_DEPTH_PER_WORKER", value_name = "REQUESTS", help_heading = ADMISSION)]
    pub max_depth_per_worker: Option<u64>,

    /// Part of an engine's KV tokens in use as it reports them, 0 to 1, at which its worker takes no more; of several ranks the
    /// least used one counts. Default: none.
    #[arg(long, env = "FATHOM_MAX_KV_USED", value_name = "PART", allow_negative_numbers = true, help_heading = ADMISSION)]
    pub max_kv_used: Option<f64>,

    /// Prompt tokens waiting to be computed, as an engine reports them, from which on its worker takes no more, at least 1.
    /// Default: none.
    #[arg(long, env = "FATHOM_MAX_PENDING_TOKENS", value_name = "TOKENS", help_heading = ADMISSION)]
    pub max_pending_tokens: Option<u64>,

    /// Requests that wait where every worker is full, by the number in their header x-fathom-priority (the higher the sooner) and
    /// then by arrival, 0 (all are refused at once) to 1000000. Default: 0.
    #[arg(long, env = "FATHOM_QUEUE_SIZE", value_name = "REQUESTS", help_heading = ADMISSION)]
    pub queue_size: Option<usize>,

    /// How long a request may wait for a worker with room, in milliseconds, 1 to 3600000. Default: 30000.
    #[arg(long, env = "FATHOM_QUEUE_TIMEOUT_MS", value_name = "MS", help_heading = ADMISSION)]
    pub queue_timeout_ms: Option<u64>,
}

keys_of! { RawRouting:
    policy cache_threshold balance_abs_threshold balance_rel_threshold round_deadline_ms seed basis load_freshness_ms
    load_polling load_polling_interval_ms dispatch_visibility_ms ramp_up_ms max_in_flight_per_worker max_depth_per_worker max_kv_used max_pending_tokens
    queue_size queue_timeout_ms
}
