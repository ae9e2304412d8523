//! The listener: TLS, HTTP/2 with and without it, and what slow or many clients get.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fathom_router::config::{ServerConfig, TlsFiles};
use fathom_router::messages::Outcome;
use fathom_router::router::Router;
use fathom_router::server::listen;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{RawClient, RawEngine, RunningRouter, TemporaryFile, fast_config, soon, start_listening};

const PATH: &str = "/v1/chat/completions";

/// A certificate for localhost, signed by itself, and its key.
struct Identity {
    cert: TemporaryFile,
    key: TemporaryFile,
    roots: RootCertStore,
}

impl Identity {
    fn new(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a certificate");
        let cert = TemporaryFile::new(&format!("{name}-cert.pem"), &made.cert.pem());
        let key = TemporaryFile::new(&format!("{name}-key.pem"), &made.signing_key.serialize_pem());
        Self { cert, key, roots }
    }

    fn files(&self) -> TlsFiles {
        TlsFiles { cert: self.cert.path().to_owned(), key: self.key.path().to_owned() }
    }

    /// Connects as a client that trusts the certificate and offers these protocols.
    async fn connect(&self, url: &str, protocols: &[&str]) -> TlsStream<TcpStream> {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let mut config = builder.with_root_certificates(self.roots.clone()).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let tcp = TcpStream::connect(url.trim_start_matches("https://")).await.expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("a handshake")
    }
}

async fn http2(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> (SendRequest<Full<Bytes>>, JoinHandle<()>) {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.expect("HTTP/2");
    // It ends with an error where the test ends it.
    (sender, actix::spawn(async move { drop(connection.await) }))
}

fn get(url: &str, path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("{url}{path}")).body(Full::default()).unwrap()
}

fn post(url: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post(format!("{url}{PATH}")).body(Full::from(body)).unwrap()
}

