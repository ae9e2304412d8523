//! What engines say of their KV caches, over real sockets: listed, believed, doubted, asked for again.

use fathom_router::logic::kv_stream::StreamTrust;
use fathom_router::logic::prompt_keys::{HashMode, HashVariant};
use fathom_router::logic::request::RequestFacts;
use fathom_router::messages::{Decision, SelectWorker};
use serde_json::{Value, json};

use crate::support::{Chain, KvEngine, Layout, Publisher, RunningRouter, eventually};

const VARIANT: HashVariant = HashVariant { block_size: 4, mode: HashMode::Engine { is_bigram: false } };

fn cleared() -> Value {
    json!({"type": "AllBlocksCleared"})
}

/// Returns the decision for a request with this prompt. Dropping it gives up the request.
async fn decide(router: &RunningRouter, prompt: &Chain) -> Decision {
    let request = RequestFacts { prompt: Some(prompt.keys(VARIANT)), ..RequestFacts::default() };
    router.handle.selector().send(SelectWorker { request }).await.expect("a selector").expect("a worker")
}

/// Waits until the engine's rank is trusted like this and lists so many blocks.
async fn wait_until_listed(router: &RunningRouter, engine: &KvEngine, trust: StreamTrust, num_blocks: u64) {
    let url = engine.http.url();
    eventually(&format!("{url} lists {num_blocks} blocks, {}", trust.name()), || async {
        let worker = router.worker(&url).await?;
        let rank = worker.kv.ranks.first()?;
        (rank.trust == trust && rank.num_blocks == num_blocks).then_some(())
    })
    .await;
}

async fn router_over(engines: &[&KvEngine]) -> RunningRouter {
    let router = RunningRouter::with(KvEngine::config_of(engines)).await;
    for engine in engines {
        engine.publisher.wait_for_subscriber().await;
    }
    router
}

#[actix::test]
async fn a_prompt_goes_to_the_engine_that_holds_it() {
    let (a, b) = (KvEngine::start("a").await, KvEngine::start("b").await);
    let router = router_over(&[&a, &b]).await;
    let prompts = [Chain::new(1, 8), Chain::new(2, 8)];
    for (engine, prompt) in [&a, &b].into_iter().zip(&prompts) {
        engine.publish(0, &[cleared()]);
        engine.publish(1, &[prompt.stored()]);
        wait_until_listed(&router, engine, StreamTrust::Exact, 8).await;
    }
    for _ in 0..5 {
        for (engine, prompt) in [&a, &b].into_iter().zip(&prompts) {
            let decision = decide(&router, prompt).await;
            assert_eq!((decision.reason, decision.worker.url.as_str()), ("best_match", engine.http.url().as_str()));
        }
    }
    assert_eq!(decide(&router, &Chain::new(3, 8)).await.reason, "no_match");
    a.publish(2, &[prompts[0].removed_from(2)]);
    wait_until_listed(&router, &a, StreamTrust::Exact, 2).await;
    assert_eq!(decide(&router, &prompts[0]).await.reason, "no_match", "a quarter of the prompt is not enough");
    router.stop().await;
}

/// Seen in llm-d/llm-d-router#2854 and llm-d/llm-d-router#1887.
#[actix::test]
async fn a_restarted_engine_draws_no_traffic_to_its_empty_cache() {
    let (mut a, b) = (KvEngine::start("a").await, KvEngine::start("b").await);
    let router = router_over(&[&a, &b]).await;
    let (old, new, other) = (Chain::new(1, 100), Chain::new(2, 1), Chain::new(3, 5));
    b.publish(0, &[other.stored()]);
    for block in 0..100 {
        let upto = Chain { tokens: old.tokens[..4 * (block + 1)].to_vec() };
        a.publish(block as u64, &[upto.stored_from(block)]);
    }
    wait_until_listed(&router, &a, StreamTrust::Exact, 100).await;
    assert_eq!(decide(&router, &old).await.worker.url.as_str(), a.http.url());

    let port = a.publisher.port();
    drop(a.publisher);
    a.publisher = Publisher::bind_at("127.0.0.1", port);
    a.publisher.wait_for_subscriber().await;
    a.publish(0, &[new.stored()]);
    wait_until_listed(&router, &a, StreamTrust::Exact, 1).await;
    assert_eq!(decide(&router, &old).await.reason, "no_match");
    wait_until_listed(&router, &b, StreamTrust::Exact, 5).await;
    router.stop().await;
}

