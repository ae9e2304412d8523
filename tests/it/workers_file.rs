//! Workers that a file lists, which is read again while the router runs.

use std::path::PathBuf;

use fathom_router::router::Router;
use serde_json::json;

use crate::support::{RunningRouter, TemporaryFile, engine, eventually, fast_config, start_router};

const TAKEN: &str = "fathom_discovery_updates_total{kind=\"file_taken\"}";
const REFUSED: &str = "fathom_discovery_updates_total{kind=\"file_refused\"}";

fn listing(urls: &[&str]) -> String {
    format!("worker_urls = {}\n", json!(urls))
}

async fn reading(file: PathBuf) -> RunningRouter {
    let mut config = fast_config(&[]);
    config.discovery.workers_file = Some(file);
    start_router(Router::builder().config(config)).await
}

async fn urls(router: &RunningRouter) -> Vec<String> {
    let shown = router.shown_workers().await;
    shown.iter().map(|worker| worker["url"].as_str().expect("a url").to_owned()).collect()
}

#[actix::test]
async fn a_change_of_the_file_is_followed_and_one_that_is_refused_changes_nothing() {
    let [first, second] = [engine("first").await, engine("second").await];
    let file = TemporaryFile::new("workers-change.toml", &listing(&[&first.url()]));
    let router = reading(file.path().to_owned()).await;
    router.wait_until_serving(1).await;
    assert_eq!(router.shown(&first.url()).await["sources"], json!(["file"]));
    let id = router.shown(&first.url()).await["id"].clone();

    std::fs::write(file.path(), listing(&[&first.url(), &second.url()])).expect("written");
    router.wait_until_serving(2).await;
    assert_eq!(router.shown(&first.url()).await["id"], id, "who stays listed is not touched");

    for (number, text) in [(1.0, "worker_urls = ['w:0']\n"), (2.0, ""), (3.0, "worker_urls = [")] {
        std::fs::write(file.path(), text).expect("written");
        router.wait_until_metric_is(REFUSED, number).await;
        assert_eq!(urls(&router).await.len(), 2, "{text:?}");
    }
    std::fs::remove_file(file.path()).expect("removed");
    router.wait_until_metric_is(REFUSED, 4.0).await;
    assert_eq!(urls(&router).await.len(), 2, "a file that is gone takes nobody with it");

    std::fs::write(file.path(), listing(&[&second.url()])).expect("written");
    router.wait_until_metric_is(TAKEN, 2.0).await;
    assert_eq!(urls(&router).await, [second.url()]);
    std::fs::write(file.path(), "worker_urls = []\n").expect("written");
    router.wait_until_metric_is(TAKEN, 3.0).await;
    assert!(urls(&router).await.is_empty(), "an empty list that is written out is a list");
    router.stop_and_check().await;
}

/// A ConfigMap that is mounted is a link to a link to the folder of its present version.
#[actix::test]
async fn a_link_that_points_elsewhere_is_a_change() {
    let [first, second] = [engine("first").await, engine("second").await];
    let folder = std::env::temp_dir().join(format!("fathom-it-{}-workers-links", std::process::id()));
    let (old, new, data) = (folder.join("..1"), folder.join("..2"), folder.join("..data"));
    for (version, engine) in [(&old, &first), (&new, &second)] {
        std::fs::create_dir_all(version).expect("a folder");
        std::fs::write(version.join("workers.toml"), listing(&[&engine.url()])).expect("written");
    }
    std::os::unix::fs::symlink("..1", &data).expect("a link");
    std::os::unix::fs::symlink("..data/workers.toml", folder.join("workers.toml")).expect("a link");
    let router = reading(folder.join("workers.toml")).await;
    router.wait_until_serving(1).await;

    std::os::unix::fs::symlink("..2", folder.join("..tmp")).expect("a link");
    std::fs::rename(folder.join("..tmp"), &data).expect("the swap");
    eventually("the new version counts", || async { (urls(&router).await == [second.url()]).then_some(()) }).await;
    router.stop_and_check().await;
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Seen in sgl-project/sglang#12621.
#[actix::test]
async fn a_file_that_cannot_be_used_at_start_stops_the_start_and_is_named() {
    for (text, reason) in [
        (
            "worker_urls = ['a:1', 'b:0']",
            "worker_urls: \"b:0\" is not the address of a worker: port 0 cannot be dialled",
        ),
        ("", "holds neither worker_urls nor a [[worker]] table"),
    ] {
        let file = TemporaryFile::new("workers-start.toml", text);
        let mut config = fast_config(&[]);
        config.discovery.workers_file = Some(file.path().to_owned());
        let refused = Router::builder().config(config).start().await.expect_err(text).to_string();
        assert_eq!(refused, format!("workers_file = {:?}: {reason}", file.path()));
    }
}

/// Seen in sgl-project/sglang#38523.
#[actix::test]
async fn a_worker_that_the_list_the_file_and_the_operator_name_stays_until_all_drop_it() {
    let engine = engine("shared").await;
    let url = engine.url();
    let file = TemporaryFile::new("workers-shared.toml", &listing(&[&url]));
    let mut config = fast_config(std::slice::from_ref(&url));
    config.discovery.workers_file = Some(file.path().to_owned());
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;
    assert_eq!(router.admin("POST", "/workers", json!({ "url": url })).await.status, 200);
    let shown = router.shown(&url).await;
    assert_eq!(shown["sources"], json!(["admin", "file", "static"]));

    std::fs::write(file.path(), "worker_urls = []\n").expect("written");
    router.wait_until_metric_is(TAKEN, 1.0).await;
    router.announce("static", &[]).await;
    let left = router.shown(&url).await;
    assert_eq!((&left["sources"], &left["id"]), (&json!(["admin"]), &shown["id"]));
    assert_eq!(router.admin("DELETE", &format!("/workers/{url}"), json!(null)).await.status, 200);
    assert!(urls(&router).await.is_empty());
    router.stop_and_check().await;
}
