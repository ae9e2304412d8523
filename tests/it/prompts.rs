//! Prompts on their way through the edge: made into tokens, looked up in what the engines hold, and compared with what they say.

use bytes::Bytes;
use fathom_router::clock;
use fathom_router::config::{ChatStyle, ModelTokenizer, PromptSettings};
use fathom_router::logic::kv_stream::StreamTrust;
use fathom_router::prompt::{PromptKind, Prompts};
use serde_json::{Value, json};

use crate::support::{Answer, Chain, Client, KvEngine, RunningRouter, assert_all_succeeded, eventually};

fn tokenizer(name: &str) -> PromptSettings {
    let path = format!("{}/tests/golden/tokenizers/{name}", env!("CARGO_MANIFEST_DIR")).into();
    let entry = ModelTokenizer { model: "*".to_owned(), path, style: ChatStyle::Vllm };
    // A machine that runs other builds may take longer than half a second to load it.
    PromptSettings { models: vec![entry], timeout: std::time::Duration::from_secs(20), ..PromptSettings::default() }
}

/// Two engines and a router over them.
async fn fleet(prompts: PromptSettings) -> ([KvEngine; 2], RunningRouter) {
    let engines = [KvEngine::start("a").await, KvEngine::start("b").await];
    let mut config = KvEngine::config_of(&engines.each_ref());
    config.prompts = prompts;
    let router = RunningRouter::with(config).await;
    for engine in &engines {
        engine.publisher.wait_for_subscriber().await;
        engine.publish(0, &[json!({"type": "AllBlocksCleared"})]);
    }
    (engines, router)
}

async fn hold(router: &RunningRouter, engine: &KvEngine, chain: &Chain) {
    engine.publish(1, &[chain.stored()]);
    let num_blocks = chain.ids().len() as u64;
    eventually("the prompt's blocks are listed", || async {
        let worker = router.worker(&engine.http.url()).await?;
        let rank = worker.kv.ranks.first()?;
        (rank.trust == StreamTrust::Exact && rank.num_blocks == num_blocks).then_some(())
    })
    .await;
}

async fn post(router: &RunningRouter, path: &str, body: &Value) -> Answer {
    Client::new().post(&format!("{}{path}", router.url), body.to_string()).await
}

fn where_and_why(answer: &Answer) -> (&str, &str) {
    (answer.header("x-fathom-worker"), answer.header("x-fathom-reason"))
}

#[actix::test]
async fn prompts_that_come_as_tokens_need_no_tokenizer() {
    let (engines, router) = fleet(PromptSettings::default()).await;
    let chain = Chain::new(1, 10);
    hold(&router, &engines[1], &chain).await;
    let requests = [
        ("/v1/completions", json!({"model": "sim", "prompt": chain.tokens, "max_tokens": 1})),
        ("/v1/completions", json!({"model": "sim", "prompt": [chain.tokens, [1, 2]], "max_tokens": 1})),
        ("/generate", json!({"input_ids": chain.tokens, "sampling_params": {"max_new_tokens": 1}})),
    ];
    for (path, body) in requests {
        let mut body = body;
        if path != "/generate" {
            body["model"] = json!(router.fleet().await[0].facts.models[0].to_string());
        }
        for _ in 0..3 {
            let answer = post(&router, path, &body).await;
            assert_all_succeeded(std::slice::from_ref(&answer));
            assert_eq!(where_and_why(&answer), (engines[1].http.url().as_str(), "best_match"), "{path} {body}");
        }
    }
    assert_eq!(router.metric("fathom_prompts_total{kind=\"token_ids\"}").await, Some(9.0));
    router.stop().await;
}

#[actix::test]
async fn a_salted_prompt_looks_only_at_blocks_of_its_salt() {
    let (engines, router) = fleet(PromptSettings::default()).await;
    let chain = Chain::new(1, 10);
    hold(&router, &engines[1], &chain).await;
    let salted = json!({"input_ids": chain.tokens, "cache_salt": "tenant"});
    assert_eq!(post(&router, "/generate", &salted).await.header("x-fathom-reason"), "no_match");
    let plain = json!({"input_ids": chain.tokens});
    assert_eq!(post(&router, "/generate", &plain).await.header("x-fathom-reason"), "best_match");
    router.stop().await;
}

