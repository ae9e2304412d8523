//! HTTP towards engines: one pooled client per thread, used for introspection and by the proxy.
//!
//! A client ties its pooled connections to the runtime that opened them, so it is built on the thread that uses it and never
//! shared between threads.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::config::UpstreamSettings;
use crate::upstream::connector::EngineConnector;

mod connector;

/// What an engine speaks on its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 in cleartext, without an upgrade.
    Http2,
}

/// The pooled client of one thread.
#[derive(Debug, Clone)]
pub(crate) struct EngineClient {
    http1: Client<EngineConnector, Full<Bytes>>,
    /// For engines that say they speak HTTP/2 in cleartext: one connection carries all requests to an engine.
    http2: Client<EngineConnector, Full<Bytes>>,
    response_header_timeout: Duration,
}

/// Why an engine gave no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UpstreamError {
    /// No connection could be made; nothing was sent.
    #[error("cannot connect")]
    Connect(#[source] ClientError),
    /// This machine has no descriptor or port left for a connection; nothing was sent, and nothing is said of the engine.
    #[error("no descriptor or local port is left for a connection")]
    Local(#[source] ClientError),
    /// The connection ended before an answer began.
    #[error("the connection ended before an answer")]
    Request(#[source] ClientError),
    /// No answer began in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The answer's body broke off, or is larger than it may be.
    #[error("the body of the answer broke off or is too large")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The engine answered with another status than 200.
    #[error("status {0}")]
    Status(StatusCode),
    /// The request could not be built.
    #[error("the request is invalid")]
    Invalid(#[source] hyper::http::Error),
}

impl UpstreamError {
    /// Tells whether the connection was turned down, or cannot be made at all; not whether it only took too long.
    pub(crate) fn is_refusal(&self) -> bool {
        let Self::Connect(error) = self else { return false };
        io_cause(error).is_none_or(|error| error.kind() != std::io::ErrorKind::TimedOut)
    }
}

fn io_cause(error: &ClientError) -> Option<&std::io::Error> {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        cause = error.source();
    }
    None
}

/// Tells whether a connection could not be made for want of something on this machine.
fn is_local(error: &ClientError) -> bool {
    /// The numbers of Linux and the BSDs: ENFILE, EMFILE.
    const OUT_OF_DESCRIPTORS: [i32; 2] = [23, 24];
    io_cause(error).is_some_and(|error| {
        let is_out = error.raw_os_error().is_some_and(|code| OUT_OF_DESCRIPTORS.contains(&code));
        is_out || error.kind() == std::io::ErrorKind::AddrNotAvailable
    })
}

impl EngineClient {
    /// Returns a client with an empty pool.
    pub(crate) fn new(settings: &UpstreamSettings) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.connect_timeout));
        connector.set_keepalive(Some(Duration::from_secs(15)));
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(settings.pool_idle_timeout)
            .pool_max_idle_per_host(settings.max_idle_per_worker)
            // An idle connection that the engine closed just now is replaced before anything of the request is written to it.
            .retry_canceled_requests(true);
        let connector = EngineConnector(connector);
        let http1 = builder.build(connector.clone());
        let http2 = builder.http2_only(true).timer(TokioTimer::new()).build(connector);
        Self { http1, http2, response_header_timeout: settings.response_header_timeout }
    }

    /// Sends the request and returns the answer once its head has arrived. Dropping the future, or the answer's body, closes the
    /// connection, which is how an engine learns that nobody waits any more.
    ///
    /// # Errors
    /// [`UpstreamError::Connect`] and [`UpstreamError::Local`] where nothing was sent; [`UpstreamError::Request`] and
    /// [`UpstreamError::Timeout`] where the engine may have begun to work.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        protocol: Protocol,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let client = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        match tokio::time::timeout(self.response_header_timeout, client.request(request)).await {
            Err(_) => Err(UpstreamError::Timeout(self.response_header_timeout)),
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_connect() && is_local(&error) => Err(UpstreamError::Local(error)),
            Ok(Err(error)) if error.is_connect() => Err(UpstreamError::Connect(error)),
            Ok(Err(error)) => Err(UpstreamError::Request(error)),
        }
    }

    /// Fetches a small document.
    ///
    /// # Errors
    /// Anything but a complete 200 answer of at most `max_bytes` within `timeout`.
    pub(crate) async fn fetch(
        &self,
        url: &str,
        api_key: Option<&str>,
        timeout: Duration,
        max_bytes: usize,
    ) -> Result<Bytes, UpstreamError> {
        let mut request = Request::builder().method(Method::GET).uri(url).header(ACCEPT, "application/json");
        if let Some(mut value) = api_key.and_then(|key| HeaderValue::try_from(format!("Bearer {key}")).ok()) {
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Full::default()).map_err(UpstreamError::Invalid)?;
        let fetched = tokio::time::timeout(timeout, async {
            let response = self.send(request, Protocol::Http1).await?;
            if response.status() != StatusCode::OK {
                return Err(UpstreamError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), max_bytes).collect().await.map_err(UpstreamError::Body)?;
            Ok(body.to_bytes())
        });
        fetched.await.unwrap_or(Err(UpstreamError::Timeout(timeout)))
    }
}
