use std::time::Duration;

use clap::builder::Resettable;
use clap::{Command, CommandFactory, FromArgMatches};

use crate::config::{
    CommandLine, KubernetesSettings, LogFormat, PolicyKind, RawConfig, RouterConfig, ServerConfig, SettingDoc,
};
use crate::logic::policy::CacheAwareSettings;
use crate::logic::price::BasisRule;

mod reload;

/// The command line without its environment variables: a test must not depend on the shell that it was started from.
fn command() -> Command {
    CommandLine::command().mut_args(|argument| argument.env(Resettable::Reset))
}

fn parse(command: Command, arguments: &[&str]) -> Result<RawConfig, clap::Error> {
    let matches = command.try_get_matches_from([&["fathom"], arguments].concat())?;
    Ok(CommandLine::from_arg_matches(&matches)?.settings)
}

fn flags(arguments: &[&str]) -> RawConfig {
    parse(command(), arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

fn toml(text: &str) -> RawConfig {
    RawConfig::from_toml(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn no_variables(_variable: &str) -> Option<String> {
    None
}

fn router(raw: RawConfig) -> RouterConfig {
    raw.validate(no_variables).unwrap_or_else(|error| panic!("{error}")).0
}

fn server(raw: RawConfig) -> ServerConfig {
    raw.validate(no_variables).unwrap_or_else(|error| panic!("{error}")).1
}

fn refusal(raw: RawConfig) -> String {
    raw.validate(no_variables).expect_err("this must be refused").to_string()
}

fn urls(config: &RouterConfig) -> Vec<&str> {
    config.workers.iter().map(|endpoint| endpoint.url.as_str()).collect()
}

#[test]
fn the_command_line_is_well_formed() {
    CommandLine::command().debug_assert();
}

#[test]
fn flag_and_variable_of_a_setting_follow_from_its_key() {
    for argument in CommandLine::command().get_arguments() {
        let key = argument.get_id().as_str();
        assert_eq!(argument.get_long(), Some(key.replace('_', "-").as_str()));
        let variable = argument.get_env().map(|name| name.to_string_lossy().into_owned());
        assert_eq!(variable, Some(format!("FATHOM_{}", key.to_uppercase())));
        assert!(argument.get_help_heading().is_some(), "{key} stands under no heading");
    }
}

#[test]
fn the_file_knows_every_setting_by_its_key() {
    for setting in RawConfig::reference() {
        let error = RawConfig::from_toml(&format!("{} = {{}}", setting.key)).expect_err("no setting is a table");
        assert!(error.to_string().starts_with(&format!("line 1: {}: invalid type", setting.key)), "{error}");
    }
}

#[test]
fn nothing_written_gives_the_defaults() {
    assert_eq!(router(RawConfig::default()), RouterConfig::default());
    assert_eq!(server(RawConfig::default()), ServerConfig::default());
    assert_eq!(toml(""), RawConfig::default());
    assert_eq!(flags(&[]), RawConfig::default());
}

#[test]
fn the_defaults_in_the_help_are_the_defaults() {
    let mut arguments = Vec::new();
    for setting in RawConfig::reference() {
        match setting.default.as_str() {
            "" => panic!("the help of {} does not tell its default", setting.key),
            "none"
            | "drawn at start"
            | "one per CPU"
            | "that of policy"
            | "the router's own"
            | "the only one"
            | "as kubectl or a pod finds it" => {}
            value => arguments.push(format!("--{}={value}", setting.key.replace('_', "-"))),
        }
    }
    // The other settings of Kubernetes are refused without it.
    arguments.push("--kubernetes-service=engines".to_owned());
    let raw = flags(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let kubernetes = KubernetesSettings { service: Some("engines".into()), ..KubernetesSettings::default() };
    assert_eq!(router(raw.clone()), RouterConfig { kubernetes: Some(kubernetes), ..RouterConfig::default() });
    assert_eq!(server(raw), ServerConfig::default());
}

#[test]
fn the_readme_says_of_every_setting_what_its_help_says() {
    let readme = include_str!("../../README.md");
    for setting in RawConfig::reference() {
        let SettingDoc { key, default, effect, .. } = setting;
        let rows = [format!("| `{key}` | `{default}` | {effect} |\n"), format!("| `{key}` | {default} | {effect} |\n")];
        assert!(rows.iter().any(|row| readme.contains(row)), "the README lacks: {}", rows[0]);
    }
}

/// Seen in sgl-project/sglang#12621: workers given in one of these forms were not added, and nothing said so.
#[test]
fn every_form_of_the_worker_list_gives_the_same_list() {
    let expected = ["http://a:80", "http://b:30000", "http://[::1]:30000"];
    let forms = [
        flags(&["--worker-urls", "a", "b:30000", "[::1]:30000"]),
        flags(&["--worker-urls", "a,b:30000,[::1]:30000"]),
        flags(&["--worker-urls=a,b:30000", "--port", "1", "--worker-urls", "[::1]:30000"]),
        flags(&["--worker-urls", "a", "--worker-urls", "b:30000", "--worker-urls", "http://[::1]:30000/"]),
        flags(&["--worker-urls", "http://a/, B:30000", "[::1]:30000"]),
        toml("worker_urls = ['a', 'b:30000', 'http://[::1]:30000']"),
        // A variable reaches the list as one text.
        flags(&["--worker-urls", "a,b:30000,[::1]:30000"]),
        flags(&["--worker-urls", " a b:30000\n[::1]:30000\n"]),
        flags(&["--worker-urls", "a, b:30000,\t[::1]:30000"]),
    ];
    for raw in forms {
        let written = raw.workers.worker_urls.clone();
        assert_eq!(urls(&router(raw)), expected, "{written:?}");
    }
}

#[test]
fn an_address_counts_once_in_whatever_spelling() {
    let config = router(flags(&["--worker-urls", "a", "http://A:80/", "b", "a:80,b"]));
    assert_eq!(urls(&config), ["http://a:80", "http://b:80"]);
}

#[test]
fn an_empty_list_is_only_what_was_written_as_one() {
    assert_eq!(router(toml("worker_urls = []")).workers, []);
    let refused = parse(command(), &["--worker-urls"]).expect_err("a flag without its value").to_string();
    assert!(refused.contains("a value is required for '--worker-urls <URL>...'"), "{refused}");
}

#[test]
fn an_empty_or_malformed_element_of_the_list_is_named() {
    let rows: [(&[&str], &str); 8] = [
        (&[""], r#"worker_urls = "": must not have an empty element"#),
        (&[" "], r#"worker_urls = " ": must not have an empty element"#),
        (&["a,,b"], r#"worker_urls = "a,,b": must not have an empty element"#),
        (&["a,b,"], r#"worker_urls = "a,b,": must not have an empty element"#),
        (&["a", ""], r#"worker_urls = "": must not have an empty element"#),
        (
            &["a", "https://b"],
            r#"worker_urls: "https://b" is not the address of a worker: only http:// workers can be reached"#,
        ),
        (&["a,b:0"], r#"worker_urls: "b:0" is not the address of a worker: port 0 cannot be dialled"#),
        (
            &["a", "http://user:pass,word@b:1"],
            r#"worker_urls = "<credentials>@b:1": credentials do not belong into an address"#,
        ),
    ];
    for (elements, message) in rows {
        assert_eq!(refusal(flags(&[&["--worker-urls"], elements].concat())), message);
    }
}

/// Key, value as it stands in the file, and what is said of it.
const REFUSED: [(&str, &str, &str); 69] = [
    ("eject_after_unreachable", "0", "must be at least 1"),
    ("eject_after_unreachable", "1001", "must be at most 1000"),
    ("eject_failure_ratio", "-0.1", "must be at least 0"),
    ("eject_failure_ratio", "1.1", "must be at most 1"),
    ("eject_min_requests", "0", "must be at least 1"),
    ("eject_window_ms", "9", "must be at least 10"),
    ("eject_window_ms", "3600001", "must be at most 3600000"),
    ("eject_cooldown_ms", "0", "must be at least 1"),
    ("eject_max_cooldown_ms", "86400001", "must be at most 86400000"),
    ("probation_successes", "0", "must be at least 1"),
    ("health_path", "\"health\"", "must begin with a slash, and hold no spaces"),
    ("health_path", "\"/a b\"", "must begin with a slash, and hold no spaces"),
    ("health_interval_ms", "86400001", "must be at most 86400000"),
    ("health_timeout_ms", "0", "must be at least 1"),
    ("health_failures", "0", "must be at least 1"),
    ("health_successes", "1001", "must be at most 1000"),
    ("route_dp_ranks", "\"on\"", "must be one of auto, off"),
    ("prefill_policy", "\"x\"", "must be one of cache_aware_zmq, least_load, power_of_two, round_robin, random"),
    ("decode_policy", "\"\"", "must be one of cache_aware_zmq, least_load, power_of_two, round_robin, random"),
    ("policy", "\"\"", "must be one of cache_aware_zmq, least_load, power_of_two, round_robin, random"),
    ("policy", "\"Random\"", "must be one of cache_aware_zmq, least_load, power_of_two, round_robin, random"),
    ("cache_threshold", "-0.5", "must be at least 0"),
    ("cache_threshold", "1.01", "must be at most 1"),
    ("balance_abs_threshold", "-1", "must be at least 0"),
    ("balance_abs_threshold", "inf", "must be at most 1000000000"),
    ("balance_rel_threshold", "0.9", "must be at least 1"),
    ("balance_rel_threshold", "inf", "must be at most 1000000000"),
    ("round_deadline_ms", "0", "must be at least 1"),
    ("round_deadline_ms", "1001", "must be at most 1000"),
    ("basis", "\"engine\"", "must be one of uniform, scaled, mixed"),
    ("load_freshness_ms", "0", "must be at least 1"),
    ("load_freshness_ms", "18446744073709551615", "must be at most 86400000"),
    ("dispatch_visibility_ms", "60001", "must be at most 60000"),
    ("ramp_up_ms", "86400001", "must be at most 86400000"),
    ("introspection_attempt_timeout_ms", "0", "must be at least 1"),
    ("introspection_attempt_timeout_ms", "60001", "must be at most 60000"),
    ("introspection_attempts", "0", "must be at least 1"),
    ("introspection_attempts", "11", "must be at most 10"),
    ("introspection_pending_interval_ms", "99", "must be at least 100"),
    ("introspection_interval_secs", "0", "must be at least 1"),
    ("introspection_unauthorized_interval_secs", "86401", "must be at most 86400"),
    ("connect_timeout_ms", "0", "must be at least 1"),
    ("response_header_timeout_secs", "0", "must be at least 1"),
    ("pool_idle_timeout_ms", "0", "must be at least 1"),
    ("max_idle_per_worker", "65537", "must be at most 65536"),
    ("host", "\"\"", "must be a host name or an IP address, without a port"),
    ("host", "\"localhost:80\"", "must be a host name or an IP address, without a port"),
    ("host", "\"http://localhost\"", "must be a host name or an IP address, without a port"),
    ("metrics_port", "30000", "must be another port than that of the clients"),
    ("http_threads", "0", "must be at least 1"),
    ("http_threads", "1025", "must be at most 1024"),
    ("max_body_bytes", "0", "must be at least 1"),
    ("max_body_bytes", "1073741825", "must be at most 1073741824"),
    ("max_concurrent_requests", "0", "must be at least 1"),
    ("drain_timeout_secs", "86401", "must be at most 86400"),
    ("max_connections", "0", "must be at least 1"),
    ("max_connections", "1000001", "must be at most 1000000"),
    ("header_timeout_ms", "99", "must be at least 100"),
    ("header_timeout_ms", "60001", "must be at most 60000"),
    ("drain_delay_secs", "3601", "must be at most 3600"),
    ("client_timeout_secs", "0", "must be at least 1"),
    ("client_timeout_secs", "3601", "must be at most 3600"),
    ("keep_alive_secs", "0", "must be at least 1"),
    ("keep_alive_secs", "3601", "must be at most 3600"),
    ("tls_cert_file", "\"c.pem\"", "needs tls_key_file"),
    ("tls_key_file", "\"k.pem\"", "needs tls_cert_file"),
    ("log_level", "\" \"", "must name a level"),
    ("otlp_endpoint", "\"collector:4318\"", "must be an address such as http://collector:4318; only http:// is spoken"),
    ("log_format", "\"xml\"", "must be one of text, json"),
];

#[test]
fn a_refused_value_is_named_in_the_same_words_wherever_it_was_written() {
    for (key, value, rule) in REFUSED {
        let message = format!("{key} = {value}: {rule}");
        assert_eq!(refusal(toml(&format!("{key} = {value}"))), message);
        let flag = format!("--{}={}", key.replace('_', "-"), value.trim_matches('"'));
        assert_eq!(refusal(flags(&[&flag])), message);
    }
    assert_eq!(refusal(toml("cache_threshold = nan")), "cache_threshold = NaN: must be at least 0");
}

#[test]
fn the_ends_of_a_range_are_part_of_it() {
    let least = "eject_after_unreachable = 1\neject_failure_ratio = 0\neject_min_requests = 1\neject_window_ms = 10
        eject_cooldown_ms = 1\neject_max_cooldown_ms = 1\nprobation_successes = 1\nhealth_interval_ms = 0
        health_timeout_ms = 1\nhealth_failures = 1\nhealth_successes = 1
        cache_threshold = 0\nbalance_abs_threshold = 0\nbalance_rel_threshold = 1
        round_deadline_ms = 1\nload_freshness_ms = 1\ndispatch_visibility_ms = 0\nramp_up_ms = 0
        introspection_attempt_timeout_ms = 1\nintrospection_attempts = 1\nintrospection_pending_interval_ms = 100
        introspection_interval_secs = 1\nintrospection_unauthorized_interval_secs = 1\nconnect_timeout_ms = 1
        response_header_timeout_secs = 1\npool_idle_timeout_ms = 1\nmax_idle_per_worker = 0\nport = 0\nhttp_threads = 1
        metrics_port = 0\nmax_body_bytes = 1\nmax_concurrent_requests = 1\ndrain_timeout_secs = 0\nseed = 0";
    let most = "eject_after_unreachable = 1000\neject_failure_ratio = 1\neject_min_requests = 1000000
        eject_window_ms = 3600000\neject_cooldown_ms = 86400000\neject_max_cooldown_ms = 86400000
        probation_successes = 1000\nhealth_interval_ms = 86400000\nhealth_timeout_ms = 60000\nhealth_failures = 1000
        health_successes = 1000
        cache_threshold = 1\nbalance_abs_threshold = 1e9
        balance_rel_threshold = 1e9\nround_deadline_ms = 1000\nload_freshness_ms = 86400000
        dispatch_visibility_ms = 60000\nramp_up_ms = 86400000\nintrospection_attempt_timeout_ms = 60000
        introspection_attempts = 10\nintrospection_pending_interval_ms = 86400000\nintrospection_interval_secs = 86400
        introspection_unauthorized_interval_secs = 86400\nconnect_timeout_ms = 60000
        response_header_timeout_secs = 86400\npool_idle_timeout_ms = 3600000\nmax_idle_per_worker = 65536
        port = 65535\nhttp_threads = 1024\nmax_body_bytes = 1073741824\nmax_concurrent_requests = 1000000
        drain_timeout_secs = 86400\nseed = 18446744073709551615";
    for text in [least, most] {
        router(toml(text));
    }
}

#[test]
fn written_values_arrive_in_their_units() {
    let (router, server) = toml("ramp_up_ms = 1\nresponse_header_timeout_secs = 1\nseed = 7\nhost = '[::1]'")
        .validate(no_variables)
        .expect("all of it is in range");
    assert_eq!(router.load.ramp_up, Duration::from_millis(1));
    assert_eq!(router.upstream.response_header_timeout, Duration::from_secs(1));
    assert_eq!(router.seed, Some(7));
    assert_eq!(server.host, "::1");
}

#[test]
fn settings_that_cannot_stand_beside_each_other_are_refused() {
    let rows = [
        ("open_admin = true\nadmin_key_file = 'a'", "open_admin = true: cannot be given beside admin_key_file"),
        (
            "h2c = true\ntls_cert_file = 'c'\ntls_key_file = 'k'",
            "h2c = true: has no effect beside tls_cert_file, which brings HTTP/2 of its own",
        ),
    ];
    for (text, message) in rows {
        assert_eq!(refusal(toml(text)), message);
    }
}

#[test]
fn an_embedder_is_told_the_key_and_unit_of_a_field() {
    let mut config = RouterConfig::default();
    assert!(config.check().is_ok());
    config.round_deadline = Duration::from_micros(500);
    let refused = config.check().expect_err("half a millisecond is below the range");
    assert_eq!(refused.to_string(), "round_deadline_ms = 0.5: must be at least 1");
}

#[test]
fn what_is_no_setting_or_not_of_its_type_is_named_with_its_line() {
    let rows = [
        ("port = 1\nprot = 2", "line 2: prot: there is no such setting"),
        ("port = 1\n[http]\nport = 2", "line 2: http: there is no such setting"),
        ("port = 1\nport = 2", "line 2: port: duplicate key"),
        ("\nport = 'x'", "line 2: port: invalid type: string \"x\", expected u16"),
        ("port = 70000", "line 1: port: invalid value: integer `70000`, expected u16"),
        ("ramp_up_ms = -1", "line 1: ramp_up_ms: invalid value: integer `-1`, expected u64"),
        ("ramp_up_ms = 0.5", "line 1: ramp_up_ms: invalid type: floating point `0.5`, expected u64"),
        ("expose_decision = 1", "line 1: expose_decision: invalid type: integer `1`, expected a boolean"),
        ("worker_urls = 'a,b'", "line 1: worker_urls: invalid type: string \"a,b\", expected a sequence"),
        ("worker_urls = [\n'a',\n3]", "line 3: worker_urls: invalid type: integer `3`, expected a string"),
        ("config = 'other.toml'", "line 1: config: there is no such setting"),
        ("[worker]\nurl = 'a'", "line 1: worker: invalid type: map, expected a sequence"),
        ("port = 1\n[[worker]]\ndp_size = 2", "line 2: worker: missing field `url`"),
        ("[[worker]]\nurl = 'a'\nweight = 2", "line 3: worker.weight: there is no such setting"),
        ("[[worker]]\nurl = 'a'\ndp_size = -1", "line 3: worker.dp_size: invalid value: integer `-1`, expected u32"),
    ];
    for (text, message) in rows {
        assert_eq!(RawConfig::from_toml(text).expect_err(text).to_string(), message);
    }
}

#[test]
fn a_flag_that_cannot_be_read_is_named_with_its_value() {
    let rows = [
        ("--port=x", "invalid value 'x' for '--port <PORT>': must be a number from 0 to 65535"),
        ("--port=70000", "invalid value '70000' for '--port <PORT>': must be a number from 0 to 65535"),
        ("--seed=-1", "invalid value '-1' for '--seed <NUMBER>': invalid digit found in string"),
        ("--cache-threshold=half", "invalid value 'half' for '--cache-threshold <PART>': invalid float literal"),
        ("--expose-decision=1", "invalid value '1' for '--expose-decision[=<BOOL>]'"),
        ("--prot=1", "unexpected argument '--prot' found"),
        // Kubernetes sets FATHOM_PORT to this where a service is named fathom.
        (
            "--port=tcp://10.0.0.1:80",
            "invalid value 'tcp://10.0.0.1:80' for '--port <PORT>': this is what Kubernetes sets for a service named fathom; \
             set enableServiceLinks: false, or rename the service",
        ),
    ];
    for (flag, message) in rows {
        let error = parse(command(), &[flag]).expect_err(flag).to_string();
        assert_eq!(error.lines().next(), Some(format!("error: {message}").as_str()));
    }
}

#[test]
fn a_switch_needs_no_value_and_takes_one() {
    let rows = [("--expose-decision", true), ("--expose-decision=true", true), ("--expose-decision=false", false)];
    for (flag, is_on) in rows {
        assert_eq!(router(flags(&[flag]).or(toml("expose_decision = true"))).http.expose_decision, is_on, "{flag}");
    }
    assert!(router(flags(&["--forward-authorization"])).http.forward_authorization);
}

#[test]
fn a_flag_outranks_a_variable_which_outranks_the_file_key_by_key() {
    // PATH is a variable that every process has; nothing has to be set.
    let path = std::env::var("PATH").expect("PATH is set");
    let command = || command().mut_arg("log_level", |argument| argument.env("PATH"));
    let file = || toml("log_level = 'from_file'\nhost = 'from_file'\nport = 1");
    let by_variable = parse(command(), &["--host", "from_flag"]).expect("valid flags").or(file());
    assert_eq!(by_variable.process.log_level, Some(path));
    assert_eq!(by_variable.edge.host.as_deref(), Some("from_flag"));
    assert_eq!(by_variable.edge.port, Some(1));
    assert_eq!(by_variable.edge.http_threads, None);
    let by_flag = parse(command(), &["--log-level", "from_flag"]).expect("valid flags").or(file());
    assert_eq!(by_flag.process.log_level.as_deref(), Some("from_flag"));
    assert_eq!(by_flag.edge.host.as_deref(), Some("from_file"));
}

#[test]
fn a_higher_worker_list_replaces_the_lower_one_and_leaves_the_tables() {
    let file = toml("worker_urls = ['a', 'b']\n[[worker]]\nurl = 'c'");
    assert_eq!(urls(&router(flags(&["--worker-urls", "d"]).or(file))), ["http://d:80", "http://c:80"]);
}

#[test]
fn every_setting_of_the_lower_source_comes_through() {
    let mut text = String::new();
    for setting in RawConfig::reference() {
        let values = ["1", "true", "'text'", "['text']"];
        let mut lines = values.iter().map(|value| format!("{} = {value}\n", setting.key));
        text += &lines.find(|line| RawConfig::from_toml(line).is_ok()).expect("one of the types fits");
    }
    let lower = toml(&format!("{text}worker = []"));
    assert!(!format!("{lower:?}").contains("None"), "a setting is missing from this test: {lower:?}");
    assert_eq!(RawConfig::default().or(lower.clone()), lower);
    assert_eq!(lower.clone().or(RawConfig::default()), lower);
}

#[test]
fn a_policy_is_built_under_its_name() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.build(CacheAwareSettings::default()).name(), kind.name());
        assert_eq!(router(toml(&format!("policy = '{}'", kind.name()))).policy, kind);
    }
}

#[test]
fn bases_and_log_formats_have_names() {
    let bases = [("uniform", BasisRule::Uniform), ("scaled", BasisRule::Scaled), ("mixed", BasisRule::Mixed)];
    for (name, basis) in bases {
        assert_eq!(router(flags(&["--basis", name])).basis, basis);
    }
    for (name, format) in [("text", LogFormat::Text), ("json", LogFormat::Json)] {
        assert_eq!(server(flags(&["--log-format", name])).log_format, format);
    }
}

/// A file that is removed when its test ends.
struct TemporaryFile(std::path::PathBuf);

impl TemporaryFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fathom-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // A file that is left behind does no harm, and a panic here would hide the test's own.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_file_that_is_named_lies_under_the_flags() {
    let file = TemporaryFile::new("named.toml", "port = 1\nround_deadline_ms = 7");
    let command_line = CommandLine { config: Some(file.0.clone()), settings: flags(&["--port", "2"]) };
    let (router, server) = command_line.load().expect("file and flags are valid");
    assert_eq!((server.port, router.round_deadline), (2, Duration::from_millis(7)));
}

#[test]
fn a_file_that_cannot_be_read_or_understood_is_named() {
    let missing = CommandLine { config: Some("/nonexistent/fathom.toml".into()), settings: RawConfig::default() };
    let message = missing.load().expect_err("there is no such file").to_string();
    assert!(message.starts_with("config = \"/nonexistent/fathom.toml\": "), "{message}");
    let file = TemporaryFile::new("broken.toml", "prot = 1");
    let broken = CommandLine { config: Some(file.0.clone()), settings: RawConfig::default() };
    let message = broken.load().expect_err("there is no such setting").to_string();
    assert_eq!(message, format!("{:?}: line 1: prot: there is no such setting", file.0));
}

#[test]
fn tokenizers_are_directories_each_for_one_model() {
    let directory = env!("CARGO_MANIFEST_DIR");
    let rows = [
        (vec![directory.to_owned()], Ok(vec!["*"])),
        (vec![format!("m={directory}"), format!(" n = {directory} "), directory.to_owned()], Ok(vec!["m", "n", "*"])),
        (vec![format!("={directory}")], Err("must be a directory, or the name of a model")),
        (vec!["m=".to_owned()], Err("must be a directory, or the name of a model")),
        (vec![format!("m={directory}/Cargo.toml")], Err("is not a directory that exists")),
        (vec![format!("m={directory}"), format!("m={directory}/src")], Err("is a second directory for the same model")),
    ];
    for (entries, expected) in rows {
        let mut raw = RawConfig::default();
        raw.cache.tokenizers = Some(entries.clone());
        match expected {
            Ok(models) => {
                let config = router(raw);
                let named: Vec<&str> = config.prompts.models.iter().map(|entry| entry.model.as_str()).collect();
                assert_eq!(named, models, "{entries:?}");
            }
            Err(reason) => {
                let refusal = refusal(raw);
                assert!(refusal.contains("tokenizers") && refusal.contains(reason), "{entries:?}: {refusal}");
            }
        }
    }
    let mut styled = RawConfig::default();
    styled.cache.chat_style = Some("llama".to_owned());
    assert!(refusal(styled).contains("chat_style"));
}
