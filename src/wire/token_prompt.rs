//! Puts the tokens of a prompt in the place of its text, so that an engine need not encode it again.

use serde_json::value::RawValue;

use crate::wire::body_edit::FieldsReader;
use crate::wire::json::decode_object;

/// Returns the body with the tokens under `ids_key` in the place of the text under `text_key`, and everything else as it came.
/// `None` where there is no single text under that key, or something else under the other one.
pub fn with_token_ids(body: &[u8], text_key: &str, ids_key: &str, token_ids: &[u32]) -> Option<Vec<u8>> {
    let fields = decode_object(body, FieldsReader).ok()?;
    let is_text = |raw: &RawValue| raw.get().starts_with('"');
    let num_texts = fields.iter().filter(|(key, raw)| key == text_key && is_text(raw)).count();
    let num_rivals = fields.iter().filter(|(key, _)| key == text_key || key == ids_key).count();
    if num_texts != 1 || num_rivals != 1 {
        return None;
    }
    let mut text = String::with_capacity(body.len() + 8 * token_ids.len());
    for (key, raw) in fields {
        text.push(if text.is_empty() { '{' } else { ',' });
        let is_prompt = key == text_key;
        text.push_str(&serde_json::Value::from(if is_prompt { ids_key } else { &key }).to_string());
        text.push(':');
        text.push_str(&if is_prompt { serde_json::to_string(token_ids).ok()? } else { raw.get().to_owned() });
    }
    text.push('}');
    Some(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::with_token_ids;

    fn replaced(body: &str) -> Option<String> {
        with_token_ids(body.as_bytes(), "text", "input_ids", &[7, 8]).map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn the_text_gives_way_and_everything_else_stays_as_it_came() {
        let body = r#"{"a":1.50,"text":"hi\n","sampling_params":{"n":1e2,"text":"x"},"é\"":null}"#;
        let expected = r#"{"a":1.50,"input_ids":[7,8],"sampling_params":{"n":1e2,"text":"x"},"é\"":null}"#;
        assert_eq!(replaced(body).as_deref(), Some(expected));
    }

    #[test]
    fn a_body_without_one_plain_text_is_left_alone() {
        for body in [
            r#"{"text":["a","b"]}"#,
            r#"{"text":"a","input_ids":[1]}"#,
            r#"{"text":"a","text":"b"}"#,
            r#"{"prompt":"a"}"#,
            r#"[]"#,
            "",
        ] {
            assert_eq!(replaced(body), None, "{body}");
        }
    }
}
