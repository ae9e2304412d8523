//! From what an engine advertises, or the configuration says in its place, to the sockets that are opened.

use std::net::Ipv6Addr;

use fathom_router::config::RawConfig;
use fathom_router::logic::endpoint::Feed;
use fathom_router::router::Router;
use fathom_router::sim::{BindScope, KvEvents, LoadForm, LoadPublishing, ServerInfoMode, SimConfig, SimEngine};
use serde_json::{Value, json};

use crate::support::{
    Publisher, RunningRouter, Stub, assert_all_succeeded, engine, engine_like, fast_config, start_router, stat,
};

fn info(kv_events: &Value) -> Value {
    json!({"served_model_name": "tiny", "model_path": "/models/tiny", "version": "0.5.23", "kv_events": kv_events})
}

async fn engine_with(config: SimConfig) -> SimEngine {
    SimEngine::start(config).await.expect("an engine")
}

/// An engine without any socket but its HTTP port, which says this of itself.
async fn engine_that_says(name: &str, kv_events: &Value) -> SimEngine {
    let config = SimConfig { name: name.to_owned(), load: None, kv_events: KvEvents::Null, ..SimConfig::default() };
    let engine = engine_with(config).await;
    engine.set_server_info(ServerInfoMode::Custom(info(kv_events)));
    engine
}

