//! Requests that two parsers may read in two ways, written byte by byte. Each is refused before any engine is touched, or reaches
//! the engine as one request with one framing and without what was hidden in it.

use crate::support::{RawClient, RawEngine, RunningRouter, fast_config};

const BODY: &str = r#"{"n":1}"#;
/// A request that must never be taken for one.
const HIDDEN: &str = "GET /v1/hidden HTTP/1.1\r\nhost: a\r\n\r\n";

async fn one_engine() -> (RawEngine, RunningRouter) {
    let engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    (engine, router)
}

/// Returns a POST with these headers and whatever follows its head.
fn request(headers: &str, rest: &str) -> String {
    let headers = headers.replace('|', "\r\n");
    format!("POST /v1/completions HTTP/1.1\r\nhost: router\r\n{headers}\r\n\r\n{rest}")
}

/// Says of the bytes that they are answered with a 4xx and a closed connection, and that nothing of them reaches the engine.
async fn assert_refused(engine: &RawEngine, router: &RunningRouter, name: &str, bytes: impl AsRef<[u8]>) {
    let mut client = RawClient::connect(&router.url).await;
    client.write(bytes).await;
    let answers = client.read_to_end().await;
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.starts_with("HTTP/1.1 4"), "{name}: {answers}");
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{name}: {answers}");
    assert!(!engine.has_request(), "{name}: nothing reaches the engine");
}

/// Sends the bytes, answers at the engine, and returns the head and the body that came there.
async fn passed(
    engine: &mut RawEngine,
    router: &RunningRouter,
    name: &str,
    bytes: impl AsRef<[u8]>,
) -> (String, String) {
    let mut client = RawClient::connect(&router.url).await;
    client.write(bytes).await;
    let request = engine.next_request().await;
    let head = request.message.head.to_ascii_lowercase();
    let body = String::from_utf8(request.message.body.clone()).expect("a text");
    request.answer("HTTP/1.1 200 OK", "{}").await;
    assert_eq!(client.answer().await.first_line(), "HTTP/1.1 200 OK", "{name}");
    assert!(!engine.has_request(), "{name}: one request reaches the engine");
    let framings = ["content-length:", "transfer-encoding:"].map(|header| head.matches(header).count());
    assert_eq!(framings, [1, 0], "{name}: one framing reaches the engine: {head}");
    assert!(!head.replace("\r\n", "").contains(['\r', '\n', '\0']), "{name}: {head:?}");
    (head, body)
}

/// Seen in hyperium/hyper#4123, actix/actix-web#2767 and sozu-proxy/sozu#726.
#[actix::test]
async fn a_request_that_is_framed_in_two_ways_is_refused_and_nothing_that_follows_it_is_read() {
    let (engine, router) = one_engine().await;
    let hidden_body = format!("0\r\n\r\n{HIDDEN}");
    let length = hidden_body.len();
    let rows = [
        ("length, then chunked", format!("content-length: {length}|transfer-encoding: chunked")),
        ("chunked, then length", format!("transfer-encoding: chunked|content-length: {length}")),
        ("length of zero and chunked", "content-length: 0|transfer-encoding: chunked".to_owned()),
        ("two lengths", format!("content-length: {length}|content-length: 0")),
        ("the same length twice", format!("content-length: {length}|content-length: {length}")),
        ("a list of lengths", format!("content-length: {length}, {length}")),
        ("a signed length", format!("content-length: +{length}")),
        ("a hexadecimal length", "content-length: 0x10".to_owned()),
        ("chunked twice", "transfer-encoding: chunked|transfer-encoding: chunked".to_owned()),
        ("chunked in a list", "transfer-encoding: chunked, identity".to_owned()),
        ("compressed and chunked", "transfer-encoding: gzip, chunked".to_owned()),
        ("chunked by another name", "transfer-encoding: xchunked".to_owned()),
        ("chunked in quotes", "transfer-encoding: \"chunked\"".to_owned()),
        ("identity", format!("transfer-encoding: identity|content-length: {length}")),
        ("a name that ends with a space", format!("content-length : {length}")),
        ("chunked under a name that ends with a space", "transfer-encoding : chunked".to_owned()),
        ("a name that ends with a tab", "transfer-encoding\t: chunked".to_owned()),
        ("a folded line", "transfer-encoding:| chunked".to_owned()),
        ("two hosts", "host: other|content-length: 0".to_owned()),
        ("another protocol on the same connection", format!("upgrade: websocket|content-length: {length}")),
    ];
    for (name, headers) in rows {
        assert_refused(&engine, &router, name, request(&headers, &hidden_body)).await;
    }
    let old = format!("POST /v1/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n{hidden_body}");
    assert_refused(&engine, &router, "chunked in HTTP/1.0", old).await;
    let without_length = format!("POST /v1/completions HTTP/1.0\r\nhost: router\r\n\r\n{HIDDEN}");
    assert_refused(&engine, &router, "a body without length in HTTP/1.0", without_length).await;
    let without_host = format!("POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{{}}{HIDDEN}");
    assert_refused(&engine, &router, "no host", without_host).await;
    router.stop().await;
}

