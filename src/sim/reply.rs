//! The bodies of answers, in the shapes of the OpenAI routes and of SGLang's own.
//!
//! The text is ` t0 t1 t2 ...`, one word per token. Every answer ends because of its length.

use std::fmt;

use bytes::Bytes;
use serde_json::{Value, json};

use super::call::{CallKind, Delivery};
use super::tokens::{generated, generated_text};

/// Every embedding of the simulation is this one.
const EMBEDDING: [f64; 4] = [0.5, -0.5, 0.5, -0.5];

/// What all bodies of one answer have in common.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) kind: CallKind,
    pub(super) id: String,
    pub(super) path: String,
    pub(super) model: String,
    pub(super) created: u64,
    pub(super) prompt_tokens: u64,
    /// How many of the prompt tokens were cached; `None` where that is not told.
    pub(super) cached_tokens: Option<u64>,
    pub(super) num_inputs: usize,
}

impl Reply {
    /// Returns the body of an answer in one piece.
    pub(super) fn unary(&self, output_tokens: u64) -> Bytes {
        let body = match self.kind {
            CallKind::Chat => self.openai(
                "chat.completion",
                json!({"index": 0, "message": {"role": "assistant", "content": generated_text(0, output_tokens)},
                       "logprobs": null, "finish_reason": "length", "matched_stop": null}),
                output_tokens,
            ),
            CallKind::Completion => self.openai(
                "text_completion",
                json!({"index": 0, "text": generated_text(0, output_tokens), "logprobs": null, "finish_reason": "length",
                       "matched_stop": null}),
                output_tokens,
            ),
            CallKind::Generate => return self.native(output_tokens, length(output_tokens)).into(),
            CallKind::Embedding => self.embeddings(),
            CallKind::Echo => {
                json!({"object": "sim.echo", "id": self.id, "path": self.path, "prompt_tokens": self.prompt_tokens})
            }
        };
        body.to_string().into()
    }

    /// Returns what a stream sends before its first token: chat streams announce the role.
    pub(super) fn opening(&self) -> Option<Bytes> {
        let role = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                          "finish_reason": null, "matched_stop": null});
        (self.kind == CallKind::Chat).then(|| event(self.chunk(json!([role]))))
    }

    /// Returns the event for the token with this index.
    pub(super) fn token(&self, index: u64) -> Bytes {
        let choice = match self.kind {
            CallKind::Generate => return event(self.native(index + 1, Value::Null)),
            CallKind::Chat => {
                json!({"index": 0, "delta": {"content": generated_text(index, index + 1)}, "logprobs": null,
                                     "finish_reason": null, "matched_stop": null})
            }
            CallKind::Completion | CallKind::Embedding | CallKind::Echo => {
                json!({"index": 0, "text": generated_text(index, index + 1), "logprobs": null, "finish_reason": null,
                       "matched_stop": null})
            }
        };
        event(self.chunk(json!([choice])))
    }

    /// Returns the last events of a stream: why it ended, the usage if it was asked for, and the end marker.
    pub(super) fn closing(&self, output_tokens: u64, delivery: Delivery) -> Bytes {
        let mut events = Vec::new();
        events.extend(self.finish(output_tokens));
        if delivery == Delivery::StreamWithUsage && self.kind != CallKind::Generate {
            let mut usage = self.chunk(json!([]));
            usage["usage"] = self.usage(output_tokens);
            events.extend(event(usage));
        }
        events.extend(b"data: [DONE]\n\n");
        events.into()
    }

    fn finish(&self, output_tokens: u64) -> Bytes {
        let choice = match self.kind {
            CallKind::Generate => return event(self.native(output_tokens, length(output_tokens))),
            CallKind::Chat => json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length",
                                     "matched_stop": null}),
            CallKind::Completion | CallKind::Embedding | CallKind::Echo => {
                json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "length", "matched_stop": null})
            }
        };
        event(self.chunk(json!([choice])))
    }

    fn openai(&self, object: &str, choice: Value, output_tokens: u64) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": [choice],
               "usage": self.usage(output_tokens), "metadata": {"weight_version": "default"}})
    }

    fn chunk(&self, choices: Value) -> Value {
        let object = match self.kind {
            CallKind::Chat => "chat.completion.chunk",
            CallKind::Completion | CallKind::Generate | CallKind::Embedding | CallKind::Echo => "text_completion",
        };
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }

    /// The answer of `/generate`, whose streams repeat the whole text in every event.
    ///
    /// The order of its fields is that of engines: whoever looks at the end of an answer finds the numbers there, however
    /// long the text is.
    fn native(&self, output_tokens: u64, finish_reason: Value) -> String {
        let mut meta_info = json!({
            "id": self.id, "finish_reason": finish_reason, "prompt_tokens": self.prompt_tokens,
            "completion_tokens": output_tokens, "weight_version": "default",
        });
        if let Some(cached_tokens) = self.cached_tokens {
            meta_info["cached_tokens"] = json!(cached_tokens);
        }
        let output_ids: Value = (0..output_tokens).map(generated).collect();
        let text = Value::from(generated_text(0, output_tokens));
        format!(r#"{{"text":{text},"output_ids":{output_ids},"meta_info":{meta_info}}}"#)
    }

    fn embeddings(&self) -> Value {
        let data: Vec<_> = (0..self.num_inputs)
            .map(|index| json!({"object": "embedding", "embedding": EMBEDDING, "index": index}))
            .collect();
        json!({"object": "list", "data": data, "model": self.model,
               "usage": {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}})
    }

    fn usage(&self, output_tokens: u64) -> Value {
        let details = self.cached_tokens.map(|cached_tokens| json!({"cached_tokens": cached_tokens}));
        json!({"prompt_tokens": self.prompt_tokens, "completion_tokens": output_tokens,
               "total_tokens": self.prompt_tokens + output_tokens, "prompt_tokens_details": details})
    }
}