#[actix::test]
async fn a_load_port_in_the_description_opens_one_socket_per_rank_and_none_opens_none() {
    let with = engine_with(SimConfig { dp_size: 3, ..SimConfig::default() }).await;
    let without = engine_with(SimConfig { dp_size: 3, load: None, ..SimConfig::default() }).await;
    let router = RunningRouter::over(&[&with, &without]).await;
    router.wait_until_trusted(1).await;

    let load = router.shown(&with.url()).await["load"].clone();
    assert_eq!(
        (&load["feed"], &load["open_sockets"], &load["expected_ranks"]),
        (&json!("subscribed"), &json!(3), &json!(3))
    );
    assert_eq!(load["trust"], "trusted");
    let load = router.shown(&without.url()).await["load"].clone();
    assert_eq!((&load["feed"], &load["open_sockets"]), (&json!("not_advertised"), &json!(0)));
    assert_eq!((&load["expected_ranks"], &load["trust"]), (&Value::Null, &json!("unreported")));
    assert_all_succeeded(&router.chat_times(4).await);
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_publishes_nothing_serves_whichever_way_it_says_so() {
    let null = engine("null").await;
    null.set_server_info(ServerInfoMode::NoKvEvents);
    let absent = engine("absent").await;
    absent.set_server_info(ServerInfoMode::AbsentKvEvents);
    let other = engine_that_says("other", &json!({"publisher": "kafka", "endpoint_port_base": 5557})).await;
    let router = RunningRouter::over(&[&null, &absent, &other]).await;

    for engine in [&null, &absent, &other] {
        let shown = router.shown(&engine.url()).await;
        assert_eq!(shown["load"]["feed"], "not_advertised", "{}", engine.name());
        assert_eq!((&shown["load"]["feed_problem"], &shown["load"]["open_sockets"]), (&Value::Null, &json!(0)));
        assert_eq!(shown["models"], json!(["tiny"]), "{}", engine.name());
    }
    assert_all_succeeded(&router.chat_times(9).await);
    router.stop_and_check().await;
}

/// Seen in ai-dynamo/dynamo#13579.
#[actix::test]
async fn a_wildcard_or_loopback_host_in_a_description_means_the_workers_own_host() {
    let mut engines = Vec::new();
    for host in ["*", "0.0.0.0", "::", "[::]", "localhost", ""] {
        let engine = engine(if host.is_empty() { "(empty)" } else { host }).await;
        let (kv, load) = (engine.kv_port_base(), engine.load_port_base());
        engine.set_server_info(ServerInfoMode::Custom(info(&json!({
            "publisher": "zmq", "endpoint_host": host, "endpoint_port_base": kv, "block_size": 16, "dp_size": 1,
            "load_endpoint_port_base": load, "load_topic": "load",
        }))));
        engines.push(engine);
    }
    let router = RunningRouter::over(&engines.iter().collect::<Vec<_>>()).await;
    router.wait_until_trusted(engines.len()).await;

    for engine in &engines {
        let worker = router.worker(&engine.url()).await.expect("a worker");
        let hosts =
            [&worker.facts.load_feed, &worker.facts.kv_feed].map(|feed| feed.plan().map(|plan| plan.host.to_string()));
        assert_eq!(hosts, [Some("127.0.0.1".to_owned()), Some("127.0.0.1".to_owned())], "{}", engine.name());
    }
    router.stop_and_check().await;
}

/// Seen in ai-dynamo/dynamo#13579.
#[actix::test]
async fn a_description_that_cannot_be_right_is_refused_as_a_whole_and_its_worker_still_serves() {
    let described = |changes: Value| {
        let mut block = json!({
            "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "block_size": 16, "dp_size": 1,
            "load_endpoint_port_base": 5559,
        });
        for (key, value) in changes.as_object().expect("an object") {
            block[key] = value.clone();
        }
        block
    };
    let rows = [
        (
            "ports that run past the last one",
            described(json!({"load_endpoint_port_base": 65_533, "dp_size": 8})),
            "65533",
        ),
        ("no rank", described(json!({"dp_size": 0})), "dp_size is 0"),
        ("a negative rank count", described(json!({"dp_size": -1})), "dp_size is -1"),
        ("a rank count that is text", described(json!({"dp_size": "4"})), "dp_size is \"4\""),
        ("more ranks than there are", described(json!({"dp_size": 100_000})), "dp_size is 100000"),
        ("port 0", described(json!({"load_endpoint_port_base": 0})), "port base 0"),
        ("a port above the last one", described(json!({"load_endpoint_port_base": 70_000})), "is 70000"),
        ("a negative port", described(json!({"load_endpoint_port_base": -1})), "is -1"),
        ("a port that is text", described(json!({"load_endpoint_port_base": "5559"})), "is \"5559\""),
        ("a block without its required keys", json!({"publisher": "zmq", "load_endpoint_port_base": 5559}), "missing"),
        ("a block that is a list", json!(["tcp://*:5557"]), "not an object"),
    ];
    let mut engines = Vec::new();
    for (sentence, kv_events, _) in &rows {
        engines.push(engine_that_says(sentence, kv_events).await);
    }
    let router = RunningRouter::over(&engines.iter().collect::<Vec<_>>()).await;

    for ((sentence, _, named), engine) in rows.iter().zip(&engines) {
        let load = router.shown(&engine.url()).await["load"].clone();
        assert_eq!((&load["feed"], &load["open_sockets"]), (&json!("refused"), &json!(0)), "{sentence}");
        let problem = load["feed_problem"].as_str().unwrap_or_default();
        assert!(problem.contains(named), "{sentence}: {problem}");
    }
    let answers = router.chat_times(3 * rows.len()).await;
    assert_all_succeeded(&answers);
    assert_eq!(answers[0].header("x-fathom-basis"), "in_flight");
    router.stop_and_check().await;
}

/// A worker must not choose whom the router dials.
#[actix::test]
async fn a_foreign_host_is_refused_for_cache_events_and_ignored_for_load() {
    let engine = engine("elsewhere").await;
    engine.set_server_info(ServerInfoMode::Custom(info(&json!({
        "publisher": "zmq", "endpoint_host": "198.51.100.7", "endpoint_port_base": 5557, "block_size": 16, "dp_size": 1,
        "load_endpoint_port_base": engine.load_port_base(), "load_topic": "load",
    }))));
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;

    let worker = router.worker(&engine.url()).await.expect("a worker");
    assert!(matches!(&worker.facts.kv_feed, Feed::Refused(_)), "{:?}", worker.facts.kv_feed);
    assert_eq!(worker.facts.load_feed.plan().map(|plan| &*plan.host), Some("127.0.0.1"));
    router.stop_and_check().await;
}

#[actix::test]
async fn feeds_in_the_configuration_take_the_place_of_a_description() {
    let publishing = |form| Some(LoadPublishing { form, ..LoadPublishing::default() });
    let rows = [
        ("a topic", LoadForm::Stat11, "load_topic = 'load'", ""),
        ("no topic", LoadForm::Stat11, "", ""),
        ("no topic, and none is sent", LoadForm::Snapshot, "", ""),
        ("no topic, and the model is configured too", LoadForm::Stat6, "", "models = ['m-static']"),
    ];
    let mut engines = Vec::new();
    let mut tables = String::new();
    for (sentence, form, topic, models) in rows {
        let config =
            SimConfig { name: sentence.to_owned(), dp_size: 2, load: publishing(form), ..SimConfig::default() };
        let engine = engine_with(config).await;
        engine.set_server_info(ServerInfoMode::NotFound);
        let port = engine.load_port_base().expect("a load port");
        tables += &format!(
            "[[worker]]\nurl = '{}'\nload_endpoint_port_base = {port}\ndp_size = 2\n{topic}\n{models}\n",
            engine.url()
        );
        engines.push(engine);
    }
    let (configured, _) = RawConfig::from_toml(&tables).unwrap().validate(|_| None).unwrap();
    let mut config = fast_config(&[]);
    config.workers = configured.workers;
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_trusted(rows.len()).await;

    for ((sentence, _, topic, models), engine) in rows.iter().zip(&engines) {
        let shown = router.shown(&engine.url()).await;
        assert_eq!(shown["load"]["ranks"].as_array().map(Vec::len), Some(2), "{sentence}");
        let worker = router.worker(&engine.url()).await.expect("a worker");
        let subscribed = worker.facts.load_feed.plan().map(|plan| plan.topic.to_string());
        assert_eq!(subscribed.as_deref(), Some(if topic.is_empty() { "" } else { "load" }), "{sentence}");
        let expected_model = if models.is_empty() { "tiny" } else { "m-static" };
        assert_eq!(shown["models"], json!([expected_model]), "{sentence}");
    }
    let all_told = engines.last().expect("an engine").stats();
    assert_eq!(all_told.num_requests("/server_info"), 0, "there is nothing left to ask there");
    router.stop_and_check().await;
}

/// Seen in zeromq/pyzmq#989.
#[actix::test]
async fn an_ipv6_worker_is_reached_on_its_http_port_and_on_its_feed() {
    if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        // This machine has no IPv6 loopback address, so there is nothing to reach.
        return;
    }
    let publisher = Publisher::bind_at("[::1]", 0);
    let description = info(&json!({
        "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": publisher.port(), "block_size": 16, "dp_size": 1,
        "load_endpoint_port_base": publisher.port(), "load_topic": "load",
    }));
    let engine =
        Stub::start_at(Ipv6Addr::LOCALHOST.into(), engine_like(description, "tiny")).await.expect("a free port");
    let router = start_router(Router::builder().config(fast_config(&[engine.url()]))).await;
    publisher.wait_for_subscriber().await;
    publisher.send(0, &stat(4, 1));
    router.wait_until_trusted(1).await;

    assert_eq!(engine.url(), format!("http://[::1]:{}", engine.port()));
    let shown = router.shown(&engine.url()).await;
    assert_eq!((&shown["load"]["depth"], &shown["load"]["ranks"][0]["running"]), (&json!(5), &json!(4)));
    let answer = router.chat().await;
    assert_eq!((answer.status, answer.header("x-fathom-worker")), (200, engine.url().as_str()));
    let depth = format!("fathom_worker_engine_depth{{worker=\"{}\"}}", engine.url());
    assert!(router.metric(&depth).await.is_some(), "the label is the address with its brackets");
    router.stop_and_check().await;
}

