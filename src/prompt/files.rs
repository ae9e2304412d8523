//! A model's files: where they are, and what of them is needed.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::PromptError;
use super::json::Json;

/// Bytes of a file beyond which it is no tokenizer's. The largest known have some 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// What a model's directory says beside the tokenizer itself.
#[derive(Debug, Default)]
pub(super) struct ModelFiles {
    /// The chat template.
    pub(super) template: Option<String>,
    /// The one for chats with tools, where it is another.
    pub(super) tool_template: Option<String>,
    /// The tokens that templates know by name: `bos_token`, `eos_token` and so on.
    pub(super) special_tokens: Vec<(String, String)>,
    /// Whether text that is no chat begins with `bos_token`, where the configuration says so.
    pub(super) add_bos_token: Option<bool>,
}

/// Returns the directory that holds `tokenizer.json`: the given one, or a snapshot in it.
///
/// # Errors
/// There is none.
pub(super) fn find_directory(path: &Path) -> Result<PathBuf, PromptError> {
    if path.join("tokenizer.json").is_file() {
        return Ok(path.to_owned());
    }
    let snapshots = path.join("snapshots");
    let named = fs::read_to_string(path.join("refs").join("main")).ok().map(|revision| snapshots.join(revision.trim()));
    let only = || {
        // A cache without `refs/main` was filled by revision: it is clear which is meant where there is one.
        let mut entries = fs::read_dir(&snapshots).ok()?.filter_map(Result::ok);
        entries.next().filter(|_| entries.next().is_none()).map(|entry| entry.path())
    };
    let snapshot = named.or_else(only).filter(|snapshot| snapshot.join("tokenizer.json").is_file());
    snapshot.ok_or_else(|| PromptError::NoTokenizer { path: path.to_owned() })
}

/// Reads what a directory says beside the tokenizer. Only a file that is there and broken is an error.
///
/// # Errors
/// Names the file.
pub(super) fn read_model_files(directory: &Path) -> Result<ModelFiles, PromptError> {
    let config = read_json(&directory.join("tokenizer_config.json"))?.unwrap_or(Json::Null);
    let older_tokens = read_json(&directory.join("special_tokens_map.json"))?.unwrap_or(Json::Null);
    let processor = read_json(&directory.join("chat_template.json"))?.unwrap_or(Json::Null);
    let mut files = ModelFiles {
        special_tokens: special_tokens(&config, &older_tokens),
        add_bos_token: config.get("add_bos_token").and_then(Json::as_bool),
        ..ModelFiles::default()
    };
    let from_file =
        read(&directory.join("chat_template.jinja"))?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match (from_file, processor.get("chat_template"), config.get("chat_template")) {
        (Some(template), _, _) => files.template = Some(template),
        (None, Some(Json::Text(template)), _) | (None, _, Some(Json::Text(template))) => {
            files.template = Some(template.clone());
        }
        (None, _, Some(Json::List(templates))) => {
            let named = |name: &str| {
                let entry = templates.iter().find(|entry| entry.get("name").and_then(Json::as_text) == Some(name))?;
                entry.get("template").and_then(Json::as_text).map(str::to_owned)
            };
            files.template = named("default");
            files.tool_template = named("tool_use");
        }
        _ => {}
    }
    Ok(files)
}

/// Reads the whole of a file; `None` where there is none.
///
/// # Errors
/// It is too large, or cannot be read.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, PromptError> {
    let failed = |source| PromptError::Read { path: path.to_owned(), source };
    let bytes = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if bytes > MAX_FILE_BYTES {
        return Err(PromptError::FileTooLarge { path: path.to_owned(), bytes, max: MAX_FILE_BYTES });
    }
    fs::read(path).map(Some).map_err(failed)
}

fn read_json(path: &Path) -> Result<Option<Json>, PromptError> {
    let Some(bytes) = read(path)? else {
        return Ok(None);
    };
    let json = serde_json::from_slice(&bytes).map_err(|source| PromptError::Json { path: path.to_owned(), source })?;
    Ok(Some(json))
}

/// Collects the fields named `*_token`, which are text or `{"content": text}`; the configuration outranks the older map.
fn special_tokens(config: &Json, older: &Json) -> Vec<(String, String)> {
    let mut tokens: Vec<(String, String)> = Vec::new();
    for source in [config, older] {
        let Json::Object(fields) = source else {
            continue;
        };
        for (name, value) in fields.iter().filter(|(name, _)| name.ends_with("_token")) {
            let text = value.as_text().or_else(|| value.get("content").and_then(Json::as_text));
            if let Some(text) = text.filter(|_| tokens.iter().all(|(known, _)| known != name)) {
                tokens.push((name.clone(), text.to_owned()));
            }
        }
    }
    tokens
}
