//! From what was written to what is obeyed: defaults under it, names looked up, addresses parsed, ranges checked.

use std::path::Path;
use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::raw::RawConfig;
use crate::config::{AccessSettings, DiscoverySettings, LoadPollingMode, LoadPollingSettings, TlsFiles};
use crate::config::{ChatStyle, ModelTokenizer, PromptSettings};
use crate::config::{
    HealthRules, HttpSettings, IntrospectionSettings, KvSettings, LoadSettings, LogFormat, PolicyKind, ProbeSettings,
    RouterConfig, ServerConfig, UpstreamSettings, kubernetes, workers,
};
use crate::logic::admission::Caps;
use crate::logic::policy::CacheAwareSettings;
use crate::logic::price::BasisRule;

const BASIS_RULES: [(&str, BasisRule); 3] =
    [("uniform", BasisRule::Uniform), ("scaled", BasisRule::Scaled), ("mixed", BasisRule::Mixed)];

const POLLING_MODES: [(&str, LoadPollingMode); 2] = [("off", LoadPollingMode::Off), ("auto", LoadPollingMode::Auto)];

const ROUTE_DP_RANKS: [(&str, bool); 2] = [("auto", true), ("off", false)];

const CHAT_STYLES: [(&str, ChatStyle); 2] = [("sglang", ChatStyle::SgLang), ("vllm", ChatStyle::Vllm)];

const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

