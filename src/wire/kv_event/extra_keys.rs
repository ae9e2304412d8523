//! What beside its tokens went into a block's hash, as vLLM's `extra_keys` say it: a list with, per block, nil or a tuple.
//!
//! A tuple holds, in this order and only where they apply: the adapter's name (every block), images with their places, the salt
//! (first block of a prompt only), digests of embeddings (vLLM 0.32). A salt is text like any other, so it is told by its place:
//! alone, beside the adapter's name, on the first block of a prompt, with nothing else on the blocks after it.

use std::borrow::Cow;

use serde::de::SeqAccess;

use crate::wire::lenient::{Accept, Lenient, Scalar, skip_items};

/// The tuples of one event, as far as they are texts.
#[derive(Debug, Default)]
pub(super) struct ExtraKeys<'a> {
    first: Tuple<'a>,
    rest: Rest<'a>,
}

/// What remains of the tuples without the adapter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extra<'a> {
    pub(super) salt: Option<Cow<'a, str>>,
    pub(super) is_opaque: bool,
}

#[derive(Debug, Default)]
enum Tuple<'a> {
    #[default]
    Empty,
    One(Cow<'a, str>),
    Two(Cow<'a, str>, Cow<'a, str>),
    Odd,
}

/// The tuples of the blocks after the first.
#[derive(Debug, Default)]
enum Rest<'a> {
    #[default]
    Empty,
    Same(Cow<'a, str>),
    Odd,
}

impl<'a> ExtraKeys<'a> {
    /// Takes the adapter's name away from each tuple and says what is left.
    pub(super) fn beyond(self, lora_name: Option<&str>, starts_prompt: bool) -> Extra<'a> {
        let is_lora = |text: &str| lora_name == Some(text);
        let rest_is_plain = match &self.rest {
            Rest::Empty => true,
            Rest::Same(text) => is_lora(text),
            Rest::Odd => false,
        };
        let salt = match self.first {
            Tuple::Empty => None,
            Tuple::One(text) if is_lora(&text) => None,
            Tuple::Two(lora, text) if is_lora(&lora) => Some(text),
            Tuple::One(text) => Some(text),
            Tuple::Two(..) | Tuple::Odd => return Extra { salt: None, is_opaque: true },
        };
        let is_opaque = !rest_is_plain || (salt.is_some() && !starts_prompt);
        Extra { salt: salt.filter(|_| !is_opaque), is_opaque }
    }
}

/// Reads the tuples of all blocks.
pub(super) struct ExtraKeysReader;

impl<'de> Accept<'de> for ExtraKeysReader {
    type Value = ExtraKeys<'de>;

    fn scalar(self, scalar: Scalar<'de>) -> ExtraKeys<'de> {
        let first = if scalar == Scalar::Nil { Tuple::Empty } else { Tuple::Odd };
        ExtraKeys { first, rest: Rest::Empty }
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<ExtraKeys<'de>, A::Error> {
        let first = items.next_element_seed(Lenient(TupleReader))?.unwrap_or_default();
        let mut rest = None;
        while let Some(tuple) = items.next_element_seed(Lenient(TupleReader))? {
            rest = Some(match (rest, tuple) {
                (None | Some(Rest::Empty), Tuple::Empty) => Rest::Empty,
                (None, Tuple::One(text)) => Rest::Same(text),
                (Some(Rest::Same(same)), Tuple::One(text)) if same == text => Rest::Same(same),
                _ => Rest::Odd,
            });
        }
        Ok(ExtraKeys { first, rest: rest.unwrap_or_default() })
    }
}

struct TupleReader;

impl<'de> Accept<'de> for TupleReader {
    type Value = Tuple<'de>;

    fn scalar(self, scalar: Scalar<'de>) -> Tuple<'de> {
        if scalar == Scalar::Nil { Tuple::Empty } else { Tuple::Odd }
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tuple<'de>, A::Error> {
        let mut tuple = Tuple::Empty;
        while let Some(item) = items.next_element::<Scalar<'de>>()? {
            tuple = match (tuple, item) {
                (Tuple::Empty, Scalar::Text(text)) => Tuple::One(text),
                (Tuple::One(first), Scalar::Text(second)) => Tuple::Two(first, second),
                _ => Tuple::Odd,
            };
        }
        skip_items(&mut items)?;
        Ok(tuple)
    }
}

#[cfg(test)]
mod tests {
    use super::{Extra, ExtraKeysReader};
    use crate::wire::lenient::Lenient;
    use serde::de::DeserializeSeed;

    fn beyond(json: &str, lora_name: Option<&str>, starts_prompt: bool) -> (Option<String>, bool) {
        let mut reader = serde_json::Deserializer::from_str(json);
        let Extra { salt, is_opaque } =
            Lenient(ExtraKeysReader).deserialize(&mut reader).unwrap().beyond(lora_name, starts_prompt);
        (salt.map(|salt| salt.into_owned()), is_opaque)
    }

    #[test]
    fn a_salt_is_told_from_an_adapter_and_an_image_by_its_place() {
        let salt = |text: &str| (Some(text.to_owned()), false);
        let (none, opaque) = ((None, false), (None, true));
        let rows = [
            ("nothing", "null", None, true, none.clone()),
            ("nothing per block", "[null, null]", None, true, none.clone()),
            ("empty tuples", "[[], []]", None, true, none.clone()),
            ("an adapter on each block", r#"[["a"], ["a"]]"#, Some("a"), true, none.clone()),
            ("an adapter on later blocks", r#"[["a"], ["a"]]"#, Some("a"), false, none),
            ("a salt", r#"[["s"], null]"#, None, true, salt("s")),
            ("a salt beside an adapter", r#"[["a", "s"], ["a"]]"#, Some("a"), true, salt("s")),
            ("a salt equal to the adapter", r#"[["a", "a"], ["a"]]"#, Some("a"), true, salt("a")),
            ("a text that is not on a prompt's first block", r#"[["s"], null]"#, None, false, opaque.clone()),
            ("an image", r#"[[["mm-hash", 4]], null]"#, None, true, opaque.clone()),
            ("an image on a later block", r#"[["salt"], null, [["mm-hash", 4]]]"#, None, true, opaque.clone()),
            ("a bare image hash on two blocks", r#"[["h"], ["h"]]"#, None, true, opaque.clone()),
            ("two texts without an adapter", r#"[["h", "s"]]"#, None, true, opaque.clone()),
            ("another adapter than the event's", r#"[["b"], ["b"]]"#, Some("a"), true, opaque.clone()),
            ("a number", r#"[[7]]"#, None, true, opaque.clone()),
            ("not a list", "true", None, true, opaque),
        ];
        for (sentence, json, lora_name, starts_prompt, expected) in rows {
            assert_eq!(beyond(json, lora_name, starts_prompt), expected, "{sentence}");
        }
    }
}
