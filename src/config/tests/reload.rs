use super::toml;
use crate::config::{RELOADABLE_KEYS, RawConfig, RouterConfig};

#[test]
fn what_was_written_otherwise_is_named_key_by_key() {
    let before = toml("worker_urls = ['a']\npolicy = 'random'\nport = 1");
    let after = toml("worker_urls = ['a', 'b']\nport = 2\nlog_level = 'debug'");
    assert_eq!(before.differing_keys(&after), ["worker_urls", "policy", "port", "log_level"]);
    assert_eq!(after.differing_keys(&after), [""; 0]);
}

#[test]
fn a_key_can_change_while_the_router_runs_exactly_where_the_list_says_so() {
    for key in RELOADABLE_KEYS {
        assert!(key == "worker" || RawConfig::reference().iter().any(|setting| setting.key == key), "{key}");
    }
    let running = RouterConfig::default();
    for setting in RawConfig::reference() {
        let key = setting.key.as_str();
        let lines = match key {
            "seed" => vec!["seed = 5".to_owned()],
            _ => ["2", "3.5", "0.25", "true", "['a']", "'least_load'", "'scaled'", "'/elsewhere'", "'PATH'"]
                .iter()
                .map(|value| format!("{key} = {value}"))
                .collect(),
        };
        let changed: Vec<RouterConfig> = lines
            .iter()
            .filter_map(|line| RawConfig::from_toml(line).ok()?.validate(|_| Some("key".to_owned())).ok())
            .map(|(router, _)| router)
            .filter(|router| *router != running)
            .collect();
        let may_change = RELOADABLE_KEYS.contains(&key);
        for router in &changed {
            assert_eq!(running.differs_only_in_what_can_change(router), may_change, "{key}");
        }
        let is_of_the_router = may_change && key != "log_level";
        assert!(!changed.is_empty() || !is_of_the_router, "no value of {key} differs from its default");
    }
}
