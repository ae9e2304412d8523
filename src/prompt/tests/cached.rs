//! The cache changes what tokens cost, never what they are.

use std::sync::Arc;

use proptest::prelude::{Strategy, any, prop};
use proptest::test_runner::{Config, TestRunner};
use tokenizers::Tokenizer;

use super::super::cuts::Cuts;
use super::{ChatStyle, MODELS, encoder, fixture};

/// What texts are put together from: whatever a tokenizer might join across a cut.
const FRAGMENTS: [&str; 26] = [
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "a",
    "word",
    " word",
    "12",
    "3",
    ".",
    "!?",
    "é",
    "e\u{301}",
    "\u{338}",
    "日本",
    "👩‍👩‍👧",
    "\u{a0}",
    "<|im_end|>",
    "<|im_start|>",
    "<|eot_id|>",
    "</s>",
    "[INST]",
    "<｜User｜>",
    "<end_of_turn>",
    "<think>",
];

fn text() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(&FRAGMENTS[..]);
    let repeated = (fragment, 1_usize..40).prop_map(|(fragment, times)| fragment.repeat(times));
    prop::collection::vec(repeated, 0..12).prop_map(|fragments| fragments.concat())
}

#[test]
fn tokens_with_the_cache_are_those_without_it() {
    for model in MODELS {
        let cold = encoder(model, ChatStyle::SgLang, 0);
        // So small that pieces come and go.
        let warm = encoder(model, ChatStyle::SgLang, 30_000);
        let mut runner = TestRunner::new_with_rng(
            Config::with_cases(40),
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let conversations = (prop::collection::vec(text(), 1..8), any::<bool>());
        let compared = runner.run(&conversations, |(texts, is_edited)| {
            let mut messages = Vec::new();
            for (turn, text) in texts.iter().enumerate() {
                let role = if turn % 2 == 0 { "user" } else { "assistant" };
                messages.push(serde_json::json!({"role": role, "content": text}));
                let body = serde_json::json!({"messages": messages}).to_string();
                let [cold, warm] = [&cold, &warm].map(|encoder| encoder.chat(body.as_bytes(), || true).ok());
                assert_eq!(cold, warm, "{model}: {body}");
            }
            let whole = texts.concat() + if is_edited { " " } else { "" };
            let [cold, warm] = [&cold, &warm].map(|encoder| encoder.text(&whole, || true).ok());
            assert_eq!(cold, warm, "{model}: {whole:?}");
            Ok(())
        });
        compared.unwrap();
    }
}

#[test]
fn the_next_turn_adds_its_own_pieces_alone() {
    let long = "a sentence of a turn that is long enough to be kept. ".repeat(10);
    let turn = |role: &str| serde_json::json!({"role": role, "content": long});
    let cache = Arc::new(super::Cache::new(1, 1 << 20));
    let encoder = super::encoder_with("chatml", ChatStyle::SgLang, Arc::clone(&cache));
    let mut messages = vec![turn("user")];
    let mut num_pieces = Vec::new();
    for _ in 0..3 {
        let body = serde_json::json!({"messages": messages}).to_string();
        encoder.chat(body.as_bytes(), || true).unwrap();
        num_pieces.push(cache.num_pieces());
        messages.extend([turn("assistant"), turn("user")]);
    }
    // The same words in the same place of a turn are one piece, so only the first answer adds anything.
    assert_eq!(num_pieces, [1, 3, 3]);
}

#[test]
fn nothing_is_kept_for_a_caller_who_has_left() {
    let long = "a sentence. ".repeat(100);
    let body = serde_json::json!({"messages": [{"role": "user", "content": long}]}).to_string();
    let cache = Arc::new(super::Cache::new(1, 1 << 20));
    let encoder = super::encoder_with("chatml", ChatStyle::SgLang, Arc::clone(&cache));
    assert!(encoder.chat(body.as_bytes(), || false).is_err());
    assert_eq!(cache.num_pieces(), 0);
}

#[test]
fn text_is_cut_only_where_the_tokenizer_allows_it() {
    let published = std::fs::read_to_string(fixture("chatml").join("tokenizer.json")).unwrap();
    let end = r#""content":"<|im_end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false"#;
    let with_end = |flags: &str| {
        let changed = published.replace(end, flags);
        assert!(flags == end || changed != published);
        changed
    };
    let nfc = |json: String| json.replace(r#""normalizer":null"#, r#""normalizer":{"type":"NFC"}"#);
    let rows = [
        ("as published", with_end(end), 3),
        ("a token that swallows what is after it", with_end(&end.replace(r#""rstrip":false"#, r#""rstrip":true"#)), 3),
        ("a token that must stand alone", with_end(&end.replace(r#""single_word":false"#, r#""single_word":true"#)), 2),
        (
            "a token that is normalized with its neighbours",
            nfc(with_end(&end.replace(r#""normalized":false"#, r#""normalized":true"#))),
            2,
        ),
        ("a token in another one", published.replace("<|endoftext|>", "<|im_end|>>"), 1),
        ("tokens that can share characters", published.replace("<|endoftext|>", "|><|im"), 0),
    ];
    for (sentence, json, num_cuts) in rows {
        let tokenizer = Tokenizer::from_bytes(json.as_bytes()).unwrap();
        assert_eq!(Cuts::find(&tokenizer, |_| true).len(), num_cuts, "{sentence}");
    }
}

#[test]
fn every_fixture_can_be_cut() {
    for model in MODELS {
        assert!(encoder(model, ChatStyle::SgLang, 1).num_cuts() > 1, "{model}");
    }
}
