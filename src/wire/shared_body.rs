//! The body of a request that a prefill engine and a decode engine share (SGLang 0.5.23, `io_struct.py`): where they meet, and in
//! which rooms.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::logic::rooms::MAX_ROOMS;
use crate::wire::body_edit::{FieldsReader, with_fields};
use crate::wire::json::decode_object;

/// Where two engines meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting<'a> {
    /// The prefill engine's host; IPv6 in brackets, since engines put a colon and the port behind it.
    pub host: &'a str,
    /// The prefill engine's bootstrap port.
    pub port: u16,
    /// The first room.
    pub first_room: u64,
    /// How many prompts the request has; `None` where it is not a list of prompts.
    pub batch: Option<u32>,
}

/// Returns how many prompts the request lists; `None` where it has a single one that is no list.
///
/// # Errors
/// Refuses more than [`MAX_ROOMS`].
pub fn batch_size(body: &[u8]) -> Result<Option<u32>, TooManyPrompts> {
    let Ok(fields) = decode_object(body, FieldsReader) else { return Ok(None) };
    let is_prompt = |key: &str| matches!(key, "prompt" | "text" | "input_ids");
    let lists = fields.iter().filter(|(key, _)| is_prompt(key)).filter_map(|(_, raw)| prompts_of(raw));
    match lists.max() {
        None => Ok(None),
        Some(count) => u32::try_from(count).ok().filter(|count| *count <= MAX_ROOMS).map(Some).ok_or(TooManyPrompts),
    }
}

/// A list of prompts is one of texts or of lists; one of numbers is a single prompt.
fn prompts_of(raw: &RawValue) -> Option<usize> {
    let items: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
    items.first().filter(|item| item.get().starts_with(['"', '['])).map(|_| items.len())
}

/// The request lists more prompts than get rooms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request that two engines share has at most {MAX_ROOMS} prompts")]
pub struct TooManyPrompts;

/// Returns the body for both engines. What the client said of the meeting or of DP ranks is left out; everything else stays as it
/// came. `None` where the body is not one JSON object.
pub fn shared_body(body: &[u8], meeting: &Meeting<'_>) -> Option<Vec<u8>> {
    let Meeting { host, port, first_room, batch } = *meeting;
    let fields = [
        ("bootstrap_host", Some(repeated(&Value::from(host), batch))),
        ("bootstrap_port", Some(repeated(&Value::from(port), batch))),
        ("bootstrap_room", Some(rooms(first_room, batch))),
        ("routed_dp_rank", None),
        ("data_parallel_rank", None),
        ("disagg_prefill_dp_rank", None),
    ];
    with_fields(body, &fields)
}

fn repeated(value: &Value, batch: Option<u32>) -> String {
    match batch {
        None => value.to_string(),
        Some(count) => Value::from(vec![value.clone(); count as usize]).to_string(),
    }
}

fn rooms(first: u64, batch: Option<u32>) -> String {
    match batch {
        None => first.to_string(),
        Some(count) => Value::from((first..first + u64::from(count)).collect::<Vec<u64>>()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Meeting, TooManyPrompts, batch_size, shared_body};

    fn shared(body: &str, batch: Option<u32>) -> String {
        let meeting = Meeting { host: "[::1]", port: 8_998, first_room: 1 << 62, batch };
        String::from_utf8(shared_body(body.as_bytes(), &meeting).expect("an object")).unwrap()
    }

    #[test]
    fn both_engines_are_told_where_they_meet_and_nothing_else_changes() {
        let expected =
            r#"{ "text" : "a\n" ,"bootstrap_host":"[::1]","bootstrap_port":8998,"bootstrap_room":4611686018427387904}"#;
        assert_eq!(shared(r#"{ "text" : "a\n" }"#, None), expected);
        let own = r#"{"bootstrap_room":1,"x":1.0,"bootstrap_host":"evil","routed_dp_rank":3}"#;
        let expected =
            r#"{"x":1.0,"bootstrap_host":"[::1]","bootstrap_port":8998,"bootstrap_room":4611686018427387904}"#;
        assert_eq!(shared(own, None), expected, "what the client said of it is left out");
    }

    #[test]
    fn a_batch_gets_a_room_for_each_of_its_prompts() {
        let body = r#"{"text":["a","b"]}"#;
        let expected = r#"{"text":["a","b"],"bootstrap_host":["[::1]","[::1]"],"bootstrap_port":[8998,8998],"bootstrap_room":[4611686018427387904,4611686018427387905]}"#;
        assert_eq!(shared(body, batch_size(body.as_bytes()).unwrap()), expected);
    }

    #[test]
    fn only_lists_of_prompts_are_batches() {
        let rows = [
            (r#"{"prompt":"a"}"#, None),
            (r#"{"prompt":["a"]}"#, Some(1)),
            (r#"{"prompt":[1,2,3]}"#, None),
            (r#"{"prompt":[[1,2],[3]]}"#, Some(2)),
            (r#"{"input_ids":[[1],[2],[3]]}"#, Some(3)),
            (r#"{"text":[]}"#, None),
            (r#"{"messages":[{"role":"user"}]}"#, None),
            ("[]", None),
        ];
        for (body, expected) in rows {
            assert_eq!(batch_size(body.as_bytes()), Ok(expected), "{body}");
        }
        let many = format!(r#"{{"text":[{}"a"]}}"#, r#""a","#.repeat(4_096));
        assert_eq!(batch_size(many.as_bytes()), Err(TooManyPrompts));
    }
}
