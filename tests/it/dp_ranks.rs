//! DP ranks as targets: each priced by its own load, cache and in-flight, named to engines that take one, and to no others.

use std::time::Duration;

use fathom_router::RequestFacts;
use fathom_router::config::RouterConfig;
use fathom_router::logic::ranks::RankRule;
use fathom_router::messages::{Decision, SelectWorker};
use fathom_router::sim::{LoadPublishing, Reported, ResponseMode, SimConfig, SimEngine};
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, RunningRouter, assert_all_succeeded, chat_body, eventually, fast_config, in_own_process, whole,
};

const PATH: &str = "/v1/chat/completions";

fn ranked(name: &str, dp_size: u32) -> SimConfig {
    let load = LoadPublishing { heartbeat: Duration::from_millis(100), ..LoadPublishing::default() };
    SimConfig { name: name.to_owned(), dp_size, load: Some(load), page_size: 4, ..SimConfig::default() }
}

async fn start(config: SimConfig) -> SimEngine {
    SimEngine::start(config).await.expect("an engine")
}

async fn decide(router: &RunningRouter, wanted_rank: Option<u32>) -> Decision {
    let request = RequestFacts { takes_rank: true, wanted_rank, ..RequestFacts::default() };
    router.handle.selector().send(SelectWorker { request }).await.expect("a selector").expect("a worker")
}

fn rank_of(decision: &Decision) -> Option<u32> {
    decision.rank.map(|rank| rank.number())
}

fn completed_by_rank(engine: &SimEngine) -> Vec<u64> {
    engine.stats().ranks.iter().map(|rank| rank.completed).collect()
}

fn reported(depth: u64) -> Option<Reported> {
    Some(Reported { num_running_reqs: depth, ..Reported::default() })
}

/// Sends a chat that names a rank by header.
async fn chat_at(router: &RunningRouter, rank: &str) -> Answer {
    let request = Request::post(format!("{}{PATH}", router.url)).header("x-data-parallel-rank", rank);
    whole(Client::new().send(request.body(Full::new(chat_body(1, false).into())).unwrap()).await).await
}

#[actix::test]
async fn a_request_goes_to_the_rank_that_reports_least_and_is_in_flight_there() {
    let engine = start(ranked("a", 4)).await;
    for (rank, depth) in [(0, 9), (1, 7), (2, 3), (3, 8)] {
        engine.set_reported_load(rank, reported(depth)).unwrap();
    }
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;
    assert_all_succeeded(&router.chat_times(20).await);
    assert_eq!(completed_by_rank(&engine), [0, 0, 20, 0]);

    router.wait_until_idle().await;
    let held: Vec<Decision> = vec![decide(&router, None).await, decide(&router, None).await];
    assert_eq!(held.iter().map(rank_of).collect::<Vec<_>>(), [Some(2), Some(2)]);
    let shown = router.shown(&engine.url()).await["dp_ranks"].clone();
    assert_eq!((&shown["first"], &shown["count"], &shown["addressed"]), (&json!(0), &json!(4), &json!("yes")));
    let in_flight: Vec<u64> = (0..4).filter_map(|rank| shown["ranks"][rank]["in_flight"].as_u64()).collect();
    assert_eq!(in_flight, [0, 0, 2, 0]);
    drop(held);
    router.wait_until_idle().await;
    let shown = router.shown(&engine.url()).await["dp_ranks"].clone();
    assert!((0..4).all(|rank| shown["ranks"][rank]["in_flight"] == 0), "{shown}");
    router.stop().await;
}

/// Seen in vllm-project/router#178.
#[actix::test]
async fn a_burst_is_spread_evenly_over_the_ranks() {
    let engine = start(ranked("a", 4)).await;
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;
    let burst = futures::future::join_all((0..32).map(|_| decide(&router, None))).await;
    let mut counts = [0; 4];
    burst.iter().filter_map(rank_of).for_each(|rank| counts[rank as usize] += 1);
    assert_eq!(counts, [8; 4]);
    drop(burst);
    router.stop().await;
}

