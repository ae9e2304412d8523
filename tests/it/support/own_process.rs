//! Tests about the process as a whole: what it has open, and what it has logged. They run in a process of their own, since
//! other tests share this one.

use std::process::Command;

/// Set in the process that runs one test alone.
const MARKER: &str = "FATHOM_IT_OWN_PROCESS";

/// Runs the test of that name alone, in another process, and returns all that it wrote. Returns `None` in that process, where
/// the test itself is to be run.
pub(crate) fn in_own_process(test: &str) -> Option<String> {
    if std::env::var_os(MARKER).is_some() {
        return None;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let run =
        Command::new(program).args(["--exact", test, "--nocapture"]).env(MARKER, "1").output().expect("a process");
    let written = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(run.status.success(), "{test} failed in its own process:\n{}", tail(&written));
    assert!(written.contains("1 passed"), "there is no test named {test}:\n{}", tail(&written));
    Some(written)
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