/// Returns an error in the shape of the OpenAI API.
pub(super) fn error(status: u16, kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
}

/// Returns why every answer ends.
fn length(output_tokens: u64) -> Value {
    json!({"type": "length", "length": output_tokens})
}

fn event(body: impl fmt::Display) -> Bytes {
    format!("data: {body}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::usage::UsageTail;

    fn reply(kind: CallKind) -> Reply {
        Reply {
            kind,
            id: "sim-0".to_owned(),
            path: "/v1/any".to_owned(),
            model: "tiny".to_owned(),
            created: 1_700_000_000,
            prompt_tokens: 5,
            cached_tokens: Some(3),
            num_inputs: 2,
        }
    }

    fn unary(kind: CallKind, output_tokens: u64) -> Value {
        serde_json::from_slice(&reply(kind).unary(output_tokens)).unwrap()
    }

    fn events(bytes: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(bytes).unwrap();
        text.split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data)))
            .collect()
    }

    #[test]
    fn an_answer_in_one_piece_has_the_text_and_the_usage() {
        let chat = unary(CallKind::Chat, 2);
        assert_eq!(chat["choices"][0]["message"]["content"], " t0 t1");
        assert_eq!(
            chat["usage"],
            json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
                   "prompt_tokens_details": {"cached_tokens": 3}})
        );
        assert_eq!(unary(CallKind::Completion, 1)["choices"][0]["text"], " t0");
        assert_eq!(unary(CallKind::Generate, 1)["meta_info"]["finish_reason"]["length"], 1);
        assert_eq!(unary(CallKind::Embedding, 0)["data"].as_array().map(Vec::len), Some(2));
        assert_eq!(unary(CallKind::Echo, 0)["path"], "/v1/any");
    }

    #[test]
    fn the_deltas_of_a_chat_stream_add_up_to_the_text() {
        let chat = reply(CallKind::Chat);
        let opening = events(&chat.opening().unwrap());
        assert_eq!(opening[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(opening[0]["object"], "chat.completion.chunk");
        let deltas: String = (0..2)
            .map(|index| events(&chat.token(index))[0]["choices"][0]["delta"]["content"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(deltas, " t0 t1");
    }

    #[test]
    fn a_stream_ends_with_the_reason_the_usage_if_wanted_and_the_end_marker() {
        let chat = reply(CallKind::Chat);
        let without = events(&chat.closing(2, Delivery::Stream));
        assert_eq!(without[0]["choices"][0]["finish_reason"], "length");
        assert_eq!(without[1..], [json!("[DONE]")]);

        let with = events(&chat.closing(2, Delivery::StreamWithUsage));
        assert_eq!((&with[1]["choices"], &with[1]["usage"]["completion_tokens"]), (&json!([]), &json!(2)));
        assert_eq!(with[2..], [json!("[DONE]")]);
    }

    #[test]
    fn a_native_stream_repeats_the_text_so_far() {
        let native = reply(CallKind::Generate);
        assert_eq!(native.opening(), None);
        assert_eq!(events(&native.token(1))[0]["text"], " t0 t1");
        assert_eq!(events(&native.closing(2, Delivery::StreamWithUsage)).len(), 2);
    }

    #[test]
    fn cached_tokens_are_found_at_the_end_of_an_answer_of_any_length_unless_they_are_not_told() {
        for kind in [CallKind::Chat, CallKind::Completion, CallKind::Generate] {
            let mut reply = reply(kind);
            for expected in [Some(3), None] {
                reply.cached_tokens = expected.map(u64::from);
                for answer in [reply.unary(2_000), reply.closing(2_000, Delivery::StreamWithUsage)] {
                    let mut tail = UsageTail::default();
                    tail.push(&answer);
                    assert_eq!(tail.cached_tokens(), expected, "{kind:?}");
                }
            }
        }
    }
}