#[actix::test]
async fn a_lost_connection_forgets_what_was_listed_before_anything_new_comes() {
    let mut a = KvEngine::start("a").await;
    let router = router_over(&[&a]).await;
    a.publish(0, &[Chain::new(1, 6).stored()]);
    wait_until_listed(&router, &a, StreamTrust::Exact, 6).await;
    let port = a.publisher.port();
    drop(a.publisher);
    a.publisher = Publisher::bind_at("127.0.0.1", port);
    wait_until_listed(&router, &a, StreamTrust::Cold, 0).await;
    // What the next process numbers happens to fit the numbers of the one before.
    a.publisher.wait_for_subscriber().await;
    a.publish(1, &[Chain::new(2, 3).stored()]);
    wait_until_listed(&router, &a, StreamTrust::Gapped, 3).await;
    router.stop().await;
}

/// Seen in llm-d/llm-d-router#1737, sgl-project/sglang#32728 and sgl-project/sglang#32729.
#[actix::test]
async fn a_gap_that_cannot_be_repaired_is_counted_and_costs_the_rank_what_it_listed() {
    let (a, b) = (KvEngine::start("a").await, KvEngine::start("b").await);
    let router = router_over(&[&a, &b]).await;
    let (gone, kept) = (Chain::new(1, 4), Chain::new(2, 3));
    b.publish(0, &[gone.stored()]);
    // Number 3 would have removed what 1 stored.
    a.publish(0, &[cleared()]);
    a.publish(1, &[gone.stored()]);
    a.publish(2, &[]);
    wait_until_listed(&router, &a, StreamTrust::Exact, 4).await;
    a.publish(5, &[kept.stored()]);
    wait_until_listed(&router, &a, StreamTrust::Gapped, 3).await;
    a.publish(10_006, &[gone.stored()]);
    wait_until_listed(&router, &a, StreamTrust::Gapped, 4).await;
    assert_eq!(router.metric("fathom_kv_missing_batches_total").await, Some(10_002.0));
    wait_until_listed(&router, &b, StreamTrust::Exact, 4).await;
    a.publish(10_007, &[cleared(), kept.stored()]);
    wait_until_listed(&router, &a, StreamTrust::Exact, 3).await;
    router.stop().await;
}

/// Seen in vllm-project/vllm#45174 and kvcache-ai/Mooncake#3616.
#[actix::test]
async fn a_gap_is_repaired_by_replay_in_both_layouts_while_live_batches_wait() {
    for layout in [Layout::Three, Layout::Four] {
        let engine = KvEngine::with_replay("a").await;
        let router = router_over(&[&engine]).await;
        let (asker, from) = engine.replay_request().await;
        assert_eq!(from, 0, "a router that has just come asks for everything");
        engine.answer(&asker, layout, 0, &[cleared()]);
        engine.end_replay(&asker, layout);
        wait_until_listed(&router, &engine, StreamTrust::Exact, 0).await;

        let prompts: Vec<Chain> = (1..=7).map(|number| Chain::new(number, 2)).collect();
        engine.publish(1, &[prompts[0].stored()]);
        wait_until_listed(&router, &engine, StreamTrust::Exact, 2).await;
        // Five are lost; the one after them removes a block that one of them stored.
        engine.publish(7, &[prompts[6].stored(), prompts[5].removed_from(1)]);
        let (asker, from) = engine.replay_request().await;
        assert_eq!(from, 2);
        wait_until_listed(&router, &engine, StreamTrust::Rebuilding, 2).await;
        for (sequence, prompt) in (2..7).zip(&prompts[1..6]) {
            engine.answer(&asker, layout, sequence, &[prompt.stored()]);
        }
        engine.end_replay(&asker, layout);
        wait_until_listed(&router, &engine, StreamTrust::Exact, 13).await;
        assert_eq!(router.metric("fathom_kv_replays_total{kind=\"repaired\"}").await, Some(2.0));
        router.stop().await;
    }
}

