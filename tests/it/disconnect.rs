//! Clients that leave, at every stage, and clients whose request is refused.

use fathom_router::logic::health::WorkerState;
use fathom_router::messages::Outcome;

use crate::support::{RawClient, RawEngine, RunningRouter, fast_config, post, post_head, stream_through};

const PATH: &str = "/v1/chat/completions";

async fn one_engine() -> (RawEngine, RunningRouter) {
    let engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    (engine, router)
}

/// Seen in BerriAI/litellm#31499 (streams) and vllm-project/production-stack#634 (whole answers).
#[actix::test]
async fn a_client_that_leaves_while_the_engine_is_silent_ends_the_engines_work() {
    let (mut engine, router) = one_engine().await;
    for (number, body) in [r#"{"stream":true}"#, r#"{"stream":false}"#, r#"{"n":4}"#].into_iter().enumerate() {
        for is_reset in [false, true] {
            let mut client = RawClient::connect(&router.url).await;
            client.write(post(PATH, body)).await;
            let request = engine.next_request().await;
            if is_reset {
                client.reset()
            } else {
                client.leave()
            }
            request.peer_is_gone().await;
            router.wait_until_ended(Outcome::ClientGone, 2 * number as u64 + 1 + u64::from(is_reset)).await;
        }
    }
    router.wait_until_idle().await;
    let worker = router.fleet().await.remove(0);
    assert_eq!(worker.state, WorkerState::Serving, "clients that leave are not the worker's doing");
    router.stop().await;
}

/// Seen in BerriAI/litellm#30245.
#[actix::test]
async fn a_client_that_leaves_mid_stream_ends_the_engines_work() {
    let (mut engine, router) = one_engine().await;
    let (client, request) = stream_through(&router.url, &mut engine).await;
    client.leave();
    request.peer_is_gone().await;
    router.wait_until_ended(Outcome::ClientGone, 1).await;
    router.wait_until_idle().await;
    router.stop().await;
}

/// Seen in vllm-project/router#215.
#[actix::test]
async fn five_hundred_clients_that_leave_before_an_answer_leave_nothing_in_flight() {
    let (mut engine, router) = one_engine().await;
    for round in 1..=10 {
        let mut clients = Vec::new();
        for _ in 0..50 {
            let mut client = RawClient::connect(&router.url).await;
            client.write(post(PATH, "{}")).await;
            clients.push(client);
        }
        let mut unanswered = Vec::new();
        for _ in 0..50 {
            unanswered.push(engine.next_request().await);
        }
        assert_eq!(router.fleet().await.remove(0).in_flight, 50);
        clients.into_iter().for_each(RawClient::leave);
        for request in unanswered {
            request.peer_is_gone().await;
        }
        router.wait_until_ended(Outcome::ClientGone, round * 50).await;
        router.wait_until_idle().await;
    }
    router.wait_until_open(0).await;
    router.stop().await;
}

#[actix::test]
async fn a_client_that_leaves_during_its_upload_touches_no_engine() {
    let (engine, router) = one_engine().await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post_head(PATH, 1_000) + "{\"model\":").await;
    router.wait_until_open(1).await;
    client.leave();
    router.wait_until_open(0).await;
    assert!(!engine.has_request());
    assert_eq!(router.fleet().await.remove(0).in_flight, 0);
    router.stop().await;
}

/// Seen in actix/actix-web#3715.
#[actix::test]
async fn a_connection_whose_request_was_refused_takes_the_next_one() {
    let (mut engine, router) = one_engine().await;
    let mut client = RawClient::connect(&router.url).await;
    for round in 0..200 {
        let refused = if round % 2 == 0 { r#"{"model":"nobody"}"# } else { "{malformed" };
        // Head and body come apart, as some load balancers send them.
        client.write(post_head(PATH, refused.len())).await;
        client.write(refused).await;
        let answer = client.answer().await;
        let status = if round % 2 == 0 { "HTTP/1.1 404 Not Found" } else { "HTTP/1.1 400 Bad Request" };
        assert_eq!(answer.first_line(), status);
        client.write(post(PATH, "{}")).await;
        engine.next_request().await.answer("HTTP/1.1 200 OK", "{}").await;
        assert_eq!(client.answer().await.first_line(), "HTTP/1.1 200 OK", "round {round}");
    }
    router.stop().await;
}

#[actix::test]
async fn a_request_that_is_refused_unread_closes_its_connection() {
    let engine = RawEngine::start().await;
    let mut config = fast_config(&[engine.url()]);
    config.http.max_body_bytes = 100;
    let router = RunningRouter::with(config).await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post_head(PATH, 1_000_000)).await;
    let answer = client.answer().await;
    assert_eq!(answer.first_line(), "HTTP/1.1 413 Payload Too Large");
    assert_eq!(
        answer.header_values("connection"),
        ["close"],
        "what follows could not be told from the rest of the body"
    );
    assert!(client.read_to_end().await.is_empty());
    router.stop().await;
}

/// Seen in tinfoilsh/confidential-model-router#278.
#[actix::test]
async fn clients_that_leave_at_any_stage_are_counted_as_such_and_never_blame_the_worker() {
    let (mut engine, router) = one_engine().await;
    for _ in 0..20 {
        let mut before_headers = RawClient::connect(&router.url).await;
        before_headers.write(post(PATH, "{}")).await;
        let unanswered = engine.next_request().await;
        before_headers.reset();
        unanswered.peer_is_gone().await;

        let mut mid_stream = RawClient::connect(&router.url).await;
        mid_stream.write(post(PATH, r#"{"stream":true}"#)).await;
        let mut streaming = engine.next_request().await;
        streaming.start_stream().await;
        mid_stream.read_through("\r\n\r\n").await;
        mid_stream.leave();
        streaming.peer_is_gone().await;

        let mut uploading = RawClient::connect(&router.url).await;
        uploading.write(post_head(PATH, 1_000) + "{").await;
        uploading.reset();
    }
    router.wait_until_ended(Outcome::ClientGone, 40).await;
    router.wait_until_open(0).await;
    for blame in [Outcome::Unreachable, Outcome::BrokeOff, Outcome::TimedOut] {
        assert_eq!(router.num_ended(blame), 0, "{}", blame.name());
    }
    assert_eq!(router.fleet().await.remove(0).state, WorkerState::Serving);
    let mut client = RawClient::connect(&router.url).await;
    client.write(post(PATH, "{}")).await;
    engine.next_request().await.answer("HTTP/1.1 200 OK", "{}").await;
    assert_eq!(client.answer().await.first_line(), "HTTP/1.1 200 OK", "the next request is served");
    router.stop().await;
}

/// As guidellm 0.8.1 does.
#[actix::test]
async fn a_client_that_leaves_with_the_last_event_and_before_the_end_of_the_transfer_had_its_answer() {
    let (mut engine, router) = one_engine().await;
    let (mut client, mut request) = stream_through(&router.url, &mut engine).await;
    request.write_chunk("data: [DONE]\n\n").await;
    client.read_through("data: [DONE]\n\n").await;
    client.leave();
    request.peer_is_gone().await;
    router.wait_until_ended(Outcome::Completed, 1).await;
    assert_eq!(router.num_ended(Outcome::ClientGone), 0);
    router.wait_until_metric_is("fathom_client_requests_total{source=\"worker\",outcome=\"answered\"}", 1.0).await;
    router.stop().await;
}
