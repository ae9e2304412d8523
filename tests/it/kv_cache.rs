//! Engines with a real prefix cache behind the router: what it lists is what they hold, and prompts return to who holds them.

use std::collections::BTreeSet;
use std::time::Duration;

use fathom_router::logic::kv_stream::StreamTrust;
use fathom_router::logic::rng::Rng;
use fathom_router::sim::{KvEvents, KvPublishing, KvReplay, SimConfig, SimEngine};
use serde_json::{Value, json};

use crate::support::{Chain, Client, KvEngine, RunningRouter, assert_all_succeeded, eventually, fast_config};

const PAGE_SIZE: u32 = 4;

fn caching(name: &str, replay: bool) -> SimConfig {
    let replay = replay.then(KvReplay::default);
    SimConfig {
        name: name.to_owned(),
        page_size: PAGE_SIZE,
        // Room for 64 pages: prompts push each other out.
        max_total_tokens: 256,
        dp_size: 1,
        kv_events: KvEvents::Published(KvPublishing { port_base: None, replay }),
        ..SimConfig::default()
    }
}

async fn start(config: SimConfig) -> SimEngine {
    SimEngine::start(config).await.expect("an engine")
}

async fn generate(router: &RunningRouter, tokens: &[u32], max_new_tokens: u32) -> Value {
    let body = json!({"input_ids": tokens, "sampling_params": {"max_new_tokens": max_new_tokens}});
    let answer = Client::new().post(&format!("{}/generate", router.url), body.to_string()).await;
    assert_all_succeeded(std::slice::from_ref(&answer));
    let mut told = answer.json();
    told["worker"] = json!(answer.header("x-fathom-worker"));
    told
}

/// Returns the blocks that the router lists for the first rank of the engine.
async fn listed(router: &RunningRouter, engine: &SimEngine) -> BTreeSet<u64> {
    let id = router.shown(&engine.url()).await["id"].as_str().expect("a worker").to_owned();
    let answer = Client::new().get(&format!("{}/workers/{id}/kv_blocks", router.url)).await;
    let keys = answer.json()["ranks"][0].as_array().cloned().unwrap_or_default();
    keys.iter().map(|key| key.as_str().unwrap().parse::<i64>().unwrap().cast_unsigned()).collect()
}

/// Waits until what the router lists is what the engine holds, and believes it.
async fn wait_until_equal(router: &RunningRouter, engine: &SimEngine, sentence: &str) {
    eventually(&format!("{sentence}: the list is what the engine holds"), || async {
        let worker = router.worker(&engine.url()).await?;
        let is_exact = worker.kv.ranks.first()?.trust == StreamTrust::Exact;
        (is_exact && Some(listed(router, engine).await) == engine.cached_blocks(0)).then_some(())
    })
    .await;
}

#[actix::test]
async fn what_is_listed_is_what_the_engine_holds_through_evictions_gaps_and_flushes() {
    let engine = start(caching("a", true)).await;
    let router = RunningRouter::over(&[&engine]).await;
    let mut rng = Rng::from_seed(3);
    for step in 0..60_u32 {
        // Few first tokens, so that prompts share prefixes; enough of them that the cache overflows.
        let family = rng.below(4) as u32;
        let shared = 4 * (1 + rng.below(8));
        let mut tokens: Vec<u32> = (0..shared as u32).map(|token| 1_000 * family + token).collect();
        tokens.extend((0..rng.below(24) as u32).map(|token| 50_000 + 100 * step + token));
        match rng.below(8) {
            0 => engine.drop_next_kv_batches(0, 1 + rng.below(3) as u64).expect("an engine that publishes"),
            1 => drop(engine.evict_cached_blocks(0, 5)),
            2 => drop(engine.flush_cache()),
            _ => {}
        }
        generate(&router, &tokens, 1 + rng.below(9) as u32).await;
    }
    // A lost batch shows when the next one comes.
    engine.drop_next_kv_batches(0, 0).expect("an engine that publishes");
    generate(&router, &[77; 9], 1).await;
    wait_until_equal(&router, &engine, "after sixty steps").await;
    let shown = router.shown(&engine.url()).await;
    let (kv, rank) = (&shown["kv"], &shown["kv"]["ranks"][0]);
    assert_eq!((&kv["hash_mode"], &kv["hash_verified"]), (&json!("engine"), &json!(true)), "{shown}");
    assert!(rank["missing"].as_u64() > Some(0) && rank["repaired"].as_u64() > Some(1), "{shown}");
    assert_eq!(kv["downgrades"], 0, "{shown}");
    router.stop().await;
}