/// Seen in zeromq/libzmq#4313.
#[actix::test]
async fn a_name_with_both_kinds_of_address_is_subscribed_where_the_feed_listens() {
    let addresses: Vec<_> = tokio::net::lookup_host(("localhost", 0)).await.expect("a resolver").collect();
    if !addresses.iter().any(|address| address.is_ipv6()) || !addresses.iter().any(|address| address.is_ipv4()) {
        // On this machine the name has one kind of address only, so there is no wrong one to choose.
        return;
    }
    let publisher = Publisher::bind_at("127.0.0.1", 0);
    let description = info(&json!({
        "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": publisher.port(), "block_size": 16, "dp_size": 1,
        "load_endpoint_port_base": publisher.port(),
    }));
    let engine = Stub::start(engine_like(description, "tiny")).await;
    let by_name = format!("http://localhost:{}", engine.port());
    let router = start_router(Router::builder().config(fast_config(std::slice::from_ref(&by_name)))).await;
    publisher.wait_for_subscriber().await;
    publisher.send(0, &stat(2, 0));
    router.wait_until_trusted(1).await;

    assert_eq!(router.shown(&by_name).await["load"]["ranks"][0]["running"], 2);
    assert_eq!(router.chat().await.status, 200);
    router.stop_and_check().await;
}

/// A feed on all interfaces is heard under the worker's IPv4 address as well.
#[actix::test]
async fn an_engine_that_listens_everywhere_is_heard_at_its_own_address() {
    let engine = engine_with(SimConfig { scope: BindScope::AllInterfaces, ..SimConfig::default() }).await;
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;
    assert_eq!(router.chat().await.header("x-fathom-basis"), "engine");
    router.stop_and_check().await;
}
