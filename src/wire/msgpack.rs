//! One msgpack value per frame.

use rmp_serde::decode;
use serde::de::{DeserializeSeed, Deserializer, Visitor};

use crate::wire::lenient::{Accept, Lenient};

/// How deeply values may nest. Engines nest six levels. The crate's own limit of 1,024 overflows the 2 MiB stack of a thread
/// in an unoptimized build.
const MAX_DEPTH: usize = 64;

/// Says why a payload is not exactly one msgpack value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MsgpackFault {
    /// It is cut off, nested too deeply, or contains a byte that starts no value.
    #[error("the payload is not well-formed msgpack")]
    Malformed(#[source] decode::Error),
    /// Something follows the value.
    #[error("bytes follow the msgpack value")]
    TrailingBytes,
}

impl MsgpackFault {
    /// Returns the reason as a metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::TrailingBytes => "trailing_bytes",
        }
    }
}

/// Decodes the one value of a payload.
pub(super) fn decode<'de, T: Accept<'de>>(payload: &'de [u8], accept: T) -> Result<T::Value, MsgpackFault> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(payload);
    deserializer.set_max_depth(MAX_DEPTH);
    let value = Lenient(accept).deserialize(&mut deserializer).map_err(MsgpackFault::Malformed)?;
    // The borrowing reader does not tell its position. A probe that refuses every value before it reads any inner ones fails
    // on the marker only where nothing is left.
    match deserializer.deserialize_any(NoValue) {
        Err(decode::Error::InvalidMarkerRead(_)) => Ok(value),
        Ok(()) | Err(_) => Err(MsgpackFault::TrailingBytes),
    }
}

/// Refuses every value: each method that it does not define fails.
struct NoValue;

impl Visitor<'_> for NoValue {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the end of the payload")
    }
}
