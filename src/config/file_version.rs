//! Noticing that a file has changed without reading it.

use std::path::Path;
use std::time::SystemTime;

/// What changes when a file does, a symbolic link that points elsewhere included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileVersion {
    modified: SystemTime,
    num_bytes: u64,
}

impl FileVersion {
    /// Returns the version of the file that is there now; `None` where there is none, or its system does not tell.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { modified: metadata.modified().ok()?, num_bytes: metadata.len() })
    }
}