#[actix::test]
async fn a_replay_that_never_ends_holds_nothing_up_for_long() {
    let engine = KvEngine::with_replay("a").await;
    let router = router_over(&[&engine]).await;
    let (asker, _) = engine.replay_request().await;
    engine.answer(&asker, Layout::Four, 0, &[Chain::new(1, 2).stored()]);
    engine.publish(4, &[Chain::new(2, 3).stored()]);
    // Neither the rest nor the end comes.
    wait_until_listed(&router, &engine, StreamTrust::Gapped, 3).await;
    engine.publish(5, &[Chain::new(3, 4).stored()]);
    wait_until_listed(&router, &engine, StreamTrust::Gapped, 7).await;
    let shown = router.shown(&engine.http.url()).await;
    assert_eq!(shown["kv"]["ranks"][0]["unrepaired"], 1, "{shown}");
    router.stop().await;
}

#[actix::test]
async fn an_engine_whose_hash_is_unknown_is_listed_by_keys_of_our_own_and_asked_for_all_again() {
    let engine = KvEngine::with_replay("a").await;
    let router = router_over(&[&engine]).await;
    let (asker, _) = engine.replay_request().await;
    engine.end_replay(&asker, Layout::Four);
    let chain = Chain::new(1, 6);
    let mut foreign = chain.stored();
    let ids: Vec<u64> = (1..=6).map(|id| id * 0x1234_5678_9abc_def1).collect();
    foreign["block_hashes"] = json!(ids);
    let known = Chain::new(2, 2);
    engine.publish(0, &[known.stored()]);
    wait_until_listed(&router, &engine, StreamTrust::Exact, 2).await;
    // Sooner or later a batch is looked at with its tokens.
    let mut asked = None;
    for sequence in 1..200 {
        engine.publish(sequence, std::slice::from_ref(&foreign));
        if let Ok(request) = tokio::time::timeout(std::time::Duration::from_millis(5), engine.replay_request()).await {
            asked = Some((request, sequence));
            break;
        }
    }
    let ((asker, from), last) = asked.expect("the change is noticed");
    assert_eq!(from, 0);
    engine.answer(&asker, Layout::Four, 0, &[known.stored()]);
    (1..=last).for_each(|sequence| engine.answer(&asker, Layout::Four, sequence, std::slice::from_ref(&foreign)));
    engine.end_replay(&asker, Layout::Four);
    wait_until_listed(&router, &engine, StreamTrust::Exact, 8).await;
    let shown = router.shown(&engine.http.url()).await;
    assert_eq!((&shown["kv"]["hash_mode"], &shown["kv"]["key_changes"]), (&json!("rehash"), &json!(1)), "{shown}");
    let variant = HashVariant { mode: HashMode::Rehash { is_bigram: false }, ..VARIANT };
    let request = RequestFacts { prompt: Some(chain.keys(variant)), ..RequestFacts::default() };
    let decision = router.handle.selector().send(SelectWorker { request }).await.unwrap().unwrap();
    assert_eq!(decision.reason, "best_match");
    router.stop().await;
}

#[actix::test]
async fn bytes_that_are_no_events_are_counted_and_change_nothing() {
    let engine = KvEngine::start("a").await;
    let router = router_over(&[&engine]).await;
    let chain = Chain::new(1, 3);
    engine.publisher.send_parts(vec![b"one".to_vec()]);
    engine.publisher.send_parts(vec![Vec::new(), b"short".to_vec(), b"\x90".to_vec()]);
    engine.publisher.send_parts(vec![Vec::new(), 0_u64.to_be_bytes().to_vec(), b"\xc1\xff".to_vec()]);
    engine.publish(1, &[json!({"block_hashes": [1]}), json!(7), chain.stored(), json!({"type": "BlockMoved"})]);
    wait_until_listed(&router, &engine, StreamTrust::Gapped, 3).await;
    let shown = router.shown(&engine.http.url()).await;
    assert_eq!((&shown["kv"]["bad_frames"], &shown["kv"]["bad_events"]), (&json!(3), &json!(2)), "{shown}");
    let metrics = router.metrics().await;
    for series in [r#"kv_events_total{kind="untagged"} 1"#, r#"kv_events_total{kind="shape"} 1"#] {
        assert!(metrics.contains(series), "{series} in {metrics}");
    }
    router.stop().await;
}

