//! Workers that the operator adds, suspends, drains and removes while the router runs.

use std::time::Duration;

use bytes::Bytes;
use fathom_router::router::Router;
use fathom_router::sim::{ServerInfoMode, SimConfig, SimEngine};
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, RunningRouter, Streams, TemporaryFile, assert_all_succeeded, engine, eventually, fast_config,
    names_of, start_router, whole,
};

impl RunningRouter {
    /// Sends the operator's request.
    pub(crate) async fn admin(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.admin_text(method, path, &body).await
    }

    async fn admin_text(&self, method: &str, path: &str, body: &str) -> Answer {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        let body = Full::new(Bytes::from(body.to_owned()));
        whole(Client::new().send(request.body(body).unwrap()).await).await
    }

    async fn add(&self, url: &str) -> Answer {
        self.admin("POST", "/workers", json!({ "url": url })).await
    }
}

fn code_of(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.header("x-fathom-error-code"))
}

fn message_of(answer: &Answer) -> String {
    answer.json()["error"]["message"].as_str().expect("a message").to_owned()
}

/// Seen in sgl-project/sglang#38523.
#[actix::test]
async fn a_known_address_is_one_worker_however_often_and_from_wherever_it_is_added() {
    let [first, second] = [engine("first").await, engine("second").await];
    let mut config = fast_config(&[first.url(), second.url()]);
    config.introspection.interval = Duration::from_secs(1);
    let router = RunningRouter::with(config).await;
    router.announce("other", &[&first.url()]).await;
    let bare = first.url().replace("http://", "");
    for (spelling, status) in [(first.url(), 200), (bare, 200), (format!("{}/", first.url()), 200)] {
        assert_eq!(router.add(&spelling).await.status, status, "{spelling}");
    }
    assert_eq!(router.shown_workers().await.len(), 2);
    assert_eq!(router.shown(&first.url()).await["sources"], json!(["admin", "other", "static"]));
    router.wait_until_trusted(2).await;
    let answers = router.chat_times(300).await;
    assert_all_succeeded(&answers);
    let share = names_of(&answers)["first"];
    assert!((100..=200).contains(&share), "each gets about half: {share}");

    let port = first.port();
    first.kill().await;
    let model = SimConfig { name: "after".to_owned(), model: "large".to_owned(), port, ..SimConfig::default() };
    let after = SimEngine::start(model).await.expect("an engine at the same address");
    let url = after.url();
    assert_eq!(router.add(&url).await.status, 200);
    router.announce("other", &[&url]).await;
    router.wait_until_shown(&url, "it serves the other model", |shown| shown["models"] == json!(["large"])).await;
    assert_eq!(router.shown_workers().await.len(), 2);
    let answers = router.chat_times(30).await;
    assert_all_succeeded(&answers);
    assert_eq!(names_of(&answers)["second"], 30, "nothing for the old model goes to the new engine");
    router.stop_and_check().await;
}

