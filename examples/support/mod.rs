//! What the examples share: a server for the router's routes, a small client, and an observer that remembers decisions.

// Each example uses its own part of this.
#![allow(dead_code, reason = "compiled once per example")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::{Actor, Context, Handler};
use actix_web::dev::ServerHandle;
use actix_web::web::ServiceConfig;
use actix_web::{App, HttpServer};
use bytes::Bytes;
use fathom_router::messages::{DecisionRecord, RouterEvent};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Serves the routes on the loopback interface; port 0 takes a free one. Returns the address and the handle that stops it.
pub(crate) fn serve(
    routes: impl Fn(&mut ServiceConfig) + Clone + Send + 'static,
    port: u16,
) -> Result<(String, ServerHandle), Failure> {
    let server = HttpServer::new(move || App::new().configure(routes.clone()))
        .workers(2)
        .h1_allow_half_closed(false)
        .tcp_nodelay(true)
        .disable_signals()
        .bind(("127.0.0.1", port))
        .map_err(|error| format!("cannot listen on port {port}: {error}"))?;
    let address = server.addrs().first().map(|address| format!("http://{address}")).unwrap_or_default();
    let server = server.run();
    let handle = server.handle();
    actix::spawn(server);
    Ok((address, handle))
}

/// A client that reads answers whole.
#[derive(Clone)]
pub(crate) struct Client {
    http: HyperClient<HttpConnector, Full<Bytes>>,
}

/// An answer that arrived whole.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

impl Client {
    pub(crate) fn new() -> Self {
        Self { http: HyperClient::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) async fn get(&self, url: &str) -> Result<Answer, Failure> {
        self.send("GET", url, "").await
    }

    /// Returns the body of an answer that must have this status.
    pub(crate) async fn expect(&self, status: u16, method: &str, url: &str, body: &str) -> Result<Bytes, Failure> {
        let answer = self.send(method, url, body).await?;
        if answer.status == status {
            return Ok(answer.body);
        }
        let text = String::from_utf8_lossy(&answer.body);
        Err(format!("{method} {url}: {} in place of {status}: {text}", answer.status).into())
    }

    /// Begins to read an answer that has no end.
    pub(crate) async fn open(&self, url: &str) -> Result<Incoming, Failure> {
        Ok(self.http.request(Request::get(url).body(Full::default())?).await?.into_body())
    }

    /// Sends a chat request for `max_tokens` tokens.
    pub(crate) async fn chat(
        &self,
        base_url: &str,
        prompt: &str,
        max_tokens: u32,
        stream: bool,
    ) -> Result<Answer, Failure> {
        let body = serde_json::json!({
            "model": "tiny",
            "messages": [{ "role": "user", "content": prompt }],
            "max_tokens": max_tokens,
            "stream": stream,
        });
        self.send("POST", &format!("{base_url}/v1/chat/completions"), &body.to_string()).await
    }

    /// Sends a request; a body is JSON.
    pub(crate) async fn send(&self, method: &str, url: &str, body: &str) -> Result<Answer, Failure> {
        let request = Request::builder().method(method).uri(url).header("content-type", "application/json");
        let request = request.body(Full::from(body.to_owned()))?;
        let response = self.http.request(request).await?;
        let status = response.status().as_u16();
        let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let headers = response.headers().iter().map(header).collect();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, headers, body })
    }

    /// Waits until so many workers take traffic.
    pub(crate) async fn wait_until_serving(&self, router_url: &str, num_workers: usize) -> Result<(), Failure> {
        self.wait_for(router_url, "\"state\":\"serving\"", num_workers).await
    }

    /// Waits until the load of so many workers is complete and fresh.
    pub(crate) async fn wait_until_trusted(&self, router_url: &str, num_workers: usize) -> Result<(), Failure> {
        self.wait_for(router_url, "\"trust\":\"trusted\"", num_workers).await
    }

    async fn wait_for(&self, router_url: &str, text: &str, wanted: usize) -> Result<(), Failure> {
        for _ in 0..200 {
            let answer = self.get(&format!("{router_url}/workers")).await?;
            if String::from_utf8_lossy(&answer.body).matches(text).count() >= wanted {
                return Ok(());
            }
            actix::clock::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("{wanted} workers with {text} did not come up within ten seconds").into())
    }
}

/// Remembers the decisions that it is told of.
pub(crate) struct DecisionLog {
    pub(crate) records: Arc<Mutex<Vec<Arc<DecisionRecord>>>>,
}

impl Actor for DecisionLog {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // An observer misses what does not fit its mailbox.
        ctx.set_mailbox_capacity(1_024);
    }
}

impl Handler<RouterEvent> for DecisionLog {
    type Result = ();

    fn handle(&mut self, event: RouterEvent, _ctx: &mut Self::Context) {
        if let (RouterEvent::Decided(record), Ok(mut records)) = (event, self.records.lock()) {
            records.push(record);
        }
    }
}
