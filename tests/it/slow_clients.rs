//! Clients that are slow, or stand still, and uploads that an engine answers before it has read them.

use std::time::Duration;

use fathom_router::config::ServerConfig;
use fathom_router::logic::health::WorkerState;
use fathom_router::messages::Outcome;
use fathom_router::router::Router;
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    RawClient, RawEngine, RunningRouter, eventually, fast_config, post, post_head, soon, start_listening,
};

const PATH: &str = "/v1/chat/completions";
/// More than all buffers between an engine and a client that does not read: the sockets' and the router's.
const LARGE: usize = 64 << 20;

async fn listening_over(engine: &RawEngine) -> RunningRouter {
    let mut config = fast_config(&[engine.url()]);
    config.http.client_timeout = Duration::from_secs(1);
    let router = start_listening(Router::builder().config(config), ServerConfig::default()).await;
    router.wait_until_serving(1).await;
    router
}

/// Seen in smg-project/smg#2097.
#[actix::test]
async fn an_engine_waits_for_a_slow_reader_and_a_client_that_never_reads_is_cut() {
    let mut engine = RawEngine::start().await;
    let router = listening_over(&engine).await;
    let mut slow = RawClient::connect(&router.url).await;
    slow.write(post(PATH, r#"{"stream":true}"#)).await;
    let mut for_slow = engine.next_request().await;
    let never = RawClient::connect(&router.url);
    let mut never = never.await;
    never.write(post(PATH, r#"{"stream":true}"#)).await;
    let mut for_never = engine.next_request().await;

    for request in [&mut for_slow, &mut for_never] {
        request.write(format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n")).await;
    }
    let body = vec![b'x'; LARGE];
    let mut sending = Box::pin(for_slow.try_write(&body));
    slow.read_through("\r\n\r\n").await;
    assert!((&mut sending).now_or_never().is_none(), "the engine is slowed down by who reads");
    // The one who reads now and then gets all of it, while the other is cut: the engine's connection ends.
    let cut = async {
        let ended = for_never.try_write(&body).await;
        assert!(ended.is_err(), "so much cannot be on its way");
    };
    let read = async {
        let mut whole = Vec::new();
        while whole.len() < LARGE {
            whole.extend(slow.read_exactly(1 << 20).await);
        }
        whole
    };
    let (whole, sent, ()) = soon("both come to their end", futures::future::join3(read, sending, cut)).await;
    assert!(sent.is_ok() && whole.iter().all(|byte| *byte == b'x'));
    router.wait_until_ended(Outcome::ClientGone, 1).await;
    router.wait_until_ended(Outcome::Completed, 1).await;
    let worker = router.fleet().await.remove(0);
    assert_eq!((worker.state, worker.in_flight), (WorkerState::Serving, 0), "it is not the worker's doing");
    drop(never);
    router.stop().await;
}

#[actix::test]
async fn a_client_that_stops_in_the_middle_of_its_body_is_told_so_and_reaches_no_engine() {
    let engine = RawEngine::start().await;
    let router = listening_over(&engine).await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post_head(PATH, 100) + "{\"model\":").await;
    let answer = client.answer().await;
    assert_eq!(answer.first_line(), "HTTP/1.1 408 Request Timeout");
    assert_eq!(answer.header_values("x-fathom-error-code"), ["body_timeout"]);
    assert!(client.read_to_end().await.is_empty(), "the rest would be taken for another request");
    assert!(!engine.has_request());
    eventually("nothing is open", || async { (router.handle.num_open_requests() == 0).then_some(()) }).await;
    router.stop().await;
}

/// An engine that answers after the first 64 KiB of a body and closes with the rest unread.
async fn answers_early(listener: TcpListener, answers: &'static [&'static str]) -> usize {
    let mut num_uploads = 0;
    while num_uploads < answers.len() {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        num_uploads += usize::from(serve_early(&mut stream, answers[num_uploads]).await);
    }
    // What else comes would be a second attempt.
    while let Some(Ok((mut stream, _))) = listener.accept().now_or_never() {
        num_uploads += usize::from(serve_early(&mut stream, "HTTP/1.1 500 Again").await);
    }
    num_uploads
}

/// Returns whether it was an upload.
async fn serve_early(stream: &mut TcpStream, head: &str) -> bool {
    let mut seen = Vec::new();
    let mut part = vec![0; 16 * 1024];
    loop {
        let length = stream.read(&mut part).await.unwrap_or(0);
        if length == 0 {
            return false;
        }
        seen.extend_from_slice(&part[..length]);
        if seen.starts_with(b"GET ") && seen.ends_with(b"\r\n\r\n") {
            let models = r#"{"object":"list","data":[{"id":"tiny","object":"model"}]}"#;
            let answer = match seen.starts_with(b"GET /v1/models") {
                true => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{models}", models.len()),
                false => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await.expect("the router reads");
            seen.clear();
        }
        if seen.starts_with(b"POST ") && seen.len() >= 64 * 1024 {
            let body = r#"{"error":"said early"}"#;
            let answer = format!("{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.expect("the router reads");
            return true;
        }
    }
}

/// Seen in actix/actix-web#2109.
#[actix::test]
async fn an_answer_that_comes_before_a_large_upload_is_read_reaches_the_client_as_it_is() {
    const ANSWERS: &[&str] = &[
        "HTTP/1.1 400 Bad Request",
        "HTTP/1.1 413 Payload Too Large",
        "HTTP/1.1 401 Unauthorized",
        "HTTP/1.1 400 Bad Request",
        "HTTP/1.1 400 Bad Request",
        "HTTP/1.1 400 Bad Request",
    ];
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().unwrap());
    let engine = actix::spawn(answers_early(listener, ANSWERS));
    let mut config = fast_config(&[url]);
    config.probes.interval = Duration::ZERO;
    let router = RunningRouter::with(config).await;
    let body = format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "x".repeat(20 << 20));
    for expected in ANSWERS {
        let mut client = RawClient::connect(&router.url).await;
        client.write(post(PATH, &body)).await;
        let answer = client.answer().await;
        assert_eq!(answer.first_line(), *expected);
        assert_eq!(answer.body, br#"{"error":"said early"}"#);
    }
    assert_eq!(soon("the engine has seen them all", engine).await.expect("no panic"), ANSWERS.len());
    let worker = router.fleet().await.remove(0);
    assert_eq!((worker.state, worker.in_flight), (WorkerState::Serving, 0), "a client's fault is not the worker's");
    assert_eq!(router.num_ended(Outcome::Completed), ANSWERS.len() as u64);
    router.stop().await;
}

/// Seen in vllm-project/production-stack#612.
#[actix::test]
async fn ten_rounds_on_eight_kept_connections_all_succeed_each_framed_by_itself() {
    let mut engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(RawClient::connect(&router.url).await);
    }
    let large = format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "y".repeat(1 << 20));
    for round in 0..10 {
        for (number, client) in clients.iter_mut().enumerate() {
            let body = if (round + number) % 2 == 0 { large.as_str() } else { r#"{"model":"tiny"}"# };
            if round % 3 == 0 {
                let head = post_head(PATH, body.len()).replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
                client.write(head).await;
                client.read_through("HTTP/1.1 100 Continue\r\n\r\n").await;
                client.write(body).await;
            } else {
                client.write(post(PATH, body)).await;
            }
            let request = engine.next_request().await;
            assert_eq!(request.message.body, body.as_bytes(), "round {round} of client {number}");
            assert_eq!(request.message.header_values("content-length"), [body.len().to_string()]);
            assert!(request.message.header_values("transfer-encoding").is_empty());
            assert!(request.message.header_values("expect").is_empty(), "that was between client and router");
            request.answer("HTTP/1.1 200 OK", format!("{round}.{number}")).await;
            let answer = client.answer().await;
            assert_eq!(answer.first_line(), "HTTP/1.1 200 OK");
            assert_eq!(answer.body, format!("{round}.{number}").as_bytes());
        }
    }
    router.stop().await;
}
