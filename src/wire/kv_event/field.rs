//! The fields of an event as they came, and where each form keeps them.

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess};

use crate::logic::kv_event::{BlockKey, TokenIds};
use crate::wire::kv_event::event::BadEvent;
use crate::wire::kv_event::extra_keys::{ExtraKeys, ExtraKeysReader};
use crate::wire::kv_event::hash::HashesReader;
use crate::wire::kv_event::tokens::{TokenUse, TokensReader, absent};
use crate::wire::lenient::{Accept, Lenient, Scalar};

/// What an event says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventKind {
    Stored,
    Removed,
    Cleared,
    Other,
}

impl EventKind {
    pub(super) fn read(tag: &Scalar<'_>) -> Option<Self> {
        Some(match tag.as_text()? {
            "BlockStored" => Self::Stored,
            "BlockRemoved" => Self::Removed,
            "AllBlocksCleared" => Self::Cleared,
            _ => Self::Other,
        })
    }

    /// Returns the fields of the array form, in order, after the tag.
    pub(super) fn positions(self) -> &'static [Field] {
        match self {
            // The eighth element is SGLang's map of metadata or vLLM's adapter name; what follows is vLLM's alone.
            Self::Stored => &[
                Field::Hashes,
                Field::Parent,
                Field::Tokens,
                Field::BlockSize,
                Field::LoraId,
                Field::Medium,
                Field::LoraNameOrMetadata,
                Field::ExtraKeys,
                Field::GroupIdx,
                Field::SpecKind,
            ],
            Self::Removed => &[Field::Hashes, Field::Medium, Field::GroupIdx],
            Self::Cleared | Self::Other => &[],
        }
    }
}

/// A field of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Kind,
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    LoraNameOrMetadata,
    CacheSalt,
    ExtraKeys,
    GroupIdx,
    SpecKind,
    Ignored,
}

impl Field {
    /// Returns the field that a key of the map form names.
    pub(super) fn named(key: &Scalar<'_>) -> Self {
        match key.as_text() {
            Some("type") => Self::Kind,
            Some("block_hashes") => Self::Hashes,
            Some("parent_block_hash") => Self::Parent,
            Some("token_ids") => Self::Tokens,
            Some("block_size") => Self::BlockSize,
            Some("lora_id") => Self::LoraId,
            Some("medium") => Self::Medium,
            Some("lora_name") => Self::LoraName,
            Some("cache_salt") => Self::CacheSalt,
            Some("extra_keys") => Self::ExtraKeys,
            Some("group_idx") => Self::GroupIdx,
            Some("kv_cache_spec_kind") => Self::SpecKind,
            Some(_) | None => Self::Ignored,
        }
    }
}

/// The fields as they came. Nil stands for absent: no field tells the two apart.
pub(super) struct RawEvent<'a> {
    pub(super) kind: Option<EventKind>,
    pub(super) hashes: Result<Vec<BlockKey>, BadEvent>,
    pub(super) parent: Scalar<'a>,
    pub(super) token_ids: Option<TokenIds>,
    pub(super) block_size: Scalar<'a>,
    pub(super) lora_id: Scalar<'a>,
    pub(super) medium: Scalar<'a>,
    pub(super) lora_name: Scalar<'a>,
    pub(super) cache_salt: Scalar<'a>,
    pub(super) extra_keys: ExtraKeys<'a>,
    pub(super) group_idx: Scalar<'a>,
    pub(super) spec_kind: Scalar<'a>,
    tokens: TokenUse,
}

impl RawEvent<'_> {
    pub(super) fn new(tokens: TokenUse) -> Self {
        Self {
            kind: None,
            hashes: Err(BadEvent::Hashes),
            parent: Scalar::Nil,
            token_ids: Some(absent(tokens)),
            block_size: Scalar::Nil,
            lora_id: Scalar::Nil,
            medium: Scalar::Nil,
            lora_name: Scalar::Nil,
            cache_salt: Scalar::Nil,
            extra_keys: ExtraKeys::default(),
            group_idx: Scalar::Nil,
            spec_kind: Scalar::Nil,
            tokens,
        }
    }
}

/// Reads one field into its place. A repeated field counts by its last value.
pub(super) struct FieldReader<'a, 'de> {
    pub(super) field: Field,
    pub(super) raw: &'a mut RawEvent<'de>,
}

impl<'de> DeserializeSeed<'de> for FieldReader<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        let raw = self.raw;
        match self.field {
            Field::Kind => raw.kind = EventKind::read(&Scalar::deserialize(value)?),
            Field::Hashes => raw.hashes = Lenient(HashesReader).deserialize(value)?,
            Field::Parent => raw.parent = Scalar::deserialize(value)?,
            Field::Tokens => raw.token_ids = Lenient(TokensReader(raw.tokens)).deserialize(value)?,
            Field::BlockSize => raw.block_size = Scalar::deserialize(value)?,
            Field::LoraId => raw.lora_id = Scalar::deserialize(value)?,
            Field::Medium => raw.medium = Scalar::deserialize(value)?,
            Field::LoraName => raw.lora_name = Scalar::deserialize(value)?,
            Field::LoraNameOrMetadata => Lenient(LoraNameOrMetadata(raw)).deserialize(value)?,
            Field::CacheSalt => raw.cache_salt = Scalar::deserialize(value)?,
            Field::ExtraKeys => raw.extra_keys = Lenient(ExtraKeysReader).deserialize(value)?,
            Field::GroupIdx => raw.group_idx = Scalar::deserialize(value)?,
            Field::SpecKind => raw.spec_kind = Scalar::deserialize(value)?,
            Field::Ignored => {
                IgnoredAny::deserialize(value)?;
            }
        }
        Ok(())
    }
}

/// The eighth element of a store: vLLM's adapter name, or SGLang's map with the salt.
struct LoraNameOrMetadata<'a, 'de>(&'a mut RawEvent<'de>);

impl<'de> Accept<'de> for LoraNameOrMetadata<'_, 'de> {
    type Value = ();

    fn scalar(self, scalar: Scalar<'de>) {
        self.0.lora_name = scalar;
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            let field = match Field::named(&key) {
                // Metadata adds to the elements before it and does not replace them.
                field @ (Field::CacheSalt | Field::LoraName | Field::GroupIdx | Field::ExtraKeys) => field,
                _ => Field::Ignored,
            };
            entries.next_value_seed(FieldReader { field, raw: self.0 })?;
        }
        Ok(())
    }
}
