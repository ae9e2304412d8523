//! What is read from a body before any tokenizer is needed: token arrays, texts, and the names that keep prompts apart.
//!
//! One pass that skips every other field; token arrays become numbers without a tree in between. Where a body holds a batch, the
//! first prompt counts: the batch goes to one engine, and its prompts mostly share their beginning.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::NoTokens;
use super::{PromptKind, PromptSettings};

/// Where a prompt's tokens come from.
#[derive(Debug, PartialEq)]
pub(super) enum Source {
    /// The body has them.
    Ids(Vec<u32>),
    /// This text.
    Text(String),
    /// The body's messages.
    Chat,
}

/// What a body asks for.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) source: Source,
    pub(super) cache_salt: Option<String>,
    pub(super) lora: Option<String>,
}

/// Reads a body.
///
/// # Errors
/// Refuses one that is no JSON object, has no prompt of a known form, or a prompt beyond the limit.
pub(super) fn read(kind: PromptKind, body: &[u8], settings: &PromptSettings) -> Result<Asked, NoTokens> {
    let key = match kind {
        PromptKind::Chat => "messages",
        PromptKind::Completion => "prompt",
        PromptKind::Generate => "text",
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let fields = (&mut json).deserialize_map(FieldsVisitor { kind });
    let fields = fields.and_then(|fields| json.end().map(|()| fields)).map_err(|_| NoTokens::NoPrompt { key })?;
    if fields.has_media {
        return Err(NoTokens::Multimodal);
    }
    let max = settings.max_prompt_bytes;
    let too_long = NoTokens::TooLong { max_prompt_bytes: max };
    let source = match (fields.ids, fields.prompt) {
        (Field::Ids(ids), _) | (Field::Absent, Field::Ids(ids)) => {
            if ids.len() > max {
                return Err(too_long);
            }
            Source::Ids(ids)
        }
        (Field::Absent, Field::Text(text)) => {
            if text.len() > max {
                return Err(too_long);
            }
            Source::Text(text)
        }
        (Field::Absent, Field::Absent) if kind == PromptKind::Chat => {
            if body.len() > max {
                return Err(too_long);
            }
            Source::Chat
        }
        _ => return Err(NoTokens::NoPrompt { key }),
    };
    Ok(Asked { source, cache_salt: fields.cache_salt.into_text(), lora: fields.lora.into_text() })
}

struct Fields {
    prompt: Field,
    ids: Field,
    cache_salt: Field,
    lora: Field,
    has_media: bool,
}

/// A field that is text or token ids, or a list of either.
enum Field {
    /// Not there, or null.
    Absent,
    Text(String),
    Ids(Vec<u32>),
    /// Of another type.
    Other,
}

impl Field {
    fn into_text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

struct FieldsVisitor {
    kind: PromptKind,
}

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields {
            prompt: Field::Absent,
            ids: Field::Absent,
            cache_salt: Field::Absent,
            lora: Field::Absent,
            has_media: false,
        };
        let prompt_key = match self.kind {
            PromptKind::Chat => None,
            PromptKind::Completion => Some("prompt"),
            PromptKind::Generate => Some("text"),
        };
        while let Some(Key(key)) = map.next_key()? {
            match key.as_ref() {
                key if Some(key) == prompt_key => fields.prompt = map.next_value()?,
                // SGLang takes ready-made ids in chats too, and then renders nothing.
                "input_ids" if self.kind != PromptKind::Completion => fields.ids = map.next_value()?,
                "cache_salt" => fields.cache_salt = map.next_value()?,
                "lora_path" => fields.lora = map.next_value()?,
                "image_data" | "video_data" | "audio_data" | "input_embeds" | "prompt_embeds" => {
                    fields.has_media |= map.next_value::<Option<IgnoredAny>>()?.is_some();
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }
}

/// A key, borrowed from the body unless it holds escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor { is_nested: false })
    }
}

/// Reads a field. Inside a list (`is_nested`), a list is one of ids.
#[derive(Clone, Copy)]
struct FieldVisitor {
    is_nested: bool,
}

impl<'de> DeserializeSeed<'de> for FieldVisitor {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(ElementVisitor(self))
    }
}

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("text, token ids, or a list of either")
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        Ok(Field::Absent)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        Ok(Field::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Field, A::Error> {
        let first = seq.next_element_seed(FieldVisitor { is_nested: true })?;
        match first {
            Some(Element::Id(first)) => {
                let mut ids = vec![first];
                // An id that is none spoils the array: serde refuses it here.
                while let Some(id) = seq.next_element::<u32>()? {
                    ids.push(id);
                }
                Ok(Field::Ids(ids))
            }
            Some(Element::Field(field)) => {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(if self.is_nested { Field::Other } else { field })
            }
            None => Ok(Field::Other),
        }
    }
}

/// The first element of a list.
enum Element {
    Id(u32),
    Field(Field),
}

struct ElementVisitor(FieldVisitor);

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(formatter)
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
        u32::try_from(id).map(Element::Id).map_err(|_| E::custom("a token id beyond 32 bits"))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Element, E> {
        Err(E::custom("a negative token id"))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Element, E> {
        Err(E::custom("a token id with a fraction"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Element, E> {
        Ok(Element::Field(Field::Other))
    }

    fn visit_unit<E>(self) -> Result<Element, E> {
        Ok(Element::Field(Field::Other))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        self.0.visit_str(text).map(Element::Field)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
        self.0.visit_map(map).map(Element::Field)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
        self.0.visit_seq(seq).map(Element::Field)
    }
}
