//! The Kubernetes source of workers.

use std::sync::Arc;
use std::time::Duration;

use crate::config::check::{secs, within};
use crate::config::validate::set;
use crate::config::{ConfigError, RawKubernetes};
use crate::logic::kubernetes::{Pace, PortRule};

/// Which pods become workers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KubernetesSettings {
    /// The service whose EndpointSlices say who serves. Default: none.
    pub service: Option<Arc<str>>,
    /// The labels of the pods. Beside a service they only add what pods say of themselves. Default: none.
    pub selector: Option<Arc<str>>,
    /// Where to look; `*` is everywhere. Default: empty, the router's own namespace.
    pub namespaces: Vec<Arc<str>>,
    /// Which port is the engine's. Default: [`PortRule::Only`].
    pub port: PortRule,
    /// How often the full list is taken: 1 s to a day, default 60 s, and where watching is forbidden 1 s to an hour, default 5 s.
    pub pace: Pace,
    /// The most workers, 1 to 10,000. Default: 1,024.
    pub max_endpoints: usize,
    /// The address of the API server. `None`, the default, finds it as `kubectl` or a pod does.
    pub api_url: Option<String>,
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self {
            service: None,
            selector: None,
            namespaces: Vec::new(),
            port: PortRule::default(),
            pace: Pace { relist: Duration::from_secs(60), poll: Duration::from_secs(5) },
            max_endpoints: 1_024,
            api_url: None,
        }
    }
}

/// Returns `None` where nothing was written of it.
pub(super) fn settings(raw: &RawKubernetes) -> Result<Option<KubernetesSettings>, ConfigError> {
    if *raw == RawKubernetes::default() {
        return Ok(None);
    }
    let namespaces = raw.kubernetes_namespaces.as_deref().unwrap_or_default();
    let mut settings = KubernetesSettings {
        service: raw.kubernetes_service.as_deref().map(Arc::from),
        selector: raw.kubernetes_selector.as_deref().map(Arc::from),
        namespaces: namespaces.iter().map(|namespace| namespace.trim().into()).collect(),
        api_url: raw.kubernetes_api_url.clone(),
        ..KubernetesSettings::default()
    };
    set(&mut settings.port, raw.kubernetes_port.as_deref().map(port_rule).transpose()?);
    set(&mut settings.pace.relist, raw.kubernetes_relist_secs.map(Duration::from_secs));
    set(&mut settings.pace.poll, raw.kubernetes_poll_secs.map(Duration::from_secs));
    set(&mut settings.max_endpoints, raw.kubernetes_max_endpoints);
    Ok(Some(settings))
}

/// Reads a port as people write it: a number or a name.
fn port_rule(text: &str) -> Result<PortRule, ConfigError> {
    let refused = || {
        let rule = "must be a port number, 1 to 65535, or the name of a port";
        ConfigError::Rule { key: "kubernetes_port", value: format!("{text:?}"), rule }
    };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(number) if number > 0 => Ok(PortRule::Number(number)),
            _ => Err(refused()),
        };
    }
    if is_name(text) { Ok(PortRule::Named(text.into())) } else { Err(refused()) }
}

pub(super) fn check_kubernetes(settings: &KubernetesSettings) -> Result<(), ConfigError> {
    if !cfg!(feature = "kubernetes") {
        let rule = "this build has no Kubernetes source (feature `kubernetes`)";
        return Err(ConfigError::Rule { key: "kubernetes_service", value: format!("{:?}", settings.service), rule });
    }
    if settings.service.is_none() && settings.selector.is_none() {
        let rule = "must be given, or kubernetes_selector: the other kubernetes settings have no effect without";
        return Err(ConfigError::Rule { key: "kubernetes_service", value: "none".to_owned(), rule });
    }
    name("kubernetes_service", settings.service.as_deref())?;
    for namespace in &settings.namespaces {
        name("kubernetes_namespaces", Some(&**namespace).filter(|namespace| *namespace != "*"))?;
    }
    if let Some(selector) = settings.selector.as_deref() {
        let is_selector =
            !selector.trim().is_empty() && selector.len() <= 1_024 && !selector.contains(char::is_control);
        if !is_selector {
            let rule = "must be a label selector such as app=engine, of at most 1024 bytes";
            return Err(ConfigError::Rule { key: "kubernetes_selector", value: format!("{selector:?}"), rule });
        }
    }
    secs("kubernetes_relist_secs", settings.pace.relist, 1..=86_400)?;
    secs("kubernetes_poll_secs", settings.pace.poll, 1..=3_600)?;
    within("kubernetes_max_endpoints", settings.max_endpoints, 1..=10_000)
}

fn name(key: &'static str, name: Option<&str>) -> Result<(), ConfigError> {
    match name {
        Some(name) if !is_name(name) => {
            let rule = "must be a name: at most 63 small letters, digits and hyphens";
            Err(ConfigError::Rule { key, value: format!("{name:?}"), rule })
        }
        _ => Ok(()),
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_part) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests;
