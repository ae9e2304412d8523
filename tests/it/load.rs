//! From the numbers that engines publish to what `GET /workers` shows and to where requests go.

use std::time::Duration;

use fathom_router::router::Router;
use fathom_router::sim::{FeedStop, LoadForm, LoadPublishing, Reported, ResponseMode, SimConfig, SimEngine};
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, Hold, RunningRouter, Streams, assert_all_succeeded, chat_body, eventually, fast_config,
    in_own_process, millis, names_of, start_router,
};

/// A report every 50 ms, changed or not, so that short windows of freshness hold on a busy machine.
fn often() -> LoadPublishing {
    LoadPublishing { heartbeat: millis(50), ..LoadPublishing::default() }
}

async fn publishing_engine(name: &str, dp_size: u32, load: Option<LoadPublishing>) -> SimEngine {
    let config = SimConfig { name: name.to_owned(), dp_size, load, ..SimConfig::default() };
    SimEngine::start(config).await.expect("an engine")
}

fn running(count: u64) -> Option<Reported> {
    Some(Reported { num_running_reqs: count, ..Reported::default() })
}

async fn router_with_freshness(engines: &[&SimEngine], freshness: Duration) -> RunningRouter {
    let mut config = fast_config(&engines.iter().map(|engine| engine.url()).collect::<Vec<_>>());
    config.load.freshness = freshness;
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(engines.len()).await;
    router
}

async fn wait_until_depth(router: &RunningRouter, engine: &SimEngine, depth: u64) {
    let sentence = format!("its depth is {depth}");
    router.wait_until_shown(&engine.url(), &sentence, |shown| shown["load"]["depth"] == depth).await;
}

async fn wait_until_trust(router: &RunningRouter, engine: &SimEngine, trust: &str) {
    let sentence = format!("its load is {trust}");
    router.wait_until_shown(&engine.url(), &sentence, |shown| shown["load"]["trust"] == trust).await;
}

fn bases(answers: &[Answer]) -> Vec<&str> {
    let mut bases: Vec<&str> = answers.iter().map(|answer| answer.header("x-fathom-basis")).collect();
    bases.dedup();
    bases
}

#[actix::test]
async fn every_form_of_a_report_is_shown_with_its_numbers_its_age_and_its_trust() {
    let reported = Reported {
        num_running_reqs: 7,
        num_waiting_reqs: 3,
        num_used_tokens: 4_000,
        max_total_num_tokens: 100_000,
        num_waiting_uncached_tokens: 900,
        num_total_tokens: 6_000,
        max_running_requests: 48,
        total_prefill_uncached_tokens: 12_345,
        total_prefill_busy_us: 67_890,
    };
    let short = json!({"source": "zmq_stat", "running": 7, "waiting": 3, "used_tokens": 4_000, "capacity_tokens": 100_000,
        "waiting_uncached_tokens": null, "total_tokens": null, "max_running": null});
    let long = json!({"source": "zmq_stat", "running": 7, "waiting": 3, "used_tokens": 4_000, "capacity_tokens": 100_000,
        "waiting_uncached_tokens": 900, "total_tokens": 6_000, "max_running": 48});
    let mut map = long.clone();
    map["source"] = json!("zmq_snapshot");
    let rows = [(LoadForm::Stat6, short), (LoadForm::Stat11, long), (LoadForm::Snapshot, map)];
    let mut engines = Vec::new();
    for (form, _) in &rows {
        let load = LoadPublishing { form: *form, ..LoadPublishing::default() };
        let engine = publishing_engine(&format!("{form:?}"), 1, Some(load)).await;
        engine.set_reported_load(0, Some(reported)).unwrap();
        engines.push(engine);
    }
    let router = RunningRouter::over(&engines.iter().collect::<Vec<_>>()).await;
    router.wait_until_trusted(rows.len()).await;

    for ((form, expected), engine) in rows.iter().zip(&engines) {
        let load = router.shown(&engine.url()).await["load"].clone();
        assert_eq!((&load["trust"], &load["depth"]), (&json!("trusted"), &json!(10)), "{form:?}");
        assert_eq!((&load["expected_ranks"], &load["bad_frames"]), (&json!(1), &json!(0)), "{form:?}");
        let mut rank = load["ranks"][0].clone();
        let age_ms = rank.as_object_mut().and_then(|rank| rank.remove("age_ms")).and_then(|age| age.as_u64());
        assert!(age_ms.is_some_and(|age_ms| age_ms < 5_000), "{form:?}: {age_ms:?}");
        assert_eq!(&rank, expected, "{form:?}");
        let depth = format!("fathom_worker_engine_depth{{worker=\"{}\"}}", engine.url());
        assert_eq!(router.metric(&depth).await, Some(10.0));
    }
    router.stop_and_check().await;
}

