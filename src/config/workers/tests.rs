use crate::config::{ConfigError, RawConfig, RouterConfig};
use crate::logic::endpoint::{Endpoint, EndpointOverrides, FeedDescriptor, Secret, WorkerUrl};
use crate::logic::ranks::RankRule;
use crate::logic::role::Role;

const KEY: &str = "sk-0123456789";

fn variables(name: &str) -> Option<String> {
    match name {
        "ENGINE_KEY" => Some(format!(" {KEY}\n")),
        "EMPTY_KEY" => Some("\n".to_owned()),
        "BROKEN_KEY" => Some(format!("{KEY}\n{KEY}")),
        _ => None,
    }
}

fn validated(text: &str) -> Result<RouterConfig, ConfigError> {
    RawConfig::from_toml(text)?.validate(variables).map(|(router, _)| router)
}

fn workers(text: &str) -> Vec<Endpoint> {
    validated(text).unwrap_or_else(|error| panic!("{text}: {error}")).workers
}

/// Returns what is said of a table of the worker `http://a:80` with these settings.
fn refusal(settings: &str) -> String {
    let text = format!("[[worker]]\nurl = 'a'\n{settings}");
    validated(&text).expect_err(settings).to_string()
}

fn url(text: &str) -> WorkerUrl {
    WorkerUrl::parse(text).expect("a valid address")
}

#[test]
fn a_table_describes_its_worker() {
    let text = "[[worker]]
        url = 'engine:30000'
        models = ['base', 'lora', 'base']
        api_key = 'sk-0123456789'
        dp_size = 2
        load_endpoint_port_base = 5600
        load_topic = 'load'
        endpoint_host = '0.0.0.0'
        endpoint_port_base = 5557
        topic = 'kv'
        block_size = 16
        replay_endpoint_port_base = 5700";
    let overrides = EndpointOverrides {
        models: vec!["base".into(), "lora".into()],
        feeds: Some(FeedDescriptor {
            dp_size: 2,
            endpoint_host: "0.0.0.0".to_owned(),
            endpoint_port_base: Some(5_557),
            topic: "kv".to_owned(),
            block_size: Some(16),
            load_endpoint_port_base: Some(5_600),
            load_topic: Some("load".to_owned()),
            replay_endpoint_port_base: Some(5_700),
        }),
        api_key: Some(Secret::new(KEY)),
        ranks: None,
        role: None,
    };
    assert_eq!(workers(text), [Endpoint { overrides, ..Endpoint::new(url("engine:30000")) }]);
}

#[test]
fn a_table_leaves_to_the_engine_what_it_does_not_say() {
    assert_eq!(workers("[[worker]]\nurl = 'a'"), [Endpoint::new(url("a"))]);
    let load_only = workers("[[worker]]\nurl = 'a'\nload_endpoint_port_base = 5600");
    let feeds = FeedDescriptor {
        dp_size: 1,
        endpoint_host: "*".to_owned(),
        endpoint_port_base: None,
        topic: String::new(),
        block_size: None,
        load_endpoint_port_base: Some(5_600),
        load_topic: None,
        replay_endpoint_port_base: None,
    };
    assert_eq!(load_only[0].overrides.feeds, Some(feeds));
    assert_eq!(load_only[0].overrides.api_key, None);
}

#[test]
fn a_worker_in_the_list_and_in_a_table_is_one_worker() {
    let text = "worker_urls = ['a', 'b', 'c']\n[[worker]]\nurl = 'd'\n[[worker]]\nurl = 'http://B:80/'\nmodels = ['m']";
    let workers = workers(text);
    let seen = workers.iter().map(|worker| (worker.url.host(), worker.overrides.models.len())).collect::<Vec<_>>();
    assert_eq!(seen, [("a", 0), ("b", 1), ("c", 0), ("d", 0)]);
}

