//! Changes single top-level fields of a JSON body and leaves every other byte as it came.

use serde::de::{IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use crate::wire::json::decode_object;
use crate::wire::lenient::{Accept, Scalar};

/// Returns the body with each field set to its JSON text, or without it where there is none. Fields that are set come last; one that
/// the body has already is taken out, for parsers differ in which of two they believe. `None` where the body is not one JSON object.
pub fn with_fields(body: &[u8], fields: &[(&str, Option<String>)]) -> Option<Vec<u8>> {
    let own = decode_object(body, FieldsReader).ok()?;
    let is_named = |key: &str| fields.iter().any(|(name, _)| *name == key);
    let room = body.len()
        + fields.iter().map(|(key, value)| key.len() + value.as_deref().map_or(0, str::len) + 4).sum::<usize>();
    let mut edited = Vec::with_capacity(room);
    let mut is_empty = own.is_empty();
    if own.iter().any(|(key, _)| is_named(key)) {
        edited.push(b'{');
        is_empty = true;
        for (key, raw) in own.iter().filter(|(key, _)| !is_named(key)) {
            add(&mut edited, &mut is_empty, key, raw.get());
        }
    } else {
        let end = body.iter().rposition(|byte| *byte == b'}')?;
        edited.extend_from_slice(&body[..end]);
    }
    for (key, value) in fields {
        if let Some(value) = value {
            add(&mut edited, &mut is_empty, key, value);
        }
    }
    edited.push(b'}');
    Some(edited)
}

fn add(edited: &mut Vec<u8>, is_empty: &mut bool, key: &str, value: &str) {
    if !std::mem::take(is_empty) {
        edited.push(b',');
    }
    edited.extend_from_slice(serde_json::Value::from(key).to_string().as_bytes());
    edited.push(b':');
    edited.extend_from_slice(value.as_bytes());
}

/// Reads the top-level fields of an object, values as they came.
pub(super) struct FieldsReader;

impl<'de> Accept<'de> for FieldsReader {
    type Value = Option<Vec<(String, &'de RawValue)>>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        None
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            match key.as_text() {
                Some(key) => fields.push((key.to_owned(), entries.next_value()?)),
                None => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Some(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::with_fields;

    fn edited(body: &str, fields: &[(&str, Option<&str>)]) -> Option<String> {
        let fields: Vec<_> = fields.iter().map(|(key, value)| (*key, value.map(str::to_owned))).collect();
        with_fields(body.as_bytes(), &fields).map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn fields_are_added_at_the_end_and_everything_else_stays_as_it_came() {
        let rows = [
            (r#"{"a": 1.50, "b":"}"}"#, r#"{"a": 1.50, "b":"}","room":7,"host":"h"}"#),
            (" { \"a\" :\n 1e2 } \n", " { \"a\" :\n 1e2 ,\"room\":7,\"host\":\"h\"}"),
            ("{}", r#"{"room":7,"host":"h"}"#),
            ("{ }", r#"{ "room":7,"host":"h"}"#),
        ];
        for (body, expected) in rows {
            let fields = [("room", Some("7")), ("host", Some("\"h\"")), ("gone", None)];
            assert_eq!(edited(body, &fields).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn a_field_that_is_there_already_however_often_and_in_whatever_spelling_gives_way() {
        let body = r#"{"room":1,"a":{"room":2},"r\u006fom":3,"é\"":[1, 2]}"#;
        assert_eq!(edited(body, &[("room", Some("7"))]).as_deref(), Some(r#"{"a":{"room":2},"é\"":[1, 2],"room":7}"#));
        assert_eq!(edited(r#"{"room":1}"#, &[("room", None)]).as_deref(), Some("{}"));
        assert_eq!(edited(r#"{"room":1}"#, &[("room", Some("2"))]).as_deref(), Some(r#"{"room":2}"#));
    }

    #[test]
    fn what_is_not_one_object_is_not_edited() {
        for body in ["", "[]", "{", "7", "{}{}", r#"{"a":1} x"#] {
            assert_eq!(edited(body, &[("room", Some("7"))]), None, "{body}");
        }
    }
}
