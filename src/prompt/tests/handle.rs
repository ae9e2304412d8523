//! The handle: waiting, failing, and being left.

use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;

use super::super::{NoTokens, Prompt, PromptKind, PromptSettings, PromptSource, Prompts};
use super::{clock, prompts, settings};

const CHAT: &[u8] = br#"{"messages":[{"role":"user","content":"Hi"}],"cache_salt":"s","lora_path":"l"}"#;

async fn chat(prompts: &Prompts, model: &str) -> Result<Prompt, NoTokens> {
    prompts.tokens(Some(model), PromptKind::Chat, &Bytes::from_static(CHAT)).await
}

/// Holds up the only thread until the sender is dropped, after the tokenizers have been loaded.
fn hold_up(prompts: &Prompts) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel::<()>();
    let is_accepted = prompts.inner.pool.as_ref().unwrap().submit(Box::new(move || {
        drop(began);
        let _ = receiver.recv();
    }));
    assert!(is_accepted && has_begun.recv().is_err());
    sender
}

#[tokio::test]
async fn a_chat_becomes_tokens_with_what_keeps_them_apart() {
    let prompts = prompts(&[("m", "chatml"), ("*", "llama3")]);
    let prompt = chat(&prompts, "m").await.unwrap();
    assert_eq!(prompt.source, PromptSource::Chat);
    assert_eq!((prompt.cache_salt.as_deref(), prompt.lora.as_deref()), (Some("s"), Some("l")));
    let of_any = chat(&prompts, "unknown").await.unwrap();
    assert_ne!(of_any.token_ids, prompt.token_ids);
    let nameless = prompts.tokens(None, PromptKind::Chat, &Bytes::from_static(CHAT)).await.unwrap();
    assert_eq!(nameless, of_any);
}

#[tokio::test]
async fn texts_get_what_the_tokenizer_puts_around_them_and_chats_do_not_get_it_twice() {
    let prompts = prompts(&[("m", "llama3")]);
    let text = Bytes::from_static(br#"{"prompt":"Hi"}"#);
    let text = prompts.tokens(None, PromptKind::Completion, &text).await.unwrap();
    let chat = chat(&prompts, "m").await.unwrap();
    assert_eq!(text.source, PromptSource::Text);
    assert_eq!(text.token_ids[0], chat.token_ids[0]);
    assert_eq!(chat.token_ids.iter().filter(|id| **id == chat.token_ids[0]).count(), 1);
}

#[tokio::test]
async fn token_arrays_need_no_tokenizer() {
    let body = Bytes::from_static(br#"{"prompt":[1,2,3]}"#);
    let prompt = Prompts::none().tokens(Some("m"), PromptKind::Completion, &body).await.unwrap();
    assert_eq!((&prompt.token_ids[..], prompt.source), (&[1, 2, 3][..], PromptSource::TokenIds));
    assert_eq!(chat(&Prompts::none(), "m").await.unwrap_err().reason(), "not_configured");
}

#[tokio::test]
async fn a_tokenizer_that_fails_to_load_fails_for_everyone_who_waits() {
    let prompts = prompts(&[("m", "nowhere")]);
    let (one, other) = tokio::join!(chat(&prompts, "m"), chat(&prompts, "m"));
    assert_eq!((one.unwrap_err().reason(), other.unwrap_err().reason()), ("load_failed", "load_failed"));
    assert_eq!(chat(&prompts, "other").await.unwrap_err().reason(), "not_configured");
}

#[tokio::test]
async fn a_template_that_fails_costs_the_tokens_not_the_thread() {
    let prompts = prompts(&[("m", "mistral")]);
    let refused = Bytes::from_static(br#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#);
    let refused = prompts.tokens(Some("m"), PromptKind::Chat, &refused).await;
    assert_eq!(refused.unwrap_err().reason(), "render_failed");
    assert!(chat(&prompts, "m").await.is_ok());
}

#[tokio::test]
async fn a_template_of_the_clients_is_not_run() {
    let prompts = prompts(&[("m", "chatml")]);
    for body in
        [r#"{"messages":[],"chat_template":"x"}"#, r#"{"messages":[],"chat_template_kwargs":{"chat_template":"x"}}"#]
    {
        let refused = prompts.tokens(Some("m"), PromptKind::Chat, &Bytes::from_static(body.as_bytes())).await;
        assert_eq!(refused.unwrap_err().reason(), "no_template");
    }
}

#[tokio::test]
async fn more_than_may_wait_are_turned_away() {
    let prompts = Prompts::start(PromptSettings { max_waiting: 0, ..settings(&[("m", "chatml")]) }, clock);
    assert_eq!(chat(&prompts, "m").await.unwrap_err().reason(), "busy");
}

#[tokio::test]
async fn whoever_waits_too_long_is_told_so_and_their_work_is_skipped() {
    let prompts = prompts(&[("m", "chatml")]);
    let gate = hold_up(&prompts);
    tokio::time::pause();
    assert_eq!(chat(&prompts, "m").await.unwrap_err().reason(), "timed_out");
    tokio::time::resume();
    let waiting = |prompts: &Prompts| prompts.inner.pool.as_ref().unwrap().num_waiting();
    assert_eq!(waiting(&prompts), 1);
    drop(gate);
    assert!(chat(&prompts, "m").await.is_ok());
    assert_eq!(waiting(&prompts), 0);
}

#[tokio::test]
async fn a_tokenizer_still_loading_is_told_as_such() {
    let prompts = Prompts::start(PromptSettings { timeout: Duration::ZERO, ..settings(&[("m", "chatml")]) }, clock);
    // The tokenizer may just have been loaded: then there was no time left for the work.
    let reason = chat(&prompts, "m").await.unwrap_err().reason();
    assert!(["loading", "timed_out"].contains(&reason), "{reason}");
}

#[tokio::test]
async fn work_that_panics_leaves_the_thread_alive() {
    let prompts = prompts(&[("m", "chatml")]);
    prompts.inner.pool.as_ref().unwrap().submit(Box::new(|| std::panic::resume_unwind(Box::new("a test"))));
    assert!(chat(&prompts, "m").await.is_ok());
}

#[test]
fn starting_never_fails_and_the_threads_end_with_the_last_handle() {
    let prompts = prompts(&[("m", "chatml")]);
    let clone = prompts.clone();
    drop(prompts);
    assert!(format!("{clone:?}").contains("chatml"));
    let (sender, receiver) = mpsc::channel::<()>();
    clone.inner.pool.as_ref().unwrap().submit(Box::new(move || {
        // Ends when the pool drops its queue, or when the thread has run it.
        drop(sender);
    }));
    drop(clone);
    assert!(receiver.recv().is_err());
}
