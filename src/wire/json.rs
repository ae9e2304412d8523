//! One JSON object per body.

use serde::de::DeserializeSeed;

use crate::wire::lenient::{Accept, Lenient};

/// Says why a body is not exactly one JSON object. Never contains any of the body, which may hold keys and prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAnObject {
    /// It is not UTF-8.
    #[error("the body is not UTF-8")]
    Encoding,
    /// It ends before the object does.
    #[error("the body ends before its JSON does")]
    CutOff,
    /// It is not JSON.
    #[error("the body is not JSON at line {line}, column {column}")]
    Syntax {
        /// Counted from one.
        line: usize,
        /// Counted from one, in bytes.
        column: usize,
    },
    /// It is JSON of another type.
    #[error("the body is JSON, but not an object")]
    OtherValue,
    /// Something follows the object.
    #[error("something follows the JSON object")]
    Trailing,
}

impl NotAnObject {
    /// Returns the reason as a metric label.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Encoding => "encoding",
            Self::CutOff => "cut_off",
            Self::Syntax { .. } => "syntax",
            Self::OtherValue => "other_value",
            Self::Trailing => "trailing",
        }
    }
}

impl From<serde_json::Error> for NotAnObject {
    fn from(error: serde_json::Error) -> Self {
        // The error's own text may quote the body, so only its place is kept.
        match error.classify() {
            serde_json::error::Category::Eof => Self::CutOff,
            _ => Self::Syntax { line: error.line(), column: error.column() },
        }
    }
}

/// Decodes the one object of a body. The acceptor returns `None` for whatever is not an object.
pub(super) fn decode_object<'de, T, V>(body: &'de [u8], accept: T) -> Result<V, NotAnObject>
where
    T: Accept<'de, Value = Option<V>>,
{
    let text = std::str::from_utf8(body).map_err(|_| NotAnObject::Encoding)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Lenient(accept).deserialize(&mut deserializer)?;
    deserializer.end().map_err(|_| NotAnObject::Trailing)?;
    value.ok_or(NotAnObject::OtherValue)
}
