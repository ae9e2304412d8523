//! The process: what it does with those who are connected when it is told to stop, and with a configuration that has changed.

use std::time::Duration;

use fathom_router::config::{PolicyKind, RouterConfig, ServerConfig};
use fathom_router::error::StartError;
use fathom_router::process::{End, Order, serve};
use fathom_router::router::{Router, RouterHandle};
use fathom_router::server::listen;
use futures::FutureExt;
use futures::channel::mpsc;
use tokio::task::JoinHandle;

use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, chat_body, engine, eventually, fast_config, in_own_process, post,
    soon, stream_through,
};

const PATH: &str = "/v1/chat/completions";

/// A router that serves as the binary does, with a hand on what it is told.
struct Process {
    router: RouterHandle,
    url: String,
    orders: mpsc::UnboundedSender<Order>,
    ended: JoinHandle<Result<End, StartError>>,
}

impl Process {
    async fn start(config: RouterConfig) -> Self {
        let num_workers = config.workers.len();
        let router = Router::builder().config(config).start().await.expect("a router");
        let mut server = ServerConfig::default();
        (server.port, server.http_threads) = (0, 1);
        let listener = listen(&router, &server).expect("a listener");
        let url = format!("http://{}", listener.addresses[0]);
        let (orders, told) = mpsc::unbounded();
        let ended = actix::spawn(serve(router.clone(), listener, told, || {}));
        eventually("the router is ready", || async {
            (num_workers == 0 || Client::new().get(&format!("{url}/readyz")).await.status == 200).then_some(())
        })
        .await;
        Self { router, url, orders, ended }
    }

    fn tell(&self, order: Order) {
        self.orders.unbounded_send(order).expect("the process listens");
    }

    async fn end(self) -> End {
        soon("the process ends", self.ended).await.expect("no panic").expect("a server that was told to stop")
    }

    async fn wait_until_draining(&self) {
        eventually("new requests are refused", || async {
            let answer = Client::new().post(&format!("{}{PATH}", self.url), "{}").await;
            (answer.header("x-fathom-error-code") == "router_shutting_down").then_some(())
        })
        .await;
    }
}

/// Seen in hyperium/hyper#2787.
#[actix::test]
async fn what_ends_in_time_finishes_and_what_does_not_is_cut_at_the_drain_timeout() {
    let mut engine = RawEngine::start().await;
    let mut config = fast_config(&[engine.url()]);
    config.drain_timeout = Duration::from_secs(1);
    let process = Process::start(config).await;
    let (mut ending, mut ending_at_engine) = stream_through(&process.url, &mut engine).await;
    let (endless, endless_at_engine) = stream_through(&process.url, &mut engine).await;
    process.tell(Order::Stop);
    process.wait_until_draining().await;

    ending_at_engine.write_chunk("data: 2\n\n").await;
    ending.read_through("data: 2\n\n").await;
    ending_at_engine.end_stream().await;
    ending.read_through("0\r\n\r\n").await;
    assert_eq!(process.end().await, End::Drained);
    endless_at_engine.peer_is_gone().await;
    let seen = endless.read_to_end().await;
    assert!(!seen.windows(5).any(|bytes| bytes == b"0\r\n\r\n"), "a stream that was cut does not look complete");
}

#[actix::test]
async fn told_a_second_time_the_process_ends_though_streams_run() {
    let mut engine = RawEngine::start().await;
    let mut config = fast_config(&[engine.url()]);
    config.drain_timeout = Duration::from_secs(86_400);
    let mut process = Process::start(config).await;
    let (_client, _request) = stream_through(&process.url, &mut engine).await;
    process.tell(Order::Stop);
    process.wait_until_draining().await;
    assert!((&mut process.ended).now_or_never().is_none(), "a stream runs");
    process.tell(Order::Reload);
    process.tell(Order::Stop);
    assert_eq!(process.end().await, End::AtOnce);
}

