//! One event of a batch.
//!
//! Rules for a store, beyond those of its single fields: its block size is at least one, and its tokens, where it brings any,
//! fill all of its blocks. Tokens for only some of the blocks leave open which blocks those are, so the event is refused. No
//! tokens at all is how an engine reports blocks that it moved to another medium. More tokens than the blocks need are let
//! through: vLLM's sliding-window groups send them. A salt or adapter that cannot be read refuses the event, since its blocks
//! would otherwise pass for plain ones.

use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess};

use crate::logic::kv_event::{Attention, BlockKey, KvEvent, Medium, RemovedBlocks, StoredBlocks};
use crate::wire::kv_event::field::{EventKind, Field, FieldReader, RawEvent};
use crate::wire::kv_event::hash::read_key;
use crate::wire::kv_event::tokens::TokenUse;
use crate::wire::lenient::{Accept, Scalar, skip_items};

fn read_medium(scalar: &Scalar<'_>) -> Option<Medium> {
    if *scalar == Scalar::Nil {
        return None;
    }
    Some(match scalar.as_text() {
        Some("GPU") => Medium::Gpu,
        Some("CPU") => Medium::Cpu,
        Some("CPU_PINNED") => Medium::CpuPinned,
        Some("DISK") => Medium::Disk,
        Some("STORAGE") => Medium::Storage,
        Some("EXTERNAL") => Medium::External,
        Some(_) | None => Medium::Unknown,
    })
}

/// Why an event was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BadEvent {
    /// It is neither an array nor a map.
    Shape,
    /// It does not say what it is.
    Untagged,
    /// Its hashes are missing, or one of them is neither a 64-bit integer nor a digest.
    Hashes,
    /// It has more than [`MAX_HASHES_PER_EVENT`](super::MAX_HASHES_PER_EVENT) hashes.
    TooManyHashes,
    /// Its parent is neither nil nor a hash.
    Parent,
    /// Its block size is missing, zero, negative or not an integer.
    BlockSize,
    /// Its tokens are wanted, but are not a list of ids or of pairs.
    Tokens,
    /// Its tokens fill only some of its blocks.
    TooFewTokens,
    /// Its salt or adapter cannot be read.
    Namespace,
    /// Its group is not a number.
    Group,
}

impl BadEvent {
    /// Every reason, for counters that show zeros too.
    pub const ALL: [Self; 10] = [
        Self::Shape,
        Self::Untagged,
        Self::Hashes,
        Self::TooManyHashes,
        Self::Parent,
        Self::BlockSize,
        Self::Tokens,
        Self::TooFewTokens,
        Self::Namespace,
        Self::Group,
    ];

    /// Returns the reason as a metric label.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Shape => "shape",
            Self::Untagged => "untagged",
            Self::Hashes => "hashes",
            Self::TooManyHashes => "too_many_hashes",
            Self::Parent => "parent",
            Self::BlockSize => "block_size",
            Self::Tokens => "tokens",
            Self::TooFewTokens => "too_few_tokens",
            Self::Namespace => "namespace",
            Self::Group => "group",
        }
    }
}

/// What an event of a batch turned out to be.
pub(super) enum Outcome {
    Event(KvEvent),
    /// An event of a type that came after this decoder, or that no cache index needs.
    UnknownType,
    Bad(BadEvent),
}

/// Reads one event in any of its forms.
pub(super) struct EventReader(pub(super) TokenUse);

impl<'de> Accept<'de> for EventReader {
    type Value = Outcome;