#[actix::test]
async fn while_one_rank_is_silent_all_ranks_are_priced_by_what_is_in_flight() {
    let engine = start(ranked("a", 2)).await;
    engine.publish_only_ranks(&[1]);
    engine.set_reported_load(1, reported(50)).unwrap();
    let router = RunningRouter::over(&[&engine]).await;
    router
        .wait_until_shown(&engine.url(), "one rank has reported", |shown| shown["load"]["ranks"][1]["running"] == 50)
        .await;
    let ranks = router.shown(&engine.url()).await["dp_ranks"]["ranks"].clone();
    assert_eq!((&ranks[0]["trust"], &ranks[1]["trust"]), (&json!("unreported"), &json!("trusted")));
    let held: Vec<Decision> = futures::future::join_all((0..10).map(|_| decide(&router, None))).await;
    assert_eq!(held.iter().filter(|decision| rank_of(decision) == Some(1)).count(), 5, "its report counts for nothing");
    drop(held);
    router.stop().await;
}

#[actix::test]
async fn a_prompt_goes_to_the_rank_that_holds_it_and_is_found_cached_there() {
    let engine = start(ranked("a", 4)).await;
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;
    let url = format!("{}/generate", router.url);
    let client = Client::new();
    for family in 0..12_u32 {
        let tokens: Vec<u32> = (0..40).map(|token| 1_000 * family + token).collect();
        let body = json!({"input_ids": tokens, "sampling_params": {"max_new_tokens": 1}}).to_string();
        let blocks_before: usize = (0..4).filter_map(|rank| engine.cached_blocks(rank)).map(|keys| keys.len()).sum();
        let first = client.post(&url, body.clone()).await;
        assert_eq!(first.json()["meta_info"]["cached_tokens"], 0, "{family}");
        eventually("the router lists the prompt", || async {
            let worker = router.worker(&engine.url()).await?;
            let listed: u64 = worker.kv.ranks.iter().map(|rank| rank.num_blocks).sum();
            (listed as usize >= blocks_before + 10).then_some(())
        })
        .await;
        for _ in 0..3 {
            let again = client.post(&url, body.clone()).await.json();
            assert_eq!(again["meta_info"]["cached_tokens"], 36, "{family}: all but the block that is always computed");
        }
    }
    let completed = completed_by_rank(&engine);
    assert!(completed.iter().filter(|count| **count > 0).count() > 1, "{completed:?}: not all on one rank");
    router.stop().await;
}

/// Seen in vllm-project/router#210 and ai-dynamo/dynamo#5001.
#[actix::test]
async fn ranks_are_numbered_as_each_node_says_and_none_is_refused() {
    let low = start(SimConfig { lists_ranks: true, ..ranked("low", 4) }).await;
    let high = start(SimConfig { lists_ranks: true, first_rank: 4, ..ranked("high", 4) }).await;
    let router = RunningRouter::over(&[&low, &high]).await;
    router.wait_until_trusted(2).await;
    let answers = router.chat_times(400).await;
    assert_all_succeeded(&answers);
    for engine in [&low, &high] {
        let completed = completed_by_rank(engine);
        assert!(completed.iter().all(|count| *count > 20), "{completed:?}");
        let named: Vec<Vec<u8>> = engine.stats().recent.iter().filter_map(rank_header).collect();
        assert_eq!(named.len(), engine.stats().recent.len(), "each request names a rank");
    }
    let shown = router.shown(&high.url()).await["dp_ranks"].clone();
    assert_eq!((&shown["first"], &shown["count"]), (&json!(4), &json!(4)));
    assert_eq!(router.metric("fathom_rank_refusals_total").await, Some(0.0));
    router.stop().await;
}

fn rank_header(request: &fathom_router::sim::RecordedRequest) -> Option<Vec<u8>> {
    request.headers.iter().find(|(name, _)| name == "x-data-parallel-rank").map(|(_, value)| value.clone())
}

