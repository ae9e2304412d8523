//! One model's tokenizer and templates: from a chat or a text to token ids.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokenizers::Tokenizer;

use super::cache::Cache;
use super::chat;
use super::cuts::Cuts;
use super::error::{NoTokens, PromptError};
use super::files::{self, ModelFiles};
use super::settings::ChatStyle;
use super::template::Templates;

/// Bytes below which a piece is not worth an entry of the cache: a role's header and a short answer.
const MIN_PIECE_BYTES: usize = 256;

/// White space in a row beyond which a text is refused: the regex library gives up at a million steps back, without a word, and
/// the tokens would be wrong.
const MAX_SPACES: usize = 500_000;

/// What loading an encoder takes.
#[derive(Clone)]
pub(super) struct EncoderSetup {
    pub(super) style: ChatStyle,
    pub(super) clock: fn() -> SystemTime,
    pub(super) max_prompt_bytes: usize,
    pub(super) cache: Arc<Cache>,
    /// The encoder's table in the cache.
    pub(super) slot: usize,
}

/// A loaded tokenizer.
pub(super) struct Encoder {
    tokenizer: Tokenizer,
    templates: Templates,
    cuts: Cuts,
    /// What is put around a text that is no chat; `None` where it is not the same around every text.
    around: Option<Around>,
    setup: EncoderSetup,
}

#[derive(Debug, PartialEq)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Encoder {
    /// Loads what is in a directory. Takes up to some seconds.
    ///
    /// # Errors
    /// A file is missing, too large or broken.
    pub(super) fn load(path: &Path, setup: EncoderSetup) -> Result<Self, PromptError> {
        let directory = files::find_directory(path)?;
        let path = directory.join("tokenizer.json");
        let bytes = files::read(&path)?.ok_or(PromptError::NoTokenizer { path: directory.clone() })?;
        let broken =
            |error: tokenizers::Error| PromptError::Tokenizer { path: path.clone(), reason: error.to_string() };
        let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(broken)?;
        // Engines neither cut nor fill prompts by what the file says.
        tokenizer.with_truncation(None).map_err(broken)?;
        tokenizer.with_padding(None);
        let files = files::read_model_files(&directory)?;
        let templates = Templates::new(&files, setup.style, setup.clock, setup.max_prompt_bytes);
        let cuts = Cuts::find(&tokenizer, |token| is_in_chats(&files, token));
        let around = Around::find(&tokenizer, &files);
        Ok(Self { tokenizer, templates, cuts, around, setup })
    }

    /// Returns the number of tokens at which text is cut for the cache. Zero: the cache is not used.
    pub(super) fn num_cuts(&self) -> usize {
        self.cuts.len()
    }

    /// Returns the tokens of a chat's body. Gives up as soon as `is_wanted` says no.
    ///
    /// # Errors
    /// The body is no chat, cannot be rendered, or cannot be encoded.
    pub(super) fn chat(&self, body: &[u8], is_wanted: impl Fn() -> bool) -> Result<Vec<u32>, NoTokens> {
        self.plain(&self.render(body)?, is_wanted)
    }

    /// Returns a chat as text.
    ///
    /// # Errors
    /// The body is no chat, or cannot be rendered.
    pub(super) fn render(&self, body: &[u8]) -> Result<String, NoTokens> {
        chat::render(body, &self.templates, self.setup.style)
    }

    /// Returns the tokens of a text that is no chat, with what the tokenizer puts around it.
    ///
    /// # Errors
    /// The text cannot be encoded.
    pub(super) fn text(&self, text: &str, is_wanted: impl Fn() -> bool) -> Result<Vec<u32>, NoTokens> {
        let Some(around) = &self.around else {
            return self.encode(text, true);
        };
        let mut ids = around.before.clone();
        ids.extend(self.plain(text, is_wanted)?);
        ids.extend(&around.after);
        Ok(ids)
    }

    /// Encodes text as it stands, piece by piece where it can be cut, with the pieces' tokens from the cache where it has them.
    fn plain(&self, text: &str, is_wanted: impl Fn() -> bool) -> Result<Vec<u32>, NoTokens> {
        if self.setup.cache.is_off() {
            return self.encode(text, false);
        }
        let mut ids = Vec::new();
        // The token at which the last piece ended, and with which the next one begins again.
        let mut last = None;
        let mut start = 0;
        let mut from = 0;
        while let Some(cut) = self.cuts.next(text, from) {
            from = cut.end;
            if cut.end - start < MIN_PIECE_BYTES {
                continue;
            }
            if !is_wanted() {
                return Err(NoTokens::TimedOut);
            }
            let piece = self.piece(&text[start..cut.end])?;
            if !append(&mut ids, &piece, last) {
                return self.encode(text, false);
            }
            (start, last) = (cut.start, Some(cut.id));
        }
        // What follows the last cut is about to change, and is not kept.
        let rest = self.encode(&text[start..], false)?;
        if append(&mut ids, &rest, last) { Ok(ids) } else { self.encode(text, false) }
    }

    fn piece(&self, piece: &str) -> Result<Arc<[u32]>, NoTokens> {
        let EncoderSetup { cache, slot, .. } = &self.setup;
        if let Some(ids) = cache.get(*slot, piece) {
            return Ok(ids);
        }
        let ids: Arc<[u32]> = self.encode(piece, false)?.into();
        cache.put(*slot, piece, Arc::clone(&ids));
        Ok(ids)
    }

    fn encode(&self, text: &str, with_specials: bool) -> Result<Vec<u32>, NoTokens> {
        if has_endless_space(text) {
            return Err(NoTokens::EncodeFailed { reason: format!("more than {MAX_SPACES} spaces in a row") });
        }
        encode(&self.tokenizer, text, with_specials)
            .map_err(|error| NoTokens::EncodeFailed { reason: error.to_string() })
    }
}

