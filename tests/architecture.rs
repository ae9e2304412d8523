//! The layering and the sizes of files and functions, checked by reading the sources.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

use std::fs;
use std::path::{Path, PathBuf};

const MAX_FILE_LINES: usize = 500;

/// Modules of this crate and the modules they must not use.
const FORBIDDEN_MODULES: &[(&str, &[&str])] = &[
    (
        "logic",
        &[
            "wire",
            "messages",
            "feed",
            "upstream",
            "prompt",
            "actors",
            "http",
            "sim",
            "router",
            "config",
            "clock",
            "telemetry",
        ],
    ),
    ("wire", &["messages", "feed", "upstream", "actors", "http", "sim", "router", "config", "clock", "telemetry"]),
    ("messages", &["wire", "feed", "upstream", "actors", "http", "sim", "router", "config"]),
    ("feed", &["logic", "wire", "messages", "upstream", "actors", "http", "sim", "router"]),
    ("upstream", &["logic", "wire", "messages", "feed", "actors", "http", "sim", "router"]),
    ("config", &["wire", "messages", "feed", "upstream", "actors", "http", "sim", "router"]),
    ("prompt", &["wire", "messages", "feed", "upstream", "actors", "http", "sim", "router"]),
    ("actors", &["http", "router", "sim"]),
    ("http", &["actors", "feed", "router", "sim"]),
    ("sim", &["actors", "http", "feed", "messages", "router", "upstream"]),
];

/// Modules and the crates they must not name.
const FORBIDDEN_CRATES: &[(&str, &[&str])] = &[
    (
        "logic",
        &[
            "actix",
            "actix_web",
            "tokio",
            "tmq",
            "zmq",
            "futures",
            "tracing",
            "hyper",
            "serde",
            "serde_json",
            "rmp_serde",
            "kube",
        ],
    ),
    ("wire", &["actix", "actix_web", "tokio", "tmq", "zmq", "futures", "tracing", "hyper"]),
    ("feed", &["actix", "actix_web", "rmp_serde", "serde_json", "hyper"]),
    ("upstream", &["actix", "actix_web", "tmq", "zmq"]),
    ("prompt", &["actix", "actix_web", "tmq", "zmq", "rmp_serde", "hyper"]),
    ("actors", &["actix_web"]),
    ("http", &["tmq", "zmq"]),
];

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has sources");
    found
}

/// The first module below `src` that a file belongs to.
fn module_of(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

fn names(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || character == '_' || character == ':')
    })
}

#[test]
fn arrows_between_modules_point_down_only() {
    let mut violations = Vec::new();
    for (path, text) in sources("src") {
        let module = module_of(&path);
        let modules =
            FORBIDDEN_MODULES.iter().filter(|(owner, _)| *owner == module).flat_map(|(_, forbidden)| *forbidden);
        let modules: Vec<String> = modules.map(|forbidden| format!("crate::{forbidden}")).collect();
        let crates =
            FORBIDDEN_CRATES.iter().filter(|(owner, _)| *owner == module).flat_map(|(_, forbidden)| *forbidden);
        let crates: Vec<String> = crates.map(|forbidden| format!("{forbidden}::")).collect();
        for line in code_lines(&text) {
            let is_module = modules.iter().any(|forbidden| {
                names(line, &format!("{forbidden}::")) || line.trim_end().ends_with(&format!("{forbidden};"))
            });
            if is_module || crates.iter().any(|forbidden| names(line, forbidden)) {
                violations.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn actors_meet_in_messages_only() {
    let actors = ["worker", "registry", "selector", "discovery", "kubernetes"];
    let mut violations = Vec::new();
    for (path, text) in sources("src/actors") {
        let stem = path.to_str().unwrap();
        for other in actors.iter().filter(|other| !stem.contains(&format!("actors/{other}"))) {
            // The registry builds workers and hands them their context; that is the one place where a type crosses.
            let is_factory = *other == "worker" && stem.contains("actors/registry");
            let uses = code_lines(&text).filter(|line| line.contains(&format!("crate::actors::{other}")));
            violations.extend(uses.filter(|_| !is_factory).map(|line| format!("{stem}: {}", line.trim())));
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// The files that name one of the crates although they are not below the folder.
fn named_outside(folder: &str, crates: &[&str]) -> Vec<String> {
    sources("src")
        .into_iter()
        .filter(|(path, _)| !path.to_str().unwrap().contains(folder))
        .filter(|(_, text)| code_lines(text).any(|line| crates.iter().any(|name| names(line, name))))
        .map(|(path, _)| path.display().to_string())
        .collect()
}

#[test]
fn the_kubernetes_client_is_named_by_its_actor_only() {
    let named = named_outside("src/actors/kubernetes", &["kube::", "k8s_openapi::"]);
    assert!(named.is_empty(), "{}", named.join("\n"));
}

#[test]
fn the_messages_of_opentelemetry_are_named_in_one_place() {
    let named = named_outside("src/wire/otlp", &["opentelemetry_proto::", "prost::"]);
    assert!(named.is_empty(), "{}", named.join("\n"));
}

#[test]
fn no_file_is_longer_than_can_be_read_at_once() {
    let folders = ["src", "tests", "examples", "benches"];
    let all = folders.iter().flat_map(|folder| sources(folder));
    let too_long: Vec<String> = all
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_FILE_LINES)
        .map(|(path, lines)| format!("{}: {lines} lines", path.display()))
        .collect();
    assert!(too_long.is_empty(), "{}", too_long.join("\n"));
}

#[test]
fn time_is_read_in_one_place() {
    let readers: Vec<String> = sources("src")
        .into_iter()
        .filter(|(path, _)| {
            let stem = path.to_str().unwrap();
            !stem.ends_with("clock.rs") && !stem.contains("tests") && !stem.contains("testing")
        })
        .filter(|(_, text)| {
            let without_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            code_lines(without_tests).any(|line| line.contains("Instant::now()") || line.contains("SystemTime::now()"))
        })
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(readers.is_empty(), "{}", readers.join("\n"));
}