#[actix::test]
async fn a_chat_is_rendered_and_encoded_as_the_engine_does_it() {
    let (engines, router) = fleet(tokenizer("chatml")).await;
    let model = router.fleet().await[0].facts.models[0].to_string();
    let chat = json!({"model": model, "max_tokens": 1, "messages": [
        {"role": "system", "content": "You are a careful assistant that answers in full sentences, whatever the question is."},
        {"role": "user", "content": "Which of the two engines holds the blocks of this prompt, and how does the router know?"},
    ]});
    let prompts = Prompts::start(tokenizer("chatml"), clock::wall_now);
    let prompt = prompts.tokens(None, PromptKind::Chat, &Bytes::from(chat.to_string())).await.expect("tokens");
    assert!(prompt.token_ids.len() > 16, "{} tokens", prompt.token_ids.len());
    hold(&router, &engines[0], &Chain { tokens: prompt.token_ids.to_vec() }).await;
    for _ in 0..3 {
        let answer = post(&router, "/v1/chat/completions", &chat).await;
        assert_all_succeeded(std::slice::from_ref(&answer));
        assert_eq!(where_and_why(&answer), (engines[0].http.url().as_str(), "best_match"));
    }
    // The next turn begins with the same blocks.
    let mut next = chat.clone();
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "The first."}));
    messages.push(json!({"role": "user", "content": "Why?"}));
    assert_eq!(where_and_why(&post(&router, "/v1/chat/completions", &next).await).0, engines[0].http.url());
    router.stop().await;
}

#[actix::test]
async fn whatever_costs_the_tokens_does_not_cost_the_request() {
    let nowhere = format!("{}/tests/golden", env!("CARGO_MANIFEST_DIR")).into();
    let mut broken = tokenizer("chatml");
    broken.models[0].path = nowhere;
    for (settings, reason) in [(PromptSettings::default(), "not_configured"), (broken, "load_failed")] {
        let (_engines, router) = fleet(settings).await;
        let answers = router.chat_times(4).await;
        assert_all_succeeded(&answers);
        assert!(answers.iter().all(|answer| answer.header("x-fathom-reason") == "no_match"));
        let series = format!("fathom_prompts_total{{kind=\"{reason}\"}}");
        assert_eq!(router.metric(&series).await, Some(4.0), "{}", router.metrics().await);
        router.stop().await;
    }
}

#[actix::test]
async fn prompts_are_left_alone_where_nobody_looks_at_them() {
    let engine = KvEngine::start("a").await;
    let mut config = KvEngine::config_of(&[&engine]);
    config.policy = fathom_router::config::PolicyKind::LeastLoad;
    let router = RunningRouter::with(config).await;
    assert_all_succeeded(&router.chat_times(2).await);
    assert!(!router.metrics().await.contains("fathom_prompts_total{"), "nothing was tried");
    router.stop().await;
}

/// Seen in vllm-project/production-stack#1025.
#[actix::test]
async fn a_dozen_huge_prompts_at_once_hold_nothing_up_and_cost_no_request() {
    let mut hurried = tokenizer("chatml");
    hurried.timeout = std::time::Duration::from_millis(1);
    hurried.max_waiting = 4;
    let (_engines, router) = fleet(hurried).await;
    let model = router.fleet().await[0].facts.models[0].to_string();
    let text = "the quick brown fox jumps over the lazy dog ".repeat(20_000);
    let body = json!({"model": model, "prompt": text, "max_tokens": 1});
    let asked = futures::future::join_all((0..12).map(|_| post(&router, "/v1/completions", &body)));
    let health = async {
        for _ in 0..20 {
            assert_eq!(Client::new().get(&format!("{}/healthz", router.url)).await.status, 200);
        }
    };
    let (answers, ()) = futures::join!(asked, health);
    assert_all_succeeded(&answers);
    let mut counted = 0.0;
    for reason in ["text", "timed_out", "busy", "loading"] {
        counted += router.metric(&format!("fathom_prompts_total{{kind=\"{reason}\"}}")).await.unwrap_or(0.0);
    }
    assert_eq!(counted, 12.0, "{}", router.metrics().await);
    router.stop().await;
}
