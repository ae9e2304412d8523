//! The configuration: what people write ([`RawConfig`]) becomes what the router obeys ([`RouterConfig`]) once, at start.
//!
//! A flag outranks an environment variable, which outranks the file, which outranks the default, for each key by itself. What
//! [`RawConfig::validate`] returns, or [`RouterConfig::check`] accepts, needs no further checks; a value that is refused stops
//! the start with a sentence that names it.
//!
//! ```
//! use fathom_router::config::{PolicyKind, RawConfig};
//!
//! let raw = RawConfig::from_toml("worker_urls = ['10.0.0.1:30000', '10.0.0.2:30000']\npolicy = 'least_load'")?;
//! let (router, server) = raw.validate(|variable| std::env::var(variable).ok())?;
//! assert_eq!(router.workers.len(), 2);
//! assert_eq!(router.policy, PolicyKind::LeastLoad);
//! assert_eq!(server.port, 30_000);
//! # Ok::<(), fathom_router::config::ConfigError>(())
//! ```

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::logic::admission::Caps;
use crate::logic::endpoint::{Endpoint, Secret};
use crate::logic::policy::{
    CacheAwareSettings, CacheAwareZmq, LeastLoad, Policy, PowerOfTwo, Random as RandomPolicy, RoundRobin,
};
use crate::logic::price::BasisRule;

mod admin_file;
mod check;
mod discovery;
mod error;
mod file_version;
mod key_file;
mod kubernetes;
mod load_polling;
pub(crate) mod otlp;
mod raw;
mod raw_worker;
mod reload;
mod toml_error;
mod validate;
mod worker_record;
mod workers;
mod workers_file;

pub use crate::logic::health::HealthRules;
pub use crate::prompt::{ChatStyle, ModelTokenizer, PromptSettings};
pub(crate) use admin_file::{read_admin_workers, write_admin_workers};
pub use discovery::DiscoverySettings;
pub use error::ConfigError;
pub(crate) use file_version::FileVersion;
pub(crate) use key_file::read_keys;
pub use kubernetes::KubernetesSettings;
pub use load_polling::{LoadPollingMode, LoadPollingSettings};
pub use raw::{
    CommandLine, RawCache, RawConfig, RawDiscovery, RawEdge, RawEngines, RawKubernetes, RawProcess, RawRouting,
    RawTargets, RawWorkers, SettingDoc, process_environment,
};
pub use raw_worker::RawWorker;
pub use reload::RELOADABLE_KEYS;
pub(crate) use worker_record::{InvalidWorker, read_worker};
pub(crate) use workers_file::{read_workers_text, workers_of};

/// What the router obeys. Embedders start from the default and change fields.
///
/// ```
/// use std::time::Duration;
///
/// use fathom_router::config::RouterConfig;
///
/// let mut config = RouterConfig::default();
/// config.load.freshness = Duration::from_secs(2);
/// config.check()?;
/// # Ok::<(), fathom_router::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RouterConfig {
    /// Workers that are served from the start. Default: none.
    pub workers: Vec<Endpoint>,
    /// Where further workers come from.
    pub discovery: DiscoverySettings,
    /// Where in Kubernetes to find further workers. Default: nowhere.
    pub kubernetes: Option<KubernetesSettings>,
    /// Who picks the worker of a request. Default: [`PolicyKind::CacheAwareZmq`].
    pub policy: PolicyKind,
    /// Who picks the prefill worker of a request that two workers share. Default: that of `policy`.
    pub prefill_policy: Option<PolicyKind>,
    /// Who picks its decode worker. Default: that of `policy`.
    pub decode_policy: Option<PolicyKind>,
    /// Thresholds of [`PolicyKind::CacheAwareZmq`]; the other policies ignore them. Defaults: 0.5, 32 and 1.1.
    pub cache_aware: CacheAwareSettings,
    /// How workers without a trusted load report are compared with the others. Default: [`BasisRule::Uniform`].
    pub basis: BasisRule,
    /// Which load reports are used, and for how long.
    pub load: LoadSettings,
    /// Whether engines that publish no load are asked for it.
    pub load_polling: LoadPollingSettings,
    /// How the engines' KV caches are followed.
    pub kv: KvSettings,
    /// How prompts are made into tokens.
    pub prompts: PromptSettings,
    /// How long a decision waits for the workers' snapshots before it does without the missing ones: 1 ms to 1 s. Default: 5 ms.
    pub round_deadline: Duration,
    /// When a worker is ejected, and how it returns.
    pub health: HealthRules,
    /// How the engines' health path is probed.
    pub probes: ProbeSettings,
    /// Limits beyond which a worker takes no more; a request that finds every worker full is refused at once. Default: none.
    pub caps: Caps,
    /// Requests that wait where every worker is full.
    pub queue: QueueSettings,
    /// How engines are asked what they serve.
    pub introspection: IntrospectionSettings,
    /// How requests reach engines.
    pub upstream: UpstreamSettings,
    /// What clients may send, and what they are told.
    pub http: HttpSettings,
    /// Who is served.
    pub access: AccessSettings,
    /// How long new requests are still taken once the router was told to stop, while `/readyz` says 503: 0 to an hour. Only where
    /// [`process::serve`](crate::process::serve) runs it. Default: 0.
    pub drain_delay: Duration,
    /// How long requests in flight may go on when the router stops: 0 (cut at once) to a day.
    /// Default: 30 s.
    pub drain_timeout: Duration,
    /// Collector that gets a span for each request (OTLP over HTTP); takes the feature `otel`. Default: none.
    pub otlp_endpoint: Option<String>,
    /// Seed of all random choices; the same seed and the same views give the same decisions. `None`, the default, draws one.
    pub seed: Option<u64>,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            workers: Vec::new(),
            discovery: DiscoverySettings::default(),
            kubernetes: None,
            policy: PolicyKind::default(),
            prefill_policy: None,
            decode_policy: None,
            cache_aware: CacheAwareSettings::default(),
            basis: BasisRule::default(),
            load: LoadSettings::default(),
            load_polling: LoadPollingSettings::default(),
            kv: KvSettings::default(),
            prompts: PromptSettings::default(),
            round_deadline: Duration::from_millis(5),
            health: HealthRules::default(),
            probes: ProbeSettings::default(),
            caps: Caps::default(),
            queue: QueueSettings::default(),
            introspection: IntrospectionSettings::default(),
            upstream: UpstreamSettings::default(),
            http: HttpSettings::default(),
            access: AccessSettings::default(),
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
            otlp_endpoint: None,
            seed: None,
        }
    }
}

