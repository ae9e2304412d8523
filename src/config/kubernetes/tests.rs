use std::time::Duration;

use crate::config::{KubernetesSettings, RawConfig};
use crate::logic::kubernetes::PortRule;

fn settings(text: &str) -> Result<Option<KubernetesSettings>, String> {
    let raw = RawConfig::from_toml(text).map_err(|error| error.to_string())?;
    let (router, _) = raw.validate(|_| None).map_err(|error| error.to_string())?;
    Ok(router.kubernetes)
}

fn given(text: &str) -> KubernetesSettings {
    settings(text).unwrap_or_else(|error| panic!("{error}")).expect("settings")
}

#[test]
fn nothing_written_means_no_kubernetes() {
    assert_eq!(settings(""), Ok(None));
}

#[test]
fn a_service_or_a_selector_is_enough_and_the_rest_has_defaults() {
    let by_service = given("kubernetes_service = 'engines'");
    assert_eq!(by_service, KubernetesSettings { service: Some("engines".into()), ..KubernetesSettings::default() });
    let by_selector = given("kubernetes_selector = 'app=engine,pool in (a,b)'\nkubernetes_namespaces = ['a', ' b']");
    assert_eq!(by_selector.selector.as_deref(), Some("app=engine,pool in (a,b)"));
    assert_eq!(by_selector.namespaces, ["a".into(), "b".into()]);
}

#[test]
fn a_port_is_a_number_or_a_name() {
    let port = |text: &str| given(&format!("kubernetes_service = 'engines'\nkubernetes_port = '{text}'")).port;
    assert_eq!(port("30000"), PortRule::Number(30_000));
    assert_eq!(port("http"), PortRule::Named("http".into()));
    assert_eq!(port("8080-tcp"), PortRule::Named("8080-tcp".into()));
}

#[test]
fn what_cannot_work_is_refused_with_key_and_value() {
    let rows = [
        ("kubernetes_relist_secs = 60", "kubernetes_service = none"),
        ("kubernetes_service = 'no/name'", "kubernetes_service = \"no/name\""),
        ("kubernetes_service = ''", "kubernetes_service = \"\""),
        ("kubernetes_selector = ' '", "kubernetes_selector = \" \""),
        ("kubernetes_service = 'e'\nkubernetes_namespaces = ['..']", "kubernetes_namespaces = \"..\""),
        ("kubernetes_service = 'e'\nkubernetes_port = '0'", "kubernetes_port = \"0\""),
        ("kubernetes_service = 'e'\nkubernetes_port = '65536'", "kubernetes_port = \"65536\""),
        ("kubernetes_service = 'e'\nkubernetes_port = ''", "kubernetes_port = \"\""),
        ("kubernetes_service = 'e'\nkubernetes_relist_secs = 0", "kubernetes_relist_secs = 0"),
        ("kubernetes_service = 'e'\nkubernetes_poll_secs = 3601", "kubernetes_poll_secs = 3601"),
        ("kubernetes_service = 'e'\nkubernetes_max_endpoints = 10001", "kubernetes_max_endpoints = 10001"),
    ];
    for (text, expected) in rows {
        let error = settings(text).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let by_embedder = KubernetesSettings {
        service: Some("engines".into()),
        pace: crate::logic::kubernetes::Pace { relist: Duration::from_millis(1), poll: Duration::from_secs(1) },
        ..KubernetesSettings::default()
    };
    let config =
        crate::config::RouterConfig { kubernetes: Some(by_embedder), ..crate::config::RouterConfig::default() };
    assert!(config.check().expect_err("too often").to_string().starts_with("kubernetes_relist_secs = 0.001"));
}
