//! The end of a router: what is refused, what finishes, what is cut, and what is left.

use std::time::Duration;

use fathom_router::router::Router;
use futures::FutureExt;

use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, engine, eventually, fast_config, in_own_process, post, soon,
    start_router,
};

const PATH: &str = "/v1/chat/completions";
/// Descriptors that may be open beyond those at the start: connections that are just being closed. Twenty routers that kept
/// one each would show.
const SLACK: usize = 12;

/// Seen in smg-project/smg#1172.
#[actix::test]
async fn a_stream_that_runs_finishes_while_new_requests_are_refused() {
    let mut engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post(PATH, r#"{"stream":true}"#)).await;
    let mut request = engine.next_request().await;
    request.start_stream().await;
    client.read_through("\r\n\r\n").await;

    let mut stopping = Box::pin(router.handle.clone().stop());
    assert!((&mut stopping).now_or_never().is_none(), "the stream is waited for");
    for path in ["/readyz", "/v1/models"] {
        let answer = Client::new().get(&format!("{}{path}", router.url)).await;
        let expected = if path == "/readyz" { 503 } else { 200 };
        assert_eq!(answer.status, expected, "{path}");
    }
    let refused = Client::new().post(&format!("{}{PATH}", router.url), "{}").await;
    assert_eq!((refused.status, refused.header("x-fathom-error-code")), (503, "router_shutting_down"));

    request.write_chunk("data: 1\n\n").await;
    client.read_through("data: 1\n\n").await;
    request.end_stream().await;
    client.read_through("0\r\n\r\n").await;
    soon("the router stops once the stream has ended", stopping).await;
    router.stop_server().await;
}

#[actix::test]
async fn a_stream_that_outlasts_the_drain_timeout_does_not_hold_up_the_end() {
    let mut engine = RawEngine::start().await;
    let mut config = fast_config(&[engine.url()]);
    config.drain_timeout = Duration::from_millis(50);
    let router = RunningRouter::with(config).await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post(PATH, r#"{"stream":true}"#)).await;
    let request = engine.next_request().await;
    soon("the router stops", router.handle.clone().stop()).await;
    router.stop_server().await;
    request.peer_is_gone().await;
}

/// Seen in erickt/rust-zmq#382.
#[actix::test]
async fn a_router_that_has_stopped_leaves_no_descriptor_even_where_feeds_reached_nobody() {
    let name = "shutdown::a_router_that_has_stopped_leaves_no_descriptor_even_where_feeds_reached_nobody";
    if in_own_process(name).is_some() {
        return;
    }
    // The first one pays for what a process keeps: the ZMQ context and its threads.
    start_and_stop().await;
    let before = num_descriptors();
    for _ in 0..20 {
        start_and_stop().await;
    }
    eventually("the descriptors of twenty routers are back", || async {
        (num_descriptors() <= before + SLACK).then_some(())
    })
    .await;
}

async fn start_and_stop() {
    let engine = engine("gone").await;
    let router = start_router(Router::builder().config(fast_config(&[engine.url()]))).await;
    router.wait_until_serving(1).await;
    // Its feed goes on trying to connect.
    engine.kill().await;
    soon("the router stops", router.stop()).await;
}

fn num_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