/// Seen in vllm-project/router#210 and ai-dynamo/dynamo#5001.
#[actix::test]
async fn a_node_that_does_not_say_which_ranks_it_owns_costs_no_request_and_gets_none_named() {
    if let Some(log) =
        in_own_process("dp_ranks::a_node_that_does_not_say_which_ranks_it_owns_costs_no_request_and_gets_none_named")
    {
        assert_eq!(log.lines().filter(|line| line.contains("refuses a DP rank")).count(), 1, "{log}");
        return;
    }
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    let low = start(ranked("low", 4)).await;
    let high = start(SimConfig { first_rank: 4, ..ranked("high", 4) }).await;
    let router = RunningRouter::over(&[&low, &high]).await;
    router.wait_until_trusted(2).await;
    let (client, url) = (Client::new(), format!("{}{PATH}", router.url));
    for _ in 0..10 {
        let burst = (0..40).map(|_| client.post(&url, chat_body(1, false)));
        assert_all_succeeded(&futures::future::join_all(burst).await);
    }
    assert_eq!(router.metric("fathom_rank_refusals_total").await, Some(1.0));
    let shown = router.shown(&high.url()).await;
    assert_eq!((&shown["dp_ranks"]["addressed"], &shown["state"]), (&json!("refused"), &json!("serving")));
    assert_eq!(router.shown(&low.url()).await["dp_ranks"]["addressed"], "yes");
    assert!(high.stats().recent.iter().all(|request| rank_header(request).is_none()), "the last ones name no rank");
    assert!(high.stats().completed > 50 && low.stats().completed > 50, "both serve");
    assert_eq!(low.stats().completed + high.stats().completed, 400, "nothing was sent round the fleet");
    router.stop().await;
}

#[actix::test]
async fn a_request_that_is_bad_itself_does_not_cost_the_worker_its_ranks() {
    let engine = start(ranked("a", 2)).await;
    let router = RunningRouter::over(&[&engine]).await;
    let bad = json!({"model": "tiny", "max_tokens": -1}).to_string();
    let (client, url) = (Client::new(), format!("{}{PATH}", router.url));
    for _ in 0..4 {
        assert_eq!(client.post(&url, bad.clone()).await.status, 400);
    }
    assert_all_succeeded(&router.chat_times(20).await);
    let before = engine.stats().num_requests(PATH);
    assert_eq!(client.post(&url, bad).await.status, 400);
    assert_eq!(engine.stats().num_requests(PATH), before + 1, "a rank that was accepted is not to blame");
    assert_eq!(router.shown(&engine.url()).await["dp_ranks"]["addressed"], "yes");
    router.stop().await;
}

#[actix::test]
async fn what_a_client_says_of_ranks_is_dropped_unless_it_is_allowed() {
    let engine = start(ranked("a", 4)).await;
    engine.set_reported_load(2, reported(20)).unwrap();
    let router = RunningRouter::over(&[&engine]).await;
    router.wait_until_trusted(1).await;
    for rank in ["2", "77", "x"] {
        assert_eq!(chat_at(&router, rank).await.status, 200, "{rank}");
    }
    assert_eq!(completed_by_rank(&engine)[2], 0);
    let body = json!({"text": "hi", "routed_dp_rank": 2, "data_parallel_rank": 2}).to_string();
    assert_eq!(Client::new().post(&format!("{}/generate", router.url), body).await.status, 200);
    assert_eq!(completed_by_rank(&engine)[2], 0, "nor in the body of a route that reads it there");
    router.stop().await;
}

fn allowing(engines: &[&SimEngine]) -> RouterConfig {
    let urls: Vec<String> = engines.iter().map(|engine| engine.url()).collect();
    let mut config = fast_config(&urls);
    config.http.forward_dp_rank = true;
    config
}

