//! The file that keeps the workers added by the operator: one JSON object per line, `{"readiness": ..., "worker": {...}}`, where
//! the worker is what was sent to add it. No key is in it, only names of variables. It is replaced as a whole: whoever reads it
//! finds the old or the new content, also after a crash in between.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::config::error::ConfigError;
use crate::config::worker_record::worker_of;
use crate::logic::address_guard::objection;
use crate::logic::admin_set::{AdminWorker, MAX_ADMIN_WORKERS};
use crate::logic::endpoint::Readiness;

const KEY: &str = "admin_workers_file";
/// Some four kilobytes for each worker that may be added.
const MAX_BYTES: u64 = 16 << 20;
const OWNER_ONLY: u32 = 0o600;

/// Reads the workers of the file. One that does not exist holds none: it is made with the first change.
///
/// # Errors
/// Refuses the file as a whole, and names the line, where one of its lines is not a worker that may be added.
pub(crate) fn read_admin_workers(
    path: &Path,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<AdminWorker>, ConfigError> {
    let refused = |reason: String| ConfigError::NamedFile { key: KEY, path: path.to_owned(), reason };
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| refused(error.to_string()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refused(error.to_string())),
    };
    if text.len() as u64 > MAX_BYTES {
        return Err(refused(format!("is larger than {MAX_BYTES} bytes")));
    }
    let mut workers: Vec<AdminWorker> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let worker = worker_of_line(line, environment).map_err(|why| refused(format!("line {}: {why}", number + 1)))?;
        if workers.iter().any(|earlier| earlier.endpoint.url == worker.endpoint.url) {
            let url = &worker.endpoint.url;
            return Err(refused(format!("line {}: url = {url:?}: this worker is there twice", number + 1)));
        }
        workers.push(worker);
    }
    if workers.len() > MAX_ADMIN_WORKERS {
        return Err(refused(format!("holds more than {MAX_ADMIN_WORKERS} workers")));
    }
    Ok(workers)
}

fn worker_of_line(line: &str, environment: &impl Fn(&str) -> Option<String>) -> Result<AdminWorker, LineError> {
    let mut entry: Map<String, Value> = serde_json::from_str(line).map_err(|_| LineError::NotAnObject)?;
    let readiness = match entry.remove("readiness").as_ref().and_then(Value::as_str) {
        Some("ready") => Readiness::Ready,
        Some("suspended") => Readiness::Suspended,
        _ => return Err(LineError::Readiness),
    };
    let Some(Value::Object(table)) = entry.remove("worker") else { return Err(LineError::NoWorker) };
    let mut worker = worker_of(table, environment)?;
    if let Some(reason) = objection(&worker.endpoint.url) {
        return Err(LineError::Address { url: worker.endpoint.url.to_string(), reason });
    }
    worker.endpoint.readiness = readiness;
    Ok(worker)
}

/// Why a line is not a worker.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("it is not a JSON object")]
    NotAnObject,
    #[error("readiness must be ready or suspended")]
    Readiness,
    #[error("worker must be a JSON object")]
    NoWorker,
    #[error("url = {url}: {reason}")]
    Address { url: String, reason: &'static str },
    #[error(transparent)]
    Worker(#[from] crate::config::worker_record::InvalidWorker),
}

/// Replaces the file. Waits for the disk.
///
/// # Errors
/// What the operating system says; the file is then as it was.
pub(crate) fn write_admin_workers(path: &Path, workers: &[AdminWorker]) -> io::Result<()> {
    let mut text = String::new();
    for worker in workers {
        let record: Value = serde_json::from_str(&worker.record)?;
        let readiness = match worker.endpoint.readiness {
            Readiness::Ready => "ready",
            Readiness::Suspended => "suspended",
        };
        text.push_str(&json!({"readiness": readiness, "worker": record}).to_string());
        text.push('\n');
    }
    let temporary = beside(path);
    let written = write_whole(&temporary, text.as_bytes()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The error that counts is the first one.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// In the same folder, so that the rename is one step; hidden, and of this process alone.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // What an earlier process of the same number left behind may have other rights.
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::{read_admin_workers, write_admin_workers};
    use crate::config::worker_record::read_worker;
    use crate::logic::endpoint::Readiness;

    /// A folder that is removed when its test ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("fathom-admin-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).expect("the temporary directory can be written");
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("workers.jsonl")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // One that is left behind does no harm.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn environment(variable: &str) -> Option<String> {
        (variable == "ENGINE_KEY").then(|| "sk-engine".to_owned())
    }

    #[test]
    fn what_was_written_is_read_again_for_the_owner_only_and_without_keys() {
        let folder = Folder::new("again");
        assert_eq!(read_admin_workers(&folder.file(), &environment).expect("no file"), []);
        let bodies = [r#"{"url":"a:1"}"#, r#"{"url":"b:1","api_key_env":"ENGINE_KEY","models":["x\u007f\n\""]}"#];
        let mut workers = bodies.map(|body| read_worker(body.as_bytes(), &environment).expect("a worker"));
        workers[0].endpoint.readiness = Readiness::Suspended;
        for count in [2, 1, 0, 2] {
            write_admin_workers(&folder.file(), &workers[..count]).expect("written");
            assert_eq!(read_admin_workers(&folder.file(), &environment).expect("read"), workers[..count]);
        }
        let text = std::fs::read_to_string(folder.file()).expect("a file");
        assert!(!text.contains("sk-engine") && text.contains("ENGINE_KEY"), "{text}");
        let mode = std::fs::metadata(folder.file()).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 1, "no other file is left");
    }

    #[test]
    fn a_file_that_cannot_be_written_stays_as_it_was() {
        let folder = Folder::new("unwritable");
        let missing = folder.0.join("no-such-folder").join("workers.jsonl");
        assert!(write_admin_workers(&missing, &[]).is_err());
        // A folder stands where the file should be.
        std::fs::create_dir(folder.file()).expect("a folder");
        assert!(write_admin_workers(&folder.file(), &[]).is_err());
        assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 1, "no other file is left");
    }

    #[test]
    fn a_bad_line_refuses_the_whole_file_and_is_named() {
        let folder = Folder::new("bad");
        let good = r#"{"readiness":"ready","worker":{"url":"a:1"}}"#;
        let rows = [
            ("{", "line 2: it is not a JSON object"),
            (r#"{"worker":{"url":"b:1"}}"#, "line 2: readiness must be ready or suspended"),
            (r#"{"readiness":"ready","worker":"b:1"}"#, "line 2: worker must be a JSON object"),
            (r#"{"readiness":"ready","worker":{"url":"b:0"}}"#, "line 2: worker.url: \"b:0\" is not the address"),
            (
                r#"{"readiness":"ready","worker":{"url":"b:1","api_key_env":"GONE"}}"#,
                "line 2: worker http://b:1: api_key_env",
            ),
            (
                r#"{"readiness":"ready","worker":{"url":"169.254.1.1:80"}}"#,
                "line 2: url = http://169.254.1.1:80: it is",
            ),
            (good, "line 2: url = http://a:1: this worker is there twice"),
        ];
        for (line, expected) in rows {
            std::fs::write(folder.file(), format!("{good}\n{line}\n")).expect("written");
            let refused = read_admin_workers(&folder.file(), &environment).expect_err(line).to_string();
            let start = format!("admin_workers_file = {:?}: {expected}", folder.file());
            assert!(refused.starts_with(&start), "{refused}");
        }
    }
}
