//! Streams: bytes as they came, when they came, and an end that says how it ended.

use fathom_router::messages::Outcome;

use crate::support::{RawClient, RawEngine, RunningRouter, fast_config, post};

/// An event with a character of four bytes and two of three.
const EVENT: &str = "data: {\"content\":\"\u{1F980}\u{6DF1}\u{6D77}\"}\n\n";
const REQUEST: &str = r#"{"model":"tiny","stream":true}"#;

async fn one_engine() -> (RawEngine, RunningRouter) {
    let engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    (engine, router)
}

/// Reads one chunk, which must have that many bytes.
async fn read_chunk(client: &mut RawClient, length: usize) -> Vec<u8> {
    let size = client.read_through("\r\n").await;
    assert_eq!(String::from_utf8_lossy(&size).trim().to_lowercase(), format!("{length:x}"));
    let mut data = client.read_exactly(length + 2).await;
    assert_eq!(data.split_off(length), b"\r\n");
    data
}

/// Seen in api7/aisix#111.
#[actix::test]
async fn the_bytes_of_a_stream_are_the_engines_wherever_they_are_split() {
    let (mut engine, router) = one_engine().await;
    let mut client = RawClient::connect(&router.url).await;
    for at in 1..EVENT.len() {
        client.write(post("/v1/chat/completions", REQUEST)).await;
        let mut request = engine.next_request().await;
        request.start_stream().await;
        let (first, second) = EVENT.as_bytes().split_at(at);
        request.write_chunk(first).await;
        // The client has the first piece before the engine has sent the second: nothing waits for a whole character or event.
        client.read_through("\r\n\r\n").await;
        assert_eq!(read_chunk(&mut client, first.len()).await, first, "split at {at}");
        request.write_chunk(second).await;
        assert_eq!(read_chunk(&mut client, second.len()).await, second, "split at {at}");
        request.end_stream().await;
        client.read_through("0\r\n\r\n").await;
    }
    router.stop().await;
}

/// Seen in BerriAI/litellm#33404.
#[actix::test]
async fn however_a_stream_breaks_the_client_sees_it_broken_and_no_done_is_invented() {
    for is_reset in [true, false] {
        let (mut engine, router) = one_engine().await;
        let mut client = RawClient::connect(&router.url).await;
        client.write(post("/v1/chat/completions", REQUEST)).await;
        let mut request = engine.next_request().await;
        request.start_stream().await;
        request.write_chunk(EVENT).await;
        client.read_through(EVENT).await;
        if is_reset {
            request.reset()
        } else {
            drop(request)
        }
        let rest = client.read_to_end().await;
        let rest = String::from_utf8_lossy(&rest);
        assert!(!rest.contains("[DONE]") && !rest.contains("0\r\n\r\n"), "an end was invented: {rest:?}");
        router.wait_until_ended(Outcome::BrokeOff, 1).await;
        router.wait_until_idle().await;
        router.stop().await;
    }
}

#[actix::test]
async fn a_whole_answer_that_ends_early_is_broken_too() {
    let (mut engine, router) = one_engine().await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post("/v1/chat/completions", "{}")).await;
    let mut request = engine.next_request().await;
    request.write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":").await;
    client.read_through("{\"id\":").await;
    request.reset();
    assert!(client.read_to_end().await.is_empty(), "nothing is filled in");
    router.wait_until_ended(Outcome::BrokeOff, 1).await;
    router.stop().await;
}

/// Seen in sgl-project/sglang#33331.
#[actix::test]
async fn end_to_end_headers_arrive_repeated_ones_repeated_and_those_of_the_connection_do_not() {
    let (mut engine, router) = one_engine().await;
    let mut client = RawClient::connect(&router.url).await;
    for status in ["200 OK", "429 Too Many Requests", "503 Service Unavailable"] {
        client.write(post("/v1/completions", "{}")).await;
        let head = format!(
            "HTTP/1.1 {status}\ncontent-type: application/json\nretry-after: 7\nset-cookie: a=1\nset-cookie: b=2\n\
             connection: x-secret\nx-secret: 1\nx-request-id: r"
        );
        let request = engine.next_request().await;
        assert_eq!(request.message.header_values("host"), [engine.authority()], "the engine sees its own name");
        request.answer(&head, r#"{"a":1}"#).await;
        let answer = client.answer().await;
        assert_eq!(answer.first_line(), format!("HTTP/1.1 {status}"));
        assert_eq!(answer.header_values("set-cookie"), ["a=1", "b=2"]);
        assert_eq!(answer.header_values("retry-after"), ["7"]);
        assert_eq!(answer.header_values("x-request-id"), ["r"]);
        assert_eq!(answer.header_values("content-length"), ["7"], "the length is said once");
        assert_eq!(answer.header_values("content-type"), ["application/json"]);
        assert_eq!(answer.header_values("x-secret"), [""; 0]);
        assert_eq!(answer.header_values("x-fathom-decision-id").len(), 1);
        assert_eq!(answer.body, br#"{"a":1}"#);
    }
    router.stop().await;
}

#[actix::test]
async fn a_stream_that_stands_still_is_broken_off_without_a_false_end() {
    let mut engine = RawEngine::start().await;
    let mut config = fast_config(&[engine.url()]);
    config.upstream.stream_idle_timeout = std::time::Duration::from_secs(1);
    let router = RunningRouter::with(config).await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post("/v1/chat/completions", r#"{"stream":true}"#)).await;
    let mut request = engine.next_request().await;
    request.start_stream().await;
    request.write_chunk("data: {}\n\n").await;
    router.wait_until_ended(Outcome::BrokeOff, 1).await;
    let received = String::from_utf8(client.read_to_end().await).unwrap();
    assert!(received.contains("data: {}") && !received.contains("\r\n0\r\n\r\n"), "no false end: {received}");
    request.peer_is_gone().await;
    router.stop().await;
}
