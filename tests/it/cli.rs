//! The commands of the binary, against a running router.

use std::process::Command;

use serde_json::json;

use crate::support::{
    RunningRouter, Stub, StubAnswer, TemporaryFile, assert_all_succeeded, engine, fast_config, start_router,
};
use fathom_router::router::Router;

/// What a command wrote, and whether it ended well.
struct Said {
    is_good: bool,
    out: String,
    error: String,
}

/// Runs the binary without blocking whoever answers it on this thread.
async fn fathom(arguments: &[&str], environment: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fathom"));
    command.args(arguments).envs(environment.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Said { is_good: output.status.success(), out: text(output.stdout), error: text(output.stderr) }
}

#[actix::test]
async fn workers_and_top_show_the_fleet_to_who_has_the_key() {
    let engine = engine("a").await;
    let admin = TemporaryFile::new("cli-admin", "sk-admin");
    let mut config = fast_config(&[engine.url()]);
    config.access.admin_key_file = Some(admin.path().to_owned());
    // The helpers that look at a router have no key.
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;
    router.wait_until_trusted(1).await;
    assert_all_succeeded(&router.chat_times(3).await);
    let key = ("FATHOM_ADMIN_KEY", "sk-admin");
    for arguments in [&["workers", "--url", &router.url][..], &["top", "--once", "--url", &router.url]] {
        let said = fathom(arguments, &[key]).await;
        assert!(said.is_good, "{}", said.error);
        assert!(said.out.contains(&engine.url()) && said.out.contains("serving"), "{}", said.out);
        assert!(said.out.contains("trusted") && !said.out.contains('\u{1b}'), "{}", said.out);
        let refused = fathom(arguments, &[("FATHOM_ADMIN_KEY", "sk-wrong")]).await;
        assert!(!refused.is_good && refused.out.is_empty(), "{}", refused.out);
        assert!(
            refused.error.starts_with("fathom: the router answered 401: a valid admin key is wanted"),
            "{}",
            refused.error
        );
    }
    let top = fathom(&["top", "--once"], &[key, ("FATHOM_URL", &router.url)]).await;
    assert!(top.out.contains("serving 1 of 1") && top.out.contains("DECISION"), "{}", top.out);
    for (command, state) in [("drain", "suspended"), ("resume", "serving")] {
        let said = fathom(&[command, &engine.url(), "--url", &router.url], &[key]).await;
        assert!(said.is_good && said.out.starts_with(&engine.url()), "{}{}", said.out, said.error);
        let listed = fathom(&["workers", "--url", &router.url], &[key]).await;
        assert!(listed.out.contains(state), "after {command}: {}", listed.out);
    }
    router.stop().await;
}

#[actix::test]
async fn drain_and_resume_name_the_worker_and_say_what_the_router_answered() {
    let stub = Stub::start(|request| match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/workers/w7/drain") => StubAnswer::Json(200, json!({"url": "http://10.0.0.1:1", "left": 3})),
        ("DELETE", "/workers/w7/drain") => StubAnswer::Json(200, json!({"url": "http://10.0.0.1:1"})),
        _ => StubAnswer::Json(404, json!({"error": {"message": "no worker has this id\u{1b}[2J"}})),
    })
    .await;
    let environment = [("FATHOM_ADMIN_KEY", "sk-admin"), ("FATHOM_URL", &stub.url())];
    let drained = fathom(&["drain", "w7"], &environment).await;
    assert_eq!(drained.out, "http://10.0.0.1:1 takes no new requests, 3 still run\n", "{}", drained.error);
    assert_eq!(fathom(&["resume", "w7"], &environment).await.out, "http://10.0.0.1:1 takes requests again\n");
    assert_eq!(stub.requests_to("/workers/w7/drain")[0].header("authorization"), Some("Bearer sk-admin"));
    let refused = fathom(&["drain", "w8"], &environment).await;
    assert!(!refused.is_good);
    assert_eq!(refused.error, "fathom: the router answered 404: no worker has this id?[2J\n");
}

#[actix::test]
async fn what_cannot_be_asked_is_said_in_one_sentence() {
    let router = RunningRouter::with(fast_config(&[])).await;
    let gone = router.url.clone();
    router.stop().await;
    let rows = [
        (vec!["workers", "--url", &gone], "no router answers at "),
        (vec!["workers", "--url", "https://a"], "url = \"https://a\": must be http://HOST:PORT"),
        (vec!["drain", "a b"], "worker = \"/workers/a b/drain\": is neither an id nor an address"),
    ];
    for (arguments, expected) in rows {
        let said = fathom(&arguments, &[]).await;
        assert!(!said.is_good && said.out.is_empty(), "{arguments:?}");
        assert!(said.error.starts_with(&format!("fathom: {expected}")), "{arguments:?}: {}", said.error);
        assert_eq!(said.error.lines().count(), 1);
    }
}

#[actix::test]
async fn check_says_whether_the_settings_of_all_sources_are_good() {
    let good = TemporaryFile::new("check-good", "worker_urls = ['127.0.0.1:1', '127.0.0.1:2']\nport = 31000");
    let bad = TemporaryFile::new("check-bad", "port = 31000\npolcy = 'x'");
    let (good, bad) = (good.path().to_str().unwrap(), bad.path().to_str().unwrap());
    let said = fathom(&["check", "--config", good], &[]).await;
    assert_eq!(
        said.out, "good: 2 workers, policy cache_aware_zmq, listens on 127.0.0.1 port 31000\n",
        "{}",
        said.error
    );
    let refused = fathom(&["check", "--config", bad], &[]).await;
    assert!(!refused.is_good && refused.error.contains("line 2: polcy: there is no such setting"), "{}", refused.error);
    let refused = fathom(&["check", "--config", good], &[("FATHOM_POLICY", "fastest")]).await;
    assert!(!refused.is_good && refused.error.contains("policy = \"fastest\": must be one of"), "{}", refused.error);
}
