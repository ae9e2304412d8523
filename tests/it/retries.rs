//! The outcome table, row by row: what an engine's status does to the request, to the worker, and to the next requests.

use fathom_router::config::{PolicyKind, RouterConfig};
use fathom_router::messages::Outcome;
use serde_json::json;

use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, Stub, StubAnswer, StubRequest, chat_answer, chat_body, engine_like,
    fast_config, post,
};

const PATH: &str = "/v1/chat/completions";

/// Answers every chat with this status, and everything else like an engine.
fn answering(status: u16) -> impl Fn(&StubRequest) -> StubAnswer {
    let otherwise = engine_like(json!({}), "tiny");
    move |request| match request.path.as_str() {
        PATH if status == 200 => chat_answer(),
        PATH => StubAnswer::Json(status, json!({"error": {"message": "the engine's own words", "code": status}})),
        _ => otherwise(request),
    }
}

fn round_robin(urls: &[String]) -> RouterConfig {
    let mut config = fast_config(urls);
    config.policy = PolicyKind::RoundRobin;
    config
}

#[actix::test]
async fn each_status_has_the_effect_that_the_table_says() {
    let rows = [
        (400, false, Outcome::Completed),
        (401, false, Outcome::Completed),
        (404, false, Outcome::Completed),
        (422, false, Outcome::Completed),
        (501, false, Outcome::Completed),
        (500, true, Outcome::ServerError),
        (502, true, Outcome::ServerError),
        (504, true, Outcome::ServerError),
        (429, true, Outcome::Overloaded),
        (503, true, Outcome::Overloaded),
    ];
    for (status, is_tried_again, outcome) in rows {
        let (odd, good) = (Stub::start(answering(status)).await, Stub::start(answering(200)).await);
        let router = RunningRouter::with(round_robin(&[odd.url(), good.url()])).await;
        let client = Client::new();
        let mut passed_on = 0;
        for _ in 0..6 {
            let answer = client.post(&format!("{}{PATH}", router.url), chat_body(1, false)).await;
            passed_on += usize::from(answer.status == status);
            assert!(answer.status == 200 || answer.status == status, "{status}: {}", answer.status);
        }
        let num_odd = odd.requests_to(PATH).len();
        assert!(num_odd > 0, "{status}: the turn comes to it");
        assert_eq!(passed_on, if is_tried_again { 0 } else { num_odd }, "{status}");
        assert_eq!(good.requests_to(PATH).len(), 6 - passed_on, "{status}: each request is answered once");
        router.wait_until_idle().await;
        let others = if outcome == Outcome::Completed { 6 - num_odd } else { 0 };
        assert_eq!(router.num_ended(outcome), (num_odd + others) as u64, "{status}");
        router.stop().await;
    }
}

#[actix::test]
async fn with_nobody_else_the_engines_own_answer_is_passed_on_as_it_is() {
    for status in [429, 500, 502, 503, 504] {
        let only = Stub::start(answering(status)).await;
        let router = RunningRouter::with(round_robin(&[only.url()])).await;
        let answer = Client::new().post(&format!("{}{PATH}", router.url), chat_body(1, false)).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["error"]["message"], "the engine's own words");
        router.stop().await;
    }
}

#[actix::test]
async fn an_answer_of_the_engine_is_worth_more_than_that_others_cannot_be_reached() {
    let failing = Stub::start(answering(500)).await;
    let gone = Stub::start(answering(200)).await;
    let router = RunningRouter::with(round_robin(&[failing.url(), gone.url()])).await;
    drop(gone);
    for _ in 0..4 {
        let answer = Client::new().post(&format!("{}{PATH}", router.url), chat_body(1, false)).await;
        assert_eq!(answer.json()["error"]["message"], "the engine's own words");
    }
    router.stop().await;
}

/// Seen in linkedin/rest.li#484.
#[actix::test]
async fn retries_do_not_multiply_an_outage() {
    let mut engines = Vec::new();
    for _ in 0..4 {
        engines.push(Stub::start(answering(503)).await);
    }
    let urls: Vec<String> = engines.iter().map(Stub::url).collect();
    let router = RunningRouter::with(round_robin(&urls)).await;
    let client = Client::new();
    for _ in 0..200 {
        let answer = client.post(&format!("{}{PATH}", router.url), chat_body(1, false)).await;
        assert_eq!(answer.status, 503);
    }
    let attempts: usize = engines.iter().map(|engine| engine.requests_to(PATH).len()).sum();
    assert!((220..=250).contains(&attempts), "{attempts} attempts for 200 requests");
    router.stop().await;
}

/// Seen in sgl-project/sglang#39464.
#[actix::test]
async fn an_engine_without_room_is_left_alone_as_long_as_it_asks_for_and_is_not_blamed() {
    let (mut full, other) = (RawEngine::start().await, Stub::start(answering(200)).await);
    let router = RunningRouter::with(round_robin(&[full.url(), other.url()])).await;
    let client = Client::new();
    let url = format!("{}{PATH}", router.url);
    let mut waiting = RawClient::connect(&router.url).await;
    // One of two requests in turn comes to the engine that is full.
    waiting.write(post(PATH, "{}")).await;
    let mut second = RawClient::connect(&router.url).await;
    second.write(post(PATH, "{}")).await;
    let request = full.next_request().await;
    request.answer("HTTP/1.1 503 Service Unavailable\nretry-after: 30", "{}").await;
    router.wait_until_ended(Outcome::Overloaded, 1).await;
    for _ in 0..10 {
        assert_eq!(client.post(&url, chat_body(1, false)).await.status, 200);
    }
    assert!(!full.has_request(), "it is left alone");
    let worker = router.worker(&full.url()).await.expect("a worker");
    assert_eq!(worker.state.name(), "serving", "and still serves");
    // With nobody else left it is asked all the same.
    drop(other);
    let mut last = RawClient::connect(&router.url).await;
    last.write(post(PATH, "{}")).await;
    full.next_request().await.answer("HTTP/1.1 200 OK", "{}").await;
    assert_eq!(last.answer().await.first_line(), "HTTP/1.1 200 OK");
    router.stop().await;
}
