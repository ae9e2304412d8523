//! Tests of [`super`].

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    MAX_MODELS_PER_WORKER, ModelList, ModelsError, RequestPeek, decode_models, error_body, is_last_event, peek_request,
    render_models,
};
use crate::wire::json::NotAnObject;

#[test]
fn model_and_stream_are_read_from_the_top_level_alone() {
    let rows: [(&str, Option<&str>, bool); 12] = [
        (r#"{"model":"m","stream":true}"#, Some("m"), true),
        (r#"{"stream":true,"messages":[{"role":"user","content":"hi"}],"model":"m"}"#, Some("m"), true),
        (r#" { "model" : "m" , "stream" : false } "#, Some("m"), false),
        (r#"{}"#, None, false),
        (r#"{"messages":[{"model":"inner","stream":true}]}"#, None, false),
        (r#"{"model":"a","model":"b"}"#, Some("b"), false),
        (r#"{"model":"a","model":7}"#, None, false),
        (r#"{"model":null,"stream":null}"#, None, false),
        (r#"{"model":["m"],"stream":"true"}"#, None, false),
        (r#"{"model":{"name":"m"},"stream":1}"#, None, false),
        (r#"{"m\u006fdel":"caf\u00e9"}"#, Some("café"), false),
        (r#"{"model":"","temperature":1e400,"logit_bias":{"1":-100}}"#, Some(""), false),
    ];
    for (body, model, stream) in rows {
        let expected = RequestPeek { model: model.map(str::to_owned), stream, dp_rank: None };
        assert_eq!(peek_request(body.as_bytes()), Ok(expected), "{body}");
    }
}

#[test]
fn a_request_that_is_not_one_complete_object_is_refused() {
    let rows: [(&[u8], NotAnObject); 10] = [
        (b"", NotAnObject::CutOff),
        (b"  ", NotAnObject::CutOff),
        (b"{\"model\":\"m\"", NotAnObject::CutOff),
        (b"{\"model\":\"m", NotAnObject::CutOff),
        (b"{model:1}", NotAnObject::Syntax { line: 1, column: 2 }),
        (b"{\"model\":\"m\"} x", NotAnObject::Trailing),
        (b"{\"model\":\"m\"}{}", NotAnObject::Trailing),
        (b"[{\"model\":\"m\"}]", NotAnObject::OtherValue),
        (b"\"m\"", NotAnObject::OtherValue),
        (b"{\"user\":\"\xc3\x28\"}", NotAnObject::Encoding),
    ];
    for (body, expected) in rows {
        assert_eq!(peek_request(body), Err(expected), "{:?}", String::from_utf8_lossy(body));
    }
}

#[test]
fn a_deeply_nested_request_does_not_exhaust_the_stack() {
    let body = format!("{{\"model\":{}", "[".repeat(1_000_000));
    assert_eq!(peek_request(body.as_bytes()), Err(NotAnObject::CutOff));
    let body = format!("{{\"x\":{}{},\"model\":\"m\"}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(peek_request(body.as_bytes()).unwrap().model.as_deref(), Some("m"));
}

#[test]
fn model_objects_keep_their_own_text_and_those_without_an_id_are_skipped() {
    let body = br#"{"object":"list","data":[
        {"id":"m","object":"model","max_model_len":8192, "extra":{"a":[1.0,2e3]}},
        {"object":"model"}, {"id":7}, {"id":""}, "m", null, {"id":"lora-a"}]}"#;
    let models = decode_models(body).unwrap();
    let found: Vec<_> = models.iter().map(|model| (&*model.id, &*model.json)).collect();
    let whole = r#"{"id":"m","object":"model","max_model_len":8192, "extra":{"a":[1.0,2e3]}}"#;
    assert_eq!(found, [("m", whole), ("lora-a", r#"{"id":"lora-a"}"#)]);
}

#[test]
fn a_list_that_is_none_is_an_error() {
    let rows: [(&[u8], ModelsError); 5] = [
        (b"{}", ModelsError::NoData),
        (b"{\"data\":null}", ModelsError::NoData),
        (b"{\"data\":{\"id\":\"m\"}}", ModelsError::NoData),
        (b"[]", ModelsError::NotJson(NotAnObject::OtherValue)),
        (b"{\"data\":[", ModelsError::NotJson(NotAnObject::CutOff)),
    ];
    for (body, expected) in rows {
        assert_eq!(decode_models(body), Err(expected), "{:?}", String::from_utf8_lossy(body));
    }
}

#[test]
fn models_beyond_the_limit_are_dropped() {
    let data: Vec<Value> = (0..MAX_MODELS_PER_WORKER + 10).map(|index| json!({"id": index.to_string()})).collect();
    let models = decode_models(json!({"data": data}).to_string().as_bytes()).unwrap();
    assert_eq!(models.len(), MAX_MODELS_PER_WORKER);
}

fn render(workers: &[&[&str]]) -> ModelList {
    let workers: Vec<Vec<Arc<str>>> =
        workers.iter().map(|objects| objects.iter().map(|json| Arc::from(*json)).collect()).collect();
    render_models(workers.iter().map(Vec::as_slice))
}

/// Seen in vllm-project/production-stack#892.
#[test]
fn the_list_is_the_sorted_union_with_every_field_and_the_smallest_limit() {
    let large = r#"{"id":"m","max_model_len":8192,"root":"/a"}"#;
    let small = r#"{"id":"m","max_model_len":4096,"permission":[],"unknown":1}"#;
    let unlimited = r#"{"id":"m"}"#;
    let other = r#"{"id":"a","owned_by":"x"}"#;
    type Row<'a> = (&'a str, &'a [&'a [&'a str]], &'a [&'a str], u32);
    let rows: [Row<'_>; 10] = [
        ("no worker", &[], &[], 0),
        ("one worker", &[&[large]], &[large], 0),
        ("sorted by id", &[&[large], &[other]], &[other, large], 0),
        ("equal objects", &[&[large], &[large]], &[large], 0),
        ("the smaller limit second", &[&[large], &[small]], &[small], 1),
        ("the smaller limit first", &[&[small], &[large]], &[small], 1),
        ("three workers, one conflict", &[&[large], &[small], &[large, other]], &[other, small], 1),
        ("a stated limit beats none", &[&[unlimited], &[large]], &[large], 0),
        ("a limit that is no number is none", &[&[r#"{"id":"m","max_model_len":"1"}"#], &[large]], &[large], 0),
        ("what has no id is left out", &[&["{}", "x", r#"{"id":3}"#, other]], &[other], 0),
    ];
    for (sentence, workers, objects, conflicts) in rows {
        let json = format!(r#"{{"object":"list","data":[{}]}}"#, objects.join(","));
        assert_eq!(render(workers), ModelList { json, conflicts }, "{sentence}");
    }
}

#[test]
fn an_error_has_the_form_that_clients_read() {
    let body = error_body("no worker serves \"m\"\n", "invalid_request_error", "model_not_found");
    let expected = concat!(
        r#"{"error":{"message":"no worker serves \"m\"\n","type":"invalid_request_error","#,
        r#""param":null,"code":"model_not_found"}}"#
    );
    assert_eq!(body, expected);
    assert!(serde_json::from_str::<Value>(&body).is_ok());
}

#[test]
fn no_bytes_make_the_decoders_panic() {
    let request = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let list = json!({"object": "list", "data": [{"id": "m", "max_model_len": 8192}, {"id": "n"}]});
    let bodies = [request, list].map(|body| body.to_string().into_bytes());
    crate::wire::golden::check_bytes(10_000, bodies.to_vec(), |bytes| {
        let _ = peek_request(bytes);
        if let Ok(models) = decode_models(bytes) {
            let texts: Vec<Arc<str>> = models.into_iter().map(|model| model.json).collect();
            let list = render_models([texts.as_slice()].into_iter());
            assert!(serde_json::from_str::<Value>(&list.json).is_ok(), "{}", list.json);
        }
    });
}

#[test]
fn the_last_event_of_a_stream_is_known_however_its_lines_end_and_no_other_is() {
    for part in ["data: [DONE]\n\n", "data: 1\n\ndata: [DONE]\n\n", "data: [DONE]\r\n\r\n"] {
        assert!(is_last_event(part.as_bytes()), "{part:?}");
    }
    for part in ["", "data: [DONE]", "data: [DONE]\n\n:", "data: \"[DONE]\"\n\n", "[DONE]\n\n"] {
        assert!(!is_last_event(part.as_bytes()), "{part:?}");
    }
}