#[actix::test]
async fn a_worker_is_added_serves_and_is_removed_by_every_spelling() {
    let engine = engine("added").await;
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    let (url, bare) = (engine.url(), engine.url().replace("http://", ""));
    for spelling in [url.clone(), bare, format!("{url}/"), url.replace('/', "%2F"), "the id".to_owned()] {
        let added = router.add(&url).await;
        assert_eq!(added.status, 201);
        let shown = &added.json()["worker"];
        assert_eq!((&shown["url"], &shown["sources"]), (&json!(url), &json!(["admin"])));
        router.wait_until_serving(1).await;
        assert_eq!(router.chat().await.header("x-sim-engine"), "added");
        assert_eq!(router.add(&url).await.status, 200, "the same again changes nothing");

        let id = shown["id"].as_str().expect("an id").to_owned();
        assert_eq!(router.admin("GET", &format!("/workers/{id}"), Value::Null).await.json()["url"], url);
        let name = if spelling == "the id" { id } else { spelling };
        let path = format!("/workers/{name}");
        let removed = router.admin("DELETE", &path, Value::Null).await;
        assert_eq!((removed.status, removed.json()), (200, json!({"worker": null, "url": url})), "{path}");
        assert!(router.shown_workers().await.is_empty());
        assert_eq!(code_of(&router.admin("DELETE", &path, Value::Null).await), (404, "worker_not_found"), "{path}");
    }
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#27980.
#[actix::test]
async fn an_engine_that_says_only_later_what_it_serves_is_listed_as_pending_until_then() {
    let engine = engine("late").await;
    engine.set_server_info(ServerInfoMode::Status(503));
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    let added = router.admin("POST", "/workers", json!({ "url": engine.url() })).await;
    assert_eq!((added.status, &added.json()["worker"]["state"]), (201, &json!("pending")));
    assert_eq!(added.json()["worker"]["models"], json!([]), "no name is made up");
    router.wait_for_metric("fathom_introspections_total{kind=\"server_error\"}", 2.0).await;
    assert_eq!(router.metric("fathom_workers{state=\"pending\"}").await, Some(1.0));
    engine.set_server_info(ServerInfoMode::Normal);
    router.wait_until_serving(1).await;
    assert_eq!(router.chat().await.header("x-sim-engine"), "late");
    router.stop_and_check().await;
}

/// Seen in volcano-sh/kthena#1725.
#[actix::test]
async fn what_cannot_be_a_worker_is_refused_with_key_and_value() {
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    let rows = [
        (
            r#"{"url":"169.254.169.254:80"}"#,
            400,
            "address_refused",
            "url = http://169.254.169.254:80: it is a link-local",
        ),
        (r#"{"url":"[fe80::1]:30000"}"#, 400, "address_refused", "url = http://[fe80::1]:30000: it is a link-local"),
        (r#"{"url":"0xa9fea9fe"}"#, 400, "worker_invalid", "worker.url: \"0xa9fea9fe\" is not the address"),
        (r#"{"url":"unix:/run/x"}"#, 400, "worker_invalid", "worker.url: \"unix:/run/x\""),
        (r#"{"url":"w:1","dp_size":"2"}"#, 400, "worker_invalid", "dp_size = \"2\": expected u32"),
        (r#"{"url":"w:1","color":1}"#, 400, "worker_invalid", "color: there is no such setting of a worker"),
        (r#"{"url":"w:1","api_key":"sk-marker"}"#, 400, "worker_invalid", "api_key: is not accepted here"),
        (
            r#"{"url":"w:1","endpoint_port_base":65535,"dp_size":2}"#,
            400,
            "worker_invalid",
            "worker http://w:1: endpoint_port_base = 65535: port base",
        ),
        ("not json", 400, "worker_invalid", "the body is not a JSON object"),
    ];
    for (body, status, code, message) in rows {
        let answer = router.admin_text("POST", "/workers", body).await;
        assert_eq!(code_of(&answer), (status, code), "{body}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        let shown = message_of(&answer);
        assert!(shown.starts_with(message) && !shown.contains("marker"), "{body}: {shown}");
    }
    let large = format!(r#"{{"url":"w:1","models":["{}"]}}"#, "m".repeat(64 * 1024));
    assert_eq!(code_of(&router.admin_text("POST", "/workers", &large).await), (413, "body_too_large"));
    assert!(router.shown_workers().await.is_empty(), "nothing was added");
    assert!(router.metric("fathom_router_errors_total{kind=\"address_refused\"}").await == Some(2.0));
    router.stop_and_check().await;
}

#[actix::test]
async fn a_worker_of_another_source_is_not_removed_and_one_of_two_sources_stays_until_both_drop_it() {
    let engine = engine("shared").await;
    let router = RunningRouter::over(&[&engine]).await;
    let url = engine.url();
    let id = router.shown(&url).await["id"].clone();
    let path = format!("/workers/{url}");
    let refused = router.admin("DELETE", &path, Value::Null).await;
    assert_eq!(code_of(&refused), (409, "worker_named_elsewhere"));
    assert_eq!(message_of(&refused), format!("{url} is named by static: remove it there"));

    assert_eq!(router.add(&url).await.status, 200, "it is served already");
    let removed = router.admin("DELETE", &path, Value::Null).await;
    assert_eq!((removed.status, &removed.json()["worker"]["sources"]), (200, &json!(["static"])));

    assert_eq!(router.add(&url).await.status, 200);
    router.announce("static", &[]).await;
    assert_eq!(router.shown(&url).await["sources"], json!(["admin"]));
    assert_eq!(router.shown(&url).await["id"], id, "it is the same worker all along");
    assert_eq!(router.admin("DELETE", &path, Value::Null).await.json()["worker"], Value::Null);
    assert!(router.shown_workers().await.is_empty());
    router.stop_and_check().await;
}

#[actix::test]
async fn other_settings_for_a_worker_that_was_added_are_refused_and_so_are_changes_that_would_make_another_one() {
    let engine = engine("fixed").await;
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    assert_eq!(router.add(&engine.url()).await.status, 201);
    let other = router.admin("POST", "/workers", json!({"url": engine.url(), "models": ["m"]})).await;
    assert_eq!(code_of(&other), (409, "worker_differs"));
    let path = format!("/workers/{}", engine.url());
    for (body, message) in [
        (json!({"models": ["m"]}), "models: cannot be changed: remove the worker and add it anew"),
        (json!({"readiness": "gone"}), "readiness: must be ready or suspended"),
        (json!({}), "readiness: must be ready or suspended"),
    ] {
        let refused = router.admin("PATCH", &path, body).await;
        assert_eq!((code_of(&refused), &*message_of(&refused)), ((400, "change_invalid"), message));
    }
    let unknown = router.admin("PATCH", "/workers/w99", json!({"readiness": "ready"})).await;
    assert_eq!(code_of(&unknown), (404, "worker_not_found"));
    router.stop_and_check().await;
}

#[actix::test]
async fn a_drained_worker_gets_nothing_new_finishes_what_runs_and_serves_again() {
    let [kept, drained] = [engine("kept").await, engine("drained").await];
    let router = RunningRouter::over(&[&drained]).await;
    let streams = Streams::open(&router.url, 1);
    eventually("it runs", || async { router.worker(&drained.url()).await.filter(|worker| worker.in_flight == 1) })
        .await;
    assert_eq!(router.add(&kept.url()).await.status, 201);
    router.wait_until_serving(2).await;
    let path = format!("/workers/{}/drain", drained.url());
    let answer = router.admin("POST", &path, Value::Null).await;
    assert_eq!((answer.status, &answer.json()["left"]), (200, &json!(1)), "one request still runs");
    assert_eq!(router.shown(&drained.url()).await["state"], "suspended");
    let answers = router.chat_times(20).await;
    assert_all_succeeded(&answers);
    assert_eq!(names_of(&answers)["kept"], 20);
    assert_eq!(drained.stats().aborted, 0, "what ran goes on");

    drop(streams);
    eventually("none is left", || async {
        (router.admin("POST", &path, Value::Null).await.json()["left"] == 0).then_some(())
    })
    .await;
    let ended = router.admin("DELETE", &path, Value::Null).await;
    assert_eq!((ended.status, &ended.json()["worker"]["state"]), (200, &json!("serving")));
    router.stop_and_check().await;
}

#[actix::test]
async fn other_methods_are_told_which_there_are() {
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    for (method, path, allowed) in [
        ("PUT", "/workers", "GET, HEAD, POST"),
        ("DELETE", "/workers", "GET, HEAD, POST"),
        ("POST", "/workers/w1", "GET, PATCH, DELETE"),
        ("PUT", "/workers/http://w:1", "GET, PATCH, DELETE"),
        ("GET", "/workers/w1/drain", "POST, DELETE"),
        ("PATCH", "/workers/w1/drain", "POST, DELETE"),
    ] {
        let answer = router.admin(method, path, Value::Null).await;
        assert_eq!(code_of(&answer), (405, "method_not_allowed"), "{method} {path}");
        assert_eq!(answer.header("allow"), allowed, "{method} {path}");
    }
    router.stop_and_check().await;
}

#[actix::test]
async fn what_was_added_is_there_again_after_a_restart_and_a_bad_file_stops_the_start() {
    let [first, second] = [engine("first").await, engine("second").await];
    let file = TemporaryFile::new("admin-workers", "");
    std::fs::remove_file(file.path()).expect("it is there");
    let mut config = fast_config(&[]);
    config.discovery.admin_workers_file = Some(file.path().to_owned());
    let router = start_router(Router::builder().config(config.clone())).await;
    assert_eq!(router.add(&first.url()).await.status, 201);
    assert_eq!(router.add(&second.url()).await.status, 201);
    let path = format!("/workers/{}/drain", second.url());
    assert_eq!(router.admin("POST", &path, Value::Null).await.status, 200);
    router.stop_and_check().await;

    let router = start_router(Router::builder().config(config.clone())).await;
    router.wait_until_serving(1).await;
    let shown = router.wait_until_shown(&second.url(), "it is suspended", |shown| shown["state"] == "suspended").await;
    assert_eq!(shown["sources"], json!(["admin"]));
    assert_eq!(router.admin("DELETE", &format!("/workers/{}", first.url()), Value::Null).await.status, 200);
    router.stop_and_check().await;
    let stored = std::fs::read_to_string(file.path()).expect("a file");
    assert_eq!(stored.lines().count(), 1, "{stored}");

    std::fs::write(file.path(), format!("{stored}nonsense\n")).expect("written");
    let refused = Router::builder().config(config).start().await.expect_err("a bad file").to_string();
    assert_eq!(refused, format!("admin_workers_file = {:?}: line 2: it is not a JSON object", file.path()));
}

#[actix::test]
async fn a_change_that_cannot_be_stored_is_not_made() {
    let engine = engine("unstored").await;
    let mut config = fast_config(&[]);
    config.discovery.admin_workers_file = Some("/nonexistent/folder/workers.jsonl".into());
    let router = start_router(Router::builder().config(config)).await;
    let refused = router.add(&engine.url()).await;
    assert_eq!(code_of(&refused), (500, "change_not_stored"));
    assert!(router.shown_workers().await.is_empty());
    router.stop_and_check().await;
}
