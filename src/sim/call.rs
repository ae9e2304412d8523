//! What a request body asks for, as far as the simulation cares: how much to read, how much to write, and in which shape.
//!
//! The texts of a prompt become tokens one by one, and those of all texts make up the prompt; token ids are taken as they
//! are. A body that is not a JSON object, or whose output length is not a number, is refused; everything else is accepted as
//! it is.

use std::sync::Arc;

use serde_json::{Map, Value};
use thiserror::Error;

use super::tokens::Tokenizer;

/// What SGLang generates when nothing limits it here.
const DEFAULT_OUTPUT_TOKENS: u64 = 16;

/// How long an echo counts for a prompt. Its body need not be text.
const BYTES_PER_ECHOED_TOKEN: u64 = 4;

/// The family of a route, which decides on the shapes of request and answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    Chat,
    Completion,
    Generate,
    Embedding,
    /// Any other route below `/v1`.
    Echo,
}

impl CallKind {
    pub(super) fn of_path(path: &str) -> Self {
        match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completion,
            "/generate" => Self::Generate,
            "/v1/embeddings" => Self::Embedding,
            _ => Self::Echo,
        }
    }
}

/// In how many pieces the answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Unary,
    Stream,
    StreamWithUsage,
}

/// Why a body cannot be served.
#[derive(Debug, Error)]
pub(super) enum BadCall {
    #[error("the body is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is not a JSON object")]
    NotAnObject,
    #[error("{field} is not a non-negative integer: {value}")]
    OutputTokens { field: &'static str, value: Value },
}

/// Where the two engines of a pair meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bootstrap {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) rooms: Vec<u64>,
}

/// A request, reduced to what the simulation needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    /// The model that the request names, if it names one.
    pub(super) model: Option<String>,
    /// The DP rank that the body names.
    pub(super) named_rank: Option<u32>,
    /// Where the other engine of a pair is, where the body says it.
    pub(super) bootstrap: Option<Bootstrap>,
    pub(super) prompt_tokens: u64,
    /// The prompt as the prefix cache sees it; empty where nothing is generated.
    pub(super) prompt: Vec<u32>,
    /// Keeps the prompt apart from equal ones with another salt.
    pub(super) cache_salt: Option<Arc<str>>,
    pub(super) output_tokens: u64,
    /// How many texts an embedding request holds; 1 for all others.
    pub(super) num_inputs: usize,
    pub(super) delivery: Delivery,
}

impl Call {
    /// Reads the body of a request. An echo takes any body.
    pub(super) fn parse(
        kind: CallKind,
        body: &[u8],
        max_output_tokens: u64,
        tokenizer: &Tokenizer,
    ) -> Result<Self, BadCall> {
        if kind == CallKind::Echo {
            return Ok(Self::without_output(kind, None, (body.len() as u64).div_ceil(BYTES_PER_ECHOED_TOKEN), 1));
        }
        let Value::Object(fields) = serde_json::from_slice(body)? else { return Err(BadCall::NotAnObject) };
        let model = fields.get("model").and_then(Value::as_str).map(str::to_owned);
        let prompt = prompt_of(kind, &fields);
        let mut tokens = Vec::new();
        if let Some(prompt) = prompt {
            add_tokens(prompt, tokenizer, &mut tokens);
        }
        let prompt_tokens = tokens.len() as u64;
        if kind == CallKind::Embedding {
            return Ok(Self::without_output(kind, model, prompt_tokens, prompt.map_or(1, num_inputs)));
        }
        Ok(Self {
            kind,
            model,
            named_rank: named_rank(&fields),
            bootstrap: bootstrap(&fields),
            prompt_tokens,
            prompt: tokens,
            cache_salt: fields.get("cache_salt").and_then(Value::as_str).map(Arc::from),
            output_tokens: output_tokens(&fields)?.min(max_output_tokens),
            num_inputs: 1,
            delivery: delivery(&fields),
        })
    }

    fn without_output(kind: CallKind, model: Option<String>, prompt_tokens: u64, num_inputs: usize) -> Self {
        Self {
            kind,
            model,
            named_rank: None,
            bootstrap: None,
            prompt_tokens,
            prompt: Vec::new(),
            cache_salt: None,
            output_tokens: 0,
            num_inputs,
            delivery: Delivery::Unary,
        }
    }
}

