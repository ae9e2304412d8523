//! Pods and EndpointSlices that become workers, and what of them takes workers away.

use std::time::Duration;

use fathom_router::config::{KubernetesSettings, RouterConfig};
use fathom_router::logic::endpoint::Readiness;
use fathom_router::logic::health::WorkerState;
use fathom_router::router::Router;
use fathom_router::sim::SimEngine;
use serde_json::{Value, json};

use crate::support::{
    KubeApi, RawClient, RawEngine, RunningRouter, assert_all_succeeded, engine, eventually, fast_config, names_of, pod,
    post, slice, start_router,
};

const PATH: &str = "/v1/chat/completions";

/// Pods of `app=engine` in the namespace `llm`.
pub(crate) fn by_pods(api: &KubeApi) -> RouterConfig {
    let mut settings = KubernetesSettings::default();
    settings.selector = Some("app=engine".into());
    settings.namespaces = vec!["llm".into()];
    settings.api_url = Some(api.url());
    // Nothing but the watch brings news while a test runs.
    settings.pace.relist = Duration::from_secs(3_600);
    let mut config = fast_config(&[]);
    config.kubernetes = Some(settings);
    config
}

/// Endpoints of the service `engines` in the namespace `llm`.
pub(crate) fn by_service(api: &KubeApi) -> RouterConfig {
    let mut config = by_pods(api);
    let settings = config.kubernetes.as_mut().unwrap();
    (settings.selector, settings.service) = (None, Some("engines".into()));
    config
}

pub(crate) async fn start(config: RouterConfig) -> RunningRouter {
    start_router(Router::builder().config(config)).await
}

/// A router over one pod per engine.
async fn over_pods(api: &KubeApi, engines: &[&SimEngine]) -> RunningRouter {
    for engine in engines {
        api.put("pods", pod(engine.name(), engine.port()));
    }
    let router = start(by_pods(api)).await;
    router.wait_until_serving(engines.len()).await;
    router
}

pub(crate) async fn wait_until_gone(router: &RunningRouter, url: &str) {
    eventually(&format!("{url} is no worker"), || async { router.shown(url).await.is_null().then_some(()) }).await;
}

pub(crate) async fn wait_until_suspended(router: &RunningRouter, url: &str) {
    router.wait_until_shown(url, "it is suspended", |shown| shown["state"] == "suspended").await;
}

#[actix::test]
async fn a_pod_that_appears_is_served_and_one_that_is_deleted_is_no_worker_any_more() {
    let api = KubeApi::start().await;
    let router = start(by_pods(&api)).await;
    router.wait_until_metric_is("fathom_kubernetes_synced{namespace=\"llm\",resource=\"pods\"}", 1.0).await;
    assert_eq!(router.chat().await.status, 503);
    let engine = engine("newcomer").await;
    api.put("pods", pod("newcomer", engine.port()));
    router.wait_until_serving(1).await;
    assert_eq!(router.chat().await.header("x-sim-engine"), "newcomer");
    api.delete("pods", "newcomer");
    wait_until_gone(&router, &engine.url()).await;
    assert!(router.shown_workers().await.is_empty());
    router.stop_and_check().await;
}

