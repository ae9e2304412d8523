//! What a client sees of the cache: how much was found, how long it took, how it is emptied.

use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};

use super::{CHAT, Caller, NEVER, Subscriber, body, lively, start, text};
use crate::sim::{ResponseMode, SimConfig, SimEngine, Tokenizer};

/// An engine with pages of four tokens that generates all at once.
async fn small_pages(config: SimConfig) -> SimEngine {
    start(SimConfig { page_size: 4, token_time: Duration::ZERO, ..config }).await
}

async fn cached_in_chat(caller: &Caller, call: &Value) -> Value {
    body(caller.post(CHAT, call).await.unwrap()).await["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
}

async fn generate(caller: &Caller, input_ids: &[u32], num_tokens: u64) -> Value {
    let call = json!({"input_ids": input_ids, "sampling_params": {"max_new_tokens": num_tokens}});
    body(caller.post("/generate", &call).await.unwrap()).await["meta_info"].clone()
}

#[actix_web::test]
async fn every_form_of_answer_says_how_much_of_the_prompt_was_cached() {
    let engine = small_pages(SimConfig::default()).await;
    let caller = Caller::new(&engine);
    let tokens: Vec<u32> = (0..10).collect();
    assert_eq!(generate(&caller, &tokens, 1).await["cached_tokens"], 0);
    assert_eq!(generate(&caller, &tokens, 1).await["cached_tokens"], 8);
    assert_eq!(generate(&caller, &tokens[..8], 1).await["cached_tokens"], 4, "the last token is always computed");
    assert_eq!(generate(&caller, &[0, 1, 2, 3, 9, 9], 1).await["cached_tokens"], 4);

    let completion = json!({"prompt": tokens, "max_tokens": 2, "stream": true,
                            "stream_options": {"include_usage": true}});
    let events = text(caller.post("/v1/completions", &completion).await.unwrap()).await;
    assert!(events.contains(r#""prompt_tokens_details":{"cached_tokens":8}"#), "{events}");
    let native = json!({"input_ids": tokens, "sampling_params": {"max_new_tokens": 2}, "stream": true});
    let events = text(caller.post("/generate", &native).await.unwrap()).await;
    assert_eq!(events.matches(r#""cached_tokens":8"#).count(), 3, "in every event: {events}");

    let stats = engine.stats();
    assert_eq!((stats.num_prompt_tokens, stats.num_cached_tokens), (10 + 10 + 8 + 6 + 10 + 10, 8 + 4 + 4 + 8 + 8));
    assert_eq!(stats.ranks[0].num_cached_tokens, stats.num_cached_tokens);
}

#[actix_web::test]
async fn an_engine_without_a_report_or_without_a_cache_says_so() {
    let call = json!({"messages": [{"role": "user", "content": "x".repeat(80)}], "max_tokens": 1});
    let silent = small_pages(SimConfig { cache_report: false, ..SimConfig::default() }).await;
    let caller = Caller::new(&silent);
    caller.post(CHAT, &call).await.unwrap();
    let usage = body(caller.post(CHAT, &call).await.unwrap()).await["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"], Value::Null);
    assert_eq!(generate(&caller, &[1], 1).await.get("cached_tokens"), None);
    assert_eq!(silent.stats().num_cached_tokens, 16);

    let cacheless = small_pages(SimConfig { prefix_cache: false, ..SimConfig::default() }).await;
    let caller = Caller::new(&cacheless);
    assert_eq!(cached_in_chat(&caller, &call).await, 0);
    assert_eq!(cached_in_chat(&caller, &call).await, 0);
    assert_eq!(cacheless.num_kv_batches(0), Some(1));
}

#[actix_web::test]
async fn a_conversation_finds_its_earlier_turns_with_the_answers() {
    let engine = small_pages(SimConfig::default()).await;
    let caller = Caller::new(&engine);
    let mut messages = vec![json!({"role": "user", "content": "x".repeat(32)})];
    let (mut num_tokens, mut expected) = (8, 0);
    for turn in 0..3 {
        let call = json!({"messages": messages, "max_tokens": 8});
        let answer = body(caller.post(CHAT, &call).await.unwrap()).await;
        assert_eq!(answer["usage"]["prompt_tokens"], num_tokens, "turn {turn}");
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], expected, "turn {turn}");
        messages.push(answer["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": "y".repeat(16)}));
        // All that was generated but for its last token, in full pages.
        expected = (num_tokens + 8 - 1) / 4 * 4;
        num_tokens += 8 + 4;
    }
}

#[actix_web::test]
async fn salts_ranks_and_another_tokenizer_keep_prompts_apart() {
    let bytes = Tokenizer::new(|text| text.bytes().map(u32::from).collect());
    let engine = small_pages(SimConfig { dp_size: 2, tokenizer: bytes, ..SimConfig::default() }).await;
    let caller = Caller::new(&engine);
    let call = json!({"messages": [{"content": "12345678"}], "max_tokens": 1});
    let mut salted = call.clone();
    salted["cache_salt"] = json!("tenant-a");
    for (call, expected) in [(&call, 0), (&salted, 0), (&call, 4), (&salted, 4)] {
        assert_eq!(cached_in_chat(&caller, call).await, expected, "{call}");
    }
    let blocks = |rank| engine.cached_blocks(rank).map(|blocks| blocks.len());
    assert_eq!([blocks(0), blocks(1), blocks(2)], [Some(4), Some(0), None]);
}

#[actix_web::test]
async fn only_tokens_that_are_not_cached_take_time() {
    let config = SimConfig { prefill_time_per_token: Duration::from_micros(10), ..SimConfig::default() };
    let engine = small_pages(lively(config)).await;
    let caller = Caller::new(&engine);
    let mut reports = Subscriber::to_rank(&engine, 0);
    let tokens: Vec<u32> = (0..41).collect();
    for (computed_tokens, busy_us) in [(41, 410), (42, 420)] {
        generate(&caller, &tokens, 1).await;
        let stat = loop {
            let stat = reports.next_stat().await;
            if stat[9] == computed_tokens {
                break stat;
            }
        };
        assert_eq!(stat[10], busy_us);
    }
}

#[actix_web::test]
async fn a_flush_empties_all_ranks_unless_a_request_runs() {
    let engine = start(lively(SimConfig { page_size: 4, dp_size: 2, token_time: NEVER, ..SimConfig::default() })).await;
    let caller = Caller::new(&engine);
    let mut reports = Subscriber::to_rank(&engine, 0);
    let call = json!({"prompt": [1, 2, 3, 4, 5], "stream": true});
    let running = caller.post("/v1/completions", &call).await.unwrap();
    reports.until(1, 0).await;
    assert_eq!(engine.cached_blocks(0).unwrap().len(), 1);
    assert_eq!(caller.post("/flush_cache", &json!({})).await.unwrap().status(), 400);
    assert_eq!(engine.evict_cached_blocks(0, 9), 0, "the page is in use");

    drop(running);
    reports.until(0, 0).await;
    assert!(engine.flush_cache(), "the cache is free before the slot is");
    assert!(engine.cached_blocks(0).unwrap().is_empty());
    assert_eq!([0, 1, 2].map(|rank| engine.num_kv_batches(rank)), [Some(3), Some(2), None]);
    assert_eq!(caller.post("/flush_cache", &json!({})).await.unwrap().status(), 200);
    assert_eq!(caller.status_of("/flush_cache").await, 200);
}

#[actix_web::test]
async fn a_request_that_is_never_computed_stores_nothing_and_one_that_is_aborted_leaves_its_prompt() {
    let engine = start(lively(SimConfig { page_size: 4, token_time: NEVER, ..SimConfig::default() })).await;
    let caller = Caller::new(&engine);
    let mut reports = Subscriber::to_rank(&engine, 0);
    let call = json!({"prompt": [1, 2, 3, 4, 5], "stream": true});
    engine.set_response_mode(ResponseMode::HangBeforeHeaders);
    let mut hanging = Box::pin(caller.post("/v1/completions", &call));
    assert!(hanging.as_mut().now_or_never().is_none());
    tokio::select! {
        _ = &mut hanging => panic!("an answer from an engine that hangs"),
        () = reports.until(1, 0) => {}
    }
    drop(hanging);
    reports.until(0, 0).await;
    assert!(engine.cached_blocks(0).unwrap().is_empty());

    engine.set_response_mode(ResponseMode::Normal);
    let running = caller.post("/v1/completions", &call).await.unwrap();
    reports.until(1, 0).await;
    drop(running);
    reports.until(0, 0).await;
    assert_eq!(engine.cached_blocks(0).unwrap().len(), 1);
    assert_eq!(engine.evict_cached_blocks(0, 9), 1, "nobody holds it any more");
}
