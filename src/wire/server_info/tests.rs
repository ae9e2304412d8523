//! Tests of [`super`].

use serde_json::{Value, json};

use super::{Advertised, ServerInfo, ServerInfoError, decode_server_info};
use crate::logic::endpoint::{FeedDescriptor, FeedRefusal};
use crate::logic::ranks::OwnedRanks;
use crate::logic::role::Role;
use crate::wire::json::NotAnObject;

fn decode(body: &Value) -> ServerInfo {
    decode_server_info(body.to_string().as_bytes()).unwrap()
}

/// Decodes an answer that has this `kv_events`.
fn feeds(kv_events: &Value) -> Advertised {
    decode(&json!({"served_model_name": "m", "kv_events": kv_events})).feeds
}

/// Returns a complete block with some keys replaced.
fn block(changes: Value) -> Value {
    let mut block = json!({
        "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "block_size": 16,
        "dp_size": 2, "load_endpoint_port_base": 5559, "load_topic": "load", "replay_endpoint_port_base": 6000,
    });
    for (key, value) in changes.as_object().unwrap() {
        block[key] = value.clone();
    }
    block
}

fn without(key: &str) -> Value {
    let mut block = block(json!({}));
    block.as_object_mut().unwrap().remove(key);
    block
}

fn descriptor() -> FeedDescriptor {
    FeedDescriptor {
        dp_size: 2,
        endpoint_host: "*".to_owned(),
        endpoint_port_base: Some(5557),
        topic: "kv".to_owned(),
        block_size: Some(16),
        load_endpoint_port_base: Some(5559),
        load_topic: Some("load".to_owned()),
        replay_endpoint_port_base: Some(6000),
    }
}

#[test]
fn the_needed_fields_are_read() {
    let info = decode(&json!({
        "model_path": "/models/x", "served_model_name": "m-alias", "version": "0.5.23", "enable_http2": true,
        "page_size": 16, "dp_size": 4, "disaggregation_mode": "null", "internal_states": [{"kv_events": 7}], "kv_events": block(json!({"epoch": [1]})),
    }));
    let expected = ServerInfo {
        served_model_name: Some("m-alias".into()),
        model_path: Some("/models/x".into()),
        version: Some("0.5.23".into()),
        enable_http2: true,
        dp_size: Some(4),
        owned_ranks: OwnedRanks::Unsaid,
        role: Some(Role::Regular),
        feeds: Advertised::Descriptor(descriptor()),
    };
    assert_eq!(info, expected);
}

