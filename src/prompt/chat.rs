//! From the body of a chat to its text: what an engine does between the request and its chat template.
//!
//! The engines differ in what a template gets to see, hence [`sglang`](super::chat_sglang) and [`vllm`](super::chat_vllm). What
//! an engine would refuse is refused here too; the client hears of it from the engine.

use minijinja::Value;

use super::error::NoTokens;
use super::json::Json;
use super::settings::ChatStyle;
use super::template::{Chosen, Templates};
use super::{chat_sglang, chat_vllm};

/// Put behind the last message's text, to find in the rendered chat where that message ends.
const END_MARK: &str = "END_OF_THE_MESSAGE_TO_CONTINUE ";

/// What a template is rendered with.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) messages: Vec<Json>,
    pub(super) tools: Option<Vec<Json>>,
    pub(super) documents: Option<Json>,
    pub(super) add_generation_prompt: bool,
    /// Whatever else the request gives to the template.
    pub(super) extras: Vec<(String, Json)>,
    pub(super) ending: Ending,
}

/// How the text ends.
#[derive(Debug, PartialEq)]
pub(super) enum Ending {
    /// As the template has it.
    Template,
    /// With this behind it.
    Appended(String),
    /// Where the last message ends.
    LastMessage,
}

/// Renders the chat of a body.
///
/// # Errors
/// The body is no chat, is not text alone, has no template, or is refused.
pub(super) fn render(body: &[u8], templates: &Templates, style: ChatStyle) -> Result<String, NoTokens> {
    let no_prompt = NoTokens::NoPrompt { key: "messages" };
    let mut body: Json = serde_json::from_slice(body).map_err(|_| no_prompt.clone())?;
    let Some(Json::List(messages)) = body.take("messages") else {
        return Err(no_prompt);
    };
    let kwargs = body.get("chat_template_kwargs");
    if body.get("chat_template").or_else(|| kwargs.and_then(|kwargs| kwargs.get("chat_template"))).is_some() {
        // A template of the client's is not run here.
        return Err(NoTokens::NoTemplate);
    }
    let tools = match style {
        ChatStyle::SgLang => chat_sglang::tools(&mut body)?,
        ChatStyle::Vllm => chat_vllm::tools(&mut body)?,
    };
    let chosen = templates.choose(tools.is_some())?;
    let mut inputs = match style {
        ChatStyle::SgLang => chat_sglang::inputs(messages, &mut body, chosen.format)?,
        ChatStyle::Vllm => chat_vllm::inputs(messages, &mut body, chosen.format)?,
    };
    inputs.tools = tools;
    match style {
        ChatStyle::SgLang => render_with_either_tools(inputs, templates, chosen),
        ChatStyle::Vllm => render_once(inputs, templates, chosen),
    }
}

/// Renders with the tools as they are; should that fail, with the bare functions, as SGLang does.
fn render_with_either_tools(inputs: Inputs, templates: &Templates, chosen: Chosen) -> Result<String, NoTokens> {
    let bare = inputs.tools.as_ref().map(|tools| {
        let bare = tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone());
        Json::List(bare.collect()).into_value()
    });
    let ending = if let Ending::Appended(text) = &inputs.ending { text.clone() } else { String::new() };
    let mut context = context(inputs);
    let rendered = match (templates.render(chosen, &context), bare) {
        (Err(NoTokens::RenderFailed { .. }), Some(bare)) => {
            context.push(("tools".to_owned(), bare));
            templates.render(chosen, &context)
        }
        (rendered, _) => rendered,
    };
    Ok(rendered? + &ending)
}

fn render_once(mut inputs: Inputs, templates: &Templates, chosen: Chosen) -> Result<String, NoTokens> {
    if inputs.ending != Ending::LastMessage {
        return templates.render(chosen, &context(inputs));
    }
    if inputs.add_generation_prompt {
        return Err(NoTokens::render_failed("a message cannot be continued and another one begun"));
    }
    let text = inputs.messages.last_mut().and_then(last_text);
    let text = text.ok_or_else(|| NoTokens::render_failed("there is no last message to continue"))?;
    let last = text.trim().to_owned();
    text.push_str(END_MARK);
    let rendered = templates.render(chosen, &context(inputs))?;
    let end = rendered.rfind(END_MARK.trim_end()).filter(|_| rendered.contains(&last));
    let end = end.ok_or_else(|| NoTokens::render_failed("the template does not show the last message"))?;
    // Where the template trims messages, the space at the mark's end is gone, and spaces before it must go too.
    let is_trimmed = !rendered[end..].starts_with(END_MARK);
    let kept = &rendered[..end];
    Ok(if is_trimmed { kept.trim_end() } else { kept }.to_owned())
}