/// Seen in ai-dynamo/dynamo#7209 and ai-dynamo/dynamo#6569.
#[actix::test]
async fn removing_a_worker_forgets_its_blocks_and_its_series() {
    let (a, b) = (KvEngine::start("a").await, KvEngine::start("b").await);
    let router = router_over(&[&a, &b]).await;
    let chain = Chain::new(1, 6);
    // The rank that a batch names is not the socket's; the socket's counts.
    a.publish(0, &[chain.stored()]);
    wait_until_listed(&router, &a, StreamTrust::Exact, 6).await;
    assert!(
        router.metrics().await.contains(&format!("fathom_rank_kv_blocks{{worker=\"{}\",rank=\"0\"}} 6", a.http.url()))
    );
    router.wants("static", vec![b.endpoint()]).await;
    router.wait_until_serving(1).await;
    assert!(!router.metrics().await.contains(&a.http.url()));
    assert_eq!(decide(&router, &chain).await.reason, "no_match");
    router.wants("static", vec![b.endpoint(), a.endpoint()]).await;
    router.wait_until_serving(2).await;
    wait_until_listed(&router, &a, StreamTrust::Cold, 0).await;
    router.stop().await;
}

#[actix::test]
async fn a_burst_of_siblings_with_a_new_prefix_stays_together() {
    let engines = [KvEngine::start("a").await, KvEngine::start("b").await, KvEngine::start("c").await];
    let router = router_over(&engines.each_ref()).await;
    for engine in &engines {
        engine.publish(0, &[cleared()]);
        wait_until_listed(&router, engine, StreamTrust::Exact, 0).await;
    }
    let siblings = (0..20_u32).map(|number| {
        let mut chain = Chain::new(5, 8);
        chain.tokens.extend([90_000 + number; 4]);
        chain
    });
    let siblings: Vec<Chain> = siblings.collect();
    // Half of them at once, so that they share rounds; the others one by one.
    let mut decisions = futures::future::join_all(siblings[..10].iter().map(|chain| decide(&router, chain))).await;
    for sibling in &siblings[10..] {
        decisions.push(decide(&router, sibling).await);
    }
    let first = &decisions[0].worker.url;
    assert!(decisions.iter().all(|decision| decision.worker.url == *first), "{decisions:?}");
    assert!(decisions[1..].iter().all(|decision| decision.reason == "best_match"));
    // Requests that never reached the engine leave no blocks there.
    drop(decisions);
    eventually("nothing is predicted any more", || async {
        (decide(&router, &siblings[0]).await.reason == "no_match").then_some(())
    })
    .await;
    router.stop().await;
}

/// Seen in actix/actix#534 and near/nearcore#3380: what a slow reader cannot take must neither pile up nor end the subscription.
#[actix::test]
async fn a_flood_of_one_engine_holds_up_neither_decisions_nor_the_other_engine() {
    let (flooding, calm) = (KvEngine::start("a").await, KvEngine::start("b").await);
    let router = router_over(&[&flooding, &calm]).await;
    let held = Chain::new(1, 8);
    let mut sequence = 0;
    for turn in 0..10_u64 {
        // Far more at a time than the sockets keep: the publisher drops the rest, which shows as gaps.
        for number in 0..5_000_u32 {
            flooding.publish(sequence, &[Chain::new(number % 4_000, 2).stored()]);
            sequence += 1;
        }
        calm.publish(turn, &[if turn == 0 { held.stored() } else { cleared() }, held.stored()]);
        assert_eq!(router.chat().await.status, 200);
        eventually("the calm engine's batch is listed", || async {
            let worker = router.worker(&calm.http.url()).await?;
            (worker.kv.frames == turn + 1 && worker.kv.ranks.first()?.num_blocks == 8).then_some(())
        })
        .await;
        let decision = decide(&router, &held).await;
        assert_eq!((decision.reason, decision.worker.url.as_str()), ("best_match", calm.http.url().as_str()));
    }
    // The flood has ended: what comes now is listed and believed, without a restart of anything.
    flooding.publish(sequence, &[cleared(), held.stored()]);
    wait_until_listed(&router, &flooding, StreamTrust::Exact, 8).await;
    let shown = router.shown(&flooding.http.url()).await;
    let (frames, missing) =
        (shown["kv"]["frames"].as_u64().unwrap(), shown["kv"]["ranks"][0]["missing"].as_u64().unwrap());
    assert_eq!(frames + missing, sequence + 1, "each batch was taken, or counted as missing: {shown}");
    router.stop().await;
}
