//! What SGLang 0.5 hands to a chat template.
//!
//! Its request types fix the order of fields and fill in defaults, which shows where a template prints a tool as JSON.

use super::chat::{Ending, Inputs, push, role, text_part, text_part_type};
use super::content_format::ContentFormat;
use super::error::NoTokens;
use super::json::Json;

/// Returns the tools that the template sees.
///
/// # Errors
/// They are no list of objects with a named function.
pub(super) fn tools(body: &mut Json) -> Result<Option<Vec<Json>>, NoTokens> {
    let Some(tools) = body.take("tools") else {
        return Ok(None);
    };
    let wanted = match body.get("tool_choice") {
        Some(Json::Text(choice)) if choice == "none" => return Ok(None),
        Some(choice @ Json::Object(_)) => choice.get("function").and_then(|function| function.get("name")).cloned(),
        _ => None,
    };
    let mut tools = dump_tools(tools)?;
    if let Some(wanted) = &wanted {
        tools.retain(|tool| tool.get("function").and_then(|function| function.get("name")) == Some(wanted));
    }
    // A named choice that names no tool leaves an empty list, which templates take for none.
    Ok(if tools.is_empty() && wanted.is_none() { None } else { Some(tools) })
}

fn dump_tools(tools: Json) -> Result<Vec<Json>, NoTokens> {
    let Json::List(tools) = tools else {
        return Err(NoTokens::render_failed("tools is no list"));
    };
    tools.into_iter().map(dump_tool).collect()
}

fn dump_tool(mut tool: Json) -> Result<Json, NoTokens> {
    let mut function = tool.take("function").ok_or_else(|| NoTokens::render_failed("a tool has no function"))?;
    let name = function.take("name").ok_or_else(|| NoTokens::render_failed("a tool's function has no name"))?;
    let mut field = |name: &str, default: Json| (name.to_owned(), function.take(name).unwrap_or(default));
    let mut dumped = vec![
        field("description", Json::Null),
        ("name".to_owned(), name),
        field("parameters", Json::Null),
        field("strict", Json::Bool(false)),
    ];
    push(&mut dumped, "defer_loading", function.take("defer_loading"));
    let kind = tool.take("type").unwrap_or_else(|| Json::text("function"));
    Ok(Json::Object(vec![("type".to_owned(), kind), ("function".to_owned(), Json::Object(dumped))]))
}

/// Returns what the template is rendered with; tools apart.
///
/// # Errors
/// A message is not text alone, or one that SGLang refuses.
pub(super) fn inputs(messages: Vec<Json>, body: &mut Json, format: ContentFormat) -> Result<Inputs, NoTokens> {
    let mut messages =
        messages.into_iter().map(|message| self::message(message, format)).collect::<Result<Vec<_>, _>>()?;
    let is_continued = body.get("continue_final_message").and_then(Json::as_bool) == Some(true);
    let ending = end_of(&mut messages, is_continued);
    Ok(Inputs {
        messages,
        tools: None,
        documents: None,
        // SGLang always begins an answer, whatever the request says.
        add_generation_prompt: true,
        extras: extras(body),
        ending,
    })
}

/// An assistant's message that comes last is continued where the request says so; else SGLang takes it for a user's.
fn end_of(messages: &mut Vec<Json>, is_continued: bool) -> Ending {
    let Some(last) = messages.last_mut() else {
        return Ending::Template;
    };
    let is_assistant = last.get("role").and_then(Json::as_text) == Some("assistant");
    let Some(text) = last.get("content").and_then(Json::as_text).filter(|_| is_assistant).map(str::to_owned) else {
        return Ending::Template;
    };
    if is_continued {
        messages.pop();
        return Ending::Appended(text);
    }
    *last = Json::Object(vec![("role".to_owned(), Json::text("user")), ("content".to_owned(), Json::Text(text))]);
    Ending::Template
}

fn message(mut message: Json, format: ContentFormat) -> Result<Json, NoTokens> {
    let role = role(&message)?.to_owned();
    let role = if role == "user" { role } else { role.to_lowercase() };
    let content = content(message.take("content").unwrap_or_else(|| Json::text("")), &role, format)?;
    let mut fields = vec![("role".to_owned(), Json::text(role.as_str())), ("content".to_owned(), content)];
    if role == "user" {
        return Ok(Json::Object(fields));
    }
    for name in ["tool_call_id", "name", "reasoning_content"] {
        push(&mut fields, name, message.take(name));
    }
    if let Some(Json::List(calls)) = message.take("tool_calls") {
        let is_assistant = role == "assistant";
        let calls = calls.into_iter().map(|call| tool_call(call, is_assistant)).collect::<Result<_, _>>()?;
        fields.push(("tool_calls".to_owned(), Json::List(calls)));
    }
    if let Some(tools) = message.take("tools") {
        fields.push(("tools".to_owned(), Json::List(dump_tools(tools)?)));
    }
    Ok(Json::Object(fields))
}

