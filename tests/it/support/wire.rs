//! HTTP/1.1 messages read from a plain TCP stream, for the two raw ends of a test: the engine and the client.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// A message whose head and body have arrived whole.
#[derive(Debug)]
pub(crate) struct RawMessage {
    /// First line and headers as they were sent, without the empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl RawMessage {
    /// Returns the first line.
    pub(crate) fn first_line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// Returns the values of the header, in the order in which they were sent.
    pub(crate) fn header_values(&self, name: &str) -> Vec<&str> {
        header_values(&self.head, name)
    }
}

/// Reads the next message; `unread` keeps what follows it. `None` where the peer has gone before it was whole.
pub(crate) async fn read_message(stream: &mut (impl AsyncRead + Unpin), unread: &mut Vec<u8>) -> Option<RawMessage> {
    let head = read_through(stream, unread, b"\r\n\r\n").await.ok()?;
    let head = String::from_utf8(head).expect("a head in ASCII").trim_end().to_owned();
    let length = header_values(&head, "content-length").first().map(|value| value.parse().expect("a length"));
    let body = match length {
        Some(length) => read_exactly(stream, unread, length).await.ok()?,
        None if header_values(&head, "transfer-encoding").is_empty() => Vec::new(),
        None => read_chunks(stream, unread).await.ok()?,
    };
    Some(RawMessage { head, body })
}

/// Reads up to the end of the needle, which is part of what is returned.
pub(crate) async fn read_through(
    stream: &mut (impl AsyncRead + Unpin),
    unread: &mut Vec<u8>,
    needle: &[u8],
) -> io::Result<Vec<u8>> {
    loop {
        if let Some(at) = unread.windows(needle.len()).position(|window| window == needle) {
            let rest = unread.split_off(at + needle.len());
            return Ok(std::mem::replace(unread, rest));
        }
        read_more(stream, unread).await?;
    }
}

async fn read_chunks(stream: &mut (impl AsyncRead + Unpin), unread: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_through(stream, unread, b"\r\n").await?;
        let digits = std::str::from_utf8(&line).expect("a chunk size").trim();
        let size = usize::from_str_radix(digits, 16).expect("a chunk size");
        let chunk = read_exactly(stream, unread, size + 2).await?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

/// Reads so many bytes.
pub(crate) async fn read_exactly(
    stream: &mut (impl AsyncRead + Unpin),
    unread: &mut Vec<u8>,
    length: usize,
) -> io::Result<Vec<u8>> {
    while unread.len() < length {
        read_more(stream, unread).await?;
    }
    let rest = unread.split_off(length);
    Ok(std::mem::replace(unread, rest))
}

async fn read_more(stream: &mut (impl AsyncRead + Unpin), unread: &mut Vec<u8>) -> io::Result<()> {
    match stream.read_buf(unread).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn header_values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let pairs = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
}
