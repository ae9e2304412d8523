//! The file of workers that is read again while the router runs: `worker_urls` and `[[worker]]` tables, as in the configuration
//! file, and nothing else.
//!
//! An empty list is a valid one, but it must be written out (`worker_urls = []`): a file without either key is one that is being
//! written, or the wrong one, and the whole fleet would go with it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::config::error::ConfigError;
use crate::config::raw_worker::RawWorker;
use crate::config::toml_error::without_source_text;
use crate::config::workers::endpoints;
use crate::logic::endpoint::Endpoint;

const KEY: &str = "workers_file";
/// Some ten thousand workers; whatever is larger is another file than the one that was meant.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorkersFile {
    worker_urls: Option<Vec<String>>,
    worker: Option<Vec<RawWorker>>,
}

/// Reads the text of the file. Waits for the disk.
///
/// # Errors
/// Where it cannot be read, is larger than 4 MiB, or is not UTF-8.
pub(crate) fn read_workers_text(path: &Path) -> Result<String, ConfigError> {
    let refused = |reason: String| ConfigError::NamedFile { key: KEY, path: path.to_owned(), reason };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| refused(error.to_string()))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refused(format!("is larger than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// Returns the workers of the text that was read from `path`.
///
/// # Errors
/// Refuses the text as a whole, by the rules of the configuration file.
pub(crate) fn workers_of(
    path: &Path,
    text: &str,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<Endpoint>, ConfigError> {
    let refused = |reason: String| ConfigError::NamedFile { key: KEY, path: path.to_owned(), reason };
    let raw: RawWorkersFile =
        toml::from_str(text).map_err(|error| refused(without_source_text(text, error).to_string()))?;
    if raw.worker_urls.is_none() && raw.worker.is_none() {
        return Err(refused("holds neither worker_urls nor a [[worker]] table".to_owned()));
    }
    let (list, tables) = (raw.worker_urls.unwrap_or_default(), raw.worker.unwrap_or_default());
    endpoints(&list, &tables, environment).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{read_workers_text, workers_of};

    fn read(text: &str) -> Result<Vec<String>, String> {
        let endpoints = workers_of(Path::new("w.toml"), text, &|_: &str| None).map_err(|error| error.to_string())?;
        Ok(endpoints.iter().map(|endpoint| endpoint.url.to_string()).collect())
    }

    #[test]
    fn a_list_and_tables_are_read_as_in_the_configuration_and_an_empty_list_is_written_out() {
        let text = "worker_urls = ['a:1', 'b:1, a:1/']\n[[worker]]\nurl = 'c:1'\nmodels = ['m']\n";
        assert_eq!(read(text), Ok(["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned).to_vec()));
        assert_eq!(read("worker_urls = []"), Ok(Vec::new()));
    }

    /// Seen in sgl-project/sglang#12621.
    #[test]
    fn what_is_not_a_list_of_workers_is_refused_whole_with_a_reason() {
        let rows = [
            ("", "holds neither worker_urls nor a [[worker]] table"),
            ("# nothing yet\n", "holds neither worker_urls nor a [[worker]] table"),
            ("worker_urls = ['a:1', 'b:0']", "worker_urls: \"b:0\" is not the address of a worker"),
            ("worker_urls = ['a:1,,b:1']", "worker_urls = \"a:1,,b:1\": must not have an empty element"),
            ("worker_urls = 'a:1'", "line 1: worker_urls: invalid type: string"),
            ("worker_urls = ['a:1']\npolicy = 'random'", "line 2: policy: there is no such setting"),
            ("worker_urls = ['a:1'", "line 1: "),
            ("[[worker]]\nurl = 'a:1'\napi_key_env = 'GONE'", "worker http://a:1: api_key_env = \"GONE\": this"),
        ];
        for (text, reason) in rows {
            let refused = read(text).expect_err(text);
            assert!(refused.starts_with(&format!("workers_file = \"w.toml\": {reason}")), "{text}: {refused}");
        }
    }

    #[test]
    fn a_file_that_is_missing_too_large_or_no_file_is_refused() {
        let path = std::env::temp_dir().join(format!("fathom-workers-{}", std::process::id()));
        assert!(read_workers_text(&path).is_err());
        assert!(read_workers_text(&std::env::temp_dir()).is_err());
        std::fs::write(&path, "#".repeat(super::MAX_BYTES as usize + 1)).expect("written");
        let refused = read_workers_text(&path).expect_err("too large").to_string();
        std::fs::remove_file(&path).expect("removed");
        assert!(refused.ends_with("is larger than 4194304 bytes"), "{refused}");
    }
}