/// Appends a piece's tokens, without the first one where the piece before had it. Tells whether it was there.
fn append(ids: &mut Vec<u32>, piece: &[u32], shared: Option<u32>) -> bool {
    match (shared, piece.split_first()) {
        (None, _) => ids.extend(piece),
        (Some(shared), Some((first, rest))) if *first == shared => ids.extend(rest),
        _ => return false,
    }
    true
}

fn has_endless_space(text: &str) -> bool {
    let mut num_spaces = 0;
    text.len() > MAX_SPACES
        && text.chars().any(|character| {
            num_spaces = if character.is_whitespace() { num_spaces + 1 } else { 0 };
            num_spaces > MAX_SPACES
        })
}

fn encode(tokenizer: &Tokenizer, text: &str, with_specials: bool) -> tokenizers::Result<Vec<u32>> {
    Ok(tokenizer.encode_fast(text, with_specials)?.get_ids().to_vec())
}

/// Tells whether an added token is one that chats are made of.
fn is_in_chats(files: &ModelFiles, token: &str) -> bool {
    let templates = [&files.template, &files.tool_template];
    files.special_tokens.iter().any(|(_, special)| special == token)
        || templates.into_iter().flatten().any(|template| template.contains(token))
}

impl Around {
    /// Looks at two texts with and without what is put around them.
    fn find(tokenizer: &Tokenizer, files: &ModelFiles) -> Option<Self> {
        let of = |text: &str| {
            let bare = encode(tokenizer, text, false).ok()?;
            let whole = encode(tokenizer, text, true).ok()?;
            let mut places = (0..=whole.len().checked_sub(bare.len())?).filter(|at| whole[*at..].starts_with(&bare));
            let (at, None) = (places.next()?, places.next()) else {
                return None;
            };
            Some(Self { before: whole[..at].to_vec(), after: whole[at + bare.len()..].to_vec() })
        };
        let mut around = of("Hello world").filter(|around| of("1 + é").as_ref() == Some(around))?;
        let token = files.special_tokens.iter().find(|(name, _)| name == "bos_token").map(|(_, token)| token);
        let bos = token.and_then(|token| tokenizer.token_to_id(token));
        match (files.add_bos_token, bos) {
            (Some(true), Some(bos)) if around.before.is_empty() => around.before.push(bos),
            (Some(false), Some(bos)) if around.before == [bos] => around.before.clear(),
            _ => {}
        }
        Some(around)
    }
}
