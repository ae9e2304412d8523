//! The range of every setting. Errors name the key and unit that people write, also where an embedder set the field.

use std::fmt;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::kubernetes::check_kubernetes;
use crate::config::otlp::traces_url;
use crate::config::{AccessSettings, PromptSettings};
use crate::config::{
    HealthRules, HttpSettings, IntrospectionSettings, KvSettings, LoadSettings, ProbeSettings, RouterConfig,
    ServerConfig, UpstreamSettings,
};
use crate::logic::admission::Caps;
use crate::logic::policy::CacheAwareSettings;

/// Threads beyond any machine of today; a greater number is a slip of the keyboard.
pub(super) const MAX_HTTP_THREADS: usize = 1_024;

/// No pause or wait is longer than a day: deadlines are sums of a time and a setting, which must not overflow.
pub(super) const DAY_SECS: u32 = 86_400;
const DAY_MILLIS: u32 = DAY_SECS * 1_000;
const MINUTE_MILLIS: u32 = 60_000;
const HOUR_MILLIS: u32 = 3_600_000;

/// Large enough to switch balancing off, and finite.
const MAX_THRESHOLD: f64 = 1e9;

const GIB: usize = 1 << 30;

impl RouterConfig {
    /// Checks every setting that [`RawConfig::validate`](crate::config::RawConfig::validate) checks, for embedders that fill the
    /// fields themselves. A configuration that passes needs no further checks.
    ///
    /// # Errors
    /// Names the first setting that is out of its range, as the key of the configuration file.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_cache_aware(&self.cache_aware)?;
        self.discovery.check()?;
        check_load(&self.load)?;
        millis("load_polling_interval_ms", self.load_polling.interval, 50..=MINUTE_MILLIS)?;
        check_caps(&self.caps)?;
        within("queue_size", self.queue.max_waiting, 0..=1_000_000)?;
        millis("queue_timeout_ms", self.queue.timeout, 1..=HOUR_MILLIS)?;
        check_kv(&self.kv)?;
        check_prompts(&self.prompts)?;
        millis("round_deadline_ms", self.round_deadline, 1..=1_000)?;
        check_health(&self.health)?;
        check_probes(&self.probes)?;
        check_introspection(&self.introspection)?;
        check_upstream(&self.upstream)?;
        check_http(&self.http)?;
        check_access(&self.access)?;
        self.kubernetes.as_ref().map_or(Ok(()), check_kubernetes)?;
        self.otlp_endpoint.as_deref().map_or(Ok(()), |endpoint| traces_url(endpoint).map(drop))?;
        secs("drain_delay_secs", self.drain_delay, 0..=HOUR_MILLIS / 1_000)?;
        secs("drain_timeout_secs", self.drain_timeout, 0..=DAY_SECS)
    }
}

impl ServerConfig {
    /// Checks every setting of the binary's own.
    ///
    /// # Errors
    /// Names the first setting that is refused.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !is_bare_host(&self.host) {
            let rule = "must be a host name or an IP address, without a port";
            return Err(ConfigError::Rule { key: "host", value: format!("{:?}", self.host), rule });
        }
        if let Some(port) = self.metrics_port.filter(|port| *port != 0 && *port == self.port) {
            let rule = "must be another port than that of the clients";
            return Err(ConfigError::Rule { key: "metrics_port", value: port.to_string(), rule });
        }
        within("http_threads", self.http_threads, 1..=MAX_HTTP_THREADS)?;
        if self.h2c && self.tls.is_some() {
            let rule = "has no effect beside tls_cert_file, which brings HTTP/2 of its own";
            return Err(ConfigError::Rule { key: "h2c", value: true.to_string(), rule });
        }
        within("max_connections", self.max_connections, 1..=1_000_000)?;
        millis("header_timeout_ms", self.header_timeout, 100..=MINUTE_MILLIS)?;
        secs("keep_alive_secs", self.keep_alive, 1..=HOUR_MILLIS / 1_000)?;
        if self.log_level.trim().is_empty() {
            let rule = "must name a level";
            return Err(ConfigError::Rule { key: "log_level", value: format!("{:?}", self.log_level), rule });
        }
        Ok(())
    }
}

fn check_cache_aware(settings: &CacheAwareSettings) -> Result<(), ConfigError> {
    within("cache_threshold", settings.cache_threshold, 0.0..=1.0)?;
    within("balance_abs_threshold", settings.balance_abs_threshold, 0.0..=MAX_THRESHOLD)?;
    within("balance_rel_threshold", settings.balance_rel_threshold, 1.0..=MAX_THRESHOLD)
}

fn check_load(settings: &LoadSettings) -> Result<(), ConfigError> {
    millis("load_freshness_ms", settings.freshness, 1..=DAY_MILLIS)?;
    millis("dispatch_visibility_ms", settings.dispatch_visibility, 0..=MINUTE_MILLIS)?;
    millis("ramp_up_ms", settings.ramp_up, 0..=DAY_MILLIS)
}

fn check_caps(caps: &Caps) -> Result<(), ConfigError> {
    within("max_in_flight_per_worker", caps.max_in_flight.unwrap_or(1), 1..=1_000_000)?;
    within("max_depth_per_worker", caps.max_depth.unwrap_or(1), 1..=1_000_000)?;
    within("max_kv_used", caps.max_kv_used.unwrap_or(1.0), 0.0..=1.0)?;
    within("max_pending_tokens", caps.max_pending_tokens.unwrap_or(1), 1..=u64::MAX)
}

