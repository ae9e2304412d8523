//! What is read from a body, and what is not taken for a prompt.

use super::super::body::{Asked, Source, read};
use super::super::{NoTokens, PromptKind, PromptSettings};

fn asked(kind: PromptKind, body: &str) -> Result<Asked, NoTokens> {
    read(kind, body.as_bytes(), &PromptSettings { max_prompt_bytes: 100, ..PromptSettings::default() })
}

#[test]
fn a_prompt_is_found_in_every_form() {
    use PromptKind::{Chat, Completion, Generate};
    let text = |text: &str| Source::Text(text.to_owned());
    let rows = [
        ("a text", Completion, r#"{"prompt":"a\nb"}"#, text("a\nb")),
        ("an empty text", Completion, r#"{"prompt":""}"#, text("")),
        (
            "token ids",
            Completion,
            r#"{"model":"m","prompt":[1,4294967295],"x":{"prompt":[7]}}"#,
            Source::Ids(vec![1, u32::MAX]),
        ),
        ("the first of several texts", Completion, r#"{"prompt":["a","b"]}"#, text("a")),
        ("the first of several arrays of ids", Completion, r#"{"prompt":[[1,2],[3]]}"#, Source::Ids(vec![1, 2])),
        ("SGLang's text", Generate, r#"{"text":"a"}"#, text("a")),
        ("SGLang's first text", Generate, r#"{"text":["a","b"],"input_ids":null}"#, text("a")),
        ("SGLang's ids", Generate, r#"{"input_ids":[5]}"#, Source::Ids(vec![5])),
        ("SGLang's first ids", Generate, r#"{"input_ids":[[5,6],[7]]}"#, Source::Ids(vec![5, 6])),
        ("ids outrank text", Generate, r#"{"text":"a","input_ids":[5]}"#, Source::Ids(vec![5])),
        ("a chat", Chat, r#"{"messages":[]}"#, Source::Chat),
        ("a chat with ids", Chat, r#"{"messages":[],"input_ids":[5]}"#, Source::Ids(vec![5])),
        ("the last of a repeated key", Completion, r#"{"prompt":[1],"prompt":"a"}"#, text("a")),
        ("an escaped key", Completion, r#"{"pr\u006fmpt":"a"}"#, text("a")),
        ("media that is null", Generate, r#"{"text":"a","image_data":null}"#, text("a")),
    ];
    for (sentence, kind, body, expected) in rows {
        assert_eq!(asked(kind, body).unwrap().source, expected, "{sentence}");
    }
}

#[test]
fn what_is_no_prompt_is_refused() {
    use PromptKind::{Chat, Completion, Generate};
    let long = "x".repeat(101);
    let rows = [
        ("no field", Completion, r#"{"text":"a"}"#.to_owned(), "no_prompt"),
        ("null", Completion, r#"{"prompt":null}"#.to_owned(), "no_prompt"),
        ("a number", Completion, r#"{"prompt":5}"#.to_owned(), "no_prompt"),
        ("an object", Completion, r#"{"prompt":{"a":[1]}}"#.to_owned(), "no_prompt"),
        ("an empty array", Completion, r#"{"prompt":[]}"#.to_owned(), "no_prompt"),
        ("an array in an array in an array", Completion, r#"{"prompt":[[[1]]]}"#.to_owned(), "no_prompt"),
        ("a text in an array in an array", Completion, r#"{"prompt":[["a"]]}"#.to_owned(), "no_prompt"),
        ("an id below zero", Completion, r#"{"prompt":[1,-1]}"#.to_owned(), "no_prompt"),
        ("a first id below zero", Completion, r#"{"prompt":[-1]}"#.to_owned(), "no_prompt"),
        ("an id beyond 32 bits", Completion, r#"{"prompt":[4294967296]}"#.to_owned(), "no_prompt"),
        ("an id with a fraction", Completion, r#"{"prompt":[1.5]}"#.to_owned(), "no_prompt"),
        ("ids and text mixed", Completion, r#"{"prompt":[1,"a"]}"#.to_owned(), "no_prompt"),
        ("ids that are none", Generate, r#"{"text":"a","input_ids":"b"}"#.to_owned(), "no_prompt"),
        ("no JSON", Chat, "{".to_owned(), "no_prompt"),
        ("no object", Chat, "[]".to_owned(), "no_prompt"),
        ("more than an object", Chat, "{} {}".to_owned(), "no_prompt"),
        ("endless nesting", Chat, "{\"a\":".to_owned() + &"[".repeat(100_000), "no_prompt"),
        ("a text too long", Completion, format!(r#"{{"prompt":"{long}"}}"#), "too_long"),
        ("a chat too long", Chat, format!(r#"{{"messages":"{long}"}}"#), "too_long"),
        ("too many ids", Completion, format!(r#"{{"prompt":[{}1]}}"#, "1,".repeat(100)), "too_long"),
        ("an image", Generate, r#"{"text":"a","image_data":"x"}"#.to_owned(), "multimodal"),
    ];
    for (sentence, kind, body, reason) in rows {
        assert_eq!(asked(kind, &body).unwrap_err().reason(), reason, "{sentence}");
    }
}

#[test]
fn what_keeps_prompts_apart_is_read_from_every_kind_of_body() {
    let rows = [
        ("texts", r#""cache_salt":"s","lora_path":"l""#, Some("s"), Some("l")),
        ("lists", r#""cache_salt":["s","t"],"lora_path":["l",null]"#, Some("s"), Some("l")),
        ("other types", r#""cache_salt":5,"lora_path":{}"#, None, None),
        ("nothing", r#""cache_salt":null"#, None, None),
    ];
    for (sentence, fields, salt, lora) in rows {
        for kind in [PromptKind::Chat, PromptKind::Completion, PromptKind::Generate] {
            let asked = asked(kind, &format!(r#"{{"prompt":[1],"text":"a","messages":[],{fields}}}"#)).unwrap();
            assert_eq!((asked.cache_salt.as_deref(), asked.lora.as_deref()), (salt, lora), "{sentence}");
        }
    }
}

#[test]
fn every_reason_is_listed_once() {
    let reasons = [
        NoTokens::NotConfigured,
        NoTokens::Loading,
        NoTokens::NoTemplate,
        NoTokens::render_failed(""),
        NoTokens::Multimodal,
        NoTokens::NoPrompt { key: "prompt" },
        NoTokens::TooLong { max_prompt_bytes: 1 },
        NoTokens::Busy { max_waiting: 1 },
        NoTokens::TimedOut,
        NoTokens::EncodeFailed { reason: String::new() },
    ];
    let mut listed: Vec<&str> = reasons.iter().map(NoTokens::reason).chain(["load_failed"]).collect();
    listed.sort_unstable();
    let mut all = NoTokens::ALL;
    all.sort_unstable();
    assert_eq!(listed, all);
}