impl RawConfig {
    /// Puts the defaults under what was written and checks all of it. `environment` looks up the variables that
    /// `engine_api_key_env` and `api_key_env` name.
    ///
    /// # Errors
    /// Names the first setting that is refused.
    pub fn validate(
        self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(RouterConfig, ServerConfig), ConfigError> {
        let router = self.router(&environment)?;
        router.check()?;
        let server = self.server()?;
        server.check()?;
        Ok((router, server))
    }

    fn router(&self, environment: &impl Fn(&str) -> Option<String>) -> Result<RouterConfig, ConfigError> {
        let mut config = RouterConfig {
            workers: workers::endpoints(
                self.workers.worker_urls.as_deref().unwrap_or_default(),
                self.workers.worker.as_deref().unwrap_or_default(),
                environment,
            )?,
            discovery: DiscoverySettings::read(&self.discovery)?,
            kubernetes: kubernetes::settings(&self.kubernetes)?,
            cache_aware: self.cache_aware(),
            health: self.health(),
            probes: self.probes(),
            load: self.load()?,
            load_polling: self.load_polling()?,
            prefill_policy: self.policy_of("prefill_policy", &self.targets.prefill_policy)?,
            decode_policy: self.policy_of("decode_policy", &self.targets.decode_policy)?,
            kv: self.kv(),
            caps: Caps {
                max_in_flight: self.routing.max_in_flight_per_worker,
                max_depth: self.routing.max_depth_per_worker,
                max_kv_used: self.routing.max_kv_used,
                max_pending_tokens: self.routing.max_pending_tokens,
            },
            prompts: self.prompts()?,
            introspection: self.introspection(),
            upstream: self.upstream(environment)?,
            http: self.http(),
            access: self.access(),
            otlp_endpoint: self.process.otlp_endpoint.clone(),
            seed: self.routing.seed,
            ..RouterConfig::default()
        };
        set(&mut config.queue.max_waiting, self.routing.queue_size);
        set(&mut config.queue.timeout, self.routing.queue_timeout_ms.map(Duration::from_millis));
        set(&mut config.policy, self.routing.policy.as_deref().map(str::parse).transpose()?);
        set(
            &mut config.basis,
            self.routing.basis.as_deref().map(|text| named("basis", text, &BASIS_RULES)).transpose()?,
        );
        set(&mut config.round_deadline, self.routing.round_deadline_ms.map(Duration::from_millis));
        set(&mut config.drain_delay, self.process.drain_delay_secs.map(Duration::from_secs));
        set(&mut config.drain_timeout, self.process.drain_timeout_secs.map(Duration::from_secs));
        Ok(config)
    }

    fn cache_aware(&self) -> CacheAwareSettings {
        let mut settings = CacheAwareSettings::default();
        set(&mut settings.cache_threshold, self.routing.cache_threshold);
        set(&mut settings.balance_abs_threshold, self.routing.balance_abs_threshold);
        set(&mut settings.balance_rel_threshold, self.routing.balance_rel_threshold);
        settings
    }

    fn health(&self) -> HealthRules {
        let mut rules = HealthRules::default();
        set(&mut rules.eject_after_unreachable, self.workers.eject_after_unreachable);
        set(&mut rules.failure_ratio, self.workers.eject_failure_ratio);
        set(&mut rules.min_requests, self.workers.eject_min_requests);
        set(&mut rules.window, self.workers.eject_window_ms.map(Duration::from_millis));
        set(&mut rules.cooldown, self.workers.eject_cooldown_ms.map(Duration::from_millis));
        set(&mut rules.max_cooldown, self.workers.eject_max_cooldown_ms.map(Duration::from_millis));
        set(&mut rules.probation_successes, self.workers.probation_successes);
        set(&mut rules.probe_failures, self.workers.health_failures);
        set(&mut rules.probe_successes, self.workers.health_successes);
        rules
    }

    fn probes(&self) -> ProbeSettings {
        let mut settings = ProbeSettings::default();
        set(&mut settings.path, self.workers.health_path.as_deref().map(Into::into));
        set(&mut settings.interval, self.workers.health_interval_ms.map(Duration::from_millis));
        set(&mut settings.timeout, self.workers.health_timeout_ms.map(Duration::from_millis));
        settings
    }

    fn policy_of(&self, key: &'static str, name: &Option<String>) -> Result<Option<PolicyKind>, ConfigError> {
        let kinds = PolicyKind::ALL.map(|kind| (kind.name(), kind));
        name.as_deref().map(|name| named(key, name, &kinds)).transpose()
    }

    fn load(&self) -> Result<LoadSettings, ConfigError> {
        let mut settings = LoadSettings::default();
        set(&mut settings.freshness, self.routing.load_freshness_ms.map(Duration::from_millis));
        set(&mut settings.dispatch_visibility, self.routing.dispatch_visibility_ms.map(Duration::from_millis));
        set(&mut settings.ramp_up, self.routing.ramp_up_ms.map(Duration::from_millis));
        let route_dp_ranks = self.targets.route_dp_ranks.as_deref();
        let route_dp_ranks = route_dp_ranks.map(|text| named("route_dp_ranks", text, &ROUTE_DP_RANKS)).transpose()?;
        set(&mut settings.route_dp_ranks, route_dp_ranks);
        Ok(settings)
    }

    fn load_polling(&self) -> Result<LoadPollingSettings, ConfigError> {
        let mut settings = LoadPollingSettings::default();
        let mode = self.routing.load_polling.as_deref().map(|text| named("load_polling", text, &POLLING_MODES));
        set(&mut settings.mode, mode.transpose()?);
        set(&mut settings.interval, self.routing.load_polling_interval_ms.map(Duration::from_millis));
        Ok(settings)
    }

    fn kv(&self) -> KvSettings {
        let mut settings = KvSettings::default();
        set(&mut settings.max_index_bytes, self.cache.kv_index_bytes);
        set(&mut settings.prediction_lifetime, self.cache.prediction_lifetime_ms.map(Duration::from_millis));
        set(&mut settings.replay_timeout, self.cache.kv_replay_timeout_ms.map(Duration::from_millis));
        settings
    }

    fn prompts(&self) -> Result<PromptSettings, ConfigError> {
        let mut settings = PromptSettings::default();
        let style = self.cache.chat_style.as_deref().map(|text| named("chat_style", text, &CHAT_STYLES)).transpose()?;
        for entry in self.cache.tokenizers.iter().flatten() {
            settings.models.push(tokenizer(entry, style.unwrap_or(ChatStyle::SgLang), &settings.models)?);
        }
        set(&mut settings.threads, self.cache.prompt_threads);
        set(&mut settings.timeout, self.cache.prompt_timeout_ms.map(Duration::from_millis));
        set(&mut settings.cache_bytes, self.cache.prompt_cache_bytes);
        Ok(settings)
    }

    fn introspection(&self) -> IntrospectionSettings {
        let mut settings = IntrospectionSettings::default();
        set(&mut settings.attempt_timeout, self.engines.introspection_attempt_timeout_ms.map(Duration::from_millis));
        set(&mut settings.attempts, self.engines.introspection_attempts);
        set(&mut settings.pending_interval, self.engines.introspection_pending_interval_ms.map(Duration::from_millis));
        set(&mut settings.interval, self.engines.introspection_interval_secs.map(Duration::from_secs));
        let unauthorized_interval = self.engines.introspection_unauthorized_interval_secs.map(Duration::from_secs);
        set(&mut settings.unauthorized_interval, unauthorized_interval);
        settings
    }

    fn upstream(&self, environment: &impl Fn(&str) -> Option<String>) -> Result<UpstreamSettings, ConfigError> {
        let mut settings = UpstreamSettings::default();
        if let Some(variable) = &self.engines.engine_api_key_env {
            settings.api_key = Some(workers::key_from_variable("engine_api_key_env", variable, environment)?);
        }
        set(&mut settings.connect_timeout, self.engines.connect_timeout_ms.map(Duration::from_millis));
        set(&mut settings.response_header_timeout, self.engines.response_header_timeout_secs.map(Duration::from_secs));
        set(&mut settings.stream_idle_timeout, self.engines.stream_idle_timeout_secs.map(Duration::from_secs));
        set(&mut settings.pool_idle_timeout, self.engines.pool_idle_timeout_ms.map(Duration::from_millis));
        set(&mut settings.max_idle_per_worker, self.engines.max_idle_per_worker);
        Ok(settings)
    }

    fn http(&self) -> HttpSettings {
        let mut settings = HttpSettings::default();
        set(&mut settings.max_body_bytes, self.edge.max_body_bytes);
        set(&mut settings.max_concurrent_requests, self.edge.max_concurrent_requests);
        set(&mut settings.client_timeout, self.edge.client_timeout_secs.map(Duration::from_secs));
        set(&mut settings.expose_decision, self.edge.expose_decision);
        set(&mut settings.request_log, self.process.request_log);
        set(&mut settings.forward_authorization, self.edge.forward_authorization);
        set(&mut settings.forward_token_ids, self.cache.forward_token_ids);
        set(&mut settings.forward_dp_rank, self.targets.forward_dp_rank);
        settings
    }

    fn access(&self) -> AccessSettings {
        AccessSettings {
            api_keys_file: self.edge.api_keys_file.clone(),
            admin_key_file: self.edge.admin_key_file.clone(),
            open_admin: self.edge.open_admin.unwrap_or_default(),
        }
    }

    fn tls(&self) -> Result<Option<TlsFiles>, ConfigError> {
        let lonely = |key, path: &Path, rule| Err(ConfigError::Rule { key, value: format!("{path:?}"), rule });
        match (&self.edge.tls_cert_file, &self.edge.tls_key_file) {
            (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone() })),
            (Some(cert), None) => lonely("tls_cert_file", cert, "needs tls_key_file"),
            (None, Some(key)) => lonely("tls_key_file", key, "needs tls_cert_file"),
            (None, None) => Ok(None),
        }
    }

    fn server(&self) -> Result<ServerConfig, ConfigError> {
        let mut config = ServerConfig::default();
        set(&mut config.host, self.edge.host.as_deref().map(without_brackets));
        set(&mut config.port, self.edge.port);
        config.metrics_port = self.edge.metrics_port;
        set(&mut config.http_threads, self.edge.http_threads);
        config.tls = self.tls()?;
        set(&mut config.h2c, self.edge.h2c);
        set(&mut config.max_connections, self.edge.max_connections);
        set(&mut config.header_timeout, self.edge.header_timeout_ms.map(Duration::from_millis));
        set(&mut config.keep_alive, self.edge.keep_alive_secs.map(Duration::from_secs));
        set(&mut config.log_level, self.process.log_level.clone());
        let log_format = self.process.log_format.as_deref().map(|text| named("log_format", text, &LOG_FORMATS));
        set(&mut config.log_format, log_format.transpose()?);
        Ok(config)
    }
}

