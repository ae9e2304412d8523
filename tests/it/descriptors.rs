//! Few file descriptors: the binary under a limit of its own says what does not fit, and goes on with what does.

use fathom_router::logic::health::WorkerState;
use fathom_router::messages::Outcome;
use fathom_router::sim::{SimConfig, SimEngine};
use futures::future::join_all;
use rlimit::Resource;

use crate::binary::Running;
use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, chat_body, engine, eventually, fast_config, in_own_process, post,
};

/// Seen in zeromq/libzmq#1081 and JustinTulloss/zeromq.node#292: the socket after the last that fits ended the process.
#[actix::test]
async fn feeds_that_do_not_fit_the_descriptors_stay_closed_and_every_request_is_served() {
    let start = |name: &str| SimEngine::start(SimConfig { name: name.to_owned(), dp_size: 8, ..SimConfig::default() });
    let engines = [start("a").await.unwrap(), start("b").await.unwrap(), start("c").await.unwrap()];
    let urls = engines.each_ref().map(SimEngine::url).join(",");
    // One thread takes 4 of them and the process itself 48, so 22 are for feeds: at most eleven subscriptions, where 48 are wanted.
    let arguments = ["--worker-urls", &urls, "--http-threads", "1"];
    let running = Running::start_with_descriptors(96, &arguments, "wanted_by_feeds");
    let client = Client::new();
    let workers = eventually("all serve, with what fits of their feeds", || async {
        let workers = client.get(&format!("{}/workers", running.url())).await.json()["workers"].take();
        let workers = workers.as_array().cloned().unwrap_or_default();
        let num_open: u64 = workers.iter().map(|worker| worker["load"]["open_sockets"].as_u64().unwrap_or(0)).sum();
        (workers.iter().all(|worker| worker["state"] == "serving") && num_open > 0).then_some(workers)
    })
    .await;
    let open = |worker: &serde_json::Value, feed: &str| worker[feed]["open_sockets"].as_u64().unwrap_or(0);
    let num_open: u64 = workers.iter().map(|worker| open(worker, "load") + open(worker, "kv")).sum();
    assert!(num_open <= 11, "{num_open} subscriptions are open");
    for _ in 0..20 {
        let answer = client.post(&format!("{}/v1/chat/completions", running.url()), chat_body(1, false)).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
}

/// Seen in sgl-project/sglang#7551.
#[actix::test]
async fn requests_beyond_the_descriptors_are_refused_at_once_while_streams_live_on_and_all_recovers() {
    let mut engine = RawEngine::start().await;
    let arguments = ["--worker-urls", &engine.url(), "--http-threads", "1"];
    // Of 160 descriptors 54 are for requests, connections and engines: 18 of each.
    let running = Running::start_with_descriptors(160, &arguments, "max_concurrent_requests");
    running.wait_until_ready().await;
    let mut held = Vec::new();
    for _ in 0..18 {
        let mut client = RawClient::connect(&running.url()).await;
        client.write(post("/v1/chat/completions", r#"{"stream":true}"#)).await;
        let mut request = engine.next_request().await;
        request.start_stream().await;
        client.read_through("\r\n\r\n").await;
        held.push((client, request));
    }
    let client = Client::new();
    let url = format!("{}/v1/chat/completions", running.url());
    let refused = join_all((0..200).map(|_| client.post(&url, chat_body(1, false)))).await;
    for answer in &refused {
        assert_eq!((answer.status, answer.header("x-fathom-error-code")), (503, "router_overloaded"));
        assert!(!answer.header("retry-after").is_empty());
    }
    assert!(!engine.has_request(), "nothing of them reached the engine");
    let metrics = client.get(&format!("{}/metrics", running.url())).await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(metrics.contains("fathom_router_errors_total{kind=\"router_overloaded\"} 200\n"), "each is counted");
    for (client, request) in &mut held {
        request.write_chunk("data: 1\n\n").await;
        client.read_through("data: 1\n\n").await;
    }
    for (mut client, request) in held {
        request.end_stream().await;
        client.read_through("0\r\n\r\n").await;
    }
    let (answer, ()) = futures::join!(client.post(&url, chat_body(1, false)), async {
        engine.next_request().await.answer("HTTP/1.1 200 OK\ncontent-type: application/json", "{}").await;
    });
    assert_eq!(answer.status, 200);
}

/// Lets this process open no further descriptor, until it is dropped. Those that are open stay.
struct NoneLeft {
    limits: (u64, u64),
}

impl NoneLeft {
    fn set() -> Self {
        let limits = Resource::NOFILE.get().expect("a limit");
        // The three standard streams are always open, and libzmq polls one descriptor at a time, which counts against it too.
        Resource::NOFILE.set(3, limits.1).expect("a lower limit");
        Self { limits }
    }
}

impl Drop for NoneLeft {
    fn drop(&mut self) {
        Resource::NOFILE.set(self.limits.0, self.limits.1).expect("the limit of before");
    }
}

#[actix::test]
async fn a_worker_is_not_blamed_where_the_router_has_no_descriptor_for_a_connection_to_it() {
    if in_own_process("descriptors::a_worker_is_not_blamed_where_the_router_has_no_descriptor_for_a_connection_to_it")
        .is_some()
    {
        return;
    }
    let engine = engine("a").await;
    let mut config = fast_config(&[engine.url()]);
    config.upstream.max_idle_per_worker = 0;
    let router = RunningRouter::with(config).await;
    let ask = async |client: &mut RawClient| {
        client.write(post("/v1/chat/completions", &chat_body(1, false))).await;
        client.answer().await.first_line().to_owned()
    };
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = RawClient::connect(&router.url).await;
        assert_eq!(ask(&mut client).await, "HTTP/1.1 200 OK", "it is connected");
        clients.push(client);
    }
    let none_left = NoneLeft::set();
    for client in &mut clients {
        assert_eq!(ask(client).await, "HTTP/1.1 503 Service Unavailable");
    }
    drop(none_left);
    router.wait_until_ended(Outcome::NotSent, 5).await;
    assert_eq!(router.num_ended(Outcome::Unreachable), 0);
    assert_eq!(router.fleet().await.remove(0).state, WorkerState::Serving);
    assert_eq!(ask(&mut RawClient::connect(&router.url).await).await, "HTTP/1.1 200 OK");
    router.stop().await;
}