#[actix::test]
async fn an_idle_rank_whose_report_is_empty_is_trusted_to_be_idle() {
    let load = LoadPublishing { form: LoadForm::Snapshot, ..LoadPublishing::default() };
    let engine = publishing_engine("idle", 1, Some(load)).await;
    let router = RunningRouter::over(&[&engine]).await;
    engine.stop_publishing(FeedStop::Silence);
    // Three bytes: a map without entries, which is how an encoder that leaves out zeros says that all is zero.
    eventually("the empty report has arrived", || async {
        engine.publish_raw(0, vec![Vec::new(), 5_000_u64.to_be_bytes().to_vec(), vec![0xde, 0, 0]]).unwrap();
        let shown = router.shown(&engine.url()).await;
        (shown["load"]["ranks"][0]["capacity_tokens"] == Value::Null && shown["load"]["trust"] == "trusted")
            .then_some(())
    })
    .await;
    let load = router.shown(&engine.url()).await["load"].clone();
    assert_eq!((&load["depth"], &load["ranks"][0]["running"], &load["bad_frames"]), (&json!(0), &json!(0), &json!(0)));
    router.stop_and_check().await;
}

#[actix::test]
async fn the_depth_of_a_worker_is_the_sum_of_its_ranks_each_shown_by_itself() {
    for dp_size in [2, 4] {
        let engine = publishing_engine("ranks", dp_size, Some(LoadPublishing::default())).await;
        for rank in 0..dp_size {
            let load =
                Reported { num_running_reqs: 10 * u64::from(rank + 1), num_waiting_reqs: 1, ..Reported::default() };
            engine.set_reported_load(rank, Some(load)).unwrap();
        }
        let router = RunningRouter::over(&[&engine]).await;
        router.wait_until_trusted(1).await;

        let load = router.shown(&engine.url()).await["load"].clone();
        let ranks: Vec<u64> =
            (0..dp_size as usize).filter_map(|rank| load["ranks"][rank]["running"].as_u64()).collect();
        assert_eq!(ranks, (1..=u64::from(dp_size)).map(|rank| 10 * rank).collect::<Vec<_>>());
        let sum: u64 = ranks.iter().sum::<u64>() + u64::from(dp_size);
        assert_eq!((&load["depth"], &load["open_sockets"]), (&json!(sum), &json!(dp_size)));
        let last = dp_size - 1;
        let series = format!("fathom_rank_running_requests{{worker=\"{}\",rank=\"{last}\"}}", engine.url());
        assert_eq!(router.metric(&series).await, Some(f64::from(10 * dp_size)));
        router.stop_and_check().await;
    }
}

