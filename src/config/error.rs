//! Why a configuration is refused.

use std::io;
use std::path::PathBuf;

use crate::logic::endpoint::{FeedRefusal, InvalidWorkerUrl};

/// Says which setting is refused, and why, in one sentence that names the key and its value. Keys of engines never appear in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("config = {path:?}: {source}")]
    Unreadable {
        /// The path as it was given.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The configuration file can be read, but not understood.
    #[error("{path:?}: {source}")]
    File {
        /// The path as it was given.
        path: PathBuf,
        /// What is wrong with its text.
        source: Box<ConfigError>,
    },
    /// The text is not TOML, or lacks a key. The parser's own error is not kept: it quotes the line, which may hold a key.
    #[error("line {line}: {reason}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// What the parser expected.
        reason: String,
    },
    /// A key has a value of another type than its setting, or one that the type cannot hold.
    #[error("line {line}: {key}: {reason}")]
    Type {
        /// Counted from 1.
        line: usize,
        /// The key; one of a table follows its table's name and a dot.
        key: String,
        /// What was found and what is expected.
        reason: String,
    },
    /// No setting has this key.
    #[error("line {line}: {key}: there is no such setting")]
    UnknownKey {
        /// Counted from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// A number is below its range, or is none.
    #[error("{key} = {value}: must be at least {least}")]
    TooSmall {
        /// The key.
        key: &'static str,
        /// The value in the key's unit.
        value: String,
        /// The least value accepted.
        least: String,
    },
    /// A number is above its range.
    #[error("{key} = {value}: must be at most {most}")]
    TooLarge {
        /// The key.
        key: &'static str,
        /// The value in the key's unit.
        value: String,
        /// The greatest value accepted.
        most: String,
    },
    /// A name is none of a closed set.
    #[error("{key} = {value:?}: must be one of {choices}")]
    UnknownName {
        /// The key.
        key: &'static str,
        /// The name.
        value: String,
        /// The names accepted, separated by commas.
        choices: String,
    },
    /// A value breaks a rule that is not a range.
    #[error("{key} = {value}: {rule}")]
    Rule {
        /// The key.
        key: &'static str,
        /// The value as it would be written in the file.
        value: String,
        /// The rule.
        rule: &'static str,
    },
    /// An address is malformed.
    #[error("{key}: {source}")]
    Address {
        /// The key.
        key: &'static str,
        /// The address, and what is wrong with it.
        source: InvalidWorkerUrl,
    },
    /// A file that a setting names cannot be used. What it holds is not quoted: it is, or may be, a secret.
    #[error("{key} = {path:?}: {reason}")]
    NamedFile {
        /// The key.
        key: &'static str,
        /// The path as it was given.
        path: PathBuf,
        /// What the operating system said, or what is wrong with the content.
        reason: String,
    },
    /// A value breaks a rule, and must not be shown because it is, or may be, a secret.
    #[error("{key}: {rule}")]
    Secret {
        /// The key.
        key: &'static str,
        /// The rule.
        rule: &'static str,
    },
    /// No socket can be opened by these settings of a worker.
    #[error("{key} = {value}: {source}")]
    Feed {
        /// The key.
        key: &'static str,
        /// The value as it would be written in the file.
        value: String,
        /// Why not.
        source: FeedRefusal,
    },
    /// A setting of one worker is refused.
    #[error("worker {url}: {source}")]
    Worker {
        /// The worker's address.
        url: String,
        /// Which setting, and why.
        source: Box<ConfigError>,
    },
    /// Two tables give one worker different settings.
    #[error("worker {url}: two [[worker]] tables give it different settings")]
    ConflictingTables {
        /// The worker's address.
        url: String,
    },
}
