//! Keys of cache blocks.

use serde::de::SeqAccess;

use crate::logic::kv_event::BlockKey;
use crate::wire::kv_event::event::BadEvent;
use crate::wire::lenient::{Accept, Scalar, skip_items};

/// The most block hashes of one event; one with more is refused from its announced length. At 16 tokens a block this is a
/// prompt of a million tokens.
pub const MAX_HASHES_PER_EVENT: usize = 65_536;

/// Room made for hashes before they are read. An announced length may be a lie, so it reserves no more than this.
const MAX_RESERVED: usize = 1_024;

/// Reads a key. `None` for other types and for digests of other lengths, which nothing is known to send.
pub(super) fn read_key(scalar: &Scalar<'_>) -> Option<BlockKey> {
    match scalar {
        Scalar::Unsigned(value) => Some(BlockKey::from(*value)),
        Scalar::Negative(value) => Some(BlockKey::from(*value)),
        Scalar::Bytes(bytes) => from_digest(bytes),
        // Encoders of the older msgpack specification have no binary type and send a digest as text.
        Scalar::Text(text) => from_digest(text.as_bytes()),
        Scalar::Nil | Scalar::Bool(_) | Scalar::Float(_) | Scalar::Compound => None,
    }
}

fn from_digest(bytes: &[u8]) -> Option<BlockKey> {
    if let Ok(digest) = bytes.try_into() {
        return Some(BlockKey::Digest256(digest));
    }
    bytes.try_into().ok().map(BlockKey::Digest128)
}

/// Reads a list of keys: all of them, or why not.
pub(super) struct HashesReader;

impl<'de> Accept<'de> for HashesReader {
    type Value = Result<Vec<BlockKey>, BadEvent>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        Err(BadEvent::Hashes)
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let result = read_hashes(&mut items)?;
        skip_items(&mut items)?;
        Ok(result)
    }
}

fn read_hashes<'de, A: SeqAccess<'de>>(items: &mut A) -> Result<Result<Vec<BlockKey>, BadEvent>, A::Error> {
    let announced = items.size_hint().unwrap_or(0);
    if announced > MAX_HASHES_PER_EVENT {
        return Ok(Err(BadEvent::TooManyHashes));
    }
    let mut hashes = Vec::with_capacity(announced.min(MAX_RESERVED));
    while let Some(scalar) = items.next_element::<Scalar<'de>>()? {
        let Some(key) = read_key(&scalar) else {
            return Ok(Err(BadEvent::Hashes));
        };
        hashes.push(key);
    }
    Ok(Ok(hashes))
}
