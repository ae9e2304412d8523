//! What vLLM hands to a chat template.

use super::chat::{Ending, Inputs, push, role, text_part, text_part_type};
use super::content_format::ContentFormat;
use super::error::NoTokens;
use super::json::Json;

/// Returns the tools that the template sees: as the client wrote them, with the fields of vLLM's type first.
///
/// # Errors
/// They are no list of objects with a named function.
pub(super) fn tools(body: &mut Json) -> Result<Option<Vec<Json>>, NoTokens> {
    match body.take("tools") {
        None => Ok(None),
        Some(Json::List(tools)) => tools.into_iter().map(dump_tool).collect::<Result<_, _>>().map(Some),
        Some(_) => Err(NoTokens::render_failed("tools is no list")),
    }
}

fn dump_tool(mut tool: Json) -> Result<Json, NoTokens> {
    let mut function = tool.take("function").ok_or_else(|| NoTokens::render_failed("a tool has no function"))?;
    let name = function.take("name").ok_or_else(|| NoTokens::render_failed("a tool's function has no name"))?;
    let mut dumped = vec![("name".to_owned(), name)];
    for field in ["description", "parameters"] {
        dumped.push((field.to_owned(), function.take(field).unwrap_or(Json::Null)));
    }
    if let Json::Object(others) = function {
        let is_other = |name: &str| !["name", "description", "parameters"].contains(&name);
        dumped.extend(others.into_iter().filter(|(name, _)| is_other(name)));
    }
    let kind = tool.take("type").unwrap_or_else(|| Json::text("function"));
    Ok(Json::Object(vec![("type".to_owned(), kind), ("function".to_owned(), Json::Object(dumped))]))
}

/// Returns what the template is rendered with; tools apart.
///
/// # Errors
/// A message is not text alone, or one that vLLM refuses.
pub(super) fn inputs(messages: Vec<Json>, body: &mut Json, format: ContentFormat) -> Result<Inputs, NoTokens> {
    let messages = messages.into_iter().map(|message| self::message(message, format)).collect::<Result<_, _>>()?;
    let flag = |name: &str, default: bool| body.get(name).and_then(Json::as_bool).unwrap_or(default);
    let is_continued = flag("continue_final_message", false);
    let add_generation_prompt = flag("add_generation_prompt", true);
    let mut extras = Vec::new();
    if let Some(Json::Object(kwargs)) = body.take("chat_template_kwargs") {
        extras.extend(kwargs);
    }
    push(&mut extras, "reasoning_effort", body.take("reasoning_effort"));
    Ok(Inputs {
        messages,
        tools: None,
        documents: body.take("documents"),
        add_generation_prompt,
        extras,
        ending: if is_continued { Ending::LastMessage } else { Ending::Template },
    })
}

fn message(mut message: Json, format: ContentFormat) -> Result<Json, NoTokens> {
    let role = role(&message)?.to_owned();
    let content = content(message.take("content"), &role, format)?;
    let mut fields = vec![("role".to_owned(), Json::text(role.as_str())), ("content".to_owned(), content)];
    match role.as_str() {
        "assistant" => {
            if let Some(Json::List(calls)) = message.take("tool_calls").filter(|calls| *calls != Json::List(Vec::new()))
            {
                let calls = calls.into_iter().map(tool_call).collect::<Result<_, _>>()?;
                fields.push(("tool_calls".to_owned(), Json::List(calls)));
            }
            let reasoning = message.take("reasoning").or_else(|| message.take("reasoning_content"));
            push(&mut fields, "reasoning", reasoning.clone());
            push(&mut fields, "reasoning_content", reasoning);
        }
        "tool" => push(&mut fields, "tool_call_id", message.take("tool_call_id")),
        _ => {}
    }
    push(&mut fields, "name", message.take("name").filter(|name| name.as_text().is_some()));
    if role == "developer" {
        fields.push(("tools".to_owned(), message.take("tools").unwrap_or(Json::Null)));
    }
    Ok(Json::Object(fields))
}

/// Text becomes a list of one part where the template wants parts; parts become lines where it wants text, and always in a
/// tool's answer.
fn content(content: Option<Json>, role: &str, format: ContentFormat) -> Result<Json, NoTokens> {
    let parts = match content {
        None => Vec::new(),
        Some(Json::List(parts)) => parts,
        Some(text @ Json::Text(_)) => vec![text],
        Some(_) => return Err(NoTokens::render_failed("a message's content is neither text nor parts")),
    };
    let texts = parts.into_iter().filter_map(|part| text_of(part).transpose()).collect::<Result<Vec<_>, _>>()?;
    if format == ContentFormat::Parts && role != "tool" {
        return Ok(Json::List(texts.into_iter().map(text_part).collect()));
    }
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    Ok(Json::Text(texts.join("\n")))
}

fn text_of(mut part: Json) -> Result<Option<String>, NoTokens> {
    if let Json::Text(text) = part {
        return Ok(Some(text));
    }
    let field = match text_part_type(&part)? {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        "thinking" => "thinking",
        other => return Err(NoTokens::render_failed(format!("a part of a message has the unknown type {other:?}"))),
    };
    match part.take(field) {
        Some(Json::Text(text)) => Ok(Some(text)),
        None => Ok(None),
        Some(_) => Err(NoTokens::render_failed("a part of a message has no text")),
    }
}

fn tool_call(mut call: Json) -> Result<Json, NoTokens> {
    let mut function = call.get("function").cloned().unwrap_or(Json::Object(Vec::new()));
    let arguments = match function.take("arguments") {
        None => Json::Object(Vec::new()),
        Some(Json::Text(text)) if text.is_empty() => Json::Object(Vec::new()),
        Some(Json::Text(text)) => serde_json::from_str(&text)
            .map_err(|error| NoTokens::render_failed(format!("a tool call's arguments are no JSON: {error}")))?,
        Some(arguments) => arguments,
    };
    set(&mut function, "arguments", arguments);
    set(&mut call, "function", function);
    Ok(call)
}

/// Sets a field where it stands, or behind the others.
fn set(object: &mut Json, name: &str, value: Json) {
    let Json::Object(fields) = object else {
        return;
    };
    match fields.iter_mut().rev().find(|(known, _)| known == name) {
        Some((_, known)) => *known = value,
        None => fields.push((name.to_owned(), value)),
    }
}
