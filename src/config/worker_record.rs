//! A worker as the operator adds it while the router runs: one JSON object with the keys of a `[[worker]]` table, judged by the
//! same rules. A key of an engine itself is not accepted there, only the name of the variable that holds it: what was added may
//! be stored, and is shown.

use serde_json::{Map, Value};

use crate::config::error::ConfigError;
use crate::config::raw_worker::RawWorker;
use crate::config::workers::described_by;
use crate::logic::admin_set::AdminWorker;

/// Characters of a refused value that are shown.
const MAX_SHOWN_CHARS: usize = 128;

/// Why an object does not describe a worker. The text is for the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum InvalidWorker {
    /// It is not a JSON object.
    #[error("the body is not a JSON object: line {line}, column {column}")]
    NotAnObject {
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in bytes.
        column: usize,
    },
    /// It has no address.
    #[error("url is missing")]
    NoUrl,
    /// No setting of a worker has this key.
    #[error("{key}: there is no such setting of a worker")]
    UnknownKey {
        /// The key, cut where it is long.
        key: String,
    },
    /// A value has another type than its setting, or one that the type cannot hold.
    #[error("{key} = {value}: {reason}")]
    Type {
        /// The key.
        key: String,
        /// The value, cut where it is long.
        value: String,
        /// What is expected.
        reason: String,
    },
    /// A value breaks a rule of its setting.
    #[error(transparent)]
    Rule(#[from] ConfigError),
}

/// Reads the JSON object that describes a worker.
///
/// # Errors
/// Names the key and the value that is refused. A value that may be a key of an engine is not shown.
pub(crate) fn read_worker(
    body: &[u8],
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<AdminWorker, InvalidWorker> {
    let object: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| InvalidWorker::NotAnObject { line: error.line(), column: error.column() })?;
    worker_of(object, environment)
}

pub(super) fn worker_of(
    object: Map<String, Value>,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<AdminWorker, InvalidWorker> {
    if object.contains_key("api_key") {
        let rule = "is not accepted here: put it into an environment variable and name that in api_key_env";
        return Err(ConfigError::Secret { key: "api_key", rule }.into());
    }
    if !object.contains_key("url") {
        return Err(InvalidWorker::NoUrl);
    }
    for (key, value) in &object {
        check_type(key, value)?;
    }
    let record = Value::Object(object);
    let text = record.to_string();
    let table: RawWorker = serde_json::from_value(record).map_err(|error| InvalidWorker::Type {
        key: "url".to_owned(),
        value: "...".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(AdminWorker { endpoint: described_by(&table, environment)?, record: text.into() })
}

/// Reads one key by itself, so that an error can name it: the reader of the whole table does not say where it was.
fn check_type(key: &str, value: &Value) -> Result<(), InvalidWorker> {
    let mut alone = Map::new();
    alone.insert("url".to_owned(), Value::String(String::new()));
    alone.insert(key.to_owned(), value.clone());
    let Err(error) = serde_json::from_value::<RawWorker>(Value::Object(alone)) else { return Ok(()) };
    let reason = error.to_string();
    let key = shortened(key);
    if reason.starts_with("unknown field") {
        return Err(InvalidWorker::UnknownKey { key });
    }
    // The reader's sentence begins with what it found, which is shown already.
    let reason = reason.rsplit_once(", ").map_or(reason.as_str(), |(_, expected)| expected).to_owned();
    // People do write the key itself where its variable is to be named.
    let value = if key == "api_key_env" { "<secret>".to_owned() } else { shortened(&value.to_string()) };
    Err(InvalidWorker::Type { key, value, reason })
}

fn shortened(text: &str) -> String {
    let mut chars = text.chars();
    let mut shown: String = chars.by_ref().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if chars.next().is_some() {
        shown.push_str("...");
    }
    shown.replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::read_worker;
    use crate::logic::endpoint::Secret;

    fn environment(variable: &str) -> Option<String> {
        (variable == "ENGINE_KEY").then(|| "sk-engine".to_owned())
    }

    fn refusal(body: &str) -> String {
        read_worker(body.as_bytes(), &environment).map(drop).expect_err(body).to_string()
    }

    #[test]
    fn an_object_is_judged_like_a_worker_table() {
        let body = br#"{"url": "W:1/", "models": ["m"], "api_key_env": "ENGINE_KEY", "load_endpoint_port_base": 5559, "dp_size": 2}"#;
        let worker = read_worker(body, &environment).expect("a worker");
        let overrides = &worker.endpoint.overrides;
        assert_eq!(worker.endpoint.url.as_str(), "http://w:1");
        assert_eq!(overrides.models, ["m".into()]);
        assert_eq!(overrides.api_key, Some(Secret::new("sk-engine")));
        assert_eq!(overrides.feeds.as_ref().map(|feeds| feeds.dp_size), Some(2));
        assert!(!worker.record.contains("sk-engine"), "{}", worker.record);
        let again = read_worker(worker.record.as_bytes(), &environment).expect("what is stored adds it again");
        assert_eq!(again, worker);
    }

    #[test]
    fn what_is_refused_is_named_with_its_value() {
        let rows = [
            ("", "the body is not a JSON object: line 1, column 0"),
            ("[]", "the body is not a JSON object"),
            ("{}", "url is missing"),
            (r#"{"url": 7}"#, "url = 7: expected a string"),
            (r#"{"url": "ftp://w:1"}"#, "worker.url: \"ftp://w:1\" is not the address of a worker: only http://"),
            (r#"{"url": "http://u:marker@w:1"}"#, "worker.url = \"<credentials>@w:1\": credentials do not belong"),
            (r#"{"url": "w:1", "dpsize": 2}"#, "dpsize: there is no such setting of a worker"),
            (r#"{"url": "w:1", "dp_size": "two"}"#, "dp_size = \"two\": expected u32"),
            (r#"{"url": "w:1", "load_endpoint_port_base": 70000}"#, "load_endpoint_port_base = 70000: expected u16"),
            (
                r#"{"url": "w:1", "dp_size": 0, "load_endpoint_port_base": 1}"#,
                "worker http://w:1: dp_size = 0: must be",
            ),
            (r#"{"url": "w:1", "dp_size": 2}"#, "worker http://w:1: dp_size = 2: has no effect without"),
            (r#"{"url": "w:1", "models": [" "]}"#, "worker http://w:1: models = \" \": must be the name of a model"),
            (
                r#"{"url": "w:1", "api_key_env": "OTHER"}"#,
                "worker http://w:1: api_key_env = \"OTHER\": this environment",
            ),
        ];
        for (body, expected) in rows {
            let refused = refusal(body);
            assert!(refused.starts_with(expected), "{body}: {refused}");
        }
        assert!(refusal(&format!(r#"{{"url": "w:1", "dp_size": "{}"}}"#, "x".repeat(1 << 16))).len() < 300);
    }

    #[test]
    fn a_key_of_an_engine_is_neither_accepted_nor_shown() {
        let rows = [
            (r#"{"url": "w:1", "api_key": "sk-marker"}"#, "api_key: is not accepted here"),
            (r#"{"url": "w:1", "api_key": ["sk-marker"]}"#, "api_key: is not accepted here"),
            (r#"{"url": "w:1", "api_key_env": "sk-marker"}"#, "worker http://w:1: api_key_env: must be the name"),
            (r#"{"url": "w:1", "api_key_env": ["sk-marker"]}"#, "api_key_env = <secret>: expected a string"),
        ];
        for (body, expected) in rows {
            let refused = refusal(body);
            assert!(refused.starts_with(expected) && !refused.contains("marker"), "{body}: {refused}");
        }
    }
}