#[actix::test]
async fn a_router_that_comes_late_lists_everything_where_it_can_ask() {
    let engine = start(caching("a", true)).await;
    let first = RunningRouter::over(&[&engine]).await;
    for number in 0..5 {
        generate(&first, &Chain::new(number, 6).tokens, 3).await;
    }
    let second = RunningRouter::over(&[&engine]).await;
    wait_until_equal(&second, &engine, "without any traffic since").await;
    assert!(!listed(&second, &engine).await.is_empty());
    second.stop().await;
    first.stop().await;
}

#[actix::test]
async fn conversations_return_to_the_engine_that_holds_them() {
    let engines =
        [start(caching("a", false)).await, start(caching("b", false)).await, start(caching("c", false)).await];
    let router = RunningRouter::over(&engines.each_ref()).await;
    let mut conversations: Vec<(Vec<u32>, Value)> = (0..3).map(|n| (Chain::new(n, 4).tokens, Value::Null)).collect();
    for turn in 0..4_u32 {
        for (number, (tokens, worker)) in conversations.iter_mut().enumerate() {
            let told = generate(&router, tokens, 4).await;
            if turn > 0 {
                assert_eq!(told["worker"], *worker, "conversation {number}, turn {turn}");
                assert!(told["meta_info"]["cached_tokens"].as_u64() >= Some(16), "{told}");
            }
            *worker = told["worker"].clone();
            tokens.extend((0..8).map(|token| 70_000 + 1_000 * number as u32 + 10 * turn + token));
        }
    }
    let ratios =
        engines.each_ref().map(|engine| format!("fathom_worker_kv_found_ratio{{worker=\"{}\"}}", engine.url()));
    for ratio in ratios {
        if let Some(ratio) = router.metric(&ratio).await {
            assert!(ratio > 0.99, "what was listed was there: {ratio}");
        }
    }
    router.stop().await;
}

/// Seen in llm-d/llm-d-router#2854.
#[actix::test]
async fn an_engine_restarted_at_its_address_is_listed_anew() {
    let mut config = caching("a", true);
    let engine = start(config.clone()).await;
    let router = RunningRouter::over(&[&engine]).await;
    let chain = Chain::new(1, 8);
    generate(&router, &chain.tokens, 1).await;
    wait_until_equal(&router, &engine, "before").await;
    config.port = engine.port();
    config.load =
        config.load.map(|load| fathom_router::sim::LoadPublishing { port_base: engine.load_port_base(), ..load });
    let replay = KvReplay { port_base: engine.kv_replay_port_base(), ..KvReplay::default() };
    config.kv_events = KvEvents::Published(KvPublishing { port_base: engine.kv_port_base(), replay: Some(replay) });
    engine.stop().await;
    let engine = start(config).await;
    eventually("the old blocks are forgotten", || async { listed(&router, &engine).await.is_empty().then_some(()) })
        .await;
    router.wait_until_serving(1).await;
    generate(&router, &Chain::new(2, 3).tokens, 1).await;
    wait_until_equal(&router, &engine, "after").await;
    router.stop().await;
}

#[actix::test]
async fn a_list_that_the_engine_keeps_missing_is_dropped() {
    // The publisher's word and the engine behind it are strangers: nothing that is listed is ever cached.
    let engine = KvEngine::start("a").await;
    let mut config = KvEngine::config_of(&[&engine]);
    config.kv.prediction_lifetime = Duration::ZERO;
    let router = RunningRouter::with(config).await;
    engine.publisher.wait_for_subscriber().await;
    let chains: Vec<Chain> = (1..=16).map(|number| Chain::new(number, 5)).collect();
    let events: Vec<Value> = chains.iter().map(Chain::stored).collect();
    engine.publish(0, &events);
    eventually("everything is listed", || async {
        (router.worker(&engine.http.url()).await?.kv.ranks.first()?.num_blocks == 80).then_some(())
    })
    .await;
    for chain in &chains {
        generate(&router, &chain.tokens, 1).await;
    }
    router.wait_until_metric_is("fathom_kv_downgrades_total", 1.0).await;
    let shown = router.shown(&engine.http.url()).await;
    let rank = &shown["kv"]["ranks"][0];
    assert_eq!((&rank["trust"], &rank["blocks"]), (&json!("untrusted"), &json!(0)), "{shown}");
    // The publisher clears, and with that begins anew.
    engine.publish(1, &[json!({"type": "AllBlocksCleared"}), chains[0].stored()]);
    eventually("the rank is believed again", || async {
        (router.worker(&engine.http.url()).await?.kv.ranks.first()?.trust == StreamTrust::Exact).then_some(())
    })
    .await;
    router.stop().await;
}

#[actix::test]
async fn an_unknown_worker_has_no_blocks_to_show() {
    let router = RunningRouter::with(fast_config(&[])).await;
    let answer = Client::new().get(&format!("{}/workers/w99/kv_blocks", router.url)).await;
    assert_eq!((answer.status, answer.header("x-fathom-error-code")), (404, "worker_not_found"));
    router.stop().await;
}
