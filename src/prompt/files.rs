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
    /// Whether text that is no chat begins with `bos_token`, where the configuration decides that.
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
        add_bos_token: add_bos_token(&config),
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

/// Returns `add_bos_token` for the tokenizer classes that obey it, whatever `tokenizer.json` puts around a text. For the others
/// engines ignore it.
fn add_bos_token(config: &Json) -> Option<bool> {
    const OBEYING: [&str; 4] = ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"];
    let class = config.get("tokenizer_class").and_then(Json::as_text)?;
    let is_obeyed = OBEYING.contains(&class.strip_suffix("Fast").unwrap_or(class));
    config.get("add_bos_token").and_then(Json::as_bool).filter(|_| is_obeyed)
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{find_directory, read_model_files};

    /// Paths and texts.
    type Files<'a> = &'a [(&'a str, &'a str)];

    /// A directory that is removed at the end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str, files: Files<'_>) -> Self {
            let path = std::env::temp_dir().join(format!("prompt-files-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = path.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_tokenizer_is_found_in_a_directory_and_in_a_cache() {
        let rows: [(&str, Files<'_>, Option<&str>); 6] = [
            ("plain", &[("tokenizer.json", "{}")], Some("")),
            (
                "cache",
                &[("refs/main", "abc\n"), ("snapshots/abc/tokenizer.json", ""), ("snapshots/x/tokenizer.json", "")],
                Some("snapshots/abc"),
            ),
            ("one-revision", &[("snapshots/abc/tokenizer.json", "")], Some("snapshots/abc")),
            ("two-revisions", &[("snapshots/abc/tokenizer.json", ""), ("snapshots/x/tokenizer.json", "")], None),
            ("weights-alone", &[("refs/main", "abc"), ("snapshots/abc/model.bin", "")], None),
            ("nothing", &[("README", "")], None),
        ];
        for (name, files, expected) in rows {
            let directory = Directory::new(name, files);
            let found = find_directory(&directory.0).ok();
            assert_eq!(
                found,
                expected.map(|path| directory.0.join(path)).map(|path| path.components().collect()),
                "{name}"
            );
        }
        assert!(find_directory(Path::new("does/not/exist")).is_err());
    }

    #[test]
    fn a_template_is_read_from_wherever_it_outranks_others() {
        let config = ("tokenizer_config.json", r#"{"chat_template":"from config"}"#);
        let list = (
            "tokenizer_config.json",
            r#"{"chat_template":[{"name":"tool_use","template":"tools"},{"name":"default","template":"plain"}]}"#,
        );
        let processor = ("chat_template.json", r#"{"chat_template":"from processor"}"#);
        let jinja = ("chat_template.jinja", "from file");
        let rows: [(&str, Files<'_>, Option<&str>, Option<&str>); 5] = [
            ("config", &[config], Some("from config"), None),
            ("list", &[list], Some("plain"), Some("tools")),
            ("processor", &[config, processor], Some("from processor"), None),
            ("jinja", &[list, processor, jinja], Some("from file"), None),
            ("none", &[("tokenizer_config.json", "{}")], None, None),
        ];
        for (name, files, template, tool_template) in rows {
            let directory = Directory::new(name, files);
            let found = read_model_files(&directory.0).unwrap();
            assert_eq!(
                (found.template.as_deref(), found.tool_template.as_deref()),
                (template, tool_template),
                "{name}"
            );
        }
        let broken = Directory::new("broken", &[("tokenizer_config.json", "{")]);
        assert!(read_model_files(&broken.0).unwrap_err().to_string().contains("tokenizer_config.json"));
    }

    #[test]
    fn special_tokens_are_text_or_objects_and_some_classes_obey_add_bos_token() {
        let older = ("special_tokens_map.json", r#"{"eos_token":"old","pad_token":{"content":"<pad>"}}"#);
        let config = r#"{"bos_token":{"content":"<s>"},"eos_token":"</s>","unk_token":null,"add_bos_token":true,"tokenizer_class":"CLASS"}"#;
        for (class, add_bos_token) in [("LlamaTokenizerFast", Some(true)), ("Qwen2Tokenizer", None)] {
            let config = config.replace("CLASS", class);
            let directory = Directory::new(class, &[older, ("tokenizer_config.json", &config)]);
            let files = read_model_files(&directory.0).unwrap();
            let expected = [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")];
            let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
            assert_eq!(files.special_tokens, expected);
            assert_eq!(files.add_bos_token, add_bos_token, "{class}");
        }
    }
}