/// Seen in actix/actix-web#929.
#[actix::test]
async fn the_next_answer_on_a_kept_connection_closes_it_and_nothing_is_waited_for_then() {
    let mut engine = RawEngine::start().await;
    let mut config = fast_config(&[engine.url()]);
    // Ending within the bounds of a test shows that it was not waited out.
    config.drain_timeout = Duration::from_secs(86_400);
    let process = Process::start(config).await;
    let (mut last, mut last_at_engine) = stream_through(&process.url, &mut engine).await;
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut client = RawClient::connect(&process.url).await;
        client.write(post(PATH, "{}")).await;
        engine.next_request().await.answer("HTTP/1.1 200 OK", "{}").await;
        assert_eq!(client.answer().await.first_line(), "HTTP/1.1 200 OK");
        kept.push(client);
    }
    process.tell(Order::Stop);
    process.wait_until_draining().await;
    let idle = kept.split_off(10);
    for mut client in kept {
        client.write(post(PATH, "{}")).await;
        let answer = client.answer().await;
        assert_eq!(answer.first_line(), "HTTP/1.1 503 Service Unavailable");
        assert_eq!(answer.header_values("connection"), ["close"]);
        assert!(client.read_to_end().await.is_empty());
    }
    let mut models = RawClient::connect(&process.url).await;
    models.write("GET /v1/models HTTP/1.1\r\nhost: router\r\n\r\n").await;
    assert_eq!(models.answer().await.header_values("connection"), ["close"], "also where nothing is forwarded");
    last_at_engine.write_chunk("data: 2\n\n").await;
    last.read_through("data: 2\n\n").await;
    last_at_engine.end_stream().await;
    last.read_through("0\r\n\r\n").await;
    assert_eq!(process.end().await, End::Drained);
    drop(idle);
}

#[actix::test]
async fn during_the_drain_delay_balancers_are_told_and_requests_still_served() {
    let engine = engine("only").await;
    let mut config = fast_config(&[engine.url()]);
    config.drain_delay = Duration::from_secs(1);
    let process = Process::start(config).await;
    process.tell(Order::Stop);
    eventually("the router is not ready any more", || async {
        (Client::new().get(&format!("{}/readyz", process.url)).await.status == 503).then_some(())
    })
    .await;
    // Were the delay over already, the listener would be closed: nothing runs that could keep it open.
    let body = chat_body(1, false);
    let served = Client::new().post(&format!("{}{PATH}", process.url), body).await;
    assert_eq!(served.status, 200, "{served:?}");
    assert_eq!(process.router.num_open_requests(), 0);
    assert_eq!(process.end().await, End::Drained);
}

/// Seen in erickt/rust-zmq#382.
#[actix::test]
async fn the_process_ends_every_time_whatever_its_feeds_are_doing() {
    let name = "lifecycle::the_process_ends_every_time_whatever_its_feeds_are_doing";
    if in_own_process(name).is_some() {
        return;
    }
    for _ in 0..10 {
        let (lives, dies) = (engine("lives").await, engine("dies").await);
        let process = Process::start(fast_config(&[lives.url(), dies.url()])).await;
        // Its feed goes on trying to connect, and its removal is under way when the process is told to stop.
        dies.kill().await;
        let mut fewer = fast_config(&[lives.url()]);
        fewer.drain_timeout = Duration::from_secs(5);
        process.router.reconfigure(fewer).await.expect("workers may change");
        process.tell(Order::Stop);
        assert_eq!(process.end().await, End::Drained);
    }
}

#[actix::test]
async fn a_changed_configuration_is_obeyed_and_workers_that_stay_keep_what_they_know() {
    let (stays, goes, comes) = (engine("stays").await, engine("goes").await, engine("comes").await);
    let before = fast_config(&[stays.url(), goes.url()]);
    let router = RunningRouter::with(before.clone()).await;
    let id_before = router.worker(&stays.url()).await.expect("a worker").id;
    let mut after = fast_config(&[stays.url(), comes.url()]);
    after.policy = PolicyKind::RoundRobin;
    router.handle.reconfigure(after.clone()).await.expect("these may change");
    eventually("the fleet is the new one", || async {
        let urls: Vec<String> = router.fleet().await.iter().map(|worker| worker.url.to_string()).collect();
        (urls.contains(&comes.url()) && !urls.contains(&goes.url())).then_some(())
    })
    .await;
    router.wait_until_serving(2).await;
    assert_eq!(router.worker(&stays.url()).await.expect("a worker").id, id_before);
    let answer = Client::new().post(&format!("{}{PATH}", router.url), chat_body(1, false)).await;
    assert_eq!(answer.header("x-fathom-reason"), "turn", "round_robin decides");

    let mut refused = after.clone();
    refused.http.max_body_bytes = 7;
    refused.workers.clear();
    let error = router.handle.reconfigure(refused).await.expect_err("the limit is fixed at start").to_string();
    assert!(error.contains("cannot change while the router runs"), "{error}");
    let mut invalid = after;
    invalid.round_deadline = Duration::ZERO;
    let error = router.handle.reconfigure(invalid).await.expect_err("out of its range").to_string();
    assert!(error.contains("round_deadline_ms"), "{error}");
    assert_eq!(router.fleet().await.len(), 2, "nothing of what was refused is obeyed");
    router.stop().await;
}