/// Seen in hyperium/hyper#4123.
#[actix::test]
async fn a_chunked_body_reaches_the_engine_with_its_length_and_a_malformed_one_not_at_all() {
    let (mut engine, router) = one_engine().await;
    let chunked = |chunks: &str| request("transfer-encoding: chunked", chunks);
    let rows = [
        ("plain chunks", chunked("3\r\n{\"n\r\n4\r\n\":1}\r\n0\r\n\r\n")),
        ("capital digits and zeros", chunked("0007\r\n{\"n\":1}\r\n0\r\n\r\n")),
        ("an extension", chunked("7;name=value\r\n{\"n\":1}\r\n0;last\r\n\r\n")),
        ("an encoding that ends with a tab", request("transfer-encoding: chunked\t", "7\r\n{\"n\":1}\r\n0\r\n\r\n")),
        ("trailers", chunked("7\r\n{\"n\":1}\r\n0\r\nx-secret: 1\r\ncontent-length: 9\r\n\r\n")),
    ];
    for (name, bytes) in rows {
        let (head, body) = passed(&mut engine, &router, name, bytes).await;
        assert_eq!(body, BODY, "{name}");
        assert!(head.contains("content-length: 7") && !head.contains("x-secret"), "{name}: {head}");
    }
    let malformed = [
        ("a line feed alone after the size", "7\n{\"n\":1}\r\n0\r\n\r\n"),
        ("a line feed alone in an extension", "7;a\nb\r\n{\"n\":1}\r\n0\r\n\r\n"),
        ("a control character in an extension", "7;a\u{1}\r\n{\"n\":1}\r\n0\r\n\r\n"),
        ("a negative size", "-7\r\n{\"n\":1}\r\n0\r\n\r\n"),
        ("a size with a prefix", "0x7\r\n{\"n\":1}\r\n0\r\n\r\n"),
        ("a size beyond 64 bits", "10000000000000007\r\n{\"n\":1}\r\n0\r\n\r\n"),
        ("a chunk longer than its size", "5\r\n{\"n\":1}\r\n0\r\n\r\n"),
    ];
    for (name, chunks) in malformed {
        assert_refused(&engine, &router, name, chunked(chunks)).await;
    }
    router.stop().await;
}