/// Reads the three fields; of a batch all entries are the same but the rooms.
fn bootstrap(fields: &Map<String, Value>) -> Option<Bootstrap> {
    let listed = |key: &str| match fields.get(key)? {
        Value::Array(items) => Some(items.clone()),
        item => Some(vec![item.clone()]),
    };
    let host = listed("bootstrap_host")?.first()?.as_str()?.to_owned();
    let port = u16::try_from(listed("bootstrap_port")?.first()?.as_u64()?).ok()?;
    let rooms: Option<Vec<u64>> = listed("bootstrap_room")?.iter().map(Value::as_u64).collect();
    Some(Bootstrap { host, port, rooms: rooms.filter(|rooms| !rooms.is_empty())? })
}

fn named_rank(fields: &Map<String, Value>) -> Option<u32> {
    let named = ["routed_dp_rank", "data_parallel_rank"].iter().find_map(|key| fields.get(*key)?.as_u64());
    named.and_then(|rank| u32::try_from(rank).ok())
}

fn prompt_of(kind: CallKind, fields: &Map<String, Value>) -> Option<&Value> {
    match kind {
        CallKind::Chat => fields.get("messages"),
        CallKind::Completion => fields.get("prompt"),
        CallKind::Generate => fields.get("text").or_else(|| fields.get("input_ids")),
        CallKind::Embedding => fields.get("input"),
        CallKind::Echo => None,
    }
}

