//! What a TOML parser says, without the line that it would quote: a line may hold a key.

use crate::config::error::ConfigError;

/// Keeps line, key and reason of a parser's error and drops the line that it would quote.
pub(super) fn without_source_text(text: &str, mut error: toml::de::Error) -> ConfigError {
    let span = error.span().unwrap_or_default();
    let line = line_at(text, span.start);
    let reason = error.message().to_owned();
    // The parser knows the path of keys, but tells it only in the text of an error without source.
    error.set_input(None);
    let shown = error.to_string();
    let path = shown.trim_end().rsplit_once("\nin `").map(|(_, path)| path.trim_end_matches('`'));
    if let Some((name, _)) = reason.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
        let key = path.map_or_else(|| name.to_owned(), |path| format!("{path}.{name}"));
        return ConfigError::UnknownKey { line, key };
    }
    // A duplicate is found before paths are known, and its span is the key.
    let duplicate = text.get(span).filter(|_| reason == "duplicate key");
    match path.or(duplicate) {
        Some(key) => ConfigError::Type { line, key: key.to_owned(), reason },
        None => ConfigError::Syntax { line, reason },
    }
}

/// Returns the number of the line, from 1, on which that byte stands.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
