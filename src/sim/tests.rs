//! The whole engine over loopback: what a router would see of it.

mod cache;
mod kv_feed;

use std::time::Duration;

use actix_web::rt::time::timeout;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::{
    FeedStop, LoadForm, LoadPublishing, Reported, ResponseMode, ServerInfoMode, SimConfig, SimEngine, SimError,
};

/// Far beyond everything that is waited for here: reached only when the engine is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// A decode that no test lives to see.
const NEVER: Duration = Duration::from_secs(3600);

const CHAT: &str = "/v1/chat/completions";

async fn start(config: SimConfig) -> SimEngine {
    SimEngine::start(config).await.unwrap()
}

/// An engine whose reports are repeated often, so that a subscriber that has just joined need not wait.
fn lively(config: SimConfig) -> SimConfig {
    let load = LoadPublishing { heartbeat: Duration::from_millis(20), ..config.load.clone().unwrap_or_default() };
    SimConfig { load: Some(load), ..config }
}

struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
}

impl Caller {
    fn new(engine: &SimEngine) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), url: engine.url() }
    }

    async fn send(&self, request: hyper::http::request::Builder, body: &str) -> Result<Response<Incoming>, Error> {
        let request = request.body(Full::from(body.to_owned())).unwrap();
        timeout(PATIENCE, self.client.request(request)).await.unwrap()
    }

    async fn get(&self, path: &str) -> Result<Response<Incoming>, Error> {
        self.send(Request::get(format!("{}{path}", self.url)), "").await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Response<Incoming>, Error> {
        self.send(Request::post(format!("{}{path}", self.url)), &body.to_string()).await
    }

    async fn status_of(&self, path: &str) -> StatusCode {
        self.get(path).await.unwrap().status()
    }
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = timeout(PATIENCE, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn body(response: Response<Incoming>) -> Value {
    serde_json::from_str(&text(response).await).unwrap()
}

/// Reads a stream to its end or to its break.
async fn chunks(response: Response<Incoming>) -> Vec<Result<Bytes, hyper::Error>> {
    timeout(PATIENCE, response.into_body().into_data_stream().collect()).await.unwrap()
}

struct Subscriber(tmq::subscribe::Subscribe);

impl Subscriber {
    fn to_rank(engine: &SimEngine, rank: u16) -> Self {
        Self::to_port(engine.load_port_base().unwrap() + rank)
    }

    fn to_port(port: u16) -> Self {
        let endpoint = format!("tcp://127.0.0.1:{port}");
        Self(tmq::subscribe(&tmq::Context::new()).connect(&endpoint).unwrap().subscribe(b"").unwrap())
    }

    async fn next(&mut self) -> Vec<Vec<u8>> {
        let message = timeout(PATIENCE, self.0.next()).await.unwrap().unwrap().unwrap();
        message.iter().map(|frame| frame.to_vec()).collect()
    }

    async fn next_stat(&mut self) -> Vec<Value> {
        rmp_serde::from_slice(&self.next().await[2]).unwrap()
    }

    /// Waits for a report with this many running and waiting requests.
    async fn until(&mut self, running: u64, waiting: u64) {
        while self.next_stat().await[1..3] != [json!(running), json!(waiting)] {}
    }
}

#[actix_web::test]
async fn an_engine_describes_itself_and_publishes_on_the_ports_it_advertises() {
    let engine = start(lively(SimConfig { dp_size: 2, name: "one".to_owned(), ..SimConfig::default() })).await;
    let response = Caller::new(&engine).get("/server_info").await.unwrap();
    assert_eq!(response.headers()["x-sim-engine"], "one");
    let info = body(response).await;
    assert_eq!(info["kv_events"]["load_endpoint_port_base"], json!(engine.load_port_base()));

    for rank in 0..2 {
        let frames = Subscriber::to_rank(&engine, rank).next().await;
        assert_eq!((frames.len(), frames[0].as_slice(), frames[1].len()), (3, &b"load"[..], 8));
        let stat: Vec<Value> = rmp_serde::from_slice(&frames[2]).unwrap();
        assert_eq!(stat, *json!(["LoadStat", 0, 0, 0, 100_000, rank, 0, 0, 8, 0, 0]).as_array().unwrap());
    }
    engine.stop().await;
}

#[actix_web::test]
async fn the_map_form_is_published_without_a_topic() {
    let load = LoadPublishing { form: LoadForm::Snapshot, ..LoadPublishing::default() };
    let engine = start(lively(SimConfig { load: Some(load), ..SimConfig::default() })).await;
    let frames = Subscriber::to_rank(&engine, 0).next().await;
    assert_eq!((frames[0].len(), frames[2][0]), (0, 0xde));
    let map: Value = rmp_serde::from_slice(&frames[2]).unwrap();
    assert_eq!((&map["max_running_requests"], map.get("num_running_reqs")), (&json!(8), None));
}

#[actix_web::test]
async fn probes_models_and_unknown_paths_are_answered_and_counted() {
    let engine = start(SimConfig::default()).await;
    let caller = Caller::new(&engine);
    assert_eq!(caller.status_of("/health").await, StatusCode::OK);
    assert_eq!(caller.status_of("/health_generate").await, StatusCode::OK);
    assert_eq!(caller.status_of("/nowhere").await, StatusCode::NOT_FOUND);
    assert_eq!(body(caller.get("/v1/models").await.unwrap()).await["data"][0]["id"], "tiny");
    let stats = engine.stats();
    assert_eq!((stats.num_requests("/health"), stats.num_requests_in_total()), (1, 4));
}

#[actix_web::test]
async fn the_load_follows_requests_and_a_client_that_leaves_frees_its_place_at_once() {
    let engine = start(lively(SimConfig { max_running: 1, token_time: NEVER, ..SimConfig::default() })).await;
    let mut reports = Subscriber::to_rank(&engine, 0);
    let call = json!({"prompt": "a prompt", "stream": true});
    let callers = [Caller::new(&engine), Caller::new(&engine), Caller::new(&engine)];

    let streaming = callers[0].post("/v1/completions", &call).await.unwrap();
    reports.until(1, 0).await;
    let mut queued = Box::pin(callers[1].post("/v1/completions", &call));
    let mut last = Box::pin(callers[2].post("/v1/completions", &call));
    assert!(queued.as_mut().now_or_never().is_none() && last.as_mut().now_or_never().is_none());
    tokio::select! {
        _ = &mut queued => panic!("a request without a slot was answered"),
        _ = &mut last => panic!("a request without a slot was answered"),
        () = reports.until(1, 2) => {}
    }

    drop(queued);
    reports.until(1, 1).await;
    drop(streaming);
    last.await.unwrap();
    reports.until(0, 0).await;
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.completed, stats.aborted), (0, 0, 0, 3));
    assert_eq!(stats.recent_aborts.len(), 3);
}

