//! A client of a running router's admin paths.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// The variable with the admin key. It is no flag: what a process was started with can be seen by others.
const KEY_VARIABLE: &str = "FATHOM_ADMIN_KEY";
/// How long an answer may take to begin. Those that change something wait for the workers.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of the largest answer, and of the largest picture of a fleet.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Why the router could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The address is none.
    #[error("url = {0:?}: must be http://HOST:PORT; TLS is not spoken here")]
    Url(String),
    /// The key cannot be sent.
    #[error("FATHOM_ADMIN_KEY: cannot be sent in a header")]
    Key,
    /// A worker's name cannot be part of a path.
    #[error("worker = {0:?}: is neither an id nor an address")]
    Path(String),
    /// Nobody answers.
    #[error("no router answers at {0}")]
    Connect(String),
    /// The router refused.
    #[error("the router answered {status}: {message}")]
    Refused {
        /// The status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// The answer is none of a router.
    #[error("the answer is not that of a router")]
    NotARouter,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct AdminClient {
    http: Client<HttpConnector, Full<Bytes>>,
    base: String,
    key: Option<String>,
}

impl AdminClient {
    pub(crate) fn new(url: &str) -> Result<Self, AskError> {
        let base = url.trim_end_matches('/').to_owned();
        let is_valid = base.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some());
        if !is_valid {
            return Err(AskError::Url(url.to_owned()));
        }
        let http = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { http, base, key: std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty()) })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, AskError> {
        json(self.ask(Method::GET, path).await?).await
    }

    pub(crate) async fn post(&self, path: &str) -> Result<Value, AskError> {
        json(self.ask(Method::POST, path).await?).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value, AskError> {
        json(self.ask(Method::DELETE, path).await?).await
    }

    /// Opens the stream of pictures of the fleet.
    pub(crate) async fn frames(&self) -> Result<Frames, AskError> {
        Ok(Frames { body: self.ask(Method::GET, "/dashboard/events").await?.into_body(), unread: Vec::new() })
    }

    async fn ask(&self, method: Method, path: &str) -> Result<Response<Incoming>, AskError> {
        let uri: Uri = format!("{}{path}", self.base).parse().map_err(|_| AskError::Path(path.to_owned()))?;
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::default()).map_err(|_| AskError::Key)?;
        let asked = tokio::time::timeout(TIMEOUT, self.http.request(request)).await;
        let response = asked.ok().and_then(Result::ok).ok_or_else(|| AskError::Connect(self.base.clone()))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let said = json(response).await.unwrap_or_default();
        let message = said["error"]["message"].as_str().unwrap_or("without saying why");
        Err(AskError::Refused { status, message: super::show::plain(message) })
    }
}

async fn json(response: Response<Incoming>) -> Result<Value, AskError> {
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect();
    let body = tokio::time::timeout(TIMEOUT, body).await.ok().and_then(Result::ok).ok_or(AskError::NotARouter)?;
    serde_json::from_slice(&body.to_bytes()).map_err(|_| AskError::NotARouter)
}

/// Pictures of the fleet as they come.
#[derive(Debug)]
pub(crate) struct Frames {
    body: Incoming,
    unread: Vec<u8>,
}

impl Frames {
    /// Awaits the next one; `None` where the stream has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, AskError> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|window| window == b"\n\n") {
                let rest = self.unread.split_off(end + 2);
                let event = std::mem::replace(&mut self.unread, rest);
                let data = event.strip_prefix(b"data: ").ok_or(AskError::NotARouter)?;
                return serde_json::from_slice(data).map(Some).map_err(|_| AskError::NotARouter);
            }
            let Some(Ok(frame)) = self.body.frame().await else { return Ok(None) };
            self.unread.extend_from_slice(&frame.into_data().unwrap_or_default());
            if self.unread.len() > MAX_ANSWER_BYTES {
                return Err(AskError::NotARouter);
            }
        }
    }
}