/// Seen in sgl-project/sglang#28600.
#[actix::test]
async fn a_rank_that_never_reported_makes_its_worker_incomplete_and_not_attractive() {
    let partial = publishing_engine("partial", 4, Some(LoadPublishing::default())).await;
    partial.publish_only_ranks(&[0, 1, 2]);
    for rank in 0..3 {
        partial.set_reported_load(rank, running(30)).unwrap();
    }
    let whole = publishing_engine("whole", 4, Some(LoadPublishing::default())).await;
    let router = RunningRouter::over(&[&partial, &whole]).await;
    wait_until_trust(&router, &whole, "trusted").await;
    router
        .wait_until_shown(&partial.url(), "three of its ranks have reported", |shown| {
            (0..3).all(|rank| shown["load"]["ranks"][rank]["running"] == 30)
        })
        .await;

    let load = router.shown(&partial.url()).await["load"].clone();
    assert_eq!((&load["trust"], &load["expected_ranks"]), (&json!("incomplete"), &json!(4)));
    assert_eq!((&load["depth"], &load["ranks"][3]), (&Value::Null, &Value::Null), "a part of a sum is no sum");
    let depth = format!("fathom_worker_engine_depth{{worker=\"{}\"}}", partial.url());
    assert_eq!(router.metric(&depth).await, None);
    let answers = router.chat_times(100).await;
    assert_all_succeeded(&answers);
    assert_eq!(bases(&answers), ["in_flight"], "one basis for all of a decision");
    assert_eq!(names_of(&answers).len(), 2);
    assert_eq!(router.metric("fathom_fleet_on_fallback").await, Some(1.0));

    partial.set_reported_load(3, running(5)).unwrap();
    partial.publish_only_ranks(&[0, 1, 2, 3]);
    wait_until_depth(&router, &partial, 95).await;
    let answers = router.chat_times(20).await;
    assert_eq!(bases(&answers), ["engine"]);
    assert_eq!(names_of(&answers)["whole"], 20);
    assert_eq!(router.metric("fathom_fleet_on_fallback").await, Some(0.0));
    router.stop_and_check().await;
}

#[actix::test]
async fn what_an_engine_reports_outranks_what_the_router_has_sent_it() {
    let busy = publishing_engine("busy", 1, Some(LoadPublishing::default())).await;
    let idle = publishing_engine("idle", 1, Some(LoadPublishing::default())).await;
    busy.set_reported_load(0, running(20)).unwrap();
    let router = RunningRouter::over(&[&busy, &idle]).await;
    wait_until_depth(&router, &busy, 20).await;
    wait_until_depth(&router, &idle, 0).await;
    // By its own count the router would avoid the idle engine.
    let held = Hold::decisions(&router, 4).await;
    assert_eq!(held.count_at(&idle.url()), 4);

    let answers = router.chat_times(20).await;
    assert_all_succeeded(&answers);
    assert_eq!((names_of(&answers)["idle"], bases(&answers)), (20, vec!["engine"]));
    drop(held);
    router.stop_and_check().await;
}

async fn slow_engine(name: &str, load: Option<LoadPublishing>) -> SimEngine {
    let config = SimConfig { name: name.to_owned(), load, token_time: millis(100), ..SimConfig::default() };
    SimEngine::start(config).await.expect("an engine")
}

