//! Connections to engines that still deliver an answer when the engine no longer takes the request.
//!
//! An engine that refuses an upload answers early and closes. What is still being sent then fails, and a client that gives up at
//! that moment loses the answer which is already here. So a failed write counts as done: the answer is read, or the end of the
//! connection that comes in its place.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

/// Opens such connections.
#[derive(Debug, Clone)]
pub(super) struct EngineConnector(pub(super) HttpConnector);

impl Service<Uri> for EngineConnector {
    type Response = EngineStream;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<EngineStream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { Ok(EngineStream { tcp: connecting.await?, takes_no_more: false }) })
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct EngineStream {
    tcp: TokioIo<TcpStream>,
    /// Whether a write has failed: nothing is sent any more.
    takes_no_more: bool,
}

impl EngineStream {
    /// Takes a failed write for done.
    fn sent(&mut self, written: Poll<io::Result<usize>>, length: usize) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Err(_)) => {
                self.takes_no_more = true;
                Poll::Ready(Ok(length))
            }
            written => written,
        }
    }
}

impl Connection for EngineStream {
    fn connected(&self) -> Connected {
        self.tcp.connected()
    }
}

impl Read for EngineStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(context, buffer)
    }
}

impl Write for EngineStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.takes_no_more {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.tcp).poll_write(context, bytes);
        self.sent(written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum();
        if self.takes_no_more {
            return Poll::Ready(Ok(length));
        }
        let written = Pin::new(&mut self.tcp).poll_write_vectored(context, parts);
        self.sent(written, length)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}
