//! JSON whose objects keep the order in which the client wrote them: a template prints tools in that order, as Python does.

use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A JSON value. A repeated key counts by its last value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    /// A number beyond `i64`.
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Returns a text.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Returns the text, where it is one.
    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Returns the boolean, where it is one.
    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    /// Returns a field of an object; null counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(fields) = self else {
            return None;
        };
        let (_, value) = fields.iter().rev().find(|(name, _)| name == key)?;
        if *value == Self::Null { None } else { Some(value) }
    }

    /// Takes a field out of an object; null counts as absent.
    pub(super) fn take(&mut self, key: &str) -> Option<Self> {
        let Self::Object(fields) = self else {
            return None;
        };
        let (_, value) = fields.iter_mut().rev().find(|(name, _)| name == key)?;
        let value = std::mem::replace(value, Self::Null);
        if value == Self::Null { None } else { Some(value) }
    }

    /// Returns the value as templates see it.
    pub(super) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::from(()),
            Self::Bool(value) => Value::from(value),
            Self::Int(value) => Value::from(value),
            Self::Unsigned(value) => Value::from(value),
            Self::Float(value) => Value::from(value),
            Self::Text(text) => Value::from(text),
            Self::List(items) => Value::from(items.into_iter().map(Self::into_value).collect::<Vec<_>>()),
            Self::Object(fields) => Value::from_pairs(fields.into_iter().map(|(key, value)| (key, value.into_value()))),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Unsigned(value), Json::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}