#[actix::test]
async fn an_engine_that_others_keep_busy_is_seen_by_its_reports_and_avoided() {
    let [busy, idle] = [slow_engine("busy", Some(often())).await, slow_engine("idle", Some(often())).await];
    let router = RunningRouter::over(&[&busy, &idle]).await;
    router.wait_until_trusted(2).await;

    let around = Streams::open(&busy.url(), 12);
    wait_until_depth(&router, &busy, 12).await;
    assert_eq!(router.shown(&busy.url()).await["in_flight"], 0, "none of them came through the router");
    let load = router.shown(&busy.url()).await["load"].clone();
    assert_eq!(
        (&load["ranks"][0]["running"], &load["ranks"][0]["waiting"]),
        (&json!(8), &json!(4)),
        "as many as it has slots"
    );
    let answers = router.chat_times(20).await;
    assert_all_succeeded(&answers);
    assert_eq!((names_of(&answers)["idle"], bases(&answers)), (20, vec!["engine"]));

    drop(around);
    wait_until_depth(&router, &busy, 0).await;
    assert_eq!(names_of(&router.chat_times(40).await).len(), 2, "it is used again once it is free");
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_others_keep_busy_is_not_seen_without_reports() {
    let [busy, idle] = [slow_engine("busy", None).await, slow_engine("idle", None).await];
    let router = RunningRouter::over(&[&busy, &idle]).await;

    let around = Streams::open(&busy.url(), 4);
    eventually("the engine is busy", || async { (busy.stats().running == 4).then_some(()) }).await;
    let answers = router.chat_times(40).await;
    assert_all_succeeded(&answers);
    assert_eq!(bases(&answers), ["in_flight"]);
    assert!(names_of(&answers)["busy"] > 5, "{:?}", names_of(&answers));
    drop(around);
    router.stop_and_check().await;
}

#[actix::test]
async fn stale_load_falls_back_to_in_flight_and_is_used_again_when_it_is_fresh() {
    let [busy, idle] =
        [publishing_engine("busy", 1, Some(often())).await, publishing_engine("idle", 1, Some(often())).await];
    busy.set_reported_load(0, running(50)).unwrap();
    let router = router_with_freshness(&[&busy, &idle], Duration::from_secs(1)).await;
    router.wait_until_trusted(2).await;
    let fresh = names_of(&router.chat_times(10).await);
    assert_eq!(fresh.get("busy"), None, "{fresh:?}");

    busy.stop_publishing(FeedStop::Silence);
    wait_until_trust(&router, &busy, "stale").await;
    let shown = router.shown(&busy.url()).await;
    assert_eq!((&shown["state"], &shown["load"]["depth"]), (&json!("serving"), &Value::Null));
    let answers = router.chat_times(40).await;
    assert_all_succeeded(&answers);
    assert_eq!(bases(&answers), ["in_flight"], "all of them, although one is still trusted");
    assert_eq!(names_of(&answers).len(), 2);
    assert_eq!(router.metric("fathom_fleet_on_fallback").await, Some(1.0));
    assert_eq!(router.metric("fathom_fallback_decisions_total").await, Some(40.0));

    busy.resume_publishing().unwrap();
    router.wait_until_trusted(2).await;
    // Nothing is decided meanwhile: a fleet without traffic is not on fallback for ever.
    router.wait_until_metric_is("fathom_fleet_on_fallback", 0.0).await;
    eventually("decisions are made on the engines' load again", || async {
        let answer = router.chat().await;
        (answer.header("x-fathom-basis") == "engine" && answer.header("x-sim-engine") == "idle").then_some(())
    })
    .await;
    router.wait_until_metric_is("fathom_fleet_on_fallback", 0.0).await;
    router.stop_and_check().await;
}

/// Seen in kubernetes-sigs/gateway-api-inference-extension#1497 and vllm-project/aibrix#2569.
#[actix::test]
async fn a_last_report_of_idleness_does_not_draw_traffic_once_it_is_old() {
    let frozen = publishing_engine("frozen", 1, Some(often())).await;
    let [second, third] =
        [publishing_engine("second", 1, Some(often())).await, publishing_engine("third", 1, Some(often())).await];
    for engine in [&second, &third] {
        engine.set_reported_load(0, running(10)).unwrap();
    }
    let router = router_with_freshness(&[&frozen, &second, &third], Duration::from_secs(1)).await;
    router.wait_until_trusted(3).await;
    frozen.stop_publishing(FeedStop::Close);
    frozen.set_response_mode(ResponseMode::HangBeforeHeaders);
    wait_until_trust(&router, &frozen, "stale").await;
    assert_eq!(router.shown(&frozen.url()).await["load"]["ranks"][0]["running"], 0, "it still says that it is idle");

    let held = Hold::decisions(&router, 60).await;
    assert_eq!(held.counts().values().copied().collect::<Vec<_>>(), [20, 20, 20]);
    let longest_run = held.urls().chunk_by(|left, right| left == right).map(<[&str]>::len).max();
    assert!(longest_run <= Some(2), "{longest_run:?} in a row go to one worker");
    drop(held);
    router.stop_and_check().await;
}

/// Seen in vllm-project/router#178 and llm-d/llm-d-router#1598.
#[actix::test]
async fn a_burst_between_two_reports_is_split_near_evenly_and_not_counted_twice_by_the_next_one() {
    let [first, second] =
        [publishing_engine("first", 1, Some(often())).await, publishing_engine("second", 1, Some(often())).await];
    second.set_reported_load(0, running(1)).unwrap();
    let router = router_with_freshness(&[&first, &second], Duration::from_secs(600)).await;
    wait_until_depth(&router, &first, 0).await;
    wait_until_depth(&router, &second, 1).await;
    for engine in [&first, &second] {
        engine.stop_publishing(FeedStop::Silence);
        engine.set_response_mode(ResponseMode::HangBeforeHeaders);
    }

    let client = Client::new();
    let url = format!("{}/v1/chat/completions", router.url);
    let burst: Vec<_> = (0..64)
        .map(|_| {
            let (client, url) = (client.clone(), url.clone());
            actix::spawn(async move { drop(client.open(&url, chat_body(1, false)).await) })
        })
        .collect();
    let held_by = |engine: &SimEngine| engine.stats().running + engine.stats().waiting;
    eventually("all requests have reached the engines", || async {
        (held_by(&first) + held_by(&second) == 64).then_some(())
    })
    .await;
    let (at_first, at_second) = (held_by(&first), held_by(&second));
    assert!(at_first.abs_diff(at_second + 1) <= 1, "{at_first} and {at_second}, beside the one that was reported");
    assert_eq!(router.metric("fathom_fallback_decisions_total").await, Some(0.0));
    let load = router.shown(&first.url()).await["load"].clone();
    assert_eq!(load["own_dispatches_since_report"], at_first, "no report can contain them yet");
    assert_eq!(load["depth"], at_first);

    first.resume_publishing().unwrap();
    let sentence = "its own report contains them, and they count once";
    let is_settled = |shown: &Value| shown["load"]["own_dispatches_since_report"] == 0;
    let settled = router.wait_until_shown(&first.url(), sentence, is_settled).await;
    assert_eq!((&settled["load"]["depth"], &settled["in_flight"]), (&json!(at_first), &json!(at_first)));

    for request in burst {
        request.abort();
    }
    router.wait_until_idle().await;
    router.stop_and_check().await;
}

/// Seen in llm-d/llm-d-router#2408.
#[actix::test]
async fn a_fleet_without_any_report_serves_every_request_and_says_that_it_is_on_fallback() {
    let silent = publishing_engine("silent", 2, Some(LoadPublishing::default())).await;
    silent.publish_only_ranks(&[]);
    let router = RunningRouter::over(&[&silent]).await;
    let answers = router.chat_times(100).await;
    assert_all_succeeded(&answers);
    assert_eq!(bases(&answers), ["in_flight"]);
    assert_eq!(router.metric("fathom_fleet_on_fallback").await, Some(1.0));
    let load = router.shown(&silent.url()).await["load"].clone();
    assert_eq!((&load["trust"], &load["frames"]), (&json!("incomplete"), &json!(0)));
    router.stop_and_check().await;
}

/// Seen in llm-d/llm-d-router#2408.
#[actix::test]
async fn that_a_fleet_is_on_fallback_is_logged_once_and_not_per_request() {
    if let Some(log) = in_own_process("load::that_a_fleet_is_on_fallback_is_logged_once_and_not_per_request") {
        let lines = log.lines().filter(|line| line.contains("the fleet is on fallback"));
        assert_eq!(lines.count(), 1, "{log}");
        return;
    }
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(std::io::stderr).init();
    let silent = publishing_engine("silent", 1, Some(LoadPublishing::default())).await;
    silent.publish_only_ranks(&[]);
    let router = RunningRouter::over(&[&silent]).await;
    assert_all_succeeded(&router.chat_times(50).await);
    router.stop_and_check().await;
}

/// Seen in llm-d/llm-d-router#2408.
#[actix::test]
async fn a_fleet_whose_feeds_all_stop_at_once_serves_every_request() {
    let mut engines = Vec::new();
    for name in ["first", "second", "third"] {
        engines.push(publishing_engine(name, 1, Some(often())).await);
    }
    let router = router_with_freshness(&engines.iter().collect::<Vec<_>>(), Duration::from_secs(1)).await;
    router.wait_until_trusted(3).await;
    assert_eq!(router.chat().await.header("x-fathom-basis"), "engine");
    for engine in &engines {
        engine.stop_publishing(FeedStop::Close);
    }
    for engine in &engines {
        wait_until_trust(&router, engine, "stale").await;
    }
    let answers = router.chat_times(100).await;
    assert_all_succeeded(&answers);
    assert_eq!((bases(&answers), names_of(&answers).len()), (vec!["in_flight"], 3));
    assert_eq!(router.metric("fathom_fleet_on_fallback").await, Some(1.0));
    router.stop_and_check().await;
}
