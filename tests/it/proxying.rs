//! What passes through unchanged, what is asked of whom, and which failure has which code.

use fathom_router::config::PolicyKind;
use fathom_router::logic::request::RequestFacts;
use fathom_router::messages::{Outcome, SelectWorker};

use crate::support::{
    Client, RawClient, RawEngine, RunningRouter, assert_all_succeeded, chat_body, engine, eventually, fast_config, post,
};

const PATH: &str = "/v1/chat/completions";

fn post_with(header: &str, body: &str) -> String {
    post(PATH, body).replacen("\r\n", &format!("\r\n{header}\r\n"), 1)
}

/// Seen in actix/examples#151 and tower-rs/tower-http#420.
#[actix::test]
async fn a_compressed_answer_stays_compressed_and_a_plain_stream_stays_plain() {
    let mut engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    let squeezed = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3];
    for accepted in ["gzip", "identity", "br"] {
        let mut client = RawClient::connect(&router.url).await;
        client.write(post_with(&format!("accept-encoding: {accepted}"), "{}")).await;
        let request = engine.next_request().await;
        assert_eq!(request.message.header_values("accept-encoding"), [accepted], "the engine chooses");
        request.answer("HTTP/1.1 200 OK\ncontent-type: application/json\ncontent-encoding: gzip", squeezed).await;
        let answer = client.answer().await;
        assert_eq!((answer.header_values("content-encoding"), &answer.body[..]), (vec!["gzip"], &squeezed[..]));
    }
    let mut client = RawClient::connect(&router.url).await;
    client.write(post_with("accept-encoding: gzip, br", "{}")).await;
    let mut request = engine.next_request().await;
    request.start_stream().await;
    // The head arrives before there is anything to compress, and each event as soon as it is there.
    let head = String::from_utf8(client.read_through("\r\n\r\n").await).unwrap().to_lowercase();
    assert!(!head.contains("content-encoding"), "{head}");
    for _ in 0..3 {
        request.write_chunk("data: {\"content\":\"a token or two\"}\n\n").await;
        let event = String::from_utf8(client.read_through("\n\n\r\n").await).unwrap();
        assert!(event.contains("data: {\"content\":\"a token or two\"}"), "{event}");
    }
    request.end_stream().await;
    router.stop().await;
}

/// Seen in vllm-project/router#158.
#[actix::test]
async fn an_engine_is_asked_under_its_own_name_and_in_http_1() {
    let mut engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    let mut client = RawClient::connect(&router.url).await;
    client.write(post(PATH, "{}")).await;
    let request = engine.next_request().await;
    assert_eq!(request.message.first_line(), format!("POST {PATH} HTTP/1.1"));
    assert_eq!(request.message.header_values("host"), [engine.authority()]);
    assert!(request.message.header_values("upgrade").is_empty());
    request.answer("HTTP/1.1 200 OK", "{}").await;
    client.answer().await;
    router.stop().await;
}

/// Seen in smg-project/smg#2518.
#[actix::test]
async fn each_reason_for_which_nobody_serves_has_a_code_of_its_own() {
    let (lost, only) = (engine("lost").await, engine("only").await);
    let mut config = fast_config(&[lost.url()]);
    config.caps.max_in_flight = Some(1);
    let router = RunningRouter::with(config).await;
    let code = |answer: crate::support::Answer| {
        (answer.status, answer.header("x-fathom-error-code").to_owned(), !answer.header("retry-after").is_empty())
    };
    assert_eq!(code(router.chat_with("no-such-model").await), (404, "model_not_found".to_owned(), false));
    let select = SelectWorker { request: RequestFacts::default() };
    let held = router.handle.selector().send(select).await.expect("a selector").expect("a place");
    assert_eq!(code(router.chat().await), (503, "workers_full".to_owned(), true));
    drop(held);
    router.wait_until_idle().await;
    lost.kill().await;
    assert_eq!(code(router.chat().await), (503, "all_workers_failed".to_owned(), true));
    router.announce("static", &[]).await;
    router.wait_until_serving(0).await;
    assert_eq!(code(router.chat().await), (503, "no_worker_available".to_owned(), true));
    router.announce("static", &[&only.url()]).await;
    router.wait_until_serving(1).await;
    assert_eq!(router.chat().await.status, 200);
    router.stop().await;
}

/// Seen in duolahypercho/codex-router#119.
#[actix::test]
async fn what_has_begun_to_arrive_is_never_spliced_with_another_workers_answer() {
    for num_events in [0, 1] {
        let mut first = RawEngine::start().await;
        let second = engine("second").await;
        let mut config = fast_config(&[first.url(), second.url()]);
        config.policy = PolicyKind::RoundRobin;
        let router = RunningRouter::with(config).await;
        // Of two requests in turn one comes to the engine that dies.
        let mut clients = [RawClient::connect(&router.url).await, RawClient::connect(&router.url).await];
        for client in &mut clients {
            client.write(post_with("connection: close", &chat_body(1, false))).await;
        }
        let mut request = first.next_request().await;
        request.start_stream().await;
        for _ in 0..num_events {
            request.write_chunk("data: {\"from\":\"first\"}\n\n").await;
        }
        request.reset();
        router.wait_until_ended(Outcome::BrokeOff, 1).await;
        let mut num_broken = 0;
        for client in clients {
            let received = String::from_utf8(client.read_to_end().await).unwrap();
            let is_of_second = received.to_lowercase().contains("x-sim-engine: second");
            num_broken += usize::from(!is_of_second);
            assert!(!(is_of_second && received.contains("\"from\":\"first\"")), "spliced: {received}");
        }
        assert_eq!(num_broken, 1);
        router.stop().await;
    }
}

/// Seen in hyperium/hyper#2136 and seanmonstar/reqwest#2021.
#[actix::test]
async fn a_kept_connection_that_the_engine_closes_between_two_requests_costs_no_request() {
    let mut engine = RawEngine::start().await;
    let router = RunningRouter::with(fast_config(&[engine.url()])).await;
    let client = Client::new();
    let url = format!("{}{PATH}", router.url);
    for _ in 0..30 {
        let (answer, ()) = futures::join!(client.post(&url, chat_body(1, false)), async {
            let mut request = engine.next_request().await;
            // It says nothing of closing, and closes.
            request.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
            drop(request);
        });
        assert_all_succeeded(&[answer]);
    }
    eventually("every request has ended well", || async { (router.num_ended(Outcome::Completed) == 30).then_some(()) })
        .await;
    assert_eq!(router.num_ended(Outcome::Unreachable), 0);
    router.stop().await;
}
