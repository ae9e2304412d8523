//! What the router says, as text for a terminal. Missing is shown as a dash.

use std::fmt::Write;

use serde_json::Value;

/// Workers in one picture of `top`; the busiest ones.
const MAX_WORKERS: usize = 40;
const MAX_DECISIONS: usize = 8;
/// Characters of one cell.
const MAX_CELL: usize = 60;

/// Returns the text without what a terminal would obey: engines choose some of these texts.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::String(text) => plain(text).chars().take(MAX_CELL).collect(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Returns the list of `/workers`.
pub(crate) fn workers(fleet: &Value) -> String {
    let mut rows = vec![row(&["WORKER", "ADDRESS", "STATE", "LOAD", "DEPTH", "IN FLIGHT", "MODELS", "PROBLEM"])];
    for worker in fleet["workers"].as_array().into_iter().flatten() {
        let load = &worker["load"];
        let cells = [
            &worker["id"],
            &worker["url"],
            &worker["state"],
            &load["trust"],
            &load["depth"],
            &worker["in_flight"],
            &worker["models"],
            &worker["problem"],
        ];
        rows.push(cells.map(text).to_vec());
    }
    table(&rows)
}

/// Returns one picture of a running router; rates are those since the picture before.
pub(crate) fn picture(frame: &Value, before: Option<&Value>) -> String {
    let mut out = String::new();
    let rate = |read: fn(&Value) -> f64| {
        let Some(before) = before else { return "-".to_owned() };
        let millis = number(&frame["wall_ms"]) - number(&before["wall_ms"]);
        let by = read(frame) - read(before);
        if millis > 0.0 && by >= 0.0 { format!("{:.1}/s", 1_000.0 * by / millis) } else { "-".to_owned() }
    };
    let is_on_fallback = frame["is_on_fallback"] == true;
    let workers = frame["workers"].as_array().map_or(&[][..], Vec::as_slice);
    let serving = workers.iter().filter(|worker| worker["state"] == "serving").count();
    let parts = [
        format!(
            "fathom {}  policy {}  serving {serving} of {}",
            text(&frame["version"]),
            text(&frame["policy"]),
            workers.len()
        ),
        format!(
            "requests {}  errors {}  open {}  queued {}",
            rate(ended),
            rate(failed),
            text(&frame["open"]),
            text(&frame["queued"])
        ),
        format!(
            "decisions {}  most chosen {}  load by {}",
            rate(|frame| number(&frame["decisions"]["num_ever"])),
            percent(&frame["decisions"]["largest_share"]),
            if is_on_fallback { "IN-FLIGHT: some engine's load is missing or old" } else { "the engines" }
        ),
    ];
    for part in parts {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{part}");
    }
    out.push('\n');
    out.push_str(&table(&worker_rows(workers)));
    if workers.len() > MAX_WORKERS {
        let _ = writeln!(out, "and {} less busy ones", workers.len() - MAX_WORKERS);
    }
    out.push('\n');
    let mut rows = vec![row(&["DECISION", "WORKER", "REASON", "BASIS", "IN CACHE", "OF TOKENS"])];
    for decision in frame["decisions"]["last"].as_array().into_iter().flatten().take(MAX_DECISIONS) {
        let cells = ["id", "worker", "reason", "basis", "matched", "prompt"].map(|key| text(&decision[key]));
        rows.push(cells.to_vec());
    }
    out.push_str(&table(&rows));
    out
}

fn worker_rows(workers: &[Value]) -> Vec<Vec<String>> {
    let mut busiest: Vec<&Value> = workers.iter().collect();
    busiest.sort_by_key(|worker| std::cmp::Reverse(worker["in_flight"].as_u64().unwrap_or(0)));
    let mut rows =
        vec![row(&["WORKER", "ADDRESS", "STATE", "LOAD", "RUN", "WAIT", "FLIGHT", "KV", "AGE MS", "FAILED"])];
    for worker in busiest.into_iter().take(MAX_WORKERS) {
        let ranks = worker["ranks"].as_array().map_or(&[][..], Vec::as_slice);
        let sum = |key: &str| ranks.iter().filter_map(|rank| rank[key].as_u64()).reduce(|a, b| a.saturating_add(b));
        let known = ranks.iter().filter_map(|rank| Some((rank["used"].as_u64()?, rank["capacity"].as_u64()?)));
        let (used, capacity) = known.fold((0.0, 0.0), |sum, (used, all)| (sum.0 + used as f64, sum.1 + all as f64));
        let kv = if capacity > 0.0 { format!("{:.0}%", 100.0 * used / capacity) } else { "-".to_owned() };
        let count = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        rows.push(vec![
            text(&worker["id"]),
            text(&worker["url"]),
            text(&worker["state"]),
            text(&worker["trust"]),
            count(sum("running")),
            count(sum("waiting")),
            text(&worker["in_flight"]),
            kv,
            text(&worker["age_ms"]),
            format!("{} of {}", text(&worker["failed"]), text(&worker["ended"])),
        ]);
    }
    rows
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |part| format!("{:.0}%", 100.0 * part))
}

/// Each end is [who, how, how often].
fn ends(frame: &Value, is_meant: fn(&str, &str) -> bool) -> f64 {
    let ends = frame["ends"].as_array().into_iter().flatten();
    ends.filter(|end| is_meant(end[0].as_str().unwrap_or(""), end[1].as_str().unwrap_or("")))
        .map(|end| number(&end[2]))
        .sum()
}

fn ended(frame: &Value) -> f64 {
    ends(frame, |_, _| true)
}

fn failed(frame: &Value) -> f64 {
    ends(frame, |_, outcome| ["server_error", "broke_off", "stood_still"].contains(&outcome))
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn table(rows: &[Vec<String>]) -> String {
    let num_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..num_columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{picture, plain, workers};

    #[test]
    fn nothing_that_an_engine_says_reaches_the_terminal_as_a_command() {
        assert_eq!(plain("a\u{1b}[2J\nb\u{9b}"), "a?[2J?b?");
        let fleet = json!({"workers": [{"id": "w1", "url": "http://a:1", "models": ["x\u{1b}]0;\u{7}"]}]});
        let shown = workers(&fleet);
        assert!(shown.contains("w1") && !shown.contains('\u{1b}') && shown.lines().count() == 2, "{shown}");
    }

    #[test]
    fn what_is_missing_is_a_dash_and_rates_need_two_pictures() {
        let frame = |wall_ms: u64, answered: u64| {
            json!({"wall_ms": wall_ms, "ends": [["worker", "answered", answered]],
            "workers": [{"id": "w1", "url": "http://a:1", "state": "pending", "ranks": []}]})
        };
        let first = picture(&frame(1_000, 10), None);
        assert!(first.contains("requests -  errors -") && first.contains("serving 0 of 1"), "{first}");
        let second = picture(&frame(3_000, 30), Some(&frame(1_000, 10)));
        assert!(second.contains("requests 10.0/s  errors 0.0/s"), "{second}");
        let restarted = picture(&frame(4_000, 0), Some(&frame(3_000, 30)));
        assert!(restarted.contains("requests -"), "{restarted}");
    }
}