/// Reads `MODEL=DIR`, or a directory for every model without one of its own.
fn tokenizer(entry: &str, style: ChatStyle, earlier: &[ModelTokenizer]) -> Result<ModelTokenizer, ConfigError> {
    let refused = |rule| ConfigError::Rule { key: "tokenizers", value: format!("{entry:?}"), rule };
    let (model, path) = entry.split_once('=').unwrap_or(("*", entry));
    let (model, path) = (model.trim(), path.trim());
    if model.is_empty() || path.is_empty() {
        return Err(refused("must be a directory, or the name of a model, an equals sign and a directory"));
    }
    if earlier.iter().any(|earlier| earlier.model == model) {
        return Err(refused("is a second directory for the same model"));
    }
    if !std::path::Path::new(path).is_dir() {
        return Err(refused("is not a directory that exists"));
    }
    Ok(ModelTokenizer { model: model.to_owned(), path: path.into(), style })
}

/// Returns the value of that name.
pub(super) fn named<T: Copy>(key: &'static str, text: &str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
    if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let choices = choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Err(ConfigError::UnknownName { key, value: text.to_owned(), choices })
}

pub(super) fn set<T>(setting: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *setting = value;
    }
}

/// People write IPv6 in brackets as well as without; sockets are bound to it without.
fn without_brackets(host: &str) -> String {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(host).to_owned()
}
