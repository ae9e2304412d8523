//! An engine made of plain TCP: it writes exactly the bytes that a test tells it to, when it tells it to, and knows when its peer
//! has gone. What the router asks for by itself is answered by itself; every other request is handed to the test.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::soon;
use super::wire::{RawMessage, read_message};

const MODELS: &str = r#"{"object":"list","data":[{"id":"tiny","object":"model"}]}"#;

/// An engine on a loopback port of its own.
#[derive(Debug)]
pub(crate) struct RawEngine {
    address: SocketAddr,
    requests: mpsc::UnboundedReceiver<RawRequest>,
    accepting: JoinHandle<()>,
}

impl RawEngine {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let accepting = actix::spawn(accept(listener, sender));
        Self { address, requests, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn authority(&self) -> String {
        self.address.to_string()
    }

    /// Returns the next request that the router has sent here.
    pub(crate) async fn next_request(&mut self) -> RawRequest {
        soon("a request reaches the engine", self.requests.recv()).await.expect("a running engine")
    }

    /// Tells whether a request is here that the test has not taken.
    pub(crate) fn has_request(&self) -> bool {
        !self.requests.is_empty()
    }
}

impl Drop for RawEngine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A request that has arrived whole, and the connection on which it came. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct RawRequest {
    pub(crate) message: RawMessage,
    stream: TcpStream,
    unread: Vec<u8>,
    engine: mpsc::UnboundedSender<RawRequest>,
}

impl RawRequest {
    /// Writes these bytes and nothing else.
    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_write(bytes.as_ref()).await.expect("the router reads");
    }

    pub(crate) async fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Writes the head of an event stream.
    pub(crate) async fn start_stream(&mut self) {
        self.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await;
    }

    /// Writes one chunk of a stream.
    pub(crate) async fn write_chunk(&mut self, data: impl AsRef<[u8]>) {
        self.write(chunk(data.as_ref())).await;
    }

    /// Writes the last, empty chunk of a stream; the connection takes further requests.
    pub(crate) async fn end_stream(mut self) {
        self.write("0\r\n\r\n").await;
        self.keep_alive();
    }

    /// Writes a whole answer: its first line and headers, joined by line feeds, and a body of known length. The connection takes
    /// further requests.
    pub(crate) async fn answer(mut self, head: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let head = format!("{head}\ncontent-length: {}\n\n", body.len()).replace('\n', "\r\n");
        self.write([head.as_bytes(), body].concat()).await;
        self.keep_alive();
    }

    /// Returns once the router has closed the connection.
    pub(crate) async fn peer_is_gone(mut self) {
        let mut rest = Vec::new();
        // An orderly end and a reset both mean that nobody waits any more.
        drop(soon("the router closes its connection to the engine", self.stream.read_to_end(&mut rest)).await);
        assert!(rest.is_empty(), "the router sent more than one request at a time: {rest:?}");
    }

    /// Ends the connection as the system of an engine does that was killed.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    fn keep_alive(self) {
        actix::spawn(serve(self.stream, self.unread, self.engine));
    }
}

/// Returns the data as a chunk of a body.
fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

async fn accept(listener: TcpListener, engine: mpsc::UnboundedSender<RawRequest>) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        actix::spawn(serve(stream, Vec::new(), engine.clone()));
    }
}

async fn serve(mut stream: TcpStream, mut unread: Vec<u8>, engine: mpsc::UnboundedSender<RawRequest>) {
    while let Some(message) = read_message(&mut stream, &mut unread).await {
        let Some(answer) = own_answer(message.first_line()) else {
            // An engine that is gone needs no request.
            drop(engine.clone().send(RawRequest { message, stream, unread, engine }));
            return;
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn own_answer(first_line: &str) -> Option<String> {
    match first_line {
        "GET /v1/models HTTP/1.1" => {
            Some(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{MODELS}", MODELS.len()))
        }
        "GET /health HTTP/1.1" => Some("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        "GET /server_info HTTP/1.1" | "GET /get_server_info HTTP/1.1" => {
            Some("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned())
        }
        _ => None,
    }
}