    fn scalar(self, _: Scalar<'de>) -> Outcome {
        Outcome::Bad(BadEvent::Shape)
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Outcome, A::Error> {
        let mut raw = RawEvent::new(self.0);
        let tag = items.next_element::<Scalar<'de>>()?.unwrap_or_default();
        raw.kind = EventKind::read(&tag);
        for field in raw.kind.map_or(&[][..], EventKind::positions) {
            if items.next_element_seed(FieldReader { field: *field, raw: &mut raw })?.is_none() {
                break;
            }
        }
        skip_items(&mut items)?;
        Ok(judge(raw))
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Outcome, A::Error> {
        let mut raw = RawEvent::new(self.0);
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            entries.next_value_seed(FieldReader { field: Field::named(&key), raw: &mut raw })?;
        }
        Ok(judge(raw))
    }
}

fn judge(raw: RawEvent<'_>) -> Outcome {
    let event = match raw.kind {
        None => Err(BadEvent::Untagged),
        Some(EventKind::Other) => return Outcome::UnknownType,
        Some(EventKind::Cleared) => Ok(KvEvent::Cleared),
        Some(EventKind::Stored) => stored(raw).map(KvEvent::Stored),
        Some(EventKind::Removed) => removed(raw).map(KvEvent::Removed),
    };
    event.map_or_else(Outcome::Bad, Outcome::Event)
}

fn stored(raw: RawEvent<'_>) -> Result<StoredBlocks, BadEvent> {
    let hashes = raw.hashes?;
    let block_size = read_block_size(&raw.block_size)?;
    let token_ids = raw.token_ids.ok_or(BadEvent::Tokens)?;
    let num_needed = (hashes.len() as u64).saturating_mul(u64::from(block_size));
    if !token_ids.is_empty() && (token_ids.len() as u64) < num_needed {
        return Err(BadEvent::TooFewTokens);
    }
    let parent = read_parent(&raw.parent)?;
    let lora_name = read_name(&raw.lora_name)?;
    let extra = raw.extra_keys.beyond(lora_name.as_deref(), parent.is_none());
    Ok(StoredBlocks {
        hashes,
        parent,
        token_ids,
        block_size,
        medium: read_medium(&raw.medium),
        lora_id: read_lora_id(&raw.lora_id)?,
        lora_name,
        cache_salt: read_name(&raw.cache_salt)?.or_else(|| extra.salt.map(Arc::from)),
        is_opaque: extra.is_opaque,
        group_idx: read_group(&raw.group_idx)?,
        attention: read_attention(&raw.spec_kind),
    })
}

fn removed(raw: RawEvent<'_>) -> Result<RemovedBlocks, BadEvent> {
    Ok(RemovedBlocks { hashes: raw.hashes?, medium: read_medium(&raw.medium), group_idx: read_group(&raw.group_idx)? })
}

fn read_block_size(scalar: &Scalar<'_>) -> Result<u32, BadEvent> {
    let size = scalar.as_unsigned().and_then(|size| u32::try_from(size).ok());
    size.filter(|size| *size > 0).ok_or(BadEvent::BlockSize)
}

fn read_parent(scalar: &Scalar<'_>) -> Result<Option<BlockKey>, BadEvent> {
    if *scalar == Scalar::Nil {
        return Ok(None);
    }
    read_key(scalar).map(Some).ok_or(BadEvent::Parent)
}

fn read_lora_id(scalar: &Scalar<'_>) -> Result<Option<i64>, BadEvent> {
    match scalar {
        Scalar::Nil => Ok(None),
        Scalar::Unsigned(id) => i64::try_from(*id).map(Some).map_err(|_| BadEvent::Namespace),
        Scalar::Negative(id) => Ok(Some(*id)),
        _ => Err(BadEvent::Namespace),
    }
}

fn read_name(scalar: &Scalar<'_>) -> Result<Option<Arc<str>>, BadEvent> {
    match scalar {
        Scalar::Nil => Ok(None),
        Scalar::Text(text) => Ok(Some(text.as_ref().into())),
        _ => Err(BadEvent::Namespace),
    }
}

fn read_attention(scalar: &Scalar<'_>) -> Attention {
    match scalar.as_text() {
        None => Attention::Unsaid,
        Some("full_attention") => Attention::Full,
        Some(_) => Attention::Other,
    }
}

fn read_group(scalar: &Scalar<'_>) -> Result<Option<u32>, BadEvent> {
    if *scalar == Scalar::Nil {
        return Ok(None);
    }
    let group = scalar.as_unsigned().and_then(|group| u32::try_from(group).ok());
    group.map(Some).ok_or(BadEvent::Group)
}
