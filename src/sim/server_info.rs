//! The bodies in which an engine describes itself: `/server_info` and `/v1/models`.

use serde_json::{Value, json};

use super::config::{KvEvents, SimConfig, SimPart};
use super::kv_publisher;

/// What SGLang says where nothing is configured.
const DEFAULT_BOOTSTRAP_PORT: u16 = 8_998;

const VERSION: &str = "0.5.23";

/// The first port of each range that the engine listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) load: Option<u16>,
    pub(super) kv: Option<u16>,
    pub(super) replay: Option<u16>,
    pub(super) bootstrap: Option<u16>,
}

/// Returns the body of `/server_info`, with `kv_events` as told and not as configured.
pub(super) fn describe(config: &SimConfig, ports: Ports, kv_events: KvEvents) -> Value {
    let mut info = json!({
        "model_path": format!("/models/{}", config.model),
        "served_model_name": config.model,
        "status": "ready",
        "version": VERSION,
        "page_size": config.page_size,
        "dp_size": deployment_size(config),
        "max_total_num_tokens": config.max_total_tokens,
        "max_running_requests": config.max_running,
        "speculative_algorithm": config.bigram.then_some("EAGLE"),
        "enable_cache_report": config.cache_report,
        "disable_radix_cache": !config.prefix_cache,
        "disaggregation_mode": match config.part {
            SimPart::Whole => "null",
            SimPart::Prefill => "prefill",
            SimPart::Decode => "decode",
        },
        "disaggregation_bootstrap_port": ports.bootstrap.unwrap_or(DEFAULT_BOOTSTRAP_PORT),
        "enable_http2": false,
        "internal_states": internal_states(config.dp_size),
    });
    for (name, key) in [("api_key", &config.api_key), ("admin_api_key", &config.admin_api_key)] {
        if let Some(key) = key {
            info[name] = json!(key);
        }
    }
    if config.lists_ranks {
        info["kv_event_sources"] = sources(config, ports);
    }
    match kv_events {
        KvEvents::Published(_) => info["kv_events"] = descriptor(config, ports),
        KvEvents::Null => info["kv_events"] = Value::Null,
        KvEvents::Absent => {}
    }
    info
}

/// Returns the body of `/v1/models`.
pub(super) fn models(config: &SimConfig, created: u64) -> Value {
    let model = json!({
        "id": config.model,
        "object": "model",
        "created": created,
        "owned_by": "sglang",
        "root": config.model,
        "parent": null,
        "max_model_len": config.max_model_len,
        "sim_page_size": config.page_size,
    });
    json!({"object": "list", "data": [model]})
}

/// Counts the ranks up to the last one of this node; further nodes are left out.
fn deployment_size(config: &SimConfig) -> u32 {
    config.dp_size + if config.lists_ranks { config.first_rank } else { 0 }
}

/// The publishers of this node, each under the number of its rank.
fn sources(config: &SimConfig, ports: Ports) -> Value {
    let source = |rank: u32| {
        let port = ports.kv.map_or(0, u32::from) + rank;
        json!({"dp_rank": config.first_rank + rank, "endpoint": format!("tcp://127.0.0.1:{port}"),
               "topic": kv_publisher::TOPIC, "block_size": config.page_size})
    };
    (0..config.dp_size).map(source).collect()
}

fn internal_states(dp_size: u32) -> Value {
    (0..dp_size).map(|rank| json!({"dp_rank": rank, "last_gen_throughput": 0.0, "memory_usage": {}})).collect()
}

fn descriptor(config: &SimConfig, ports: Ports) -> Value {
    // Publishers bind the port of their own number, so that the base is that of rank 0, wherever it is.
    let base = |first_here: u16| u32::from(first_here).saturating_sub(deployment_size(config) - config.dp_size);
    let mut descriptor = json!({
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": ports.kv.map(base),
        "topic": kv_publisher::TOPIC,
        "block_size": config.page_size,
        "dp_size": deployment_size(config),
    });
    if let Some(replay) = ports.replay {
        descriptor["replay_endpoint_port_base"] = json!(base(replay));
    }
    let Some((publishing, port_base)) = config.load.as_ref().zip(ports.load) else { return descriptor };
    descriptor["load_endpoint_port_base"] = json!(base(port_base));
    if let Some(topic) = publishing.form.advertised_topic() {
        descriptor["load_topic"] = json!(topic);
    }
    descriptor
}

#[cfg(test)]
mod tests {
    use super::super::config::LoadPublishing;
    use super::super::load_frame::LoadForm;
    use super::*;

    const PORTS: Ports = Ports { load: Some(5559), kv: Some(5557), replay: None, bootstrap: None };

    fn published(config: &SimConfig) -> Value {
        describe(config, PORTS, KvEvents::default())
    }

    #[test]
    fn the_descriptor_has_the_keys_of_the_wire_contract_and_no_other() {
        let config = SimConfig { dp_size: 2, ..SimConfig::default() };
        let expected = json!({
            "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "", "block_size": 16,
            "dp_size": 2, "load_endpoint_port_base": 5559, "load_topic": "load",
        });
        assert_eq!(published(&config)["kv_events"], expected);
        assert_eq!(published(&config)["internal_states"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn the_map_form_advertises_a_port_without_a_topic_and_no_load_advertises_neither() {
        let load = LoadPublishing { form: LoadForm::Snapshot, ..LoadPublishing::default() };
        let map_form = published(&SimConfig { load: Some(load), ..SimConfig::default() });
        assert_eq!(map_form["kv_events"]["load_endpoint_port_base"], 5559);
        assert_eq!(map_form["kv_events"].get("load_topic"), None);

        let no_load = published(&SimConfig { load: None, ..SimConfig::default() });
        assert_eq!(no_load["kv_events"].get("load_endpoint_port_base"), None);
        assert_eq!(no_load["kv_events"]["endpoint_port_base"], 5557);
    }

    #[test]
    fn a_replay_range_and_the_keying_by_pairs_are_told_where_they_are_configured() {
        let replayed = Ports { replay: Some(6000), ..PORTS };
        let info = describe(&SimConfig { bigram: true, ..SimConfig::default() }, replayed, KvEvents::default());
        assert_eq!(info["kv_events"]["replay_endpoint_port_base"], 6000);
        assert_eq!(info["speculative_algorithm"], "EAGLE");
        assert_eq!(published(&SimConfig::default())["speculative_algorithm"], Value::Null);
    }

    #[test]
    fn kv_events_can_be_null_or_absent_and_keys_appear_only_when_configured() {
        let config = SimConfig::default();
        assert_eq!(describe(&config, PORTS, KvEvents::Null).get("kv_events"), Some(&Value::Null));
        assert_eq!(describe(&config, PORTS, KvEvents::Absent).get("kv_events"), None);
        assert_eq!(published(&config).get("api_key"), None);

        let keyed = SimConfig { api_key: Some("marker".to_owned()), ..SimConfig::default() };
        assert_eq!(published(&keyed)["api_key"], "marker");
    }
}
