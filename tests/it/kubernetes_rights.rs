//! Service accounts that may do less than the router needs.

use std::time::Duration;

use fathom_router::router::Router;

use crate::kubernetes::{by_pods, start, wait_until_gone};
use crate::support::{Client, KubeApi, engine, fast_config, pod};

fn missing(verb: &str, namespace: &str) -> String {
    format!("fathom_kubernetes_missing_rights{{namespace=\"{namespace}\",resource=\"pods\",verb=\"{verb}\"}}")
}

/// Seen in kubernetes/kops#3463.
#[actix::test]
async fn who_may_list_but_not_watch_is_served_by_polling() {
    let api = KubeApi::start().await;
    api.forbid("watch", "pods", "llm");
    let [first, second] = [engine("first").await, engine("second").await];
    api.put("pods", pod("first", first.port()));
    let mut config = by_pods(&api);
    config.kubernetes.as_mut().unwrap().pace.poll = Duration::from_secs(1);
    let router = start(config).await;
    router.wait_until_serving(1).await;
    router.wait_until_metric_is(&missing("watch", "llm"), 1.0).await;
    assert_eq!(router.metric(&missing("list", "llm")).await, Some(0.0));
    api.put("pods", pod("second", second.port()));
    router.wait_until_serving(2).await;
    api.delete("pods", "first");
    wait_until_gone(&router, &first.url()).await;
    assert_eq!(api.requests("watch").len(), 1, "not tried again before the next period");
    router.stop_and_check().await;
}

/// Seen in kubernetes/kops#3463.
#[actix::test]
async fn who_may_do_neither_is_not_ready_and_asks_no_more_than_once_per_period() {
    let api = KubeApi::start().await;
    api.forbid("list", "pods", "llm");
    api.forbid("watch", "pods", "llm");
    let router = start(by_pods(&api)).await;
    router.wait_until_metric_is(&missing("list", "llm"), 1.0).await;
    // More time than a tight loop would need for a thousand requests.
    router.wait_for_metric("fathom_kubernetes_failures_total{kind=\"forbidden\"}", 1.0).await;
    for _ in 0..20 {
        let ready = Client::new().get(&format!("{}/readyz", router.url)).await;
        assert_eq!(ready.status, 503);
    }
    let synced = "fathom_kubernetes_synced{namespace=\"llm\",resource=\"pods\"}";
    assert_eq!(router.metric(synced).await, Some(0.0));
    assert_eq!(router.metric("fathom_kubernetes_age_seconds{namespace=\"llm\",resource=\"pods\"}").await, None);
    assert_eq!((api.requests("list").len(), api.requests("watch").len()), (1, 0));
    router.stop_and_check().await;
}

/// Seen in kubernetes/kops#3463.
#[actix::test]
async fn of_two_namespaces_the_one_that_is_not_forbidden_is_served() {
    let api = KubeApi::start().await;
    api.forbid("list", "pods", "other");
    let engine = engine("allowed").await;
    api.put("pods", pod("allowed", engine.port()));
    let mut config = by_pods(&api);
    config.kubernetes.as_mut().unwrap().namespaces = vec!["llm".into(), "other".into()];
    let router = start(config).await;
    router.wait_until_serving(1).await;
    router.wait_until_metric_is(&missing("list", "other"), 1.0).await;
    assert_eq!(router.metric(&missing("list", "llm")).await, Some(0.0));
    assert_eq!(router.chat().await.header("x-sim-engine"), "allowed");
    api.delete("pods", "allowed");
    wait_until_gone(&router, &engine.url()).await;
    router.stop_and_check().await;
}

#[actix::test]
async fn all_namespaces_are_asked_for_at_once() {
    let api = KubeApi::start().await;
    let engine = engine("somewhere").await;
    api.put("pods", pod("somewhere", engine.port()));
    let mut config = by_pods(&api);
    config.kubernetes.as_mut().unwrap().namespaces = vec!["*".into()];
    let router = start(config).await;
    router.wait_until_serving(1).await;
    assert!(api.requests("list").iter().all(|list| list.namespace.is_empty()));
    router.wait_until_metric_is("fathom_kubernetes_synced{namespace=\"*\",resource=\"pods\"}", 1.0).await;
    router.stop_and_check().await;
}

#[actix::test]
async fn settings_that_cannot_work_are_refused_at_start() {
    let api = KubeApi::start().await;
    let mut nothing = by_pods(&api);
    nothing.kubernetes.as_mut().unwrap().selector = None;
    let mut nowhere = by_pods(&api);
    nowhere.kubernetes.as_mut().unwrap().api_url = Some("not an address".to_owned());
    for (config, expected) in [(nothing, "kubernetes_service = none"), (nowhere, "the Kubernetes source cannot start")]
    {
        let error = Router::builder().config(config).start().await.expect_err("this must be refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(fast_config(&[]).kubernetes.is_none(), "nothing of this without a setting");
}