/// Seen in sgl-project/sglang#12977.
#[test]
fn a_field_of_another_type_or_an_empty_name_is_missing_and_spoils_nothing() {
    let nothing = ServerInfo {
        served_model_name: None,
        model_path: None,
        version: None,
        enable_http2: false,
        dp_size: None,
        owned_ranks: OwnedRanks::Unsaid,
        role: None,
        feeds: Advertised::Nothing,
    };
    let bodies = [
        r#"{}"#,
        r#"{"served_model_name":null,"model_path":null,"version":null,"enable_http2":null,"kv_events":null}"#,
        r#"{"served_model_name":"","model_path":"","version":"","enable_http2":"true"}"#,
        r#"{"served_model_name":["m"],"model_path":7,"version":5.2,"enable_http2":1}"#,
        r#"{"dp_size":0,"disaggregation_mode":"both","kv_event_sources":null}"#,
        r#"{"dp_size":"4","disaggregation_mode":null,"disaggregation_bootstrap_port":7}"#,
        r#"{"served_model_name":"\ud800","model_path":1e999,"version":{"a":[]}}"#,
        r#"{"served_model_name":"m","served_model_name":null}"#,
    ];
    for body in bodies {
        assert_eq!(decode_server_info(body.as_bytes()), Ok(nothing.clone()), "{body}");
    }
    let escaped = decode_server_info(br#" {"served\u005fmodel_name" : "caf\u00e9"} "#).unwrap();
    assert_eq!(escaped.served_model_name.as_deref(), Some("café"));
}

#[test]
fn the_ranks_of_a_node_are_those_whose_publishers_it_lists() {
    let listed = |sources: Value| decode(&json!({"kv_event_sources": sources})).owned_ranks;
    let source =
        |rank: u32| json!({"dp_rank": rank, "endpoint": "tcp://127.0.0.1:5561", "topic": "", "block_size": 64});
    assert_eq!(listed(json!([source(4), source(5)])), OwnedRanks::Numbers(vec![4, 5]));
    for unreadable in [json!([]), json!({}), json!("4"), json!([source(4), {"dp_rank": "5"}]), json!([{"dp_rank": -1}])]
    {
        assert_eq!(listed(unreadable.clone()), OwnedRanks::Numbers(vec![]), "{unreadable}");
    }
    let many: Vec<Value> = (0..2_000).map(source).collect();
    assert!(matches!(listed(json!(many)), OwnedRanks::Numbers(numbers) if numbers.len() == 1_025));
}

#[test]
fn the_part_of_an_engine_is_its_mode_and_a_prefill_engine_has_a_port() {
    let rows = [
        (json!({"disaggregation_mode": "decode", "disaggregation_bootstrap_port": 8998}), Some(Role::Decode)),
        (
            json!({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 9000}),
            Some(Role::Prefill { bootstrap_port: 9_000 }),
        ),
        (json!({"disaggregation_mode": "prefill"}), Some(Role::Prefill { bootstrap_port: 8_998 })),
        (
            json!({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 70_000}),
            Some(Role::Prefill { bootstrap_port: 8_998 }),
        ),
    ];
    for (body, expected) in rows {
        assert_eq!(decode(&body).role, expected, "{body}");
    }
}

/// Seen in sgl-project/sglang#30166.
#[test]
fn keys_of_the_engine_are_not_kept_and_no_error_quotes_the_answer() {
    let body = json!({
        "served_model_name": "m", "api_key": "marker-1", "admin_api_key": "marker-2", "ssl_keyfile_password": "marker-3",
        "internal_states": [{"api_key": "marker-4"}], "kv_events": block(json!({"dp_size": 0, "api_key": "marker-5"})),
    });
    assert!(!format!("{:?}", decode(&body)).contains("marker"));
    for body in [r#""marker""#, r#"["marker"]"#, r#"{"marker": marker}"#, r#"{"a":"marker"} marker"#, r#"{"marker"#] {
        let error = decode_server_info(body.as_bytes()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("marker"), "{error:?}");
    }
}

#[test]
fn a_body_that_is_not_one_object_is_an_error() {
    let rows: [(&[u8], NotAnObject); 9] = [
        (b"", NotAnObject::CutOff),
        (b"{\"served_model_name\":\"m\"", NotAnObject::CutOff),
        (b"<html>", NotAnObject::Syntax { line: 1, column: 1 }),
        (b"{\"a\":1,}", NotAnObject::Syntax { line: 1, column: 8 }),
        (b"[]", NotAnObject::OtherValue),
        (b"null", NotAnObject::OtherValue),
        (b"\"text\"", NotAnObject::OtherValue),
        (b"{}{}", NotAnObject::Trailing),
        (b"{\"a\":\"\xff\"}", NotAnObject::Encoding),
    ];
    for (body, reason) in rows {
        let found = decode_server_info(body);
        assert_eq!(found, Err(ServerInfoError::NotJson(reason)), "{:?}", String::from_utf8_lossy(body));
    }
}

#[test]
fn optional_keys_may_be_null_or_absent() {
    let bare = FeedDescriptor {
        topic: String::new(),
        load_endpoint_port_base: None,
        load_topic: None,
        replay_endpoint_port_base: None,
        ..descriptor()
    };
    let short = json!({"endpoint_host": "*", "endpoint_port_base": 5557, "block_size": 16, "dp_size": 2});
    assert_eq!(feeds(&short), Advertised::Descriptor(bare.clone()));
    let nulls = block(json!({
        "topic": null, "load_endpoint_port_base": null, "load_topic": null, "replay_endpoint_port_base": null,
    }));
    assert_eq!(feeds(&nulls), Advertised::Descriptor(bare));
}

#[test]
fn a_bad_replay_port_counts_as_absent() {
    let expected = FeedDescriptor { replay_endpoint_port_base: None, ..descriptor() };
    for port in [json!(70_000), json!(-1), json!("6000"), json!([])] {
        let found = feeds(&block(json!({"replay_endpoint_port_base": port})));
        assert_eq!(found, Advertised::Descriptor(expected.clone()), "{port}");
    }
}

#[test]
fn no_publisher_or_another_one_advertises_nothing() {
    for kv_events in
        [json!(null), block(json!({"publisher": "null"})), json!({"publisher": "nats"}), json!({"publisher": null})]
    {
        assert_eq!(feeds(&kv_events), Advertised::Nothing, "{kv_events}");
    }
}

/// Seen in ai-dynamo/dynamo#13579.
#[test]
fn a_descriptor_that_cannot_be_right_is_refused_as_a_whole_and_names_key_and_value() {
    let not_dp_size = "not an integer from 1 to 1024";
    let rows = [
        (block(json!({"dp_size": 0})), format!("dp_size is 0, {not_dp_size}")),
        (block(json!({"dp_size": -1})), format!("dp_size is -1, {not_dp_size}")),
        (block(json!({"dp_size": "4"})), format!("dp_size is \"4\", {not_dp_size}")),
        (block(json!({"dp_size": 100_000})), format!("dp_size is 100000, {not_dp_size}")),
        (block(json!({"dp_size": 2.0})), format!("dp_size is 2.0, {not_dp_size}")),
        (block(json!({"dp_size": null})), "dp_size is missing".to_owned()),
        (without("dp_size"), "dp_size is missing".to_owned()),
        (without("endpoint_host"), "endpoint_host is missing".to_owned()),
        (without("endpoint_port_base"), "endpoint_port_base is missing".to_owned()),
        (without("block_size"), "block_size is missing".to_owned()),
        (block(json!({"endpoint_port_base": 70_000})), "endpoint_port_base is 70000, not a port".to_owned()),
        (block(json!({"endpoint_port_base": -5})), "endpoint_port_base is -5, not a port".to_owned()),
        (block(json!({"load_endpoint_port_base": 65_536})), "load_endpoint_port_base is 65536, not a port".to_owned()),
        (block(json!({"block_size": 0})), "block_size is 0, not a positive 32-bit integer".to_owned()),
        (block(json!({"endpoint_host": 7})), "endpoint_host is 7, not text".to_owned()),
        (block(json!({"topic": ["a"]})), "topic is [\"a\"], not text".to_owned()),
        (block(json!({"load_topic": true})), "load_topic is true, not text".to_owned()),
        (json!("zmq"), "kv_events is \"zmq\", not an object".to_owned()),
        (json!([1, 2]), "kv_events is [1,2], not an object".to_owned()),
    ];
    for (kv_events, text) in rows {
        assert_eq!(feeds(&kv_events), Advertised::Refused(FeedRefusal::Descriptor(text)), "{kv_events}");
    }
}

#[test]
fn a_refused_value_is_shown_cut_and_escaped() {
    let shown = |kv_events: Value| match feeds(&kv_events) {
        Advertised::Refused(FeedRefusal::Descriptor(text)) => text,
        other => panic!("{other:?}"),
    };
    let digits = "9".repeat(63);
    assert_eq!(
        shown(block(json!({"dp_size": "9".repeat(5_000)}))),
        format!("dp_size is \"{digits}..., not an integer from 1 to 1024")
    );
    let odd = shown(block(json!({"dp_size": "a\nb\u{202e}c"})));
    assert_eq!(odd, "dp_size is \"a\\\\nb\\u{202e}c\", not an integer from 1 to 1024");
    let raw = b"{\"kv_events\":[\n1,\r\n2]}";
    let Advertised::Refused(raw) = decode_server_info(raw).unwrap().feeds else { panic!() };
    assert_eq!(raw.to_string(), "kv_events is [\\n1,\\r\\n2], not an object");
    assert!(shown(block(json!({"endpoint_host": "h".repeat(256)}))).ends_with("..., not a host name"));
}

#[test]
fn a_port_range_that_overflows_is_left_to_the_resolution_of_the_feed() {
    let found = feeds(&block(json!({"endpoint_port_base": 65_533, "dp_size": 8})));
    let expected = FeedDescriptor { endpoint_port_base: Some(65_533), dp_size: 8, ..descriptor() };
    assert_eq!(found, Advertised::Descriptor(expected));
}

#[test]
fn no_bytes_make_the_decoder_panic() {
    let body = json!({"served_model_name": "m", "enable_http2": true, "kv_events": block(json!({}))}).to_string();
    crate::wire::golden::check_bytes(10_000, vec![body.into_bytes()], |bytes| {
        if let Ok(ServerInfo { feeds: Advertised::Descriptor(descriptor), .. }) = decode_server_info(bytes) {
            assert!((1..=1_024).contains(&descriptor.dp_size), "{descriptor:?}");
            assert!(descriptor.block_size.is_some_and(|size| size > 0), "{descriptor:?}");
        }
    });
}
