//! The manual names settings, metrics, fields of `/workers` and flags of another router. Each of them must exist, so that it cannot
//! rot.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{RELOADABLE_KEYS, RawConfig};

const MIGRATION: &str = include_str!("migrating_from_sglang_router.md");
const OPERATING: &str = include_str!("operating.md");
const CHAPTERS: [(&str, &str); 6] = [
    ("life_of_a_request", include_str!("life_of_a_request.md")),
    ("policies", include_str!("policies.md")),
    ("degradations", include_str!("degradations.md")),
    ("extending", include_str!("extending.md")),
    ("operating", OPERATING),
    ("migrating_from_sglang_router", MIGRATION),
];

/// The keys of a `[[worker]]` table that the manual may name.
const OF_WORKER: [&str; 5] = ["api_key_env", "bootstrap_port", "dp_ranks", "models", "role"];

/// What the right column of a migration table may name beside settings: values of settings.
const VALUES: [&str; 7] =
    ["cache_aware_zmq", "decode", "least_load", "power_of_two", "prefill", "random", "round_robin"];

/// Names that are nobody's here: headers, policies and fields of other programs.
const FOREIGN: [&str; 7] = ["bucket", "cache_aware", "cached_tokens", "manual", "traceparent", "model", "prompt"];

/// Flags of sglang-router 0.3.2, as its `--help` has them.
const FLAGS: &str = "
    host port worker-urls policy prefill-policy decode-policy cache-threshold balance-abs-threshold balance-rel-threshold
    bucket-adjust-interval-secs eviction-interval-secs max-tree-size max-idle-secs assignment-mode max-payload-size dp-aware enable-igw
    mini-lb pd-disaggregation prefill decode worker-startup-timeout-secs worker-startup-check-interval log-dir log-level
    service-discovery selector service-discovery-port service-discovery-namespace prefill-selector decode-selector prometheus-port
    prometheus-host prometheus-duration-buckets request-id-headers request-timeout-secs shutdown-grace-period-secs
    cors-allowed-origins max-concurrent-requests queue-size queue-timeout-secs rate-limit-tokens-per-second retry-max-retries
    retry-initial-backoff-ms retry-max-backoff-ms retry-backoff-multiplier retry-jitter-factor disable-retries cb-failure-threshold
    cb-success-threshold cb-timeout-duration-secs cb-window-duration-secs disable-circuit-breaker health-failure-threshold
    health-success-threshold health-check-timeout-secs health-check-interval-secs health-check-endpoint disable-health-check model-path
    tokenizer-path chat-template tokenizer-cache-enable-l0 tokenizer-cache-l0-max-entries tokenizer-cache-enable-l1
    tokenizer-cache-l1-max-memory reasoning-parser tool-call-parser mcp-config-path backend history-backend oracle-wallet-path
    oracle-tns-alias oracle-connect-descriptor oracle-username oracle-password oracle-pool-min oracle-pool-max oracle-pool-timeout-secs
    postgres-db-url postgres-pool-max redis-url redis-pool-max redis-retention-days client-cert-path client-key-path ca-cert-paths
    tls-cert-path tls-key-path enable-trace otlp-traces-endpoint api-key control-plane-api-keys control-plane-audit-enabled jwt-issuer
    jwt-audience jwt-jwks-uri jwt-role-mapping";

fn settings() -> BTreeSet<String> {
    let written = RawConfig::reference().into_iter().map(|setting| setting.key);
    written.chain(OF_WORKER.map(str::to_owned)).collect()
}

/// What stands between single backquotes, outside blocks of code and links, which the documentation checks by itself.
fn code_of(chapter: &str) -> Vec<&str> {
    let prose = chapter.split("```").step_by(2);
    let cut = prose.flat_map(|text| text.split('`').skip(1).step_by(2).zip(text.split('`').skip(2).step_by(2)));
    cut.filter(|(_, after)| !after.starts_with("](")).map(|(code, _)| code).collect()
}

/// Tells whether the word is written as keys, fields, reasons and codes are.
fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_lowercase())
        && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.".contains(&byte))
}

