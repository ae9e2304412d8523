//! Files with keys: one per line, so that keys can be added and withdrawn one by one.

use std::io::Read;
use std::path::Path;

use crate::config::error::ConfigError;
use crate::logic::endpoint::Secret;

/// Some twenty thousand keys; whatever is larger is another file than the one that was meant.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the keys of a file. Surrounding white space, empty lines and lines that start with `#` do not count.
///
/// # Errors
/// Refuses a file that cannot be read, that holds no key, or in which one is not made of visible ASCII characters: a header
/// could not carry it. Names the line and never quotes it.
pub(crate) fn read_keys(key: &'static str, path: &Path) -> Result<Vec<Secret>, ConfigError> {
    let refused = |reason: String| ConfigError::NamedFile { key, path: path.to_owned(), reason };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| refused(error.to_string()))?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| refused(error.to_string()))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refused(format!("is larger than {MAX_BYTES} bytes")));
    }
    keys_of(&text).map_err(refused)
}

fn keys_of(text: &str) -> Result<Vec<Secret>, String> {
    let mut keys = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if !line.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("line {}: a key must consist of visible ASCII characters", number + 1));
        }
        keys.push(Secret::new(line));
    }
    if keys.is_empty() { Err("holds no key".to_owned()) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::keys_of;

    #[test]
    fn every_line_that_is_neither_empty_nor_a_comment_is_a_key() {
        let keys = keys_of("# of the team\r\nsk-one\r\n\n  sk-two\t\n#sk-three\n").expect("two keys");
        assert_eq!(keys.iter().map(|key| key.reveal()).collect::<Vec<_>>(), ["sk-one", "sk-two"]);
    }

    #[test]
    fn a_text_without_keys_or_with_one_that_no_header_carries_is_refused_unquoted() {
        for text in ["", "\n\n", "# nothing but this"] {
            assert_eq!(keys_of(text).expect_err(text), "holds no key");
        }
        for text in ["sk-one\nsk two", "sk-one\nsk-\u{e9}", "sk-one\nsk-\u{1b}[0m"] {
            let refused = keys_of(text).expect_err(text);
            assert_eq!(refused, "line 2: a key must consist of visible ASCII characters");
        }
    }
}
