//! Chats and texts against what Hugging Face's libraries and the engines' own steps before them make of the same bodies.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::encoder::Encoder;
use super::super::{ChatStyle, NoTokens};
use super::{encoder, fixture};

#[derive(Deserialize)]
struct Row {
    model: String,
    style: String,
    case: String,
    kind: String,
    body: Box<RawValue>,
    text: Option<String>,
    ids: Option<Vec<u32>>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Completion {
    prompt: String,
}

fn ids(encoder: &Encoder, row: &Row) -> Result<Vec<u32>, NoTokens> {
    if row.kind == "completion" {
        let body: Completion = serde_json::from_str(row.body.get()).unwrap();
        return encoder.text(&body.prompt, || true);
    }
    encoder.chat(row.body.get().as_bytes(), || true)
}

fn check(rows: &str, cache_bytes: usize) {
    let mut encoders = HashMap::new();
    let mut wrong = Vec::new();
    for row in rows.lines() {
        let row: Row = serde_json::from_str(row).unwrap();
        let style = if row.style == "vllm" { ChatStyle::Vllm } else { ChatStyle::SgLang };
        let encoder = encoders
            .entry((row.model.clone(), row.style.clone()))
            .or_insert_with(|| encoder(&row.model, style, cache_bytes));
        let name = format!("{} as {}: {}", row.model, row.style, row.case);
        if let Some(expected) = &row.text {
            let rendered = encoder.render(row.body.get().as_bytes());
            if rendered.as_ref().ok() != Some(expected) {
                wrong.push(format!("{name}\n  is  {rendered:?}\n  not {expected:?}"));
                continue;
            }
        }
        let ids = ids(encoder, &row).map_err(|error| error.reason().to_owned());
        let expected = row.ids.ok_or_else(|| row.error.unwrap_or_default());
        if ids != expected {
            wrong.push(format!("{name}\n  is  {ids:?}\n  not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} rows are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn texts_and_tokens_are_those_of_hugging_face() {
    let rows = std::fs::read_to_string(fixture("golden.jsonl")).unwrap();
    check(&rows, 0);
    check(&rows, 1 << 20);
}