#[actix_web::test]
async fn answers_have_the_shape_that_was_asked_for() {
    let engine = start(SimConfig { dp_size: 2, ..SimConfig::default() }).await;
    let caller = Caller::new(&engine);
    let chat = json!({"model": "alias", "messages": [{"role": "user", "content": "12345"}], "max_tokens": 3});
    let unary = body(caller.post(CHAT, &chat).await.unwrap()).await;
    assert_eq!(unary["model"], "alias");
    assert_eq!(unary["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(unary["choices"][0]["message"]["content"], " t0 t1 t2");

    let mut streamed = chat.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let response = caller.post(CHAT, &streamed).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let events = text(response).await;
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    assert_eq!(events.matches("data: ").count(), 1 + 3 + 1 + 1 + 1, "role, tokens, end, usage, marker: {events}");

    let echo = body(caller.post("/v1/rerank", &json!({})).await.unwrap()).await;
    assert_eq!(echo["path"], "/v1/rerank");
    let stats = engine.stats();
    assert_eq!((stats.completed, stats.recent.len()), (3, 3));
    assert_eq!(stats.recent[1].body, streamed.to_string());
}

#[actix_web::test]
async fn a_rank_can_be_named_and_what_cannot_be_served_is_refused() {
    let engine = start(SimConfig { dp_size: 2, ..SimConfig::default() }).await;
    let caller = Caller::new(&engine);
    for (rank, expected) in [("1", 200), ("2", 400), ("first", 400)] {
        let request = Request::post(format!("{}{CHAT}", engine.url())).header("x-data-parallel-rank", rank);
        let status = caller.send(request, r#"{"routed_dp_rank":0}"#).await.unwrap().status();
        assert_eq!(status, expected, "rank {rank}");
    }
    for (body, expected) in [(r#"{"text":"a","routed_dp_rank":1}"#, 200), (r#"{"data_parallel_rank":2}"#, 400)] {
        let request = Request::post(format!("{}/generate", engine.url())).header("x-data-parallel-rank", "7");
        assert_eq!(caller.send(request, body).await.unwrap().status(), expected, "{body}: the header is not read");
    }
    assert_eq!(engine.stats().ranks.iter().map(|rank| rank.completed).collect::<Vec<_>>(), [0, 2]);

    let malformed = caller.send(Request::post(format!("{}{CHAT}", engine.url())), "{").await.unwrap();
    assert_eq!(malformed.status(), StatusCode::BAD_REQUEST);
    assert_eq!(body(malformed).await["error"]["code"], 400);
}

#[actix_web::test]
async fn server_info_fails_in_every_way_it_is_told_to() {
    let engine = start(SimConfig::default()).await;
    let caller = Caller::new(&engine);
    let statuses = [
        (ServerInfoMode::NotFound, 404),
        (ServerInfoMode::Status(503), 503),
        (ServerInfoMode::Unauthorized { bearer: "key".to_owned() }, 401),
    ];
    for (mode, expected) in statuses {
        engine.set_server_info(mode);
        assert_eq!(caller.status_of("/get_server_info").await, expected);
    }
    let authorized = Request::get(format!("{}/server_info", engine.url())).header("authorization", "Bearer key");
    assert_eq!(caller.send(authorized, "").await.unwrap().status(), 200);

    engine.set_server_info(ServerInfoMode::BrokenBody);
    let broken = chunks(caller.get("/server_info").await.unwrap()).await;
    assert!(matches!(broken.as_slice(), [Ok(_), Err(_)]), "{broken:?}");

    engine.set_server_info(ServerInfoMode::NotJson);
    assert!(text(caller.get("/server_info").await.unwrap()).await.starts_with("<html>"));

    engine.set_server_info(ServerInfoMode::NoKvEvents);
    assert_eq!(body(caller.get("/server_info").await.unwrap()).await.get("kv_events"), Some(&Value::Null));

    engine.set_server_info(ServerInfoMode::Custom(json!([1])));
    assert_eq!(body(caller.get("/server_info").await.unwrap()).await, json!([1]));

    engine.set_server_info(ServerInfoMode::Hang);
    let mut silent = Box::pin(caller.get("/server_info"));
    tokio::select! {
        _ = &mut silent => panic!("an answer from an engine that hangs"),
        status = caller.status_of("/health") => assert_eq!(status, 200),
    }
}

#[actix_web::test]
async fn answers_break_where_they_are_told_to() {
    let engine = start(SimConfig::default()).await;
    let caller = Caller::new(&engine);
    let streamed = json!({"prompt": "a", "max_tokens": 5, "stream": true});

    engine.set_response_mode(ResponseMode::Status(429, "{}".to_owned()));
    assert_eq!(caller.post("/v1/completions", &streamed).await.unwrap().status(), 429);

    engine.set_response_mode(ResponseMode::ResetBeforeHeaders);
    assert!(caller.post("/v1/completions", &streamed).await.is_err());

    for (num_chunks, expected) in [(0, 0), (2, 2), (9, 5)] {
        engine.set_response_mode(ResponseMode::BreakAfterChunks(num_chunks));
        let mut received = chunks(caller.post("/v1/completions", &streamed).await.unwrap()).await;
        assert!(received.pop().unwrap().is_err());
        let sent: Vec<u8> = received.into_iter().flat_map(Result::unwrap).collect();
        assert_eq!(String::from_utf8(sent).unwrap().matches("data: ").count(), expected);
    }
    let unary = chunks(caller.post("/v1/completions", &json!({"prompt": "a"})).await.unwrap()).await;
    assert!(matches!(unary.as_slice(), [Ok(_), Err(_)]), "{unary:?}");
    assert_eq!((engine.stats().failed, engine.stats().aborted), (4, 0));
}

#[actix_web::test]
async fn a_request_without_its_first_token_holds_its_slot_until_its_client_leaves() {
    let engine = start(lively(SimConfig::default())).await;
    let mut reports = Subscriber::to_rank(&engine, 0);
    let caller = Caller::new(&engine);
    let call = json!({"messages": []});
    for (mode, num_aborted) in [(ResponseMode::HangBeforeHeaders, 1), (ResponseMode::FirstTokenDelay(NEVER), 2)] {
        engine.set_response_mode(mode);
        tokio::select! {
            _ = caller.post(CHAT, &call) => panic!("an answer before the first token"),
            () = reports.until(1, 0) => {}
        }
        reports.until(0, 0).await;
        assert_eq!(engine.stats().aborted, num_aborted);
    }
    engine.set_response_mode(ResponseMode::FirstTokenDelay(Duration::from_millis(1)));
    assert_eq!(caller.post(CHAT, &call).await.unwrap().status(), 200);
}

#[actix_web::test]
async fn reports_can_be_forged_muted_silenced_and_closed() {
    let engine = start(lively(SimConfig { dp_size: 2, ..SimConfig::default() })).await;
    let mut first = Subscriber::to_rank(&engine, 0);
    first.until(0, 0).await;

    engine.set_reported_load(0, Some(Reported { num_running_reqs: 9, ..Reported::default() })).unwrap();
    first.until(9, 0).await;
    engine.set_reported_load(0, None).unwrap();
    first.until(0, 0).await;

    engine.stop_publishing(FeedStop::Silence);
    engine.publish_raw(0, vec![b"bad".to_vec()]).unwrap();
    while first.next().await != [b"bad".to_vec()] {}
    engine.resume_publishing().unwrap();
    first.until(0, 0).await;

    engine.stop_publishing(FeedStop::Close);
    assert!(matches!(engine.publish_raw(0, Vec::new()), Err(SimError::NoSocket { rank: 0 })));
    let port = engine.load_port_base().unwrap();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    engine.publish_only_ranks(&[1]);
    engine.resume_publishing().unwrap();
    Subscriber::to_rank(&engine, 1).until(0, 0).await;
}

#[actix_web::test]
async fn an_engine_comes_back_on_the_ports_of_the_one_before() {
    let mut engine = start(lively(SimConfig::default())).await;
    let load = LoadPublishing { port_base: engine.load_port_base(), ..LoadPublishing::default() };
    let again = lively(SimConfig { port: engine.port(), load: Some(load), ..SimConfig::default() });
    let caller = Caller::new(&engine);
    for round in 0..4 {
        assert_eq!(caller.status_of("/health").await, StatusCode::OK);
        if round % 2 == 0 {
            engine.kill().await
        } else {
            engine.stop().await
        }
        assert!(caller.get("/health").await.is_err());
        engine = start(again.clone()).await;
        Subscriber::to_rank(&engine, 0).until(0, 0).await;
    }
}

#[actix_web::test]
async fn a_kill_breaks_what_is_running_and_a_stop_lets_it_finish() {
    let engine = start(SimConfig { token_time: NEVER, ..SimConfig::default() }).await;
    let stream = Caller::new(&engine).post("/v1/completions", &json!({"stream": true})).await.unwrap();
    engine.kill().await;
    assert!(matches!(chunks(stream).await.as_slice(), [Err(_)]));

    let engine = start(SimConfig { token_time: Duration::from_millis(5), ..SimConfig::default() }).await;
    let stream = Caller::new(&engine).post("/v1/completions", &json!({"stream": true})).await.unwrap();
    engine.stop().await;
    assert!(text(stream).await.ends_with("data: [DONE]\n\n"));
}