#[actix::test]
async fn a_wish_that_is_allowed_is_honoured_at_the_worker_that_owns_the_rank_and_counted_there() {
    let low = start(SimConfig { lists_ranks: true, ..ranked("low", 2) }).await;
    let high = start(SimConfig { lists_ranks: true, first_rank: 2, ..ranked("high", 2) }).await;
    high.set_reported_load(1, reported(20)).unwrap();
    let router = RunningRouter::with(allowing(&[&low, &high])).await;
    router.wait_until_trusted(2).await;
    for _ in 0..5 {
        assert_eq!(chat_at(&router, "3").await.header("x-sim-engine"), "high");
    }
    let body = json!({"text": "hi", "routed_dp_rank": 3, "sampling_params": {"max_new_tokens": 1}}).to_string();
    assert_eq!(Client::new().post(&format!("{}/generate", router.url), body).await.status, 200);
    assert_eq!((completed_by_rank(&high), completed_by_rank(&low)), (vec![0, 6], vec![0, 0]));

    high.set_response_mode(ResponseMode::HangBeforeHeaders);
    let request = Request::post(format!("{}{PATH}", router.url)).header("x-data-parallel-rank", "3");
    let held = actix::spawn(async move {
        drop(Client::new().send(request.body(Full::new(chat_body(1, false).into())).unwrap()).await);
    });
    router
        .wait_until_shown(&high.url(), "the wish is in flight at its rank", |shown| {
            shown["dp_ranks"]["ranks"][1]["in_flight"] == 1 && shown["dp_ranks"]["ranks"][0]["in_flight"] == 0
        })
        .await;
    held.abort();
    router.wait_until_idle().await;
    assert_eq!(chat_at(&router, "9").await.status, 200, "a rank that nobody owns is a void wish");
    router.stop().await;
}

#[actix::test]
async fn the_configuration_says_whether_ranks_are_addressed_for_all_and_for_each() {
    let engine = start(ranked("a", 2)).await;
    let config = || fast_config(&[engine.url()]);
    let mut off = config();
    off.load.route_dp_ranks = false;
    let mut own_off = config();
    own_off.workers[0].overrides.ranks = RankRule::parse("off");
    let mut own_on = config();
    own_on.load.route_dp_ranks = false;
    own_on.workers[0].overrides.ranks = RankRule::parse("0-1");
    for (config, is_named) in [(config(), true), (off, false), (own_off, false), (own_on, true)] {
        let router = RunningRouter::with(config).await;
        assert_eq!(router.chat().await.status, 200);
        let last = engine.stats().recent.last().and_then(rank_header);
        assert_eq!(last.is_some(), is_named);
        router.stop().await;
    }
}

#[actix::test]
async fn engines_of_one_rank_and_other_routes_get_no_rank_and_bodies_stay_as_they_came() {
    let (single, double) = (start(ranked("single", 1)).await, start(ranked("double", 2)).await);
    let client = Client::new();
    for (engine, path, is_named) in [(&single, PATH, false), (&double, PATH, true), (&double, "/v1/embeddings", false)]
    {
        let router = RunningRouter::over(&[engine]).await;
        let body = r#"{ "model":"tiny", "messages":[] ,"input":"a" , "max_tokens":1}"#;
        assert_eq!(client.post(&format!("{}{path}", router.url), body).await.status, 200);
        let last = engine.stats().recent.last().cloned().expect("a request");
        assert_eq!((rank_header(&last).is_some(), &last.body[..]), (is_named, body.as_bytes()), "{path}");
        router.stop().await;
    }
    let router = RunningRouter::over(&[&double]).await;
    let body = r#"{ "text":"a" }"#;
    assert_eq!(client.post(&format!("{}/generate", router.url), body).await.status, 200);
    let sent = double.stats().recent.last().cloned().expect("a request").body;
    let named: Value = serde_json::from_slice(&sent).unwrap();
    assert!(named["routed_dp_rank"].as_u64() < Some(2) && sent.starts_with(br#"{ "text":"a" ,"routed_dp_rank":"#));
    router.stop().await;
}