fn check_health(rules: &HealthRules) -> Result<(), ConfigError> {
    within("eject_after_unreachable", rules.eject_after_unreachable, 1..=1_000)?;
    within("eject_failure_ratio", rules.failure_ratio, 0.0..=1.0)?;
    within("eject_min_requests", rules.min_requests, 1..=1_000_000)?;
    millis("eject_window_ms", rules.window, 10..=HOUR_MILLIS)?;
    millis("eject_cooldown_ms", rules.cooldown, 1..=DAY_MILLIS)?;
    millis("eject_max_cooldown_ms", rules.max_cooldown, 1..=DAY_MILLIS)?;
    within("probation_successes", rules.probation_successes, 1..=1_000)?;
    within("health_failures", rules.probe_failures, 1..=1_000)?;
    within("health_successes", rules.probe_successes, 1..=1_000)
}

fn check_probes(settings: &ProbeSettings) -> Result<(), ConfigError> {
    let is_path = settings.path.starts_with('/') && settings.path.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_path {
        let rule = "must begin with a slash, and hold no spaces";
        return Err(ConfigError::Rule { key: "health_path", value: format!("{:?}", settings.path), rule });
    }
    millis("health_interval_ms", settings.interval, 0..=DAY_MILLIS)?;
    millis("health_timeout_ms", settings.timeout, 1..=MINUTE_MILLIS)
}

fn check_kv(settings: &KvSettings) -> Result<(), ConfigError> {
    within("kv_index_bytes", settings.max_index_bytes, 1 << 20..=64 * GIB)?;
    millis("prediction_lifetime_ms", settings.prediction_lifetime, 0..=10 * MINUTE_MILLIS)?;
    millis("kv_replay_timeout_ms", settings.replay_timeout, 1..=MINUTE_MILLIS)
}

fn check_prompts(settings: &PromptSettings) -> Result<(), ConfigError> {
    within("prompt_threads", settings.threads, 1..=MAX_HTTP_THREADS)?;
    millis("prompt_timeout_ms", settings.timeout, 1..=MINUTE_MILLIS)?;
    within("prompt_cache_bytes", settings.cache_bytes, 0..=64 * GIB)
}

fn check_introspection(settings: &IntrospectionSettings) -> Result<(), ConfigError> {
    millis("introspection_attempt_timeout_ms", settings.attempt_timeout, 1..=MINUTE_MILLIS)?;
    within("introspection_attempts", settings.attempts, 1..=10)?;
    // An engine that loads its weights is silent for minutes; asked without a pause it would be busy answering.
    millis("introspection_pending_interval_ms", settings.pending_interval, 100..=DAY_MILLIS)?;
    secs("introspection_interval_secs", settings.interval, 1..=DAY_SECS)?;
    secs("introspection_unauthorized_interval_secs", settings.unauthorized_interval, 1..=DAY_SECS)
}

fn check_upstream(settings: &UpstreamSettings) -> Result<(), ConfigError> {
    millis("connect_timeout_ms", settings.connect_timeout, 1..=MINUTE_MILLIS)?;
    secs("response_header_timeout_secs", settings.response_header_timeout, 1..=DAY_SECS)?;
    secs("stream_idle_timeout_secs", settings.stream_idle_timeout, 1..=DAY_SECS)?;
    millis("pool_idle_timeout_ms", settings.pool_idle_timeout, 1..=HOUR_MILLIS)?;
    within("max_idle_per_worker", settings.max_idle_per_worker, 0..=65_536)
}

fn check_http(settings: &HttpSettings) -> Result<(), ConfigError> {
    within("max_body_bytes", settings.max_body_bytes, 1..=GIB)?;
    within("max_concurrent_requests", settings.max_concurrent_requests, 1..=1_000_000)?;
    secs("client_timeout_secs", settings.client_timeout, 1..=HOUR_MILLIS / 1_000)
}

fn check_access(settings: &AccessSettings) -> Result<(), ConfigError> {
    if settings.open_admin && settings.admin_key_file.is_some() {
        let rule = "cannot be given beside admin_key_file";
        return Err(ConfigError::Rule { key: "open_admin", value: true.to_string(), rule });
    }
    Ok(())
}

fn is_bare_host(host: &str) -> bool {
    let is_name = |text: &str| !text.contains(|c: char| c.is_whitespace() || c.is_control() || "/:@[]".contains(c));
    !host.is_empty() && (is_name(host) || host.parse::<Ipv6Addr>().is_ok())
}

fn millis(key: &'static str, value: Duration, range: RangeInclusive<u32>) -> Result<(), ConfigError> {
    duration(key, value, Duration::from_millis(1), range)
}

pub(super) fn secs(key: &'static str, value: Duration, range: RangeInclusive<u32>) -> Result<(), ConfigError> {
    duration(key, value, Duration::from_secs(1), range)
}

fn duration(key: &'static str, value: Duration, unit: Duration, range: RangeInclusive<u32>) -> Result<(), ConfigError> {
    let (nanos, unit_nanos) = (value.as_nanos(), unit.as_nanos());
    if nanos % unit_nanos == 0 {
        return within(key, nanos / unit_nanos, u128::from(*range.start())..=u128::from(*range.end()));
    }
    // Only an embedder can set a part of a unit.
    within(key, nanos as f64 / unit_nanos as f64, f64::from(*range.start())..=f64::from(*range.end()))
}

/// Not a number is in no range, and is refused as too small.
pub(super) fn within<T: PartialOrd + fmt::Display>(
    key: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    if value > most {
        return Err(ConfigError::TooLarge { key, value: value.to_string(), most: most.to_string() });
    }
    Err(ConfigError::TooSmall { key, value: value.to_string(), least: least.to_string() })
}