#[actix::test]
async fn with_a_certificate_the_listener_speaks_tls_and_the_http_that_its_client_offers() {
    let identity = Identity::new("speaks");
    let mut config = ServerConfig::default();
    config.tls = Some(identity.files());
    let router = start_listening(Router::builder().config(fast_config(&[])), config).await;
    assert!(router.url.starts_with("https://"), "{}", router.url);

    let stream = identity.connect(&router.url, &["h2", "http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, _connection) = http2(stream).await;
    let answer = sender.send_request(get(&router.url, "/healthz")).await.expect("an answer");
    assert_eq!((answer.version(), answer.status().as_u16()), (hyper::Version::HTTP_2, 200));

    let stream = identity.connect(&router.url, &["http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
    actix::spawn(connection);
    let request = Request::get("/metrics").header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
    let answer = sender.send_request(request).await.expect("an answer");
    assert_eq!(answer.status(), 200, "the peer's address is known behind TLS");

    let mut plain = RawClient::connect(&router.url.replace("https", "http")).await;
    plain.write("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let answer = plain.read_to_end().await;
    assert!(!answer.starts_with(b"HTTP/"), "nothing is answered without TLS: {answer:?}");
    router.stop().await;
}

#[actix::test]
async fn a_certificate_or_key_that_cannot_be_used_is_named_with_its_setting() {
    let (identity, other) = (Identity::new("used"), Identity::new("other"));
    let text = TemporaryFile::new("used-text.pem", "-----BEGIN secret text");
    let router = Router::builder().config(fast_config(&[])).start().await.unwrap();
    let missing = Path::new("/nonexistent/file.pem");
    let rows = [
        (missing, identity.key.path(), format!("tls_cert_file = {missing:?}: No such file")),
        (identity.cert.path(), missing, format!("tls_key_file = {missing:?}: No such file")),
        (text.path(), identity.key.path(), format!("tls_cert_file = {:?}: holds no certificate", text.path())),
        (identity.cert.path(), text.path(), format!("tls_key_file = {:?}: holds no private key", text.path())),
        (identity.key.path(), identity.key.path(), format!("tls_cert_file = {:?}: holds no", identity.key.path())),
        (identity.cert.path(), identity.cert.path(), format!("tls_key_file = {:?}: holds no", identity.cert.path())),
        (
            identity.cert.path(),
            other.key.path(),
            format!("tls_key_file = {:?}: is not the key of the certificate in", other.key.path()),
        ),
    ];
    for (cert, key, expected) in rows {
        let mut config = ServerConfig::default();
        config.port = 0;
        config.tls = Some(TlsFiles { cert: cert.to_owned(), key: key.to_owned() });
        let refused = listen(&router, &config).expect_err(&expected).to_string();
        assert!(refused.starts_with(&expected), "{refused}");
        assert!(!refused.contains("secret"), "{refused}");
    }
    router.stop().await;
}

async fn over_h2c() -> (RawEngine, RunningRouter) {
    let engine = RawEngine::start().await;
    let mut config = ServerConfig::default();
    config.h2c = true;
    let router = start_listening(Router::builder().config(fast_config(&[engine.url()])), config).await;
    router.wait_until_serving(1).await;
    (engine, router)
}

async fn connect(router: &RunningRouter) -> (SendRequest<Full<Bytes>>, JoinHandle<()>) {
    http2(TcpStream::connect(router.url.trim_start_matches("http://")).await.expect("a connection")).await
}

#[actix::test]
async fn http2_without_tls_is_spoken_where_it_is_wanted_beside_http1() {
    let (mut engine, router) = over_h2c().await;
    let (mut sender, _connection) = connect(&router).await;
    let answer = actix::spawn(sender.send_request(post(&router.url, r#"{"n":1}"#)));
    let request = engine.next_request().await;
    assert_eq!(request.message.body, br#"{"n":1}"#);
    request.answer("HTTP/1.1 200 OK\nconnection: keep-alive\nkeep-alive: timeout=5", "{}").await;
    let answer = soon("an answer", answer).await.unwrap().expect("an answer");
    assert_eq!((answer.version(), answer.status().as_u16()), (hyper::Version::HTTP_2, 200));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "{}");

    let mut old = RawClient::connect(&router.url).await;
    old.write("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(old.answer().await.first_line(), "HTTP/1.1 200 OK");
    router.stop().await;
}

/// Seen in BerriAI/litellm#31499.
#[actix::test]
async fn a_client_of_http2_that_leaves_ends_the_engines_work_while_the_engine_is_silent() {
    let (mut engine, router) = over_h2c().await;
    // Before the answer begins: the stream is reset, or the connection is lost.
    for (number, loses_connection) in [false, true].into_iter().enumerate() {
        let (mut sender, connection) = connect(&router).await;
        let answer = actix::spawn(sender.send_request(post(&router.url, r#"{"stream":false}"#)));
        let request = engine.next_request().await;
        answer.abort();
        if loses_connection {
            connection.abort();
        }
        request.peer_is_gone().await;
        router.wait_until_ended(Outcome::ClientGone, 1 + number as u64).await;
    }
    // Between two chunks.
    let (mut sender, _connection) = connect(&router).await;
    let answer = actix::spawn(sender.send_request(post(&router.url, r#"{"stream":true}"#)));
    let mut request = engine.next_request().await;
    request.start_stream().await;
    request.write_chunk("data: 1\n\n").await;
    let mut body = soon("the head", answer).await.unwrap().expect("an answer").into_body();
    let chunk = soon("the first chunk", body.frame()).await.expect("a chunk").unwrap();
    assert_eq!(chunk.into_data().unwrap(), "data: 1\n\n");
    drop(body);
    request.peer_is_gone().await;
    router.wait_until_ended(Outcome::ClientGone, 3).await;
    router.wait_until_idle().await;
    router.wait_until_open(0).await;
    router.stop().await;
}

#[actix::test]
async fn a_client_that_is_slow_with_its_head_or_its_handshake_loses_its_connection() {
    let identity = Identity::new("slow");
    for tls in [None, Some(identity.files())] {
        let mut config = ServerConfig::default();
        config.header_timeout = Duration::from_millis(100);
        config.tls = tls;
        let router = start_listening(Router::builder().config(fast_config(&[])), config).await;
        for sent in ["", "GET /healthz HTTP/1.1\r\nhost"] {
            let mut client = RawClient::connect(&router.url.replace("https", "http")).await;
            client.write(sent).await;
            let end = client.read_to_end().await;
            assert!(end.is_empty() || !end.starts_with(b"HTTP/1.1 2"), "{sent:?}: {end:?}");
        }
        router.stop().await;
    }
}

/// Seen in sgl-project/sglang#7551.
#[actix::test]
async fn connections_beyond_the_limit_wait_until_one_is_closed_and_are_then_served() {
    let mut config = ServerConfig::default();
    config.max_connections = 2;
    let router = start_listening(Router::builder().config(fast_config(&[])), config).await;
    let healthz = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
    let (mut first, mut second) = (RawClient::connect(&router.url).await, RawClient::connect(&router.url).await);
    for client in [&mut first, &mut second] {
        client.write(healthz).await;
        client.answer().await;
    }
    let mut third = RawClient::connect(&router.url).await;
    third.write(healthz).await;
    let mut waiting = Box::pin(third.answer());
    for _ in 0..20 {
        first.write(healthz).await;
        first.answer().await;
        assert!(futures::poll!(&mut waiting).is_pending(), "two connections are open, and go on");
    }
    second.leave();
    assert_eq!(waiting.await.first_line(), "HTTP/1.1 200 OK");
    router.stop().await;
}
