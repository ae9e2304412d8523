//! What people write: one struct for flags, environment and file. The doc of a field is its `--help` text.
//!
//! The flag of a key is the key with `-` for `_`; its environment variable is the key in capitals after `FATHOM_`. Values are
//! checked only when all sources are known, so that a bad value is refused in the same words wherever it was written.

use std::path::{Path, PathBuf};

use clap::{Args, Command, Parser};
use serde::Deserialize;

use crate::config::error::ConfigError;
use crate::config::raw_worker::RawWorker;
use crate::config::toml_error::without_source_text;
use crate::config::{RouterConfig, ServerConfig};

const WORKERS: &str = "Workers";
const HEALTH: &str = "Health checks";
const POLICY: &str = "Policy";
const LOAD: &str = "Load";
const ADMISSION: &str = "Admission";
const CACHE: &str = "Cache";
const PROMPTS: &str = "Prompts";
const INTROSPECTION: &str = "Introspection";
const ENGINES: &str = "Engines";
const HTTP: &str = "HTTP";
const ACCESS: &str = "Access";
const PROCESS: &str = "Process";

/// Routes requests to the LLM inference engine that will answer soonest, by the queue depth that engines publish.
///
/// A flag outranks its environment variable, which outranks the configuration file, for each setting by itself. In the file, a
/// setting is named like its flag, with underscores.
#[derive(Debug, Clone, PartialEq, Default, Parser)]
#[command(name = "fathom", version)]
pub struct CommandLine {
    /// The settings given as flags, or by the environment.
    #[command(flatten)]
    pub settings: RawConfig,

    /// Configuration file (TOML); the only place for settings of single workers. Default: none.
    #[arg(long, env = "FATHOM_CONFIG", value_name = "FILE", help_heading = PROCESS)]
    pub config: Option<PathBuf>,
}

impl CommandLine {
    /// Reads the configuration file, if one is named, and returns the configuration of all sources together. Variables that
    /// hold keys are read from the environment of the process.
    ///
    /// # Errors
    /// Says why the file cannot be read or understood, or which setting is refused.
    pub fn load(self) -> Result<(RouterConfig, ServerConfig), ConfigError> {
        let file = match &self.config {
            Some(path) => read(path)?,
            None => RawConfig::default(),
        };
        // A variable that is not UTF-8 is not a key; kept as far as it is text, it is refused as such rather than as missing.
        let environment = |variable: &str| std::env::var_os(variable).map(|text| text.to_string_lossy().into_owned());
        self.settings.or(file).validate(environment)
    }
}

