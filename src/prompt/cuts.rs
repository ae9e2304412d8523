//! Where text may be cut so that the tokens of its parts are the tokens of the whole.
//!
//! A tokenizer first splits text at its added tokens, such as `<|im_end|>`; what lies between two of them is encoded alone. So
//! text can be cut at an added token, with that token at the end of the left part and again at the beginning of the right one,
//! where it makes the tokenizer treat what follows as it would in the whole. That this holds for a token is not taken for
//! granted: it must not overlap with any other added token, and it must pass a test on texts known to make trouble.

use std::collections::BTreeMap;

use tokenizers::{AddedToken, NormalizerWrapper, Tokenizer};

/// The most tokens at which text is cut. A chat template has some ten.
const MAX_CUTS: usize = 64;
/// What a text before a token, and after it, may look like: spaces that a token may swallow, a mark that combines with the
/// character before it, letters and digits that would join, and another script.
const BEFORE: [&str; 7] = ["", "Hello", "so 12", " hi ", "x\n\n", "日本é", "e\u{301}"];
const AFTER: [&str; 10] = ["", "Hello", " hi", "  two", "\n\nx", " \n ", "日本 ", "\u{338}x", "34", "."];

/// The added tokens at which text may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    tokens: Vec<(String, u32)>,
    /// The bytes with which a token begins.
    is_first: [bool; 256],
}

/// A token in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Its first byte.
    pub(super) start: usize,
    /// The byte behind it.
    pub(super) end: usize,
    pub(super) id: u32,
}

impl Cuts {
    /// Returns the added tokens that `is_used` wants, as far as text can be cut there.
    pub(super) fn find(tokenizer: &Tokenizer, is_used: impl Fn(&str) -> bool) -> Self {
        let has_normalizer = changes_text(tokenizer);
        // In the order of their ids, so that the same ones are taken each time.
        let added: BTreeMap<u32, AddedToken> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let mut tokens: Vec<(String, u32)> = Vec::new();
        for (id, added_token) in &added {
            let token = added_token.content.as_str();
            // One that is looked for in normalized text may be changed together with its neighbours.
            let is_fixed = !(added_token.normalized && has_normalizer);
            let is_candidate = is_fixed && !token.is_empty() && token.trim() == token && is_used(token);
            let mut others = added.values().map(|other| other.content.as_str()).filter(|other| *other != token);
            let mut is_alone = || !overlaps_itself(token) && !others.any(|other| overlap(token, other));
            if is_candidate && tokens.len() < MAX_CUTS && is_alone() && holds(tokenizer, token, *id) {
                tokens.push((token.to_owned(), *id));
            }
        }
        let mut is_first = [false; 256];
        tokens.iter().filter_map(|(token, _)| token.bytes().next()).for_each(|byte| is_first[usize::from(byte)] = true);
        Self { tokens, is_first }
    }

    /// Returns the number of tokens at which text is cut.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the first token at or after a byte.
    pub(super) fn next(&self, text: &str, from: usize) -> Option<Cut> {
        let bytes = text.as_bytes();
        (from..bytes.len()).filter(|at| self.is_first[usize::from(bytes[*at])]).find_map(|start| {
            let found = self.tokens.iter().find(|(token, _)| bytes[start..].starts_with(token.as_bytes()));
            found.map(|(token, id)| Cut { start, end: start + token.len(), id: *id })
        })
    }
}

fn changes_text(tokenizer: &Tokenizer) -> bool {
    match tokenizer.get_normalizer() {
        Some(NormalizerWrapper::Sequence(steps)) => !steps.as_ref().is_empty(),
        normalizer => normalizer.is_some(),
    }
}

/// Tells whether two tokens can share characters of a text, so that which of them is found depends on what is around.
fn overlap(one: &str, other: &str) -> bool {
    one.contains(other) || other.contains(one) || ends_as_begins(one, other) || ends_as_begins(other, one)
}

fn overlaps_itself(token: &str) -> bool {
    token.char_indices().skip(1).any(|(at, _)| token.starts_with(&token[at..]))
}

/// Tells whether an end of `one` is a beginning of `other`.
fn ends_as_begins(one: &str, other: &str) -> bool {
    one.char_indices().any(|(at, _)| other.starts_with(&one[at..]))
}

/// Tests that text around the token is encoded as its two parts are.
fn holds(tokenizer: &Tokenizer, token: &str, id: u32) -> bool {
    let encode = |text: String| tokenizer.encode_fast(text, false).ok().map(|encoding| encoding.get_ids().to_vec());
    let befores = BEFORE.iter().map(|before| (*before, encode(format!("{before}{token}"))));
    let befores: Vec<_> = befores.collect();
    let again = format!("{token} y");
    AFTER.into_iter().chain([again.as_str()]).all(|after| {
        let Some(right) = encode(format!("{token}{after}")).filter(|right| right.first() == Some(&id)) else {
            return false;
        };
        befores.iter().all(|(before, left)| {
            let whole = encode(format!("{before}{token}{after}"));
            match (whole, left) {
                (Some(whole), Some(left)) => whole.strip_prefix(left.as_slice()) == Some(&right[1..]),
                _ => false,
            }
        })
    })
}
