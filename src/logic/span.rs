//! What is told of a request to whoever collects traces.

use std::borrow::Cow;

use crate::logic::trace_context::{SpanId, TraceContext};

/// One request, from its arrival to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its trace, and its own id.
    pub context: TraceContext,
    /// The caller's span; `None` of one that begins its trace.
    pub parent: Option<SpanId>,
    /// What was asked for, in few different words.
    pub name: String,
    /// When the request arrived, in nanoseconds since 1970.
    pub started_at_nanos: u64,
    /// When it ended, in nanoseconds since 1970.
    pub ended_at_nanos: u64,
    /// Whether the router or a worker failed it.
    pub is_failure: bool,
    /// What is known of it.
    pub attributes: Vec<(&'static str, AttributeValue)>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A text.
    Text(Cow<'static, str>),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// Yes or no.
    Switch(bool),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Integer(i64::from(number))
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(is_so: bool) -> Self {
        Self::Switch(is_so)
    }
}