fn manifest(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below)
}

/// The text of all sources but the manual's own.
fn sources() -> String {
    let (mut text, mut folders) = (String::new(), vec![manifest("src")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("manual") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                text.push_str(&fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    text
}

#[test]
fn every_name_in_the_manual_is_a_setting_or_stands_in_the_sources() {
    let (settings, sources) = (settings(), sources());
    let admin = ["admin.rs", "admin_kv.rs", "admin_ranks.rs", "admin_workers.rs"]
        .map(|file| fs::read_to_string(manifest("src/http").join(file)).expect("a source"))
        .concat();
    let exists = |word: &str| {
        settings.contains(word)
            || FOREIGN.contains(&word)
            || sources.contains(&format!("\"{word}\""))
            || manifest("examples").join(word).with_extension("rs").exists()
            // A field of `/workers`, whole or behind the part that it belongs to.
            || word.split('.').all(|part| admin.contains(&format!("    {part}: ")))
            || sources.contains(&format!("fn {word}("))
    };
    for (name, chapter) in CHAPTERS {
        let names: Vec<&str> = code_of(chapter).into_iter().filter(|word| is_name(word)).collect();
        let unknown: Vec<&str> =
            names.into_iter().filter(|word| !word.starts_with("fathom_") && !exists(word)).collect();
        assert!(unknown.is_empty(), "{name} names what there is not: {unknown:?}");
    }
}

#[test]
fn every_metric_that_the_manual_names_is_registered() {
    let sources = sources();
    let mut num_named = 0;
    for (name, chapter) in CHAPTERS {
        for metric in code_of(chapter).into_iter().filter_map(|code| code.strip_prefix("fathom_")) {
            if metric == "…" {
                continue;
            }
            let registered = metric.strip_suffix("_total").unwrap_or(metric);
            let registered = registered.strip_prefix("kubernetes_").unwrap_or(registered);
            assert!(sources.contains(&format!("register(\"{registered}\"")), "{name}: there is no fathom_{metric}");
            num_named += 1;
        }
    }
    assert!(num_named > 50, "{num_named}");
}

#[test]
fn every_flag_of_the_other_router_has_its_place_and_no_other_flag_is_named() {
    let known: BTreeSet<&str> = FLAGS.split_whitespace().collect();
    let named: BTreeSet<&str> = code_of(MIGRATION)
        .into_iter()
        .filter_map(|code| code.strip_prefix("--")?.split(' ').next())
        .filter(|flag| !["kv-events-config", "load-publish-endpoint", "help"].contains(flag))
        .collect();
    assert_eq!(known.difference(&named).collect::<Vec<_>>(), [&""; 0], "not in the manual");
    assert_eq!(named.difference(&known).collect::<Vec<_>>(), [&""; 0], "not a flag of that router");
}

/// The right column of the tables of flags says what to write in its place: that must be possible.
#[test]
fn what_a_flag_becomes_is_a_setting() {
    let settings = settings();
    let mut num_rows = 0;
    for row in MIGRATION.lines().filter(|line| line.starts_with("| `--")) {
        let [_, _, becomes, _] = row.split('|').collect::<Vec<_>>()[..] else { panic!("not two columns: {row}") };
        for word in code_of(becomes).into_iter().filter(|word| is_name(word)) {
            let is_known = settings.contains(word) || VALUES.contains(&word) || FOREIGN.contains(&word);
            assert!(is_known, "{word:?} is no setting: {row}");
        }
        num_rows += 1;
    }
    assert!(num_rows > 50, "{num_rows}");
}

#[test]
fn what_can_change_while_the_router_runs_is_what_the_manual_says() {
    let (_, from) = OPERATING.split_once("What can change while the router runs:").expect("the list");
    let (list, _) = from.split_once(" The listener's certificate").expect("its end");
    let named: BTreeSet<&str> = code_of(list).into_iter().map(|key| key.trim_matches(['[', ']'])).collect();
    assert_eq!(named, BTreeSet::from(RELOADABLE_KEYS));
}