/// Every setting as it was written, and whether it was written at all.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RawConfig {
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

    /// Requests in an engine's queues as it reports them, running ones included, beyond which its worker takes no more, 1 to
    /// 1000000. Default: none.
    #[arg(long, env = "FATHOM_MAX_DEPTH_PER_WORKER", value_name = "REQUESTS", help_heading = ADMISSION)]
    pub max_depth_per_worker: Option<u64>,

    /// Part of an engine's KV tokens in use as it reports them, 0 to 1, at which its worker takes no more; of several ranks the
    /// least used one counts. Default: none.
    #[arg(long, env = "FATHOM_MAX_KV_USED", value_name = "PART", allow_negative_numbers = true, help_heading = ADMISSION)]
    pub max_kv_used: Option<f64>,

    /// Prompt tokens waiting to be computed, as an engine reports them, beyond which its worker takes no more, at least 1.
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

    /// Bytes that the list of one worker's cached blocks may take, some 36 per block, 1048576 to 68719476736; the least recently
    /// used go first. Default: 134217728.
    #[arg(long, env = "FATHOM_KV_INDEX_BYTES", value_name = "BYTES", help_heading = CACHE)]
    pub kv_index_bytes: Option<usize>,

    /// How long a request's blocks count as cached where it was sent before its engine has said so, in milliseconds, 0 (not at
    /// all) to 600000. Default: 10000.
    #[arg(long, env = "FATHOM_PREDICTION_LIFETIME_MS", value_name = "MS", help_heading = CACHE)]
    pub prediction_lifetime_ms: Option<u64>,

    /// How long an engine may take to send KV events again that were missed, in milliseconds, 1 to 60000. Default: 2000.
    #[arg(long, env = "FATHOM_KV_REPLAY_TIMEOUT_MS", value_name = "MS", help_heading = CACHE)]
    pub kv_replay_timeout_ms: Option<u64>,

    /// Directories with tokenizer.json and, for chats, a chat template, each after the name of its model: MODEL=DIR; a directory
    /// alone is that of every other model. Without one, only prompts that come as tokens are looked up in the engines' caches.
    /// May be repeated. Default: none.
    #[arg(long, env = "FATHOM_TOKENIZERS", value_name = "[MODEL=]DIR", num_args = 1.., value_delimiter = ',', help_heading = PROMPTS)]
    pub tokenizers: Option<Vec<String>>,

    /// Whose way of rendering chats is followed: sglang or vllm. Default: sglang.
    #[arg(long, env = "FATHOM_CHAT_STYLE", value_name = "NAME", help_heading = PROMPTS)]
    pub chat_style: Option<String>,

    /// Threads that make prompts into tokens, 1 to 1024. Default: 1.
    #[arg(long, env = "FATHOM_PROMPT_THREADS", value_name = "COUNT", help_heading = PROMPTS)]
    pub prompt_threads: Option<usize>,

    /// How long a request waits for its tokens before it is routed without, in milliseconds, 1 to 60000. Default: 500.
    #[arg(long, env = "FATHOM_PROMPT_TIMEOUT_MS", value_name = "MS", help_heading = PROMPTS)]
    pub prompt_timeout_ms: Option<u64>,

    /// Bytes of memory for the tokens of earlier turns of conversations, 0 (off) to 68719476736. Default: 67108864.
    #[arg(long, env = "FATHOM_PROMPT_CACHE_BYTES", value_name = "BYTES", help_heading = PROMPTS)]
    pub prompt_cache_bytes: Option<usize>,

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

    /// Name or address to listen on; the default is reached from this machine only. Default: 127.0.0.1.
    #[arg(long, env = "FATHOM_HOST", value_name = "HOST", help_heading = HTTP)]
    pub host: Option<String>,

    /// Port to listen on; 0 takes a free one. Default: 30000.
    #[arg(long, env = "FATHOM_PORT", value_name = "PORT", value_parser = listening_port, help_heading = HTTP)]
    pub port: Option<u16>,

    /// Threads that serve HTTP, 1 to 1024. Default: one per CPU.
    #[arg(long, env = "FATHOM_HTTP_THREADS", value_name = "COUNT", help_heading = HTTP)]
    pub http_threads: Option<usize>,

    /// Largest request body that is accepted, in bytes, 1 to 1073741824. Default: 67108864.
    #[arg(long, env = "FATHOM_MAX_BODY_BYTES", value_name = "BYTES", help_heading = HTTP)]
    pub max_body_bytes: Option<usize>,

    /// Requests served at a time, 1 to 1000000; more are refused at once. Default: 65536.
    #[arg(long, env = "FATHOM_MAX_CONCURRENT_REQUESTS", value_name = "COUNT", help_heading = HTTP)]
    pub max_concurrent_requests: Option<usize>,

    /// Whether responses tell which worker was chosen and why, which shows the fleet to clients. Default: false.
    #[arg(long, env = "FATHOM_EXPOSE_DECISION", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = HTTP)]
    pub expose_decision: Option<bool>,

    /// Whether a client's Authorization and x-api-key headers are passed to the engine, in place of the configured key.
    /// Default: false.
    #[arg(long, env = "FATHOM_FORWARD_AUTHORIZATION", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = HTTP)]
    pub forward_authorization: Option<bool>,

    /// Whether the tokens of a text prompt (completions, /generate), where they are known, are sent to the engine in its place, so
    /// that it need not encode it again. Default: false.
    #[arg(long, env = "FATHOM_FORWARD_TOKEN_IDS", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = PROMPTS)]
    pub forward_token_ids: Option<bool>,

    /// File with the keys that clients must send, one per line; lines that start with # do not count. It is read again within a
    /// second of a change. Without it, every client is served. Default: none.
    #[arg(long, env = "FATHOM_API_KEYS_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub api_keys_file: Option<PathBuf>,

    /// File with the key that /metrics and /workers want, written and read again like api_keys_file; several are all accepted.
    /// Without it, these paths answer this machine only. Default: none.
    #[arg(long, env = "FATHOM_ADMIN_KEY_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub admin_key_file: Option<PathBuf>,

    /// Whether /metrics and /workers answer everyone who reaches them, because something else guards them. Default: false.
    #[arg(long, env = "FATHOM_OPEN_ADMIN", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = ACCESS)]
    pub open_admin: Option<bool>,

    /// File with the certificate chain of the listener (PEM), its own certificate first; makes the listener speak TLS, and HTTP/2
    /// with clients that ask for it. Needs tls_key_file. Default: none.
    #[arg(long, env = "FATHOM_TLS_CERT_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub tls_cert_file: Option<PathBuf>,

    /// File with the private key of the certificate (PEM). Needs tls_cert_file. Default: none.
    #[arg(long, env = "FATHOM_TLS_KEY_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub tls_key_file: Option<PathBuf>,

    /// Whether the listener speaks HTTP/2 without TLS too, to clients that begin with it. A connection on which nothing is ever
    /// sent is then kept for ever, so it is for networks of one's own. Default: false.
    #[arg(long, env = "FATHOM_H2C", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = HTTP)]
    pub h2c: Option<bool>,

    /// Connections that each HTTP thread keeps open at a time, 1 to 1000000; more wait until one is closed. Default: 25000.
    #[arg(long, env = "FATHOM_MAX_CONNECTIONS", value_name = "COUNT", help_heading = HTTP)]
    pub max_connections: Option<usize>,

    /// How long a client may take to send the head of its first request, or for the TLS handshake, before the connection is
    /// closed, in milliseconds, 100 to 60000. Default: 5000.
    #[arg(long, env = "FATHOM_HEADER_TIMEOUT_MS", value_name = "MS", help_heading = HTTP)]
    pub header_timeout_ms: Option<u64>,

    /// How long an idle connection of a client is kept, in seconds, 1 to 3600. Keep it above the time after which a proxy in front
    /// closes its own, commonly 60. Default: 75.
    #[arg(long, env = "FATHOM_KEEP_ALIVE_SECS", value_name = "SECS", help_heading = HTTP)]
    pub keep_alive_secs: Option<u64>,

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
}