/// A policy by its name in configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PolicyKind {
    /// `cache_aware_zmq`: the worker that holds the prompt's prefix, unless the fleet is out of balance.
    #[default]
    CacheAwareZmq,
    /// `least_load`: the least loaded worker.
    LeastLoad,
    /// `power_of_two`: the less loaded of two random workers.
    PowerOfTwo,
    /// `round_robin`: one worker after the other.
    RoundRobin,
    /// `random`: any worker.
    Random,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 5] = [Self::CacheAwareZmq, Self::LeastLoad, Self::PowerOfTwo, Self::RoundRobin, Self::Random];

    /// Returns the name used in configuration; it is that of the policy it builds.
    pub fn name(self) -> &'static str {
        match self {
            Self::CacheAwareZmq => "cache_aware_zmq",
            Self::LeastLoad => "least_load",
            Self::PowerOfTwo => "power_of_two",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
        }
    }

    /// Returns the policy. Only [`PolicyKind::CacheAwareZmq`] reads the thresholds.
    pub fn build(self, cache_aware: CacheAwareSettings) -> Arc<dyn Policy> {
        match self {
            Self::CacheAwareZmq => Arc::new(CacheAwareZmq::new(cache_aware)),
            Self::LeastLoad => Arc::new(LeastLoad),
            Self::PowerOfTwo => Arc::new(PowerOfTwo),
            Self::RoundRobin => Arc::new(RoundRobin),
            Self::Random => Arc::new(RandomPolicy),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        validate::named("policy", text, &Self::ALL.map(|kind| (kind.name(), kind)))
    }
}

/// Which load reports are used, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadSettings {
    /// How old a rank's report may be. A worker with an older one is not trusted: it is priced as [`RouterConfig::basis`] says.
    /// 1 ms to a day. Default: 5 s.
    pub freshness: Duration,
    /// How long a request of this router may take to show in its engine's reports; until then it counts on top of them. Longer
    /// counts requests twice for a while, shorter sends bursts to one worker. 0 to a minute. Default: 50 ms.
    pub dispatch_visibility: Duration,
    /// How long a worker that begins to serve is priced as if it were as loaded as the others, less so with time; 0 sends it
    /// everything at once. At most a day. Default: 10 s.
    pub ramp_up: Duration,
    /// Whether requests are addressed to DP ranks, where the engine takes one. Default: they are.
    pub route_dp_ranks: bool,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            freshness: Duration::from_secs(5),
            dispatch_visibility: Duration::from_millis(50),
            ramp_up: Duration::from_secs(10),
            route_dp_ranks: true,
        }
    }
}