#[test]
fn two_tables_of_one_worker_must_agree() {
    let same = "[[worker]]\nurl = 'a'\nmodels = ['m']\n[[worker]]\nurl = 'a:80'\nmodels = ['m']";
    assert_eq!(workers(same).len(), 1);
    let different = "[[worker]]\nurl = 'a'\nmodels = ['m']\n[[worker]]\nurl = 'a'";
    let message = validated(different).expect_err("they disagree").to_string();
    assert_eq!(message, "worker http://a:80: two [[worker]] tables give it different settings");
}

#[test]
fn a_refused_setting_is_named_with_its_worker() {
    let needs_kv = "has no effect without endpoint_port_base";
    let needs_load = "has no effect without load_endpoint_port_base";
    let rows = [
        ("models = ['m', '']", r#"models = "": must be the name of a model"#.to_owned()),
        ("dp_size = 2", format!("dp_size = 2: {needs_load} or endpoint_port_base")),
        ("load_topic = 'x'\nendpoint_port_base = 1", format!(r#"load_topic = "x": {needs_load}"#)),
        ("topic = 'x'\nload_endpoint_port_base = 1", format!(r#"topic = "x": {needs_kv}"#)),
        ("endpoint_host = '*'", format!(r#"endpoint_host = "*": {needs_kv}"#)),
        ("block_size = 16", format!("block_size = 16: {needs_kv}")),
        ("replay_endpoint_port_base = 1", format!("replay_endpoint_port_base = 1: {needs_kv}")),
        ("dp_size = 0\nendpoint_port_base = 1", "dp_size = 0: must be at least 1".to_owned()),
        ("dp_size = 1025\nendpoint_port_base = 1", "dp_size = 1025: must be at most 1024".to_owned()),
        ("block_size = 0\nendpoint_port_base = 1", "block_size = 0: must be at least 1".to_owned()),
        ("endpoint_port_base = 0", "endpoint_port_base = 0: port base 0 cannot be dialled".to_owned()),
        (
            "dp_size = 2\nload_endpoint_port_base = 65535",
            "load_endpoint_port_base = 65535: port base 65535 leaves no room for 2 ranks below port 65536".to_owned(),
        ),
        (
            "dp_size = 2\nendpoint_port_base = 1\nreplay_endpoint_port_base = 65535",
            "replay_endpoint_port_base = 65535: port base 65535 leaves no room for 2 ranks below port 65536".to_owned(),
        ),
        (
            "endpoint_host = 'b'\nendpoint_port_base = 1",
            r#"endpoint_host = "b": host "b" is not the worker's own host"#.to_owned(),
        ),
    ];
    for (settings, message) in rows {
        assert_eq!(refusal(settings), format!("worker http://a:80: {message}"));
    }
}

#[test]
fn a_malformed_address_of_a_table_is_named() {
    let rows = [
        ("", r#"worker.url: "" is not the address of a worker: it is not a host with an optional port"#),
        ("a/v1", r#"worker.url: "a/v1" is not the address of a worker: an address has no path, query or fragment"#),
        ("http://me:pass@a", r#"worker.url = "<credentials>@a": credentials do not belong into an address"#),
    ];
    for (address, message) in rows {
        let text = format!("[[worker]]\nurl = '{address}'");
        assert_eq!(validated(&text).expect_err(address).to_string(), message);
    }
}

#[test]
fn keys_come_from_the_table_or_from_the_variable_that_it_names() {
    for settings in ["api_key = ' sk-0123456789 '", "api_key_env = 'ENGINE_KEY'"] {
        let workers = workers(&format!("[[worker]]\nurl = 'a'\n{settings}"));
        assert_eq!(workers[0].overrides.api_key, Some(Secret::new(KEY)), "{settings}");
    }
    let config = validated("worker_urls = ['a']\nengine_api_key_env = 'ENGINE_KEY'").expect("the variable is set");
    assert_eq!(config.upstream.api_key, Some(Secret::new(KEY)));
    assert_eq!(config.workers[0].overrides.api_key, None, "the key of all engines outranks no worker's own");
}

#[test]
fn a_key_that_cannot_be_sent_is_refused_without_showing_it() {
    let not_a_name = "must be the name of an environment variable, in capital letters, digits and underscores";
    let rows = [
        (
            "engine_api_key_env = 'UNSET'",
            r#"engine_api_key_env = "UNSET": this environment variable is not set"#.to_owned(),
        ),
        ("engine_api_key_env = 'EMPTY_KEY'", "engine_api_key_env: the key is empty".to_owned()),
        (
            "engine_api_key_env = 'BROKEN_KEY'",
            "engine_api_key_env: the key must consist of visible ASCII characters".to_owned(),
        ),
        ("engine_api_key_env = 'sk-0123456789'", format!("engine_api_key_env: {not_a_name}")),
        ("engine_api_key_env = ''", format!("engine_api_key_env: {not_a_name}")),
    ];
    for (text, message) in rows {
        assert_eq!(validated(text).expect_err(text).to_string(), message);
    }
    let of_a_worker = [
        ("api_key = ' '", "worker http://a:80: api_key: the key is empty"),
        ("api_key_env = 'UNSET'", "worker http://a:80: api_key_env = \"UNSET\": this environment variable is not set"),
        ("api_key = 'x'\napi_key_env = 'X'", "worker http://a:80: api_key: cannot be given beside api_key_env"),
        ("api_key = 123456789", "line 3: worker.api_key: must be text"),
    ];
    for (settings, message) in of_a_worker {
        assert_eq!(refusal(settings), message);
    }
}

#[test]
fn keys_of_engines_appear_in_no_debug_text_and_no_error() {
    let text = format!("engine_api_key_env = 'ENGINE_KEY'\n[[worker]]\nurl = 'a'\napi_key = '{KEY}'");
    let raw = RawConfig::from_toml(&text).expect("the text is valid");
    assert!(!format!("{raw:?}").contains(KEY));
    let config = raw.validate(variables).expect("the configuration is valid");
    assert!(!format!("{config:?}").contains(KEY));
    let broken = [
        format!("api_key = '{KEY}"),
        format!("api_key = {KEY}"),
        format!("api_key = '{KEY}' '{KEY}'"),
        format!("api_key = ['{KEY}']"),
        format!("api_key = {{ text = '{KEY}' }}"),
        format!("api_key = '{KEY}'\napi_key = '{KEY}'"),
        format!("api_key = '{KEY}\\u0000é'"),
        format!("api_key_env = '{KEY}'"),
    ];
    for settings in broken {
        let error = validated(&format!("[[worker]]\nurl = 'a'\n{settings}")).expect_err(&settings);
        assert!(!format!("{error} {error:?}").contains(KEY), "{error:?}");
    }
}

#[test]
fn a_table_says_which_ranks_and_which_part_a_worker_has() {
    let overrides = |keys: &str| workers(&format!("[[worker]]\nurl = 'a'\n{keys}"))[0].overrides.clone();
    let ranks = overrides("dp_ranks = '4-7'");
    assert_eq!(ranks.ranks, RankRule::parse("4-7"));
    assert_eq!(overrides("dp_ranks = 'off'").ranks, Some(RankRule::Off));
    assert_eq!(overrides("role = 'decode'").role, Some(Role::Decode));
    assert_eq!(overrides("role = 'prefill'").role, Some(Role::Prefill { bootstrap_port: 8_998 }));
    let own_port = overrides("role = 'prefill'\nbootstrap_port = 9000");
    assert_eq!(own_port.role, Some(Role::Prefill { bootstrap_port: 9_000 }));
    let rows = [
        ("dp_ranks = 'all'", "dp_ranks = \"all\": must be off, a number, or a range"),
        ("dp_ranks = '0-1024'", "dp_ranks = \"0-1024\": must be off"),
        ("role = 'both'", "role = \"both\": must be one of regular, prefill, decode"),
        ("role = 'prefill'\nbootstrap_port = 0", "bootstrap_port = 0: must be at least 1"),
        ("bootstrap_port = 9000", "bootstrap_port = 9000: has no effect without role"),
        ("role = 'decode'\nbootstrap_port = 9000", "bootstrap_port = 9000: has no effect without role"),
    ];
    for (keys, expected) in rows {
        let refused = refusal(keys);
        assert!(refused.contains(expected), "{keys}: {refused}");
    }
}