/// Writes out, for each key, that the upper value goes before the lower one; a key that is missing does not compile.
macro_rules! or_each {
    ($upper:ident, $lower:ident, $($key:ident)*) => {
        Self { $($key: $upper.$key.or($lower.$key),)* }
    };
}

impl RawConfig {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// Names the line, and the key where there is one, of what is not TOML, not a setting or not of its setting's type.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| without_source_text(text, error))
    }

    /// Fills what is not given here with what is given in `lower`. A list is one setting: it is replaced, not extended.
    #[must_use]
    pub fn or(self, lower: Self) -> Self {
        or_each!(self, lower,
            worker_urls worker eject_after_unreachable eject_failure_ratio eject_min_requests eject_window_ms eject_cooldown_ms
            eject_max_cooldown_ms probation_successes health_path health_interval_ms health_timeout_ms health_failures
            health_successes policy cache_threshold balance_abs_threshold balance_rel_threshold round_deadline_ms seed basis
            load_freshness_ms dispatch_visibility_ms ramp_up_ms tokenizers chat_style prompt_threads prompt_timeout_ms
            prompt_cache_bytes max_in_flight_per_worker max_depth_per_worker max_kv_used max_pending_tokens queue_size
            queue_timeout_ms kv_index_bytes prediction_lifetime_ms kv_replay_timeout_ms introspection_attempt_timeout_ms
            introspection_attempts introspection_pending_interval_ms introspection_interval_secs
            introspection_unauthorized_interval_secs engine_api_key_env connect_timeout_ms response_header_timeout_secs
            stream_idle_timeout_secs pool_idle_timeout_ms max_idle_per_worker host port http_threads max_body_bytes
            max_concurrent_requests expose_decision forward_authorization forward_token_ids api_keys_file admin_key_file open_admin
            tls_cert_file tls_key_file h2c max_connections header_timeout_ms keep_alive_secs drain_timeout_secs log_level
            log_format
        )
    }

    /// Returns what `--help` says of each setting, in its order. Settings of single workers are not among them.
    pub fn reference() -> Vec<SettingDoc> {
        let command = Self::augment_args(Command::new("fathom"));
        let docs = command.get_arguments().map(|argument| {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let (effect, default) = help.rsplit_once(" Default: ").unwrap_or((&help, ""));
            SettingDoc {
                key: argument.get_id().to_string(),
                default: default.to_owned(),
                environment: argument.get_env().unwrap_or_default().to_string_lossy().into_owned(),
                effect: effect.to_owned(),
            }
        });
        docs.collect()
    }
}

/// What is said of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingDoc {
    /// Key in the file. The flag is the same with `-` for `_`.
    pub key: String,
    /// The default in words, or as it would be written.
    pub default: String,
    /// Name of the environment variable.
    pub environment: String,
    /// What the setting does, its unit and its range.
    pub effect: String,
}

/// Why a flag or variable is not the port to listen on; clap puts the flag and the value in front.
#[derive(Debug, thiserror::Error)]
enum InvalidPort {
    #[error("must be a number from 0 to 65535")]
    NotANumber,
    #[error(
        "this is what Kubernetes sets for a service named fathom; set enableServiceLinks: false, or rename the service"
    )]
    ServiceLink,
}

fn listening_port(text: &str) -> Result<u16, InvalidPort> {
    if text.starts_with("tcp://") {
        return Err(InvalidPort::ServiceLink);
    }
    text.parse().map_err(|_| InvalidPort::NotANumber)
}

fn read(path: &Path) -> Result<RawConfig, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    RawConfig::from_toml(&text).map_err(|source| ConfigError::File { path: path.to_owned(), source: Box::new(source) })
}
