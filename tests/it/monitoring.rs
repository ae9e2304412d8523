//! The dashboard and the alert rules in examples/monitoring use only what a router really exposes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::{Client, RunningRouter, chat_body, engine};

const ALERTS: &str = include_str!("../../examples/monitoring/alerts.yaml");
const DASHBOARD: &str = include_str!("../../examples/monitoring/grafana.json");
/// Labels that Prometheus itself adds, and that of histogram buckets.
const FOREIGN: [&str; 3] = ["job", "instance", "le"];

type Labels = BTreeMap<String, BTreeSet<String>>;

/// The metrics of an exposition, with their labels and the values that these have.
fn exposed(text: &str) -> BTreeMap<String, Labels> {
    let mut metrics: BTreeMap<String, Labels> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name_end = line.find(['{', ' ']).unwrap();
        let labels = metrics.entry(line[..name_end].to_owned()).or_default();
        for (label, value) in matchers(&line[name_end..]) {
            labels.entry(label).or_default().insert(value);
        }
    }
    metrics
}

/// The pairs of label and value in a text, whatever stands between.
fn matchers(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('"') {
        let Some((value, next)) = after.split_once('"') else { break };
        let label = before.trim_end_matches(['=', '~', '!']);
        let start = label.rfind(|character: char| !is_name(character)).map_or(0, |at| at + 1);
        found.push((label[start..].to_owned(), value.to_owned()));
        rest = next;
    }
    found
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// The names in an expression that begin as this router's metrics do.
fn metric_names(text: &str) -> BTreeSet<String> {
    let names = text.split(|character: char| !is_name(character));
    names.filter(|name| name.starts_with("fathom_")).map(str::to_owned).collect()
}

/// The labels that an expression groups by.
fn groups(expression: &str) -> Vec<String> {
    let lists = expression.split("by (").skip(1).chain(expression.split("on (").skip(1));
    let labels = lists.filter_map(|list| list.split_once(')')).flat_map(|(list, _)| list.split(','));
    labels.map(|label| label.trim().to_owned()).collect()
}

fn check(expression: &str, shown: &str, metrics: &BTreeMap<String, Labels>) {
    let names = metric_names(expression);
    assert!(!names.is_empty(), "{expression} has no metric");
    for name in &names {
        assert!(metrics.contains_key(name), "{name} is not exposed; in {expression}");
    }
    let has = |label: &str, value: Option<&str>| {
        names
            .iter()
            .any(|name| metrics[name].get(label).is_some_and(|values| value.is_none_or(|value| values.contains(value))))
    };
    let legend = shown.split("{{").skip(1).filter_map(|text| text.split_once("}}")).map(|(label, _)| label.to_owned());
    for label in groups(expression).into_iter().chain(legend) {
        assert!(FOREIGN.contains(&label.as_str()) || has(&label, None), "no label {label} for {expression}");
    }
    for (label, values) in matchers(expression) {
        for value in values.split('|').filter(|_| !FOREIGN.contains(&label.as_str())) {
            assert!(has(&label, Some(value)), "no series with {label}={value} for {expression}");
        }
    }
}

/// A router that has had traffic, some of it in vain, in front of an engine that reports load and cache.
async fn metrics_after_traffic() -> BTreeMap<String, Labels> {
    let engine = engine("a").await;
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;
    let client = Client::new();
    for stream in [false, true] {
        client.post(&format!("{}/v1/chat/completions", router.url), chat_body(3, stream)).await;
    }
    router.chat_with("nobody").await;
    exposed(&router.metrics().await)
}

#[actix::test]
async fn every_metric_and_label_of_the_dashboard_and_the_alerts_is_exposed() {
    let metrics = metrics_after_traffic().await;
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut num_checked = 0;
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets")) {
        check(target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap(), &metrics);
        num_checked += 1;
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            check(query, "", &metrics);
        }
    }
    let rules: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
    for rule in &rules {
        let expression = rule.split_once("expr: ").and_then(|(_, rest)| rest.split_once("labels:")).unwrap().0;
        check(expression.split_once("for:").map_or(expression, |(expression, _)| expression), "", &metrics);
        let action = rule.split_once("action: ").expect("what to do").1;
        for name in metric_names(action) {
            assert!(metrics.contains_key(&name) || metrics.keys().any(|known| known.starts_with(&name)), "{name}");
        }
    }
    assert!(num_checked >= 30 && (5..=10).contains(&rules.len()), "{num_checked} targets, {} rules", rules.len());
}

#[test]
fn the_check_refuses_what_is_not_exposed() {
    let metrics = exposed("fathom_a_total{kind=\"x\"} 1\nfathom_b 2\n");
    check("rate(fathom_a_total{kind=\"x\"}[5m]) > fathom_b", "{{kind}}", &metrics);
    for wrong in ["fathom_c", "fathom_a_total{kind=\"y\"}", "fathom_a_total{other=\"x\"}", "sum by (other) (fathom_b)"]
    {
        assert!(std::panic::catch_unwind(|| check(wrong, "", &metrics)).is_err(), "{wrong}");
    }
}