/// Requests that wait where every worker is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSettings {
    /// How many may wait; more are refused at once. At most 1000000. Default: 0, nobody waits.
    pub max_waiting: usize,
    /// How long one may wait before it is refused: 1 ms to an hour. Default: 30 s.
    pub timeout: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { max_waiting: 0, timeout: Duration::from_secs(30) }
    }
}

/// How the engines' KV caches are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvSettings {
    /// Bytes that the list of one worker's cached blocks may take, some 36 per block; the least recently used go first.
    /// 1 MiB to 64 GiB. Default: 128 MiB.
    pub max_index_bytes: usize,
    /// How long the blocks of a request count as cached where it was sent before its engine has said so: 0 (not at all) to 10
    /// minutes. Default: 10 s.
    pub prediction_lifetime: Duration,
    /// How long an engine may take to send again the events that were missed: 1 ms to a minute. Default: 2 s.
    pub replay_timeout: Duration,
}

impl Default for KvSettings {
    fn default() -> Self {
        Self {
            max_index_bytes: 128 << 20,
            prediction_lifetime: Duration::from_secs(10),
            replay_timeout: Duration::from_secs(2),
        }
    }
}

/// How engines are asked what they serve and where they publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IntrospectionSettings {
    /// How long one question may take: 1 ms to a minute. Default: 2 s.
    pub attempt_timeout: Duration,
    /// Questions in a row before a worker counts as not answering: 1 to 10. Default: 3.
    pub attempts: u32,
    /// Pause before a worker that has never answered is asked again: 100 ms to a day. Default: 2 s.
    pub pending_interval: Duration,
    /// Pause before a worker that answers is asked again, which notices a restart with other settings: 1 s to a day. Default:
    /// 30 s.
    pub interval: Duration,
    /// Pause before a worker that refused the key is asked again: 1 s to a day. Default: 30 s.
    pub unauthorized_interval: Duration,
}

impl Default for IntrospectionSettings {
    fn default() -> Self {
        Self {
            attempt_timeout: Duration::from_secs(2),
            attempts: 3,
            pending_interval: Duration::from_secs(2),
            interval: Duration::from_secs(30),
            unauthorized_interval: Duration::from_secs(30),
        }
    }
}

/// How the engines' health path is probed. How many failures and successes it takes is in [`HealthRules`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeSettings {
    /// The path, with a slash in front. Default: `/health`.
    pub path: Arc<str>,
    /// Pause between two probes of a worker: 0 (never) to a day. Default: 10 s.
    pub interval: Duration,
    /// How long an engine may take to answer: 1 ms to a minute. Default: 5 s.
    pub timeout: Duration,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self { path: Arc::from("/health"), interval: Duration::from_secs(10), timeout: Duration::from_secs(5) }
    }
}

/// How requests reach engines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamSettings {
    /// The bearer key sent to every engine that has none of its own. Default: none.
    pub api_key: Option<Secret>,
    /// How long a TCP connection may take to open before the worker counts as unreachable: 1 ms to a minute. Default: 2 s.
    pub connect_timeout: Duration,
    /// How long an engine may take until its response begins. A response that is not streamed begins when it is complete, so
    /// this bounds the longest generation: 1 s to a day. Default: 600 s.
    pub response_header_timeout: Duration,
    /// How long an engine may send nothing in the middle of its response before that counts as broken off: 1 s to a day. A response
    /// that goes on has no limit. Default: 300 s.
    pub stream_idle_timeout: Duration,
    /// How long a connection is kept for the next request: 1 ms to an hour. The default, 4 s, is below the 5 s after which common
    /// engines close it; above that, requests meet connections that are just being closed.
    pub pool_idle_timeout: Duration,
    /// Connections kept per worker and HTTP thread; 0 opens one per request. At most 65536. Default: 256.
    pub max_idle_per_worker: usize,
}

impl Default for UpstreamSettings {
    fn default() -> Self {
        Self {
            api_key: None,
            connect_timeout: Duration::from_secs(2),
            response_header_timeout: Duration::from_secs(600),
            stream_idle_timeout: Duration::from_secs(300),
            pool_idle_timeout: Duration::from_secs(4),
            max_idle_per_worker: 256,
        }
    }
}