#[actix::test]
async fn a_header_value_carries_no_control_character_to_the_engine() {
    let (mut engine, router) = one_engine().await;
    for (name, value) in [
        ("a carriage return", &b"a\rx-secret: 1"[..]),
        ("a NUL", b"a\0b"),
        ("an escape", b"a\x1b[31mb"),
        ("a backspace", b"a\x08b"),
        ("a delete", b"a\x7fb"),
        ("a folded line", b"a\r\n b"),
    ] {
        let bytes = [b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 7\r\nx-text: ", value, b"\r\n\r\n"];
        assert_refused(&engine, &router, name, bytes.concat()).await;
    }
    // RFC 9112 lets a line feed alone end a line. What follows it is a header like any other: it is passed on in a line of its
    // own, or not, by the rules for its name.
    let bytes = request("x-text: a\nx-other: b\nauthorization: Bearer smuggled\nte: trailers|content-length: 7", BODY);
    let (head, body) = passed(&mut engine, &router, "a line feed alone", bytes).await;
    assert!(head.contains("\r\nx-text: a\r\n") && head.contains("\r\nx-other: b"), "{head:?}");
    assert!(!head.contains("smuggled") && !head.contains("\r\nte:"), "{head:?}");
    assert_eq!(body, BODY);
    let framed_twice = request("x-text: a\ntransfer-encoding: chunked|content-length: 7", BODY);
    assert_refused(&engine, &router, "a second framing after a line feed alone", framed_twice).await;
    router.stop().await;
}

#[actix::test]
async fn a_head_that_is_too_large_or_has_too_many_headers_is_refused() {
    let (mut engine, router) = one_engine().await;
    let many = |count: usize| (0..count).map(|number| format!("x-{number}: 1|")).collect::<String>();
    // With the host and the length they are 96.
    let (head, _) = passed(&mut engine, &router, "96 headers", request(&(many(94) + "content-length: 7"), BODY)).await;
    assert!(head.contains("\r\nx-93: 1"), "{head}");
    assert_refused(&engine, &router, "97 headers", request(&(many(95) + "content-length: 7"), BODY)).await;
    let long = format!("x-long: {}", "a".repeat(140_000));
    assert_refused(&engine, &router, "a value of 140 kB", request(&long, "")).await;
    let target = format!("POST /v1/{} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "a".repeat(140_000));
    assert_refused(&engine, &router, "a target of 140 kB", target).await;
    router.stop().await;
}

#[actix::test]
async fn headers_of_one_connection_end_at_the_router_whoever_names_them() {
    let (mut engine, router) = one_engine().await;
    let headers = "connection: keep-alive, X-Secret,x-other|connection: x-third|x-secret: 1|X-OTHER: 1|x-third: 1|te: trailers|\
        trailer: x-checksum|upgrade: h2c|http2-settings: AAMAAABkAAQCAAAAAAIAAAAA|proxy-authorization: Basic YTpi|\
        proxy-connection: keep-alive|proxy-authenticate: Basic|keep-alive: timeout=5|x-kept: 1|content-length: 7";
    let (head, body) = passed(&mut engine, &router, "hop by hop", request(headers, BODY)).await;
    for name in
        ["connection", "x-secret", "x-other", "x-third", "te", "trailer", "upgrade", "http2-settings", "keep-alive"]
    {
        assert!(!head.contains(&format!("\r\n{name}:")), "{name}: {head}");
    }
    assert!(!head.contains("proxy-") && head.contains("\r\nx-kept: 1"), "{head}");
    assert_eq!(body, BODY);
    // A client cannot have what the router itself sends dropped by naming it.
    let named = "connection: content-length, host, content-type|content-type: application/json|content-length: 7";
    let (head, body) = passed(&mut engine, &router, "headers that are needed", request(named, BODY)).await;
    assert!(head.contains(&format!("\r\nhost: {}", engine.authority())), "{head}");
    assert_eq!(body, BODY);
    router.stop().await;
}

#[actix::test]
async fn the_engine_is_named_by_the_router_whatever_host_a_client_names() {
    let (mut engine, router) = one_engine().await;
    let rows = [
        ("another host", "POST /v1/completions HTTP/1.1\r\nhost: 169.254.169.254\r\n"),
        ("an absolute target", "POST http://169.254.169.254/v1/completions HTTP/1.1\r\nhost: a\r\n"),
        (
            "an absolute target with credentials",
            "POST http://a:b@169.254.169.254/v1/completions HTTP/1.1\r\nhost: a\r\n",
        ),
    ];
    for (name, head) in rows {
        let (head, _) = passed(&mut engine, &router, name, format!("{head}content-length: 7\r\n\r\n{BODY}")).await;
        assert!(head.starts_with("post /v1/completions http/1.1\r\n"), "{name}: {head}");
        assert!(head.contains(&format!("\r\nhost: {}", engine.authority())), "{name}: {head}");
        assert!(!head.contains("169.254"), "{name}: {head}");
    }
    let connect = format!("CONNECT 169.254.169.254:80 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n{HIDDEN}");
    assert_refused(&engine, &router, "a tunnel", connect).await;
    router.stop().await;
}
