//! The `tojson` of chat templates: what Python's `json.dumps` writes, byte for byte, since each byte is a token.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Levels of nesting beyond which a value is refused.
const MAX_DEPTH: usize = 128;

/// How values are written.
struct Layout {
    /// Whether characters beyond ASCII are escaped. Hugging Face's default is no, Python's own is yes.
    ensure_ascii: bool,
    /// What each level is indented by; `None` writes all on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter: `tojson(value, ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn to_json(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let option = |name: &str, at: usize| -> Result<Option<Value>, Error> {
        let named = kwargs.get::<Option<Value>>(name)?;
        Ok(named.or_else(|| positional.get(at).cloned()).filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = option("ensure_ascii", 0)?.is_some_and(|value| value.is_true());
    let indent = match option("indent", 1)? {
        Some(value) => Some(indent_text(&value)?),
        None => None,
    };
    let separators = option("separators", 2)?;
    let sort_keys = option("sort_keys", 3)?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    let separator = |at: usize, default: &str| -> Result<String, Error> {
        match &separators {
            Some(pair) => Ok(pair.get_item_by_index(at)?.as_str().unwrap_or(default).to_owned()),
            None => Ok(default.to_owned()),
        }
    };
    let layout = Layout {
        ensure_ascii,
        item_separator: separator(0, if indent.is_some() { "," } else { ", " })?,
        key_separator: separator(1, ": ")?,
        indent,
        sort_keys,
    };
    let mut out = String::new();
    write_value(&mut out, value, &layout, 0)?;
    Ok(Value::from_safe_string(out))
}

fn indent_text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = value.as_i64().and_then(|spaces| usize::try_from(spaces.clamp(0, 64)).ok());
    spaces.map(|spaces| " ".repeat(spaces)).ok_or_else(|| invalid("indent is neither a number nor text"))
}

fn write_value(out: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("the value is nested too deep"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => push(out, format_args!("{value}")),
        ValueKind::Number => {
            let number = f64::try_from(value.clone())?;
            push_float(out, number);
        }
        ValueKind::String => push_text(out, value.as_str().unwrap_or_default(), layout.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => write_list(out, value, layout, depth)?,
        ValueKind::Map => write_object(out, value, layout, depth)?,
        kind => return Err(invalid(&format!("{kind} is not JSON"))),
    }
    Ok(())
}

fn write_list(out: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    out.push('[');
    let mut is_empty = true;
    for item in value.try_iter()? {
        begin_item(out, layout, depth, is_empty);
        is_empty = false;
        write_value(out, &item, layout, depth + 1)?;
    }
    end_items(out, layout, depth, is_empty);
    out.push(']');
    Ok(())
}

fn write_object(out: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    let mut keys: Vec<Value> = value.try_iter()?.collect();
    if layout.sort_keys {
        keys.sort();
    }
    out.push('{');
    let is_empty = keys.is_empty();
    for (at, key) in keys.iter().enumerate() {
        begin_item(out, layout, depth, at == 0);
        match key.as_str() {
            Some(name) => push_text(out, name, layout.ensure_ascii),
            None => push_text(out, &key.to_string(), layout.ensure_ascii),
        }
        out.push_str(&layout.key_separator);
        write_value(out, &value.get_item(key)?, layout, depth + 1)?;
    }
    end_items(out, layout, depth, is_empty);
    out.push('}');
    Ok(())
}

fn begin_item(out: &mut String, layout: &Layout, depth: usize, is_first: bool) {
    if !is_first {
        out.push_str(&layout.item_separator);
    }
    push_line(out, layout, depth + 1);
}

fn end_items(out: &mut String, layout: &Layout, depth: usize, is_empty: bool) {
    if !is_empty {
        push_line(out, layout, depth);
    }
}

fn push_line(out: &mut String, layout: &Layout, depth: usize) {
    if let Some(indent) = &layout.indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn push_text(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            _ if character < ' ' || (ensure_ascii && character > '~') => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    push(out, format_args!("\\u{unit:04x}"));
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// Writes a number as Python's `repr` does: the shortest digits that read back, with an exponent of two digits beyond 1e16 and
/// below 1e-4.
fn push_float(out: &mut String, number: f64) {
    if number.is_nan() {
        return out.push_str("NaN");
    }
    if number.is_infinite() {
        return out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let size = number.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        return push(out, format_args!("{number:?}"));
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    push(out, format_args!("{digits}e{sign}{exponent:0>2}"));
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = out.write_fmt(text);
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    fn rendered(template: &str) -> String {
        let mut environment = Environment::new();
        environment.add_filter("tojson", super::to_json);
        let value: super::super::json::Json = serde_json::from_str(
            r#"{"b":"<a href='x'>&","a":[1,1.0,1e16,1e-7,-0.0,18446744073709551615,true,null,"é\u0007\u007f\"\\"],"e":{},"l":[]}"#,
        )
        .unwrap();
        environment.render_str(template, context!(value => value.into_value())).unwrap()
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let rows = [
            (
                "one line, the client's order, no HTML escapes",
                "{{ value | tojson }}",
                "{\"b\": \"<a href='x'>&\", \"a\": [1, 1.0, 1e+16, 1e-07, -0.0, 18446744073709551615, true, null, \"é\\u0007\u{7f}\\\"\\\\\"], \"e\": {}, \"l\": []}",
            ),
            (
                "indented",
                "{{ {'x': [1, {}], 'y': []} | tojson(indent=2) }}",
                "{\n  \"x\": [\n    1,\n    {}\n  ],\n  \"y\": []\n}",
            ),
            (
                "ASCII alone, sorted",
                "{{ {'z': '😀é', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}",
                "{\"a\": 1, \"z\": \"\\ud83d\\ude00\\u00e9\"}",
            ),
            ("other separators", "{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}", "[1,{\"a\":2}]"),
            ("a number", "{{ 0.1 | tojson }}", "0.1"),
        ];
        for (sentence, template, expected) in rows {
            assert_eq!(rendered(template), expected, "{sentence}");
        }
    }

    #[test]
    fn what_python_refuses_is_refused() {
        let mut environment = Environment::new();
        environment.add_filter("tojson", super::to_json);
        assert!(environment.render_str("{{ nothing | tojson }}", context!()).is_err());
    }
}
