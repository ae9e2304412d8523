//! What people write of a single worker.

use serde::{Deserialize, Deserializer};

use crate::logic::endpoint::Secret;

/// One `[[worker]]` table: settings of a single worker, for engines that cannot be asked or whose answer is wrong. If it has a
/// port base, its feed keys replace all that the engine says of its feeds; their names are the engine's.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RawWorker {
    /// Address, as in `worker_urls`. Required. A worker that is also in that list is the same worker.
    pub url: String,
    /// Served model names. Default: what the engine says.
    pub models: Option<Vec<String>>,
    /// The bearer key that this engine wants. Default: that of `engine_api_key_env`.
    #[serde(default, deserialize_with = "hidden_text")]
    pub api_key: Option<Secret>,
    /// Name of the environment variable that holds the key, in its place.
    pub api_key_env: Option<String>,
    /// DP ranks that it owns, by its engine's own numbers (`4-7`); requests are addressed to them. `off`: never to a rank. Default:
    /// what the engine says, as `route_dp_ranks` has it.
    pub dp_ranks: Option<String>,
    /// Its part in requests: `regular`, `prefill` or `decode`. Default: what the engine says.
    pub role: Option<String>,
    /// Port on which a prefill engine meets decode engines. Only with `role = "prefill"`. Default: 8998.
    pub bootstrap_port: Option<u16>,
    /// Number of DP ranks, 1 to 1024. Default: 1.
    pub dp_size: Option<u32>,
    /// Rank `r` publishes load on this port plus `r`. Default: no load.
    pub load_endpoint_port_base: Option<u16>,
    /// ZMQ topic prefix of load. Default: everything.
    pub load_topic: Option<String>,
    /// Host part of the KV event endpoint: a wildcard, or the worker's own host. Default: `*`.
    pub endpoint_host: Option<String>,
    /// Rank `r` publishes KV events on this port plus `r`. Default: no KV events.
    pub endpoint_port_base: Option<u16>,
    /// ZMQ topic prefix of KV events. Default: everything.
    pub topic: Option<String>,
    /// Tokens per KV block in events, at least 1. Default: what the events say.
    pub block_size: Option<u32>,
    /// Rank `r` replays KV events on this port plus `r`. Default: no replay.
    pub replay_endpoint_port_base: Option<u16>,
}

/// A value of another type would be quoted in the error, and it may be a key all the same: a number, or a list of keys.
fn hidden_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    match toml::Value::deserialize(deserializer)? {
        toml::Value::String(text) => Ok(Some(Secret::new(&text))),
        _ => Err(serde::de::Error::custom("must be text")),
    }
}
