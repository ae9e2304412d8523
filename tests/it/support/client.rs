//! An HTTP client, and the bodies it sends.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// An answer that arrived whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}

/// A client with a pool of its own.
#[derive(Clone)]
pub(crate) struct Client {
    http: HyperClient<HttpConnector, Full<Bytes>>,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self { http: HyperClient::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) async fn get(&self, url: &str) -> Answer {
        whole(self.send(Request::get(url).body(Full::default()).unwrap()).await).await
    }

    pub(crate) async fn post(&self, url: &str, body: impl Into<Bytes>) -> Answer {
        whole(self.open(url, body).await).await
    }

    /// Sends the request and returns once the head of the answer has arrived.
    pub(crate) async fn open(&self, url: &str, body: impl Into<Bytes>) -> Response<Incoming> {
        let request = Request::post(url).header("content-type", "application/json");
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.http.request(request).await.expect("an answer")
    }
}

pub(crate) async fn whole(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

/// A chat request.
pub(crate) fn chat_body(max_tokens: u32, stream: bool) -> String {
    serde_json::json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": "hello" }],
        "max_tokens": max_tokens,
        "stream": stream,
    })
    .to_string()
}