/// Adds what a prompt holds, at whatever depth: texts, message contents and content parts, token ids.
fn add_tokens(prompt: &Value, tokenizer: &Tokenizer, tokens: &mut Vec<u32>) {
    match prompt {
        Value::String(text) => tokens.extend(tokenizer.tokenize(text)),
        // What is no token id is a token all the same, to be counted.
        Value::Number(id) => tokens.push(id.as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or_default()),
        Value::Array(items) => items.iter().for_each(|item| add_tokens(item, tokenizer, tokens)),
        Value::Object(fields) => {
            let texts = ["content", "text"].iter().filter_map(|key| fields.get(*key));
            texts.for_each(|text| add_tokens(text, tokenizer, tokens));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn num_inputs(prompt: &Value) -> usize {
    match prompt {
        Value::Array(items) if !items.iter().all(Value::is_number) => items.len(),
        _ => 1,
    }
}

fn output_tokens(fields: &Map<String, Value>) -> Result<u64, BadCall> {
    let sampling = fields.get("sampling_params").and_then(Value::as_object);
    let limits = [
        ("max_completion_tokens", fields.get("max_completion_tokens")),
        ("max_tokens", fields.get("max_tokens")),
        ("max_new_tokens", sampling.and_then(|sampling| sampling.get("max_new_tokens"))),
    ];
    for (field, value) in limits {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            return value.as_u64().ok_or_else(|| BadCall::OutputTokens { field, value: value.clone() });
        }
    }
    Ok(DEFAULT_OUTPUT_TOKENS)
}

fn delivery(fields: &Map<String, Value>) -> Delivery {
    let is_set = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or_default();
    if !is_set(fields.get("stream")) {
        return Delivery::Unary;
    }
    let usage = fields.get("stream_options").and_then(|options| options.get("include_usage"));
    if is_set(usage) { Delivery::StreamWithUsage } else { Delivery::Stream }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str, body: &str) -> Call {
        Call::parse(CallKind::of_path(path), body.as_bytes(), 1000, &Tokenizer::default()).unwrap()
    }

    #[test]
    fn prompts_are_measured_in_every_shape() {
        let cases = [
            ("/v1/completions", r#"{"prompt":"12345678"}"#, 2),
            ("/v1/completions", r#"{"prompt":["1234","56789"]}"#, 3),
            ("/v1/completions", r#"{"prompt":[7,8,9]}"#, 3),
            ("/generate", r#"{"text":"1"}"#, 1),
            ("/generate", r#"{"input_ids":[[1,2],[3]]}"#, 3),
            ("/v1/embeddings", r#"{"input":"ÄÖÜß"}"#, 1),
            ("/v1/chat/completions", r#"{"messages":[{"role":"system","content":"1234"},{"content":"5678"}]}"#, 2),
            ("/v1/chat/completions", r#"{"messages":[{"content":[{"type":"text","text":"12345"}]}]}"#, 2),
            ("/v1/rerank", "not json", 2),
            ("/generate", "{}", 0),
        ];
        for (path, body, expected) in cases {
            assert_eq!(parse(path, body).prompt_tokens, expected, "{path} {body}");
        }
    }

    #[test]
    fn token_ids_are_taken_as_they_are_and_texts_of_messages_one_after_the_other() {
        assert_eq!(parse("/v1/completions", r#"{"prompt":[7,4294967295,0]}"#).prompt, [7, u32::MAX, 0]);
        assert_eq!(parse("/generate", r#"{"input_ids":[[1,2],[3]]}"#).prompt, [1, 2, 3]);
        let texts = parse("/v1/completions", r#"{"prompt":["12345","6"]}"#).prompt;
        let messages = r#"{"messages":[{"role":"user","content":"12345"},{"content":[{"type":"text","text":"6"}]}]}"#;
        assert_eq!(parse("/v1/chat/completions", messages).prompt, texts);
        assert_eq!(texts.len(), 3, "a text does not end in the middle of a token");
        assert!(parse("/v1/embeddings", r#"{"input":"text"}"#).prompt.is_empty());
    }

    #[test]
    fn a_salt_is_a_text_beside_the_prompt() {
        let salted = parse("/v1/completions", r#"{"prompt":"a","cache_salt":"tenant-a"}"#);
        assert_eq!(salted.cache_salt.as_deref(), Some("tenant-a"));
        assert_eq!(parse("/generate", r#"{"text":"a","cache_salt":null}"#).cache_salt, None);
    }

    #[test]
    fn the_output_length_is_found_under_every_name_and_limited() {
        let cases = [
            ("/v1/chat/completions", r#"{"max_completion_tokens":3,"max_tokens":4}"#, 3),
            ("/v1/completions", r#"{"max_completion_tokens":null,"max_tokens":4}"#, 4),
            ("/generate", r#"{"sampling_params":{"max_new_tokens":5}}"#, 5),
            ("/generate", "{}", DEFAULT_OUTPUT_TOKENS),
            ("/v1/completions", r#"{"max_tokens":1000000}"#, 1000),
            ("/v1/embeddings", r#"{"input":"a","max_tokens":9}"#, 0),
        ];
        for (path, body, expected) in cases {
            assert_eq!(parse(path, body).output_tokens, expected, "{path} {body}");
        }
    }

    #[test]
    fn the_delivery_follows_stream_and_its_options() {
        let cases = [
            ("{}", Delivery::Unary),
            (r#"{"stream":false,"stream_options":{"include_usage":true}}"#, Delivery::Unary),
            (r#"{"stream":true}"#, Delivery::Stream),
            (r#"{"stream":true,"stream_options":{"include_usage":true}}"#, Delivery::StreamWithUsage),
        ];
        for (body, expected) in cases {
            assert_eq!(parse("/v1/completions", body).delivery, expected, "{body}");
        }
    }

    #[test]
    fn embedding_inputs_are_counted_as_texts_and_not_as_token_ids() {
        let cases = [(r#""a""#, 1), (r#"["a","b","c"]"#, 3), ("[1,2,3]", 1), ("[[1,2],[3]]", 2)];
        for (input, expected) in cases {
            assert_eq!(parse("/v1/embeddings", &format!(r#"{{"input":{input}}}"#)).num_inputs, expected, "{input}");
        }
    }

    #[test]
    fn bodies_that_cannot_be_served_are_refused() {
        for body in ["", "{", "[]", r#"{"max_tokens":-1}"#, r#"{"max_tokens":"many"}"#] {
            assert!(Call::parse(CallKind::Chat, body.as_bytes(), 1000, &Tokenizer::default()).is_err(), "{body}");
        }
    }
}
