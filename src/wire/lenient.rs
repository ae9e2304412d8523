//! Values of any type, from msgpack and JSON alike.
//!
//! A derived decoder fails the whole frame when one field has a type that it did not expect, and then nothing tells which
//! field it was, nor can the next event of a batch be reached. Here every value is taken as it comes and judged afterwards,
//! so that only broken encoding fails a frame. An [`Accept`] says what it makes of scalars, arrays and maps; [`Lenient`] is
//! the one visitor that feeds it.
//!
//! Scalars borrow from the input. Nothing is reserved for announced lengths, which may be lies.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value without inner values, or the remark that it had some and was skipped.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Scalar<'a> {
    /// Nil or null. Also stands for absent, where the two mean the same.
    #[default]
    Nil,
    /// True or false.
    Bool(bool),
    /// An integer of zero or more.
    Unsigned(u64),
    /// An integer below zero.
    Negative(i64),
    /// A number with a fraction or exponent, NaN included.
    Float(f64),
    /// Valid UTF-8.
    Text(Cow<'a, str>),
    /// Binary, or text that is not UTF-8.
    Bytes(Cow<'a, [u8]>),
    /// An array, map or extension value; it was skipped.
    Compound,
}

impl Scalar<'_> {
    /// Returns the text, if it is one.
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the integer of zero or more, if it is one.
    pub(super) fn as_unsigned(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            _ => None,
        }
    }

    /// Names the type, for messages that must not echo the value.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "a boolean",
            Self::Unsigned(_) | Self::Negative(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Compound => "a compound value",
        }
    }
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Lenient(AsScalar).deserialize(deserializer)
    }
}

/// Makes something of a value whose type is not known beforehand.
pub(super) trait Accept<'de>: Sized {
    /// What is made of it.
    type Value;

    /// Takes a scalar, or [`Scalar::Compound`] from the two methods below.
    fn scalar(self, scalar: Scalar<'de>) -> Self::Value;

    /// Takes an array. It must read every item.
    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        skip_items(&mut items)?;
        Ok(self.scalar(Scalar::Compound))
    }

    /// Takes a map. It must read every entry.
    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self.scalar(Scalar::Compound))
    }
}

/// Reads and drops the remaining items of an array.
pub(super) fn skip_items<'de, A: SeqAccess<'de>>(items: &mut A) -> Result<(), A::Error> {
    while items.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Feeds one value of any type to an [`Accept`].
pub(super) struct Lenient<T>(pub(super) T);

impl<'de, T: Accept<'de>> DeserializeSeed<'de> for Lenient<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Accept<'de>> Visitor<'de> for Lenient<T> {
    type Value = T::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Bool(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T::Value, E> {
        // Encoders may send a positive number in a signed form; it is the same number.
        Ok(self.0.scalar(u64::try_from(value).map_or(Scalar::Negative(value), Scalar::Unsigned)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Unsigned(value)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Float(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Text(Cow::Owned(value.to_owned()))))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Text(Cow::Borrowed(value))))
    }

    fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Bytes(Cow::Owned(value.to_owned()))))
    }

    fn visit_borrowed_bytes<E: Error>(self, value: &'de [u8]) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Bytes(Cow::Borrowed(value))))
    }

    fn visit_none<E: Error>(self) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Nil))
    }

    fn visit_unit<E: Error>(self) -> Result<T::Value, E> {
        Ok(self.0.scalar(Scalar::Nil))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        // A msgpack extension value arrives this way. No engine sends one.
        IgnoredAny::deserialize(deserializer)?;
        Ok(self.0.scalar(Scalar::Compound))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<T::Value, A::Error> {
        self.0.array(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<T::Value, A::Error> {
        self.0.map(entries)
    }
}

struct AsScalar;

impl<'de> Accept<'de> for AsScalar {
    type Value = Scalar<'de>;

    fn scalar(self, scalar: Scalar<'de>) -> Scalar<'de> {
        scalar
    }
}
