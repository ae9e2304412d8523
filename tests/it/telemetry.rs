//! Metrics: bounded by the fleet that lives, right after every kind of removal, and at nothing when nothing happens.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use actix_web::App;
use actix_web::test::{TestRequest, call_and_read_body, init_service};
use fathom_router::router::Router;
use fathom_router::sim::ResponseMode;
use serde_json::json;

use crate::support::{
    Client, RunningRouter, Stub, assert_all_succeeded, chat_body, engine, engine_like, eventually, fast_config,
    start_router,
};

/// The series of the exposition, without their values.
fn series(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series)).collect()
}

/// Seen in concourse/concourse#4341.
#[actix::test]
async fn nothing_of_a_removed_worker_and_nothing_that_a_client_chose_stays_in_the_metrics() {
    let stub = Stub::start_at(Ipv4Addr::UNSPECIFIED.into(), engine_like(json!({"served_model_name": "tiny"}), "tiny"));
    let stub = stub.await.expect("a free port");
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    let client = Client::new();
    let mut counts = Vec::new();
    for round in 0..6_u32 {
        let urls: Vec<String> =
            (0..60).map(|number| format!("http://127.0.{}.{}:{}", round + 1, number + 1, stub.port())).collect();
        router.announce("churn", &urls.iter().map(String::as_str).collect::<Vec<_>>()).await;
        router.wait_until_serving(urls.len()).await;
        assert_all_succeeded(&router.chat_times(20).await);
        for number in 0..40 {
            let path = format!("{}/v1/any/{round}/{number}", router.url);
            client.post(&path, json!({"model": format!("model-{round}-{number}")}).to_string()).await;
        }
        router.announce("churn", &[]).await;
        eventually("the workers are gone", || async { router.members().await.is_empty().then_some(()) }).await;
        let text = router.metrics().await;
        assert!(!text.contains("127.0.") && !text.contains("model-") && !text.contains("/any/"), "{text}");
        assert!(text.contains("\nfathom_workers{state=\"serving\"} 0\n"), "{text}");
        counts.push(series(&text).len());
    }
    // A kind that is counted for the first time adds a series; 360 workers, 240 models and as many paths must not.
    assert!(counts[counts.len() - 1] < counts[0] + 10, "{counts:?}");
    router.stop_and_check().await;
}

/// Seen in vllm-project/production-stack#173.
#[actix::test]
async fn figures_of_the_last_seconds_fall_to_nothing_when_nothing_happens() {
    let engine = engine("a").await;
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;
    assert_all_succeeded(&router.chat_times(100).await);
    router.wait_until_idle().await;
    assert_eq!(router.metric("fathom_herd_ratio ").await, Some(1.0));
    let trusted = format!("fathom_worker_load_trusted{{worker=\"{}\"}}", engine.url());
    let depth = format!("fathom_worker_engine_depth{{worker=\"{}\"}}", engine.url());
    assert_eq!(router.metric(&trusted).await, Some(1.0));
    assert!(router.metric(&depth).await.is_some());
    // A second edge of the same router, whose clock is this thread's.
    let service = init_service(App::new().configure(router.handle.configure())).await;
    tokio::time::pause();
    for minute in 1..=5 {
        tokio::time::advance(Duration::from_secs(60)).await;
        let request = TestRequest::get().uri("/metrics").peer_addr(([127, 0, 0, 1], 1).into()).to_request();
        let text = String::from_utf8(call_and_read_body(&service, request).await.to_vec()).unwrap();
        for gone in ["\nfathom_herd_ratio 0.0\n", "\nfathom_recent_decisions 0\n", &format!("\n{trusted} 0\n")] {
            assert!(text.contains(gone), "after {minute} minutes there is no {gone:?} in {text}");
        }
        assert!(
            !text.contains(&depth) && !text.contains("fathom_load_imbalance_ratio "),
            "an old depth is none: {text}"
        );
    }
    tokio::time::resume();
    router.stop().await;
}

#[actix::test]
async fn streams_are_measured_chunk_by_chunk_and_other_answers_are_not() {
    let engine = engine("a").await;
    let router = RunningRouter::over(&[&engine]).await;
    let count = |name: &str| format!("fathom_{name}_seconds_count");
    assert_all_succeeded(&router.chat_times(3).await);
    assert_eq!(router.metric(&count("time_to_first_token")).await, Some(0.0));
    let answer = Client::new().post(&format!("{}/v1/chat/completions", router.url), chat_body(5, true)).await;
    assert_eq!(answer.status, 200);
    router.wait_until_metric_is(&count("request_duration"), 4.0).await;
    assert_eq!(router.metric(&count("time_to_first_token")).await, Some(1.0));
    assert_eq!(router.metric(&count("first_byte")).await, Some(4.0));
    assert_eq!(router.metric(&count("decision")).await, Some(4.0));
    assert_eq!(router.metric("fathom_streams_total{kind=\"completed\"}").await, Some(1.0));
    assert!(router.metric(&count("chunk_gap")).await.is_some_and(|gaps| gaps >= 1.0));
    router.stop().await;
}

#[actix::test]
async fn each_way_around_what_failed_is_counted_by_its_cause() {
    let (first, second) = (engine("a").await, engine("b").await);
    let router = RunningRouter::over(&[&first, &second]).await;
    for engine in [&first, &second] {
        engine.set_response_mode(ResponseMode::Status(500, "{}".to_owned()));
    }
    assert_eq!(router.chat().await.status, 500);
    assert_eq!(router.metric("fathom_retries_total{kind=\"server_error\"}").await, Some(1.0));
    first.kill().await;
    second.kill().await;
    assert_eq!(router.chat().await.status, 503);
    assert_eq!(router.metric("fathom_second_decisions_total").await, Some(1.0));
    assert!(router.metric("fathom_retries_total{kind=\"unreachable\"}").await.is_some_and(|retries| retries >= 1.0));
    router.stop().await;
}
