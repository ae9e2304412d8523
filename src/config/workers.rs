//! The workers: a list of addresses, and a table for each worker that needs settings of its own.
//!
//! Whatever way the list was given, the same addresses come out of it, and nothing is left out: an empty element or a malformed
//! address refuses the whole configuration. An address counts once, however often and in whatever spelling it appears.

use std::sync::Arc;

use crate::config::check;
use crate::config::error::ConfigError;
use crate::config::raw_worker::RawWorker;
use crate::config::validate::named;
use crate::logic::endpoint::{
    Endpoint, EndpointOverrides, Feed, FeedDescriptor, FeedRefusal, MAX_DP_RANKS, Secret, WorkerUrl, kv_feed,
    load_feed, replay_feed,
};
use crate::logic::ranks::RankRule;
use crate::logic::role::{DEFAULT_BOOTSTRAP_PORT, Role};

/// Returns the listed workers in order, then those that have only a table.
pub(super) fn endpoints(
    list: &[String],
    tables: &[RawWorker],
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<Endpoint>, ConfigError> {
    let mut described: Vec<Endpoint> = Vec::new();
    for table in tables {
        let endpoint = described_by(table, environment)?;
        match described.iter().find(|earlier| earlier.url == endpoint.url) {
            None => described.push(endpoint),
            Some(earlier) if *earlier == endpoint => {}
            Some(_) => return Err(ConfigError::ConflictingTables { url: endpoint.url.to_string() }),
        }
    }
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for url in listed(list)? {
        if endpoints.iter().any(|earlier| earlier.url == url) {
            continue;
        }
        match described.iter().position(|endpoint| endpoint.url == url) {
            Some(index) => endpoints.push(described.remove(index)),
            None => endpoints.push(Endpoint::new(url)),
        }
    }
    endpoints.append(&mut described);
    Ok(endpoints)
}

/// Returns the bearer key that the variable holds. The variable's name is shown only where it looks like one: people do write
/// the key itself there.
pub(super) fn key_from_variable(
    key: &'static str,
    variable: &str,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<Secret, ConfigError> {
    let is_name = variable.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && variable.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    if !is_name {
        let rule = "must be the name of an environment variable, in capital letters, digits and underscores";
        return Err(ConfigError::Secret { key, rule });
    }
    let Some(text) = environment(variable) else {
        let rule = "this environment variable is not set";
        return Err(ConfigError::Rule { key, value: quoted(variable), rule });
    };
    bearer_key(key, &text)
}

fn listed(parts: &[String]) -> Result<Vec<WorkerUrl>, ConfigError> {
    let mut urls = Vec::new();
    for part in parts {
        refuse_credentials("worker_urls", part)?;
        for element in part.split(',') {
            if element.trim().is_empty() {
                let rule = "must not have an empty element";
                return Err(ConfigError::Rule { key: "worker_urls", value: quoted(part), rule });
            }
            for text in element.split_whitespace() {
                urls.push(address("worker_urls", text)?);
            }
        }
    }
    Ok(urls)
}

/// Returns the worker that the table describes.
pub(super) fn described_by(
    table: &RawWorker,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<Endpoint, ConfigError> {
    refuse_credentials("worker.url", &table.url)?;
    let url = address("worker.url", &table.url)?;
    let overrides = overrides(table, &url, environment)
        .map_err(|source| ConfigError::Worker { url: url.to_string(), source: Box::new(source) })?;
    Ok(Endpoint { overrides, ..Endpoint::new(url) })
}

fn overrides(
    table: &RawWorker,
    url: &WorkerUrl,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<EndpointOverrides, ConfigError> {
    Ok(EndpointOverrides {
        models: models(table.models.as_deref().unwrap_or_default())?,
        feeds: feeds(table, url)?,
        api_key: own_key(table, environment)?,
        ranks: ranks(table)?,
        role: role(table)?,
    })
}

fn ranks(table: &RawWorker) -> Result<Option<RankRule>, ConfigError> {
    let Some(text) = &table.dp_ranks else { return Ok(None) };
    let rule = "must be off, a number, or a range of at most 1024 numbers such as 4-7";
    RankRule::parse(text).map(Some).ok_or(ConfigError::Rule { key: "dp_ranks", value: quoted(text), rule })
}

fn role(table: &RawWorker) -> Result<Option<Role>, ConfigError> {
    let bootstrap_port = table.bootstrap_port.unwrap_or(DEFAULT_BOOTSTRAP_PORT);
    let roles = [("regular", Role::Regular), ("prefill", Role::Prefill { bootstrap_port }), ("decode", Role::Decode)];
    let role = table.role.as_deref().map(|text| named("role", text, &roles)).transpose()?;
    let refused = |rule| {
        let value = table.bootstrap_port.unwrap_or_default().to_string();
        Err(ConfigError::Rule { key: "bootstrap_port", value, rule })
    };
    match (table.bootstrap_port, role) {
        (Some(0), _) => refused("must be at least 1"),
        (Some(_), Some(Role::Prefill { .. })) | (None, _) => Ok(role),
        (Some(_), _) => refused("has no effect without role = \"prefill\""),
    }
}

fn models(names: &[String]) -> Result<Vec<Arc<str>>, ConfigError> {
    let mut models: Vec<Arc<str>> = Vec::new();
    for name in names {
        if name.trim().is_empty() {
            let rule = "must be the name of a model";
            return Err(ConfigError::Rule { key: "models", value: quoted(name), rule });
        }
        if !models.iter().any(|earlier| **earlier == **name) {
            models.push(name.as_str().into());
        }
    }
    Ok(models)
}

fn own_key(table: &RawWorker, environment: &impl Fn(&str) -> Option<String>) -> Result<Option<Secret>, ConfigError> {
    match (&table.api_key, &table.api_key_env) {
        (None, None) => Ok(None),
        (Some(key), None) => bearer_key("api_key", key.reveal()).map(Some),
        (None, Some(variable)) => key_from_variable("api_key_env", variable, environment).map(Some),
        (Some(_), Some(_)) => Err(ConfigError::Secret { key: "api_key", rule: "cannot be given beside api_key_env" }),
    }
}

/// Surrounding white space is cut: files and variables tend to end with a newline. Anything else that a header cannot carry
/// would make every request to the engine fail.
fn bearer_key(key: &'static str, text: &str) -> Result<Secret, ConfigError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(ConfigError::Secret { key, rule: "the key is empty" });
    }
    if !trimmed.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ConfigError::Secret { key, rule: "the key must consist of visible ASCII characters" });
    }
    Ok(Secret::new(trimmed))
}

/// Returns the feeds that the table describes. They replace all that the engine says of its feeds, so a table that describes
/// none, or only a part of one, is refused rather than taken as "publishes nothing".
fn feeds(table: &RawWorker, url: &WorkerUrl) -> Result<Option<FeedDescriptor>, ConfigError> {
    refuse_ineffective(table)?;
    if table.endpoint_port_base.is_none() && table.load_endpoint_port_base.is_none() {
        return Ok(None);
    }
    let descriptor = FeedDescriptor {
        dp_size: table.dp_size.unwrap_or(1),
        endpoint_host: table.endpoint_host.clone().unwrap_or_else(|| "*".to_owned()),
        endpoint_port_base: table.endpoint_port_base,
        topic: table.topic.clone().unwrap_or_default(),
        block_size: table.block_size,
        load_endpoint_port_base: table.load_endpoint_port_base,
        load_topic: table.load_topic.clone(),
        replay_endpoint_port_base: table.replay_endpoint_port_base,
    };
    check::within("dp_size", descriptor.dp_size, 1..=MAX_DP_RANKS)?;
    check::within("block_size", descriptor.block_size.unwrap_or(1), 1..=u32::MAX)?;
    refuse_feed("load_endpoint_port_base", descriptor.load_endpoint_port_base, load_feed(url, &descriptor))?;
    refuse_feed("endpoint_port_base", descriptor.endpoint_port_base, kv_feed(url, &descriptor))?;
    refuse_feed("replay_endpoint_port_base", descriptor.replay_endpoint_port_base, replay_feed(url, &descriptor))?;
    Ok(Some(descriptor))
}

fn refuse_ineffective(table: &RawWorker) -> Result<(), ConfigError> {
    let load = table.load_endpoint_port_base.is_some();
    let kv = table.endpoint_port_base.is_some();
    let needs_either = "has no effect without load_endpoint_port_base or endpoint_port_base";
    let needs_load = "has no effect without load_endpoint_port_base";
    let needs_kv = "has no effect without endpoint_port_base";
    let number = |given: Option<u32>| given.map(|value| value.to_string());
    let text = |given: &Option<String>| given.as_deref().map(quoted);
    let rows = [
        ("dp_size", number(table.dp_size), load || kv, needs_either),
        ("load_topic", text(&table.load_topic), load, needs_load),
        ("endpoint_host", text(&table.endpoint_host), kv, needs_kv),
        ("topic", text(&table.topic), kv, needs_kv),
        ("block_size", number(table.block_size), kv, needs_kv),
        ("replay_endpoint_port_base", number(table.replay_endpoint_port_base.map(u32::from)), kv, needs_kv),
    ];
    for (key, value, has_effect, rule) in rows {
        if let Some(value) = value.filter(|_| !has_effect) {
            return Err(ConfigError::Rule { key, value, rule });
        }
    }
    Ok(())
}

fn refuse_feed(key: &'static str, port_base: Option<u16>, feed: Feed) -> Result<(), ConfigError> {
    match feed {
        Feed::NotAdvertised | Feed::Planned(_) => Ok(()),
        Feed::Refused(FeedRefusal::ForeignHost { host }) => {
            let value = quoted(&host);
            Err(ConfigError::Feed { key: "endpoint_host", value, source: FeedRefusal::ForeignHost { host } })
        }
        Feed::Refused(source) => Err(ConfigError::Feed { key, value: port_base.unwrap_or(0).to_string(), source }),
    }
}

fn address(key: &'static str, text: &str) -> Result<WorkerUrl, ConfigError> {
    WorkerUrl::parse(text).map_err(|source| ConfigError::Address { key, source })
}

/// Before anything quotes the text: a password must not reach a log, not even as a fragment of a list.
fn refuse_credentials(key: &'static str, text: &str) -> Result<(), ConfigError> {
    let Some((_, after)) = text.rsplit_once('@') else {
        return Ok(());
    };
    let value = quoted(&format!("<credentials>@{after}"));
    Err(ConfigError::Rule { key, value, rule: "credentials do not belong into an address" })
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests;
