//! Keys: the one that an engine wants, those that its description leaks, and that neither is seen anywhere.

use std::time::Duration;

use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, Secret, WorkerUrl};
use fathom_router::router::Router;
use fathom_router::sim::{ServerInfoMode, SimConfig, SimEngine};
use hyper::Request;
use serde_json::{Value, json};

use crate::support::{
    Client, RunningRouter, Stub, StubAnswer, StubRequest, chat_answer, chat_body, engine, eventually, fast_config,
    in_own_process, not_found, start_router,
};

const RIGHT_KEY: &str = "sk-the-right-key-7f3a";
const WRONG_KEY: &str = "sk-a-wrong-key-91bc";

/// Everything that a router tells about itself, in one text.
async fn everything_shown(router: &RunningRouter) -> String {
    let mut shown = String::new();
    for path in ["/workers", "/metrics", "/v1/models", "/readyz", "/healthz"] {
        let answer = Client::new().get(&format!("{}{path}", router.url)).await;
        shown += &format!("{:?}\n{}\n", answer.headers, String::from_utf8_lossy(&answer.body));
    }
    let answer = router.chat().await;
    shown + &format!("{:?}\n{}\n", answer.headers, String::from_utf8_lossy(&answer.body))
}

fn with_key(engine: &SimEngine, key: Option<&str>) -> Endpoint {
    let mut endpoint = Endpoint::new(WorkerUrl::parse(&engine.url()).unwrap());
    endpoint.overrides.api_key = key.map(Secret::new);
    endpoint
}

async fn guarded_engine(name: &str) -> SimEngine {
    let engine = engine(name).await;
    engine.set_server_info(ServerInfoMode::Unauthorized { bearer: RIGHT_KEY.to_owned() });
    engine
}

fn config_of(workers: Vec<Endpoint>) -> RouterConfig {
    let mut config = fast_config(&[]);
    config.workers = workers;
    config
}

