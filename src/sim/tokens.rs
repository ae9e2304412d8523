//! From texts to tokens.
//!
//! The rule of the simulation: a text becomes one token per four characters, the last one of what is left, and the id of a
//! token is a hash of its characters modulo 32,000. A word of the simulation's own answers, ` t` and a number, is one token
//! wherever a token can start, with the number as its id. Hence equal beginnings of texts have equal beginnings of tokens,
//! and the text of an answer has the tokens that were generated: the next turn of a conversation begins with all tokens of
//! the turn before it.

use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

const CHARACTERS_PER_TOKEN: usize = 4;

const VOCABULARY_SIZE: u64 = 32_000;

/// What every generated word begins with; its number follows.
const WORD_START: &str = " t";

/// How an engine turns texts into tokens. The default is the rule of the simulation: one token per four characters, and one
/// per word of its own answers.
///
/// Each text of a request, be it a prompt or the content of a message, is turned into tokens on its own, and these are put
/// one after the other, without templates or special tokens.
#[derive(Clone)]
pub struct Tokenizer(Arc<Tokenize>);

type Tokenize = dyn Fn(&str) -> Vec<u32> + Send + Sync;

impl Tokenizer {
    /// Returns a tokenizer that calls a function.
    pub fn new(tokenize: impl Fn(&str) -> Vec<u32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(tokenize))
    }

    /// Returns the tokens of a text.
    #[must_use]
    pub fn tokenize(&self, text: &str) -> Vec<u32> {
        (self.0)(text)
    }
}

impl Default for Tokenizer {
    fn default() -> Self {
        Self::new(simulated)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tokenizer").finish_non_exhaustive()
    }
}

/// Returns the id of the generated token with this index. Every answer has the same tokens.
pub(super) fn generated(index: u64) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Returns the text of the generated tokens with these indices.
pub(super) fn generated_text(from: u64, to: u64) -> String {
    (from..to).map(|index| format!("{WORD_START}{}", generated(index))).collect()
}

fn simulated(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len() / CHARACTERS_PER_TOKEN + 1);
    let mut rest = text;
    while !rest.is_empty() {
        let (token, after) = next_word(rest).unwrap_or_else(|| next_piece(rest));
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// Takes a word of an answer off a text that begins with one.
fn next_word(text: &str) -> Option<(u32, &str)> {
    let number = text.strip_prefix(WORD_START)?;
    let num_digits = number.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = number.split_at(num_digits);
    Some((digits.parse().ok()?, rest))
}

/// Takes four characters, or what is left, off a text.
fn next_piece(text: &str) -> (u32, &str) {
    let end = text.char_indices().nth(CHARACTERS_PER_TOKEN).map_or(text.len(), |(at, _)| at);
    let (piece, rest) = text.split_at(end);
    let id = xxh3_64(piece.as_bytes()) % VOCABULARY_SIZE;
    (u32::try_from(id).unwrap_or_default(), rest)
}

#[cfg(test)]
mod tests {
    use super::{Tokenizer, VOCABULARY_SIZE, generated, generated_text};

    #[test]
    fn a_text_has_one_token_per_four_characters_and_equal_beginnings_are_equal() {
        let tokenizer = Tokenizer::default();
        for (text, expected) in [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ÄÖÜß", 1)] {
            assert_eq!(tokenizer.tokenize(text).len(), expected, "{text}");
        }
        let (short, long) = (tokenizer.tokenize("one two three"), tokenizer.tokenize("one two three four"));
        assert_eq!(short[..3], long[..3]);
        assert_ne!(short[3..], long[3..4], "the last piece of the short one is not full");
        assert!(long.iter().all(|token| u64::from(*token) < VOCABULARY_SIZE));
    }

    #[test]
    fn the_text_of_an_answer_has_the_tokens_that_were_generated() {
        let tokens: Vec<u32> = (0..300).map(generated).collect();
        assert_eq!(Tokenizer::default().tokenize(&generated_text(0, 300)), tokens);
        let others = [" t", " tx", " t99999999999"];
        assert_eq!(others.map(|text| Tokenizer::default().tokenize(text).len()), [1, 1, 4], "no words of an answer");
    }

    #[test]
    fn another_tokenizer_can_be_plugged_in() {
        let bytes = Tokenizer::new(|text| text.bytes().map(u32::from).collect());
        assert_eq!(bytes.tokenize("ab"), [97, 98]);
        assert_eq!(format!("{bytes:?}"), "Tokenizer { .. }");
    }
}