/// Returns the last text of a message's content.
fn last_text(message: &mut Json) -> Option<&mut String> {
    let Json::Object(fields) = message else {
        return None;
    };
    let (_, content) = fields.iter_mut().rev().find(|(name, _)| name == "content")?;
    let text = match content {
        Json::List(parts) => parts.iter_mut().rev().find_map(|part| match part {
            Json::Object(fields) => fields.iter_mut().find(|(name, _)| name == "text").map(|(_, text)| text),
            _ => None,
        })?,
        content => content,
    };
    if let Json::Text(text) = text { Some(text) } else { None }
}

/// Returns the names that the template sees; the last of a name counts.
fn context(inputs: Inputs) -> Vec<(String, Value)> {
    let mut context: Vec<(String, Value)> =
        inputs.extras.into_iter().map(|(name, value)| (name, value.into_value())).collect();
    let mut set = |name: &str, value: Value| context.push((name.to_owned(), value));
    set("messages", Json::List(inputs.messages).into_value());
    set("tools", inputs.tools.map_or(Value::from(()), |tools| Json::List(tools).into_value()));
    set("documents", inputs.documents.map_or(Value::from(()), Json::into_value));
    set("add_generation_prompt", Value::from(inputs.add_generation_prompt));
    context
}

/// Returns a message's role.
///
/// # Errors
/// It has none.
pub(super) fn role(message: &Json) -> Result<&str, NoTokens> {
    message.get("role").and_then(Json::as_text).ok_or_else(|| NoTokens::render_failed("a message has no role"))
}

/// Returns the type of a part of a message's content; one that only names its medium, as `{"image_url": ..}`, counts as such.
///
/// # Errors
/// The part is an image, audio or video.
pub(super) fn text_part_type(part: &Json) -> Result<&str, NoTokens> {
    const MEDIA: [&str; 4] = ["image", "audio", "video", "embeds"];
    let is_media = |name: &str| MEDIA.iter().any(|medium| name.contains(medium));
    let part_type = part.get("type").and_then(Json::as_text);
    let is_media = match (part_type, part) {
        (Some(part_type), _) => is_media(part_type),
        (None, Json::Object(fields)) => fields.iter().any(|(name, _)| is_media(name)),
        _ => false,
    };
    if is_media { Err(NoTokens::Multimodal) } else { Ok(part_type.unwrap_or_default()) }
}

/// Returns a part of a message's content as templates know it.
pub(super) fn text_part(text: String) -> Json {
    Json::Object(vec![("type".to_owned(), Json::text("text")), ("text".to_owned(), Json::Text(text))])
}

/// Puts a field into a list of fields, unless it is absent.
pub(super) fn push(fields: &mut Vec<(String, Json)>, name: &str, value: Option<Json>) {
    if let Some(value) = value {
        fields.push((name.to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::ModelFiles;
    use super::{ChatStyle, NoTokens, Templates, render};

    const SOURCE: &str = "{% if tools and tools[0].function is defined and strict %}{{ raise_exception('bare ones') }}{% endif %}\
        {{ messages[0].content }}:{{ tools[0].name if tools }}";

    fn rendered(style: ChatStyle, fields: &str) -> Result<String, NoTokens> {
        let files = ModelFiles { template: Some(SOURCE.to_owned()), ..ModelFiles::default() };
        let templates = Templates::new(&files, style, || std::time::SystemTime::UNIX_EPOCH, 1_000);
        let body = format!(r#"{{"messages":[{{"role":"user","content":"a"}}],{fields}}}"#);
        render(body.as_bytes(), &templates, style)
    }

    #[test]
    fn a_template_that_wants_bare_functions_gets_them_from_sglang_alone() {
        let fields = r#""tools":[{"function":{"name":"f"}}],"chat_template_kwargs":{"strict":true,"tools":"ignored"}"#;
        assert_eq!(rendered(ChatStyle::SgLang, fields).unwrap(), "a:f");
        assert_eq!(rendered(ChatStyle::Vllm, fields).unwrap_err().reason(), "render_failed");
    }

    #[test]
    fn what_engines_refuse_is_refused() {
        let rows = [
            ("tools that are no list", r#""tools":{}"#, "render_failed"),
            ("a tool without a function", r#""tools":[{}]"#, "render_failed"),
            ("a function without a name", r#""tools":[{"function":{}}]"#, "render_failed"),
            ("messages that are no list", r#""messages":"a""#, "no_prompt"),
            ("a message without a role", r#""messages":[{"content":"a"}]"#, "render_failed"),
            ("a message that is none", r#""messages":[5]"#, "render_failed"),
            ("an image by its field", r#""messages":[{"role":"user","content":[{"image_url":"u"}]}]"#, "multimodal"),
            (
                "a part without text",
                r#""messages":[{"role":"user","content":[{"type":"text","text":5}]}]"#,
                "render_failed",
            ),
        ];
        for (sentence, fields, reason) in rows {
            for style in [ChatStyle::SgLang, ChatStyle::Vllm] {
                assert_eq!(rendered(style, fields).unwrap_err().reason(), reason, "{sentence}, {style:?}");
            }
        }
    }
}
