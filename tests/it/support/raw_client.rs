//! A client made of plain TCP: it sends a request in the pieces that a test wants, and leaves when the test says so.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::soon;
use super::wire::{RawMessage, read_exactly, read_message, read_through};
use super::{RawEngine, RawRequest};

/// One connection to the router.
#[derive(Debug)]
pub(crate) struct RawClient {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl RawClient {
    pub(crate) async fn connect(url: &str) -> Self {
        let address: SocketAddr = url.trim_start_matches("http://").parse().expect("an address");
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the router reads");
    }

    /// Reads the next answer whole.
    pub(crate) async fn answer(&mut self) -> RawMessage {
        let answer = soon("the router answers", read_message(&mut self.stream, &mut self.unread)).await;
        answer.expect("an answer before the end of the connection")
    }

    /// Reads up to the end of the needle.
    pub(crate) async fn read_through(&mut self, needle: &str) -> Vec<u8> {
        let read = read_through(&mut self.stream, &mut self.unread, needle.as_bytes());
        soon("the router sends what is waited for", read).await.expect("more bytes")
    }

    /// Reads so many bytes.
    pub(crate) async fn read_exactly(&mut self, length: usize) -> Vec<u8> {
        let read = read_exactly(&mut self.stream, &mut self.unread, length);
        soon("the router sends as many bytes", read).await.expect("more bytes")
    }

    /// Returns what comes until the router has closed the connection, however it does that.
    pub(crate) async fn read_to_end(mut self) -> Vec<u8> {
        let mut bytes = self.unread;
        let end = soon("the router closes the connection", self.stream.read_to_end(&mut bytes)).await;
        drop(end);
        bytes
    }

    /// Closes the connection as a client does that has read everything.
    pub(crate) fn leave(self) {
        drop(self.stream);
    }

    /// Closes the connection as the system of a client does that was killed.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

/// Returns the head of a POST whose body has that length.
pub(crate) fn post_head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Returns a whole POST.
pub(crate) fn post(path: &str, body: &str) -> String {
    post_head(path, body.len()) + body
}

/// Opens a stream through the router to the engine, of which one event has arrived.
pub(crate) async fn stream_through(router_url: &str, engine: &mut RawEngine) -> (RawClient, RawRequest) {
    let mut client = RawClient::connect(router_url).await;
    client.write(post("/v1/chat/completions", r#"{"stream":true}"#)).await;
    let mut request = engine.next_request().await;
    request.start_stream().await;
    request.write_chunk("data: 1\n\n").await;
    client.read_through("data: 1\n\n").await;
    (client, request)
}