/// What clients may send, and what they are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpSettings {
    /// Largest request body in bytes; a larger one is refused. It is held in memory while its request may be sent to another
    /// worker. 1 to 1 GiB. Default: 64 MiB.
    pub max_body_bytes: usize,
    /// Requests served at a time; more are refused at once instead of waiting. 1 to 1000000. Default: 65536.
    pub max_concurrent_requests: usize,
    /// How long a client may send nothing in the middle of its request before it is refused, and, behind
    /// [`listen`](crate::server::listen), take nothing of an answer that waits for it before its connection is closed: 1 s to an
    /// hour. Default: 60 s.
    pub client_timeout: Duration,
    /// Whether responses tell the worker chosen and why, which shows the fleet to clients. Default: no.
    pub expose_decision: bool,
    /// Whether a client's `Authorization` and `x-api-key` headers are passed to the engine, in place of the configured key.
    /// Default: no.
    pub forward_authorization: bool,
    /// Whether the tokens of a completion's or `/generate`'s text, where they are known, are sent to the engine in its place, so
    /// that it need not encode it again. Default: no.
    pub forward_token_ids: bool,
    /// Whether the DP rank that a client names (`x-data-parallel-rank`, or `routed_dp_rank` in the body) is honoured, where the worker
    /// owns it. Default: no.
    pub forward_dp_rank: bool,
    /// Whether each client's request is logged with one line when it has ended. Default: no.
    pub request_log: bool,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            max_body_bytes: 64 << 20,
            max_concurrent_requests: 65_536,
            client_timeout: Duration::from_secs(60),
            expose_decision: false,
            forward_authorization: false,
            forward_token_ids: false,
            forward_dp_rank: false,
            request_log: false,
        }
    }
}

/// Who is served. The default serves every client, and the admin paths (`/metrics`, `/workers` and what is below) to this machine.
///
/// A request comes from this machine where its peer address is a loopback one and no header says that a proxy passed it on. That
/// holds for embedders too; a server on a Unix socket has no peer address, and needs a key or [`AccessSettings::open_admin`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AccessSettings {
    /// File with the keys of clients: one per line, lines that start with `#` do not count. Forwarded paths and `/v1/models` want
    /// one of them as `Authorization: Bearer KEY` or `x-api-key: KEY`. It must be readable at start; a change takes effect within
    /// a second, and one that leaves no readable key is logged and ignored. Default: none, and no key is wanted.
    pub api_keys_file: Option<PathBuf>,
    /// File of the same form with the keys for the admin paths. Clients' keys do not open these, nor do these serve clients.
    /// Default: none.
    pub admin_key_file: Option<PathBuf>,
    /// Whether the admin paths answer whoever reaches them, for those who guard them otherwise. Not beside
    /// [`AccessSettings::admin_key_file`]. Default: no.
    pub open_admin: bool,
}

/// What the `fathom` binary needs beyond the router: where it listens and how it logs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Name or address to listen on, IPv6 without brackets. Default: 127.0.0.1, which only this machine reaches.
    pub host: String,
    /// Port to listen on; 0 takes a free one. Default: 30000.
    pub port: u16,
    /// Further port on the same host that serves `/metrics`, `/healthz` and `/readyz` only, without TLS; 0 takes a free one.
    /// Default: none.
    pub metrics_port: Option<u16>,
    /// Threads that serve HTTP: 1 to 1024. Default: as many as run at a time on this machine.
    pub http_threads: usize,
    /// Certificate and key of the listener. Default: none, and the listener speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Whether HTTP/2 without TLS is spoken to clients that begin with it. The version is told by the first bytes, for which
    /// actix-web waits without a limit. Not beside [`ServerConfig::tls`]. Default: no.
    pub h2c: bool,
    /// Connections that each HTTP thread keeps open at a time; more wait until one is closed. 1 to 1000000. Default: 25000.
    pub max_connections: usize,
    /// How long the head of a connection's first request may take, and the TLS handshake: 100 ms to a minute. Default: 5 s.
    pub header_timeout: Duration,
    /// How long an idle connection is kept: 1 s to an hour. The default, 75 s, is above the 60 s after which common proxies close
    /// theirs; below that, their requests meet connections that are just being closed.
    pub keep_alive: Duration,
    /// Which log lines are written, as a filter of `tracing-subscriber`: a level, or levels per module. Its syntax is checked
    /// where the log is set up. Default: `info`.
    pub log_level: String,
    /// How log lines look. Default: [`LogFormat::Text`].
    pub log_format: LogFormat,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 30_000,
            metrics_port: None,
            http_threads: std::thread::available_parallelism().map_or(1, usize::from).min(check::MAX_HTTP_THREADS),
            tls: None,
            h2c: false,
            max_connections: 25_000,
            header_timeout: Duration::from_secs(5),
            keep_alive: Duration::from_secs(75),
            log_level: "info".to_owned(),
            log_format: LogFormat::default(),
        }
    }
}

/// Where certificate and private key of the listener are, both in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, the listener's own certificate first.
    pub cert: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

#[cfg(test)]
mod tests;
