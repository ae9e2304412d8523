//! Files that tests hand to the router.

use std::path::{Path, PathBuf};

/// A file that is removed when its test ends.
pub(crate) struct TemporaryFile(PathBuf);

impl TemporaryFile {
    /// Writes a file whose name no other test of this process uses.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fathom-it-{}-{name}", std::process::id()));
        let file = Self(path);
        file.write(text);
        file
    }

    pub(crate) fn write(&self, text: &str) {
        std::fs::write(&self.0, text).expect("the temporary directory can be written");
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // One that is left behind does no harm, and a panic here would hide the test's own.
        let _ = std::fs::remove_file(&self.0);
    }
}