/// Parts become one text where the template wants text, and always in a tool's answer.
fn content(content: Json, role: &str, format: ContentFormat) -> Result<Json, NoTokens> {
    let Json::List(parts) = content else {
        return Ok(content);
    };
    let mut texts = Vec::new();
    let mut kept = Vec::new();
    let mut has_others = false;
    for mut part in parts {
        match text_part_type(&part)? {
            "text" | "input_text" => {
                let Some(Json::Text(text)) = part.take("text") else {
                    return Err(NoTokens::render_failed("a part of a message has no text"));
                };
                kept.push(text_part(text.clone()));
                texts.push(text);
            }
            "tool_reference" => {
                has_others = true;
                kept.push(part);
            }
            _ => {}
        }
    }
    let is_flat = format == ContentFormat::Text || (role == "tool" && !has_others);
    Ok(if is_flat { Json::Text(texts.join(" ")) } else { Json::List(kept) })
}

fn tool_call(mut call: Json, is_assistant: bool) -> Result<Json, NoTokens> {
    let mut function = call.take("function").unwrap_or(Json::Null);
    let arguments = match function.take("arguments") {
        Some(Json::Text(text)) if is_assistant => match serde_json::from_str(&text) {
            Ok(arguments @ Json::Object(_)) => arguments,
            _ => return Err(NoTokens::render_failed("a tool call's arguments are no JSON object")),
        },
        arguments => arguments.unwrap_or(Json::Null),
    };
    let name = function.take("name").unwrap_or(Json::Null);
    let function = Json::Object(vec![("name".to_owned(), name), ("arguments".to_owned(), arguments)]);
    let mut field = |name: &str, default: Json| (name.to_owned(), call.take(name).unwrap_or(default));
    Ok(Json::Object(vec![
        field("id", Json::Null),
        field("index", Json::Null),
        field("type", Json::text("function")),
        ("function".to_owned(), function),
    ]))
}

/// Returns the template's other names. An effort also switches thinking on or off, under both names that models use.
fn extras(body: &mut Json) -> Vec<(String, Json)> {
    let reasoning = body.take("reasoning").unwrap_or(Json::Null);
    let effort = reasoning.get("effort").or_else(|| reasoning.get("reasoning_effort")).cloned();
    let effort = effort.or_else(|| body.take("reasoning_effort"));
    let is_enabled = match reasoning.get("enabled").or_else(|| reasoning.get("enable")) {
        Some(Json::Text(word)) => ["1", "true", "yes", "y", "on"].contains(&word.trim().to_lowercase().as_str()),
        Some(value) => value.as_bool() == Some(true),
        None => false,
    };
    let thinking = match &effort {
        Some(effort) => Some(effort.as_text() != Some("none")),
        None => is_enabled.then_some(true),
    };
    let mut extras = Vec::new();
    if let Some(thinking) = thinking {
        extras.push(("thinking".to_owned(), Json::Bool(thinking)));
        extras.push(("enable_thinking".to_owned(), Json::Bool(thinking)));
    }
    push(&mut extras, "reasoning_effort", effort);
    if let Some(Json::Object(kwargs)) = body.take("chat_template_kwargs") {
        extras.extend(kwargs);
    }
    extras
}

#[cfg(test)]
mod tests {
    use super::{Json, extras};

    #[test]
    fn an_effort_switches_thinking_unless_the_request_says_otherwise() {
        let rows = [
            ("nothing", r#"{}"#, r#"{}"#),
            (
                "an effort",
                r#"{"reasoning_effort":"low"}"#,
                r#"{"thinking":true,"enable_thinking":true,"reasoning_effort":"low"}"#,
            ),
            (
                "no effort",
                r#"{"reasoning_effort":"none"}"#,
                r#"{"thinking":false,"enable_thinking":false,"reasoning_effort":"none"}"#,
            ),
            (
                "an effort inside",
                r#"{"reasoning":{"effort":"high"},"reasoning_effort":"low"}"#,
                r#"{"thinking":true,"enable_thinking":true,"reasoning_effort":"high"}"#,
            ),
            ("a switch", r#"{"reasoning":{"enabled":"Yes"}}"#, r#"{"thinking":true,"enable_thinking":true}"#),
            ("a switch that is off", r#"{"reasoning":{"enabled":false}}"#, r#"{}"#),
            (
                "the template's own names",
                r#"{"reasoning_effort":"low","chat_template_kwargs":{"thinking":false,"x":1}}"#,
                r#"{"thinking":true,"enable_thinking":true,"reasoning_effort":"low","thinking":false,"x":1}"#,
            ),
        ];
        for (sentence, body, expected) in rows {
            let mut body: Json = serde_json::from_str(body).unwrap();
            assert_eq!(Json::Object(extras(&mut body)), serde_json::from_str(expected).unwrap(), "{sentence}");
        }
    }
}
