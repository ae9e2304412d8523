//! The tokens of stored blocks.
//!
//! EAGLE-family models store overlapping pairs, `[[a, b], [b, c]]`, and count block sizes in pairs. Most of a frame is tokens,
//! so a caller that goes by the engine's own hashes skips them and learns only how many there were and of which kind.

use serde::de::{IgnoredAny, SeqAccess};

use crate::logic::kv_event::TokenIds;
use crate::wire::lenient::{Accept, Lenient, Scalar, skip_items};

/// Room made for tokens before they are read. An announced length may be a lie, so it reserves no more than this.
const MAX_RESERVED: usize = 4_096;

/// Whether the caller needs token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenUse {
    /// It does. Token ids that cannot be read refuse their event.
    Keep,
    /// It goes by the engine's hashes. Token ids are counted, but not read.
    Skip,
}

/// Returns what an absent list of tokens is.
pub(super) fn absent(tokens: TokenUse) -> TokenIds {
    match tokens {
        TokenUse::Keep => TokenIds::Flat(Vec::new()),
        TokenUse::Skip => TokenIds::Skipped { count: 0 },
    }
}

/// Reads a list of tokens; `None` where a caller that needs them would not get them.
pub(super) struct TokensReader(pub(super) TokenUse);

impl<'de> Accept<'de> for TokensReader {
    type Value = Option<TokenIds>;

    fn scalar(self, scalar: Scalar<'de>) -> Option<TokenIds> {
        match (self.0, scalar) {
            (TokenUse::Skip, _) | (TokenUse::Keep, Scalar::Nil) => Some(absent(self.0)),
            (TokenUse::Keep, _) => None,
        }
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<TokenIds>, A::Error> {
        match self.0 {
            TokenUse::Skip => count_tokens(items).map(Some),
            TokenUse::Keep => {
                let tokens = read_tokens(&mut items)?;
                skip_items(&mut items)?;
                Ok(tokens)
            }
        }
    }
}

fn count_tokens<'de, A: SeqAccess<'de>>(mut items: A) -> Result<TokenIds, A::Error> {
    let Some(first) = items.next_element_seed(Lenient(TokenReader))? else {
        return Ok(TokenIds::Skipped { count: 0 });
    };
    let mut count = 1;
    while items.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(match first {
        Some(Token::Pair(_)) => TokenIds::SkippedPairs { count },
        Some(Token::Single(_)) | None => TokenIds::Skipped { count },
    })
}

fn read_tokens<'de, A: SeqAccess<'de>>(items: &mut A) -> Result<Option<TokenIds>, A::Error> {
    let reserved = items.size_hint().unwrap_or(0).min(MAX_RESERVED);
    Ok(match items.next_element_seed(Lenient(TokenReader))? {
        None => Some(absent(TokenUse::Keep)),
        Some(None) => None,
        Some(Some(Token::Single(first))) => {
            let mut ids = Vec::with_capacity(reserved);
            ids.push(first);
            while let Some(token) = items.next_element_seed(Lenient(TokenReader))? {
                let Some(Token::Single(id)) = token else {
                    return Ok(None);
                };
                ids.push(id);
            }
            Some(TokenIds::Flat(ids))
        }
        Some(Some(Token::Pair(first))) => {
            let mut pairs = Vec::with_capacity(reserved);
            pairs.push(first);
            while let Some(token) = items.next_element_seed(Lenient(TokenReader))? {
                let Some(Token::Pair(pair)) = token else {
                    return Ok(None);
                };
                pairs.push(pair);
            }
            Some(TokenIds::Pairs(pairs))
        }
    })
}

enum Token {
    Single(u32),
    Pair([u32; 2]),
}

struct TokenReader;

impl<'de> Accept<'de> for TokenReader {
    type Value = Option<Token>;

    fn scalar(self, scalar: Scalar<'de>) -> Option<Token> {
        token_id(&scalar).map(Token::Single)
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Token>, A::Error> {
        let first = items.next_element::<Scalar<'de>>()?;
        let second = items.next_element::<Scalar<'de>>()?;
        let excess = items.next_element::<IgnoredAny>()?;
        skip_items(&mut items)?;
        Ok(match (first, second, excess) {
            (Some(first), Some(second), None) => {
                token_id(&first).zip(token_id(&second)).map(|pair| Token::Pair(pair.into()))
            }
            _ => None,
        })
    }
}

fn token_id(scalar: &Scalar<'_>) -> Option<u32> {
    u32::try_from(scalar.as_unsigned()?).ok()
}
