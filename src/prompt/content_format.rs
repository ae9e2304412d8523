//! Whether a chat template reads a message's content as text or as a list of parts.
//!
//! Engines look for a loop over a message's content in the template, and hand content over in the form it expects. Each has a
//! rule of its own; both are followed here on the text of the template's tags.

use super::settings::ChatStyle;

/// In which form a template expects a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// One text.
    Text,
    /// A list of `{"type": "text", "text": ..}`.
    Parts,
}

/// Words that make SGLang take a template for one that handles parts.
const MEDIA_WORDS: [&str; 4] = ["image", "audio", "video", "vision"];

/// Tells the form that a template expects.
pub(super) fn detect(template: &str, style: ChatStyle) -> ContentFormat {
    let statements = statements(template);
    let loops = statements.iter().filter_map(|statement| for_loop(statement));
    let has_content_loop = match style {
        ChatStyle::SgLang => {
            MEDIA_WORDS.iter().any(|word| template.contains(word))
                || loops.into_iter().any(|(_, over)| ["message", "msg", "m"].iter().any(|name| is_content(over, name)))
        }
        ChatStyle::Vllm => {
            let assignments: Vec<(&str, &str)> =
                statements.iter().filter_map(|statement| assignment(statement)).collect();
            let loops: Vec<(&str, &str)> = loops.collect();
            has_loop_over_any_message(&loops, &assignments)
        }
    };
    if has_content_loop { ContentFormat::Parts } else { ContentFormat::Text }
}

/// Follows the names that hold all messages, one message, and its content.
fn has_loop_over_any_message(loops: &[(&str, &str)], assignments: &[(&str, &str)]) -> bool {
    let mut lists = vec!["messages"];
    lists.extend(assignments.iter().filter(|(_, value)| *value == "messages").map(|(name, _)| *name));
    let messages: Vec<&str> = loops.iter().filter(|(_, over)| lists.contains(over)).map(|(name, _)| *name).collect();
    let is_message_content = |text: &str| messages.iter().any(|name| is_content(text, name));
    let contents: Vec<&str> =
        assignments.iter().filter(|(_, value)| is_message_content(value)).map(|(name, _)| *name).collect();
    loops.iter().any(|(_, over)| is_message_content(over) || contents.contains(over))
}

/// Tells whether an expression is `name.content`, `name['content']` or `name["content"]`.
fn is_content(expression: &str, name: &str) -> bool {
    let Some(access) = expression.strip_prefix(name) else {
        return false;
    };
    let access: String = access.chars().filter(|character| !character.is_whitespace()).collect();
    [".content", "['content']", "[\"content\"]"].contains(&access.as_str())
}

/// Returns the text inside each `{% .. %}`.
fn statements(template: &str) -> Vec<&str> {
    let mut statements = Vec::new();
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        rest = &rest[start + 2..];
        let Some(end) = rest.find("%}") else {
            break;
        };
        statements.push(rest[..end].trim_matches(['-', '+']).trim());
        rest = &rest[end + 2..];
    }
    statements
}

/// Returns the loop's variable and what it runs over, without filters, tests and slices.
fn for_loop(statement: &str) -> Option<(&str, &str)> {
    let (name, over) = statement.strip_prefix("for ")?.split_once(" in ")?;
    Some((name.trim(), bare(over)))
}

/// Returns the name and the value of a `set`, the value without filters, tests and slices.
fn assignment(statement: &str) -> Option<(&str, &str)> {
    let (name, value) = statement.strip_prefix("set ")?.split_once('=')?;
    Some((name.trim(), bare(value)))
}

fn bare(expression: &str) -> &str {
    let mut expression = expression.trim();
    for end in ["|", " if ", " is ", " recursive"] {
        expression = expression.split(end).next().unwrap_or_default().trim_end();
    }
    let slice = expression.strip_suffix(']').and_then(|inner| inner.rsplit_once('['));
    match slice {
        Some((sliced, bounds)) if bounds.contains(':') && !bounds.contains(['\'', '"']) => sliced.trim_end(),
        _ => expression.trim_start_matches('(').trim_end_matches(')').trim(),
    }
}

#[cfg(test)]
mod tests {
    use super::{ChatStyle, ContentFormat, detect};

    #[test]
    fn a_loop_over_a_messages_content_wants_parts() {
        use ContentFormat::{Parts, Text};
        let rows = [
            ("text alone", "{% for message in messages %}{{ message['content'] }}{% endfor %}", Text, Text),
            ("a loop", "{%- for message in messages %}{%- for c in message['content'] %}{%- endfor %}", Parts, Parts),
            ("an attribute, filtered", "{% for m in messages %}{% for c in m.content | list -%}", Parts, Parts),
            ("a slice", "{% for message in messages[1:] %}{% for c in message.content[1:] %}", Parts, Parts),
            ("a condition", "{% for msg in messages %}{% for c in msg.content if c.type == 'text' %}", Parts, Parts),
            ("a name of its own", "{% for turn in messages %}{% for c in turn.content %}", Text, Parts),
            (
                "an assigned content",
                "{% for message in messages %}{% set x = message.content %}{% for c in x %}",
                Text,
                Parts,
            ),
            ("assigned messages", "{% set all = messages %}{% for t in all %}{% for c in t.content %}", Text, Parts),
            ("a word of media", "{% for message in messages %}{{ message.content }}{# image #}", Parts, Text),
            ("another loop", "{% for message in messages %}{% for call in message.tool_calls %}", Text, Text),
            ("an unfinished tag", "{% for message in messages", Text, Text),
        ];
        for (sentence, template, sglang, vllm) in rows {
            assert_eq!(detect(template, ChatStyle::SgLang), sglang, "SGLang: {sentence}");
            assert_eq!(detect(template, ChatStyle::Vllm), vllm, "vLLM: {sentence}");
        }
    }
}
