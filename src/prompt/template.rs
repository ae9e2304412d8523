//! Chat templates: an environment that renders as Hugging Face's does.
//!
//! Templates are the operator's files, so they are trusted to end; messages are not, so what they can cost is bounded: steps by
//! fuel, nesting by the recursion limit, output by the size of a prompt.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::content_format::{ContentFormat, detect};
use super::error::NoTokens;
use super::files::ModelFiles;
use super::settings::ChatStyle;
use super::strftime;
use super::to_json::to_json;

/// Steps of the template machine per rendering. A message takes some hundred.
const MAX_STEPS: u64 = 20_000_000;
/// Levels of nested macros and blocks.
const MAX_RECURSION: usize = 200;
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// A model's chat templates.
pub(super) struct Templates {
    environment: Environment<'static>,
    default: Option<ContentFormat>,
    tool_use: Option<ContentFormat>,
    max_bytes: usize,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen {
    name: &'static str,
    pub(super) format: ContentFormat,
}

impl Templates {
    /// Compiles a model's templates. One that does not compile is logged and is not there.
    pub(super) fn new(files: &ModelFiles, style: ChatStyle, clock: fn() -> SystemTime, max_bytes: usize) -> Self {
        let mut environment = environment(clock);
        for (name, text) in &files.special_tokens {
            environment.add_global(name.clone(), Value::from(text.as_str()));
        }
        let mut add = |name: &'static str, source: Option<&String>| {
            let source = source?;
            if let Err(error) = environment.add_template_owned(name, without_generation_tags(source)) {
                tracing::warn!(template = name, %error, "the chat template cannot be read: chats are routed by load");
                return None;
            }
            Some(detect(source, style))
        };
        let default = add(DEFAULT, files.template.as_ref());
        let tool_use = add(TOOL_USE, files.tool_template.as_ref());
        Self { environment, default, tool_use, max_bytes }
    }

    /// Returns the template for a chat with or without tools.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn choose(&self, has_tools: bool) -> Result<Chosen, NoTokens> {
        match (self.tool_use, self.default) {
            (Some(format), _) if has_tools => Ok(Chosen { name: TOOL_USE, format }),
            (_, Some(format)) => Ok(Chosen { name: DEFAULT, format }),
            _ => Err(NoTokens::NoTemplate),
        }
    }

    /// Renders a chat.
    ///
    /// # Errors
    /// The template refuses the chat, takes too many steps, or writes more than the limit.
    pub(super) fn render(&self, chosen: Chosen, context: &[(String, Value)]) -> Result<String, NoTokens> {
        let context = Value::from_pairs(context.iter().cloned());
        let mut output = Limited { bytes: Vec::new(), max: self.max_bytes, is_full: false };
        let rendered = self
            .environment
            .get_template(chosen.name)
            .and_then(|template| template.render_captured_to(context, &mut output).map(drop));
        if output.is_full {
            return Err(NoTokens::TooLong { max_prompt_bytes: self.max_bytes });
        }
        rendered.map_err(|error| NoTokens::render_failed(error.to_string()))?;
        String::from_utf8(output.bytes).map_err(|error| NoTokens::render_failed(error.to_string()))
    }
}

/// Output up to a limit.
struct Limited {
    bytes: Vec<u8>,
    max: usize,
    is_full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.max {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment(clock: fn() -> SystemTime) -> Environment<'static> {
    let mut environment = Environment::new();
    // Building can fail for odd delimiters only, and these are the usual ones.
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default());
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_unknown_method_callback(python_method);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |pattern: &str| {
        strftime::format(pattern, clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    });
    // In Python, text is a sequence, and so is a dictionary to Jinja.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
    });
    environment
}

/// The methods of Python's types that templates call.
fn python_method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), [affix]) = (value.as_str(), args) {
        let affix = affix.as_str().unwrap_or_default();
        match method {
            "removeprefix" => return Ok(Value::from(text.strip_prefix(affix).unwrap_or(text))),
            "removesuffix" => return Ok(Value::from(text.strip_suffix(affix).unwrap_or(text))),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// Replaces `{% generation %}` and its end, by which trainers mark an assistant's part, by a condition that always holds: the
/// dashes that trim white space stay in force.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let (inner, after) = tag.split_at(end);
        match inner.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&inner.replace("generation", " if true ")),
            "endgeneration" => out.push_str(&inner.replace("endgeneration", " endif ")),
            _ => out.push_str(inner),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{ChatStyle, ModelFiles, NoTokens, Templates};
    use minijinja::Value;

    fn templates(source: &str) -> Templates {
        let files = ModelFiles { template: Some(source.to_owned()), ..ModelFiles::default() };
        Templates::new(&files, ChatStyle::SgLang, || UNIX_EPOCH + Duration::from_secs(1_735_689_600), 1_000)
    }

    fn rendered(source: &str) -> Result<String, NoTokens> {
        let templates = templates(source);
        templates.render(templates.choose(false)?, &[("text".to_owned(), Value::from(" a-b "))])
    }

    #[test]
    fn a_template_renders_as_in_python() {
        let rows = [
            ("blocks are trimmed", "  {% if true %}\nx\n  {% endif %}\ny\n", "x\ny"),
            ("loops break", "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
            (
                "Python's constants",
                "{{ true }} {{ none }} {{ [none, 'a', 1.0] }} {{ {'a': false} }}",
                "True None [None, 'a', 1.0] {'a': False}",
            ),
            ("Python's concatenation", "{{ 'a' ~ none ~ 1 }} {{ none | string }}", "aNone1 None"),
            ("methods", "{{ text.strip().split('-')[-1] }}{{ text.strip().removeprefix('a') }}", "b-b"),
            (
                "methods of dictionaries",
                "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1}.get('b', 2) }}",
                "a12",
            ),
            (
                "a key named as a method",
                "{% for k, v in {'items': 1, 'get': 2}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'get': 1}.get('get') }}",
                "items1get21",
            ),
            ("text is iterable", "{{ text is iterable }} {{ text is sequence }} {{ {} is mapping }}", "True True True"),
            ("the day", "{{ strftime_now('%d %b %Y') }}", "01 Jan 2025"),
            (
                "namespaces",
                "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
                "3",
            ),
            (
                "marks for training",
                "{% for i in [1] %}a {%- generation -%} b {%- endgeneration %} c{% endfor %}",
                "ab c",
            ),
            ("what is missing prints nothing", "[{{ nothing }}]", "[]"),
            ("no escapes", "{{ '<&>' }}", "<&>"),
        ];
        for (sentence, source, expected) in rows {
            assert_eq!(rendered(source).unwrap(), expected, "{sentence}");
        }
    }

    #[test]
    fn what_a_template_may_cost_is_bounded() {
        let rows = [
            ("a raised exception", "{{ raise_exception('only users') }}", "render_failed"),
            (
                "too many steps",
                "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                "render_failed",
            ),
            ("too much output", "{% for i in range(9999) %}0123456789{% endfor %}", "too_long"),
            ("endless recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "render_failed"),
            ("a template that does not compile", "{% if %}", "no_template"),
        ];
        for (sentence, source, reason) in rows {
            assert_eq!(rendered(source).unwrap_err().reason(), reason, "{sentence}");
        }
    }
}