/// Seen in sgl-project/sglang#30046.
#[actix::test]
async fn an_engine_that_wants_a_key_joins_with_the_right_one_and_is_shown_as_unauthorized_without_it() {
    let [without, wrong, right, broken] = [
        guarded_engine("without").await,
        guarded_engine("wrong").await,
        guarded_engine("right").await,
        engine("broken").await,
    ];
    broken.set_server_info(ServerInfoMode::Status(400));
    let mut config = config_of(vec![
        with_key(&without, None),
        with_key(&wrong, Some(WRONG_KEY)),
        with_key(&right, Some(RIGHT_KEY)),
        with_key(&broken, None),
    ]);
    config.introspection.unauthorized_interval = Duration::from_secs(86_400);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;
    router.wait_until_trusted(1).await;
    // The fourth engine is the clock: it is asked at the pace at which those that fail in passing are asked.
    router.wait_for_metric("fathom_introspections_total{kind=\"refused\"}", 4.0).await;

    for engine in [&without, &wrong] {
        let shown = router.shown(&engine.url()).await;
        assert_eq!(
            (&shown["state"], &shown["introspection"]),
            (&json!("pending"), &json!("unauthorized")),
            "{}",
            engine.name()
        );
        assert_eq!(engine.stats().num_requests("/server_info"), 1, "{}: it is asked again slowly", engine.name());
    }
    let shown = router.shown(&right.url()).await;
    assert_eq!((&shown["state"], &shown["load"]["feed"]), (&json!("serving"), &json!("subscribed")));
    assert_eq!(router.chat().await.header("x-sim-engine"), "right");
    let sent = right.stats().recent;
    let authorization = format!("Bearer {RIGHT_KEY}");
    assert_eq!(sent[0].header("authorization"), Some(authorization.as_bytes()), "requests carry it too");

    let shown = everything_shown(&router).await;
    assert!(!shown.contains(RIGHT_KEY) && !shown.contains(WRONG_KEY), "{shown}");
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_stops_asking_for_a_key_joins_at_the_next_question() {
    let engine = guarded_engine("relents").await;
    let mut config = config_of(vec![with_key(&engine, None)]);
    config.introspection.unauthorized_interval = Duration::from_secs(1);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_for_metric("fathom_introspections_total{kind=\"unauthorized\"}", 1.0).await;

    engine.set_server_info(ServerInfoMode::Normal);
    router.wait_until_serving(1).await;
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#30046.
#[actix::test]
async fn a_clients_key_is_never_borrowed_to_ask_an_engine() {
    let open = Stub::start(|request: &StubRequest| match request.path.as_str() {
        "/server_info" => StubAnswer::Json(200, json!({"served_model_name": "tiny"})),
        "/v1/chat/completions" => chat_answer(),
        _ => not_found(),
    })
    .await;
    let closed = Stub::start(|_: &StubRequest| StubAnswer::Json(401, json!({"error": "Unauthorized"}))).await;
    let mut config = fast_config(&[open.url(), closed.url()]);
    config.introspection.interval = Duration::from_secs(1);
    config.introspection.unauthorized_interval = Duration::from_secs(1);
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;

    let request = Request::post(format!("{}/v1/chat/completions", router.url))
        .header("authorization", "Bearer sk-of-the-client")
        .body(http_body_util::Full::from(chat_body(1, false)))
        .unwrap();
    assert_eq!(Client::new().send(request).await.status(), 200);
    eventually("both engines were asked again after the client came", || async {
        (open.requests_to("/server_info").len() > 1 && closed.requests_to("/server_info").len() > 1).then_some(())
    })
    .await;

    for asked in open.requests_to("/server_info").iter().chain(&closed.requests_to("/server_info")) {
        assert_eq!(asked.header("authorization"), None, "{asked:?}");
    }
    let forwarded = open.requests_to("/v1/chat/completions");
    assert_eq!(
        (forwarded.len(), forwarded[0].header("authorization")),
        (1, None),
        "nor is it passed on unless configured"
    );
    router.stop_and_check().await;
}

/// Seen in sgl-project/sglang#30166.
#[actix::test]
async fn keys_in_a_description_and_in_the_configuration_appear_nowhere_not_even_in_the_finest_log() {
    const LEAKED: [&str; 4] = ["MARKER-api-key-5d1", "MARKER-admin-key-77e", "MARKER-keyfile-0aa", RIGHT_KEY];
    let name =
        "discovery_keys::keys_in_a_description_and_in_the_configuration_appear_nowhere_not_even_in_the_finest_log";
    if let Some(log) = in_own_process(name) {
        assert!(log.contains("TRACE") && log.contains("worker started"), "the log was not captured");
        for marker in LEAKED {
            let line = log.lines().find(|line| line.contains(marker));
            assert_eq!(line, None, "{marker} is in the log");
        }
        return;
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let leaky = SimEngine::start(SimConfig {
        api_key: Some(LEAKED[0].to_owned()),
        admin_api_key: Some(LEAKED[1].to_owned()),
        ..SimConfig::default()
    })
    .await
    .expect("an engine");
    // A block that is refused is where a reason might quote too much of the answer around it.
    let refused = engine("refused").await;
    refused.set_server_info(ServerInfoMode::Custom(leaky_description()));
    // And an answer that is no description at all is where an error might quote it.
    let unreadable =
        Stub::start(|_: &StubRequest| StubAnswer::Json(200, json!([LEAKED[0], LEAKED[1], LEAKED[2]]))).await;
    let guarded = guarded_engine("guarded").await;
    let mut config =
        config_of(vec![with_key(&leaky, None), with_key(&refused, None), with_key(&guarded, Some(RIGHT_KEY))]);
    config.workers.push(Endpoint::new(WorkerUrl::parse(&unreadable.url()).unwrap()));
    let mut shown = format!("{config:?}");
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(3).await;
    router.wait_for_metric("fathom_introspections_total{kind=\"unreadable\"}", 2.0).await;

    for _ in 0..6 {
        shown += &everything_shown(&router).await;
    }
    shown += &format!("{:?}{:?}", router.handle, router.members().await);
    for marker in LEAKED {
        assert!(!shown.contains(marker), "{marker} is shown");
    }
    router.stop_and_check().await;
}

fn leaky_description() -> Value {
    json!({
        "served_model_name": "tiny",
        "api_key": "MARKER-api-key-5d1",
        "ssl_keyfile_password": "MARKER-keyfile-0aa",
        "admin_api_key": "MARKER-admin-key-77e",
        "kv_events": {"publisher": "zmq", "endpoint_host": "*", "dp_size": "none", "password": "MARKER-keyfile-0aa"},
    })
}