/// Seen in vllm-project/production-stack#1008.
#[actix::test]
async fn an_evicted_pod_goes_with_the_change_that_blanks_its_address() {
    let api = KubeApi::start().await;
    let [evicted, other] = [engine("evicted").await, engine("other").await];
    let router = over_pods(&api, &[&evicted, &other]).await;
    api.edit("pods", "evicted", |pod| pod["status"] = json!({"phase": "Failed", "reason": "Evicted"}));
    wait_until_gone(&router, &evicted.url()).await;
    let answers = router.chat_times(10).await;
    assert_all_succeeded(&answers);
    assert_eq!(names_of(&answers)["other"], 10);
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#30270 and #26842.
#[actix::test]
async fn a_delete_a_new_address_and_a_label_that_no_longer_matches_take_the_old_worker_away_and_no_other() {
    let api = KubeApi::start().await;
    let other = engine("other").await;
    let [deleted, moved, relabelled] = [engine("deleted").await, engine("moved").await, engine("relabelled").await];
    let router = over_pods(&api, &[&other, &deleted, &moved, &relabelled]).await;
    let untouched = router.worker(&other.url()).await.expect("a worker");

    // Without a terminating update before it.
    api.delete("pods", "deleted");
    wait_until_gone(&router, &deleted.url()).await;

    let elsewhere = engine("elsewhere").await;
    api.put("pods", pod("moved", elsewhere.port()));
    wait_until_gone(&router, &moved.url()).await;
    router.wait_until_shown(&elsewhere.url(), "it serves", |shown| shown["state"] == "serving").await;

    api.edit("pods", "relabelled", |pod| pod["metadata"]["labels"]["app"] = json!("other"));
    wait_until_gone(&router, &relabelled.url()).await;

    assert_eq!(router.members().await.len(), 2);
    let now = router.worker(&other.url()).await.expect("a worker");
    assert_eq!((now.id, now.serving_since), (untouched.id, untouched.serving_since));
    router.stop_and_check().await;
}

/// Seen in vllm-project/production-stack#601, vllm-project/router#279 and llm-d/llm-d-router#2188.
#[actix::test]
async fn pods_that_terminate_or_are_not_ready_get_no_new_requests_while_their_streams_go_on() {
    type Edit = fn(&mut Value);
    let edits: [(&str, Edit); 3] = [
        ("deleted, but ready", |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:00Z")),
        ("not ready", |pod| pod["status"]["conditions"][0]["status"] = json!("False")),
        ("a gate unmet", |pod| pod["spec"]["readinessGates"] = json!([{"conditionType": "example.com/warm"}])),
    ];
    for (sentence, edit) in edits {
        let api = KubeApi::start().await;
        let mut leaving = RawEngine::start().await;
        let port = leaving.authority().rsplit(':').next().unwrap().parse().unwrap();
        api.put("pods", pod("leaving", port));
        let router = start(by_pods(&api)).await;
        router.wait_until_serving(1).await;
        let mut client = RawClient::connect(&router.url).await;
        client.write(post(PATH, r#"{"stream":true}"#)).await;
        let mut stream = leaving.next_request().await;
        stream.start_stream().await;
        client.read_through("\r\n\r\n").await;

        let staying = engine("staying").await;
        api.put("pods", pod("staying", staying.port()));
        router.wait_until_serving(2).await;
        let id = router.worker(&leaving.url()).await.expect("a worker").id;
        api.edit("pods", "leaving", edit);
        wait_until_suspended(&router, &leaving.url()).await;
        let answers = router.chat_times(10).await;
        assert_all_succeeded(&answers);
        assert_eq!(names_of(&answers)["staying"], 10, "{sentence}");
        assert!(!leaving.has_request(), "{sentence}: no new request");
        let worker = router.worker(&leaving.url()).await.expect("a worker");
        assert_eq!((worker.id, worker.in_flight), (id, 1), "{sentence}: it is kept with its load");

        stream.write_chunk("data: 1\n\n").await;
        client.read_through("data: 1\n\n").await;
        stream.end_stream().await;
        client.read_through("0\r\n\r\n").await;
        api.delete("pods", "leaving");
        wait_until_gone(&router, &leaving.url()).await;
        router.stop_and_check().await;
    }
}

/// Seen in llm-d/llm-d-router#2188.
#[actix::test]
async fn an_endpoint_that_serves_and_terminates_in_its_slice_gets_no_new_requests() {
    let api = KubeApi::start().await;
    let [leaving, staying] = [engine("leaving").await, engine("staying").await];
    api.put("endpointslices", slice("engines-1", leaving.port(), &["leaving"]));
    api.put("endpointslices", slice("engines-2", staying.port(), &["staying"]));
    let router = start(by_service(&api)).await;
    router.wait_until_serving(2).await;
    api.edit("endpointslices", "engines-1", |slice| {
        slice["endpoints"][0]["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
    });
    wait_until_suspended(&router, &leaving.url()).await;
    assert_eq!(names_of(&router.chat_times(10).await)["staying"], 10);
    api.edit("endpointslices", "engines-1", |slice| slice["endpoints"] = json!([]));
    wait_until_gone(&router, &leaving.url()).await;
    router.stop_and_check().await;
}

#[actix::test]
async fn an_endpoint_that_moves_to_another_slice_stays_the_worker_that_it_is() {
    let api = KubeApi::start().await;
    let engine = engine("mover").await;
    api.put("endpointslices", slice("engines-1", engine.port(), &["mover"]));
    let router = start(by_service(&api)).await;
    router.wait_until_serving(1).await;
    let before = router.worker(&engine.url()).await.expect("a worker");
    api.put("endpointslices", slice("engines-2", engine.port(), &["mover"]));
    api.delete("endpointslices", "engines-1");
    // What comes after it on the same watch shows that the move has been taken in.
    api.put("endpointslices", slice("engines-3", 9, &["marker"]));
    router.wait_until_shown("http://127.0.0.1:9", "it is known", |shown| !shown.is_null()).await;
    let after = router.worker(&engine.url()).await.expect("a worker");
    assert_eq!((after.id, after.state), (before.id, WorkerState::Serving));
    router.stop_and_check().await;
}

/// Seen in spring-cloud/spring-cloud-kubernetes#1369.
#[actix::test]
async fn a_container_that_was_started_again_in_place_is_asked_again_and_inherits_nothing() {
    let api = KubeApi::start().await;
    let engine = engine("again").await;
    let router = over_pods(&api, &[&engine]).await;
    router.wait_until_trusted(1).await;
    let before = router.worker(&engine.url()).await.expect("a worker");

    // Not ready for a moment: the same worker, with all that is known of it.
    api.edit("pods", "again", |pod| pod["status"]["conditions"][0]["status"] = json!("False"));
    wait_until_suspended(&router, &engine.url()).await;
    let blip = router.worker(&engine.url()).await.expect("a worker");
    assert_eq!((blip.id, blip.load.reports().len()), (before.id, before.load.reports().len()));

    let asked = router.metric("fathom_introspections_total{kind=\"answered\"}").await.unwrap_or_default();
    api.edit("pods", "again", |pod| pod["status"]["containerStatuses"][0]["restartCount"] = json!(1));
    eventually("another worker is there", || async {
        router.worker(&engine.url()).await.filter(|worker| worker.id != before.id).map(drop)
    })
    .await;
    api.edit("pods", "again", |pod| pod["status"]["conditions"][0]["status"] = json!("True"));
    router.wait_until_serving(1).await;
    router.wait_for_metric("fathom_introspections_total{kind=\"answered\"}", asked + 1.0).await;
    assert_eq!(router.members().await.len(), 1);
    assert_eq!(router.chat().await.status, 200);
    router.stop_and_check().await;
}

/// A pod beside its slice tells what the slice cannot.
#[actix::test]
async fn with_a_service_and_a_selector_a_restart_in_place_is_seen_and_pods_outside_the_service_are_not_served() {
    let api = KubeApi::start().await;
    let [member, outsider] = [engine("member").await, engine("outsider").await];
    api.put("endpointslices", slice("engines-1", member.port(), &["member"]));
    api.put("pods", pod("member", member.port()));
    api.put("pods", pod("outsider", outsider.port()));
    let mut config = by_service(&api);
    config.kubernetes.as_mut().unwrap().selector = Some("app=engine".into());
    let router = start(config).await;
    router.wait_until_serving(1).await;
    let before = router.worker(&member.url()).await.expect("a worker");
    api.edit("pods", "member", |pod| pod["status"]["containerStatuses"][0]["restartCount"] = json!(1));
    eventually("another worker is there", || async {
        router.worker(&member.url()).await.filter(|worker| worker.id != before.id).map(drop)
    })
    .await;
    assert_eq!(router.members().await.len(), 1);
    router.stop_and_check().await;
}

#[actix::test]
async fn workers_of_the_configuration_and_of_kubernetes_are_served_together() {
    let api = KubeApi::start().await;
    let [configured, found] = [engine("configured").await, engine("found").await];
    api.put("pods", pod("found", found.port()));
    let mut config = by_pods(&api);
    config.workers = fast_config(&[configured.url()]).workers;
    assert_eq!(config.workers[0].readiness, Readiness::Ready);
    let router = start(config).await;
    router.wait_until_serving(2).await;
    api.delete("pods", "found");
    wait_until_gone(&router, &found.url()).await;
    assert_eq!(router.chat().await.header("x-sim-engine"), "configured");
    router.stop_and_check().await;
}
