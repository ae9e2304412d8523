//! Lists and watches that break, fall silent or expire, and what repairs the set of workers.

use std::time::Duration;

use crate::kubernetes::{by_pods, start, wait_until_gone};
use crate::support::{KubeApi, engine, eventually, pod};

const AGE: &str = "fathom_kubernetes_age_seconds{namespace=\"llm\",resource=\"pods\"}";
const SYNCED: &str = "fathom_kubernetes_synced{namespace=\"llm\",resource=\"pods\"}";

async fn wait_for_watches(api: &KubeApi, num_watches: usize) {
    eventually(&format!("{num_watches} watches were opened"), || async {
        (api.requests("watch").len() >= num_watches).then_some(())
    })
    .await;
}

/// Seen in sgl-project/sglang#32322.
#[actix::test]
async fn a_watch_that_stays_open_and_says_nothing_is_made_up_for_by_the_periodic_list() {
    let api = KubeApi::start().await;
    let [gone, newcomer] = [engine("gone").await, engine("newcomer").await];
    api.put("pods", pod("gone", gone.port()));
    let mut config = by_pods(&api);
    config.kubernetes.as_mut().unwrap().pace.relist = Duration::from_secs(2);
    let router = start(config).await;
    router.wait_until_serving(1).await;
    wait_for_watches(&api, 1).await;
    api.silence(true);
    // The list that lacks a known pod takes it away.
    api.delete("pods", "gone");
    api.put("pods", pod("newcomer", newcomer.port()));
    wait_until_gone(&router, &gone.url()).await;
    router.wait_until_serving(1).await;
    assert_eq!(router.chat().await.header("x-sim-engine"), "newcomer");
    assert!(api.requests("list").len() >= 2);
    assert_eq!(router.metric(SYNCED).await, Some(1.0));
    router.stop_and_check().await;
}

#[actix::test]
async fn the_age_of_what_is_known_grows_while_nothing_comes_and_falls_with_the_next_word() {
    let api = KubeApi::start().await;
    let router = start(by_pods(&api)).await;
    router.wait_until_metric_is(SYNCED, 1.0).await;
    router.wait_for_metric(AGE, 1.0).await;
    api.bookmark();
    eventually("the age falls", || async { router.metric(AGE).await.filter(|age| *age < 1.0) }).await;
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#32322.
#[actix::test]
async fn a_watch_that_the_server_closes_again_and_again_goes_on_from_its_version_without_a_list() {
    let api = KubeApi::start().await;
    let router = start(by_pods(&api)).await;
    for round in 1..=4 {
        wait_for_watches(&api, round).await;
        api.close_watches();
    }
    wait_for_watches(&api, 5).await;
    let engine = engine("late").await;
    api.put("pods", pod("late", engine.port()));
    router.wait_until_serving(1).await;
    assert_eq!(api.requests("list").len(), 1, "the version is enough");
    router.stop_and_check().await;
}

#[actix::test]
async fn what_is_deleted_between_two_watches_is_told_by_the_second() {
    let api = KubeApi::start().await;
    let engine = engine("gone").await;
    api.put("pods", pod("gone", engine.port()));
    let router = start(by_pods(&api)).await;
    router.wait_until_serving(1).await;
    wait_for_watches(&api, 1).await;
    api.silence(true);
    api.delete("pods", "gone");
    api.close_watches();
    wait_for_watches(&api, 2).await;
    assert_eq!(router.members().await.len(), 1, "nobody has said so yet");
    api.silence(false);
    wait_until_gone(&router, &engine.url()).await;
    router.stop_and_check().await;
}

#[actix::test]
async fn a_bookmark_moves_the_version_from_which_the_next_watch_begins() {
    let api = KubeApi::start().await;
    let router = start(by_pods(&api)).await;
    wait_for_watches(&api, 1).await;
    let version = api.bookmark();
    api.close_watches();
    wait_for_watches(&api, 2).await;
    let watches = api.requests("watch");
    assert_eq!(watches[0].query["allowWatchBookmarks"], "true");
    assert_eq!(watches[1].query["resourceVersion"], version);
    router.stop_and_check().await;
}

#[actix::test]
async fn an_expired_version_in_the_stream_or_at_its_start_calls_for_a_list_which_repairs_the_set() {
    let api = KubeApi::start().await;
    let [gone, newcomer] = [engine("gone").await, engine("newcomer").await];
    api.put("pods", pod("gone", gone.port()));
    let router = start(by_pods(&api)).await;
    router.wait_until_serving(1).await;
    wait_for_watches(&api, 1).await;
    api.silence(true);
    api.delete("pods", "gone");
    api.put("pods", pod("newcomer", newcomer.port()));
    api.expire();
    api.silence(false);
    wait_until_gone(&router, &gone.url()).await;
    router.wait_until_serving(1).await;
    router.wait_for_metric("fathom_kubernetes_failures_total{kind=\"expired\"}", 1.0).await;
    assert!(api.requests("list").len() >= 2);
    router.stop_and_check().await;
}

#[actix::test]
async fn a_long_list_is_taken_page_by_page_and_counts_only_as_a_whole() {
    let api = KubeApi::start().await;
    let engines = [engine("a").await, engine("b").await, engine("c").await, engine("d").await, engine("e").await];
    for engine in &engines {
        api.put("pods", pod(engine.name(), engine.port()));
    }
    api.page(2);
    let router = start(by_pods(&api)).await;
    router.wait_until_serving(5).await;
    let lists = api.requests("list");
    assert_eq!(lists.len(), 3);
    assert!(lists.iter().all(|list| list.query["limit"] == "250" && list.query["labelSelector"] == "app=engine"));
    router.stop_and_check().await;
}

#[actix::test]
async fn no_more_workers_than_the_limit_are_started_and_the_rest_is_shown() {
    let api = KubeApi::start().await;
    api.page(1);
    for number in 1..=5 {
        api.put("pods", pod(&format!("p{number}"), number));
    }
    let mut config = by_pods(&api);
    config.kubernetes.as_mut().unwrap().max_endpoints = 2;
    let router = start(config).await;
    router.wait_for_metric("fathom_kubernetes_unused_pods{kind=\"over_limit\"}", 1.0).await;
    assert_eq!(router.members().await.len(), 2);
    assert_eq!(api.requests("list").len(), 3, "no further pages than show that there are too many");
    router.stop_and_check().await;
}

#[actix::test]
async fn an_api_that_goes_away_takes_no_worker_away() {
    let api = KubeApi::start().await;
    let engine = engine("steady").await;
    api.put("pods", pod("steady", engine.port()));
    let router = start(by_pods(&api)).await;
    router.wait_until_serving(1).await;
    wait_for_watches(&api, 1).await;
    api.close_watches();
    drop(api);
    router.wait_for_metric("fathom_kubernetes_failures_total{kind=\"unreachable\"}", 2.0).await;
    assert_eq!(router.chat().await.status, 200);
    router.stop_and_check().await;
}
