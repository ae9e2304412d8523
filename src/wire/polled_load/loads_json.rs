//! SGLang's `GET /v1/loads`: `{"timestamp": ..., "loads": [{"dp_rank": 0, "num_running_reqs": 3, ...}, ...]}` (0.5.23).
//!
//! Unlike the published map, every field is written out, so an absent one is not zero: requests running and waiting, and the rank,
//! must be there. A rank whose own `timestamp` is zero was never measured.

use serde::Deserialize;
use serde_json::Value;

use crate::logic::load::{LoadSource, RankLoad};
use crate::wire::load_frame::{MAX_REQUESTS, MAX_TOKENS};
use crate::wire::polled_load::{PolledLoadError, in_order};

#[derive(Debug, Deserialize)]
struct Answer {
    loads: Vec<serde_json::Map<String, Value>>,
}

/// Decodes the answer into the loads of the ranks, in order.
///
/// # Errors
/// Refuses the whole answer for one rank that cannot be used.
pub fn decode_loads(body: &[u8]) -> Result<Vec<RankLoad>, PolledLoadError> {
    let answer: Answer = serde_json::from_slice(body).map_err(|_| PolledLoadError::Malformed)?;
    let ranks = answer.loads.iter().map(rank_load).collect::<Result<Vec<_>, _>>()?;
    in_order(ranks)
}

fn rank_load(fields: &serde_json::Map<String, Value>) -> Result<(u32, RankLoad), PolledLoadError> {
    let requests = |key| count(fields, key, MAX_REQUESTS);
    let tokens = |key| count(fields, key, MAX_TOKENS);
    let rank = required("dp_rank", count(fields, "dp_rank", u64::from(u32::MAX))?)? as u32;
    if fields.get("timestamp").and_then(Value::as_f64) == Some(0.0) {
        return Err(PolledLoadError::NotMeasured);
    }
    let capacity_tokens = tokens("max_total_num_tokens")?.filter(|capacity| *capacity > 0);
    let cut = |used: u64| capacity_tokens.map_or(used, |capacity| used.min(capacity));
    let load = RankLoad {
        source: LoadSource::V1Loads,
        running: required("num_running_reqs", requests("num_running_reqs")?)?,
        waiting: required("num_waiting_reqs", requests("num_waiting_reqs")?)?,
        used_tokens: tokens("num_used_tokens")?.map(cut),
        capacity_tokens,
        waiting_uncached_tokens: tokens("num_waiting_uncached_tokens")?,
        total_tokens: tokens("num_total_tokens")?,
        max_running: requests("max_running_requests")?.filter(|limit| *limit > 0),
        prefill_uncached_tokens_total: count(fields, "total_prefill_uncached_tokens", i64::MAX as u64)?,
        prefill_busy_us_total: count(fields, "total_prefill_busy_us", i64::MAX as u64)?,
    };
    Ok((rank, load))
}

/// Reads a count; absent and null are the same.
fn count(
    fields: &serde_json::Map<String, Value>,
    key: &'static str,
    limit: u64,
) -> Result<Option<u64>, PolledLoadError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|count| *count <= limit) {
            Some(count) => Ok(Some(count)),
            None => Err(PolledLoadError::NotACount(key)),
        },
    }
}

fn required(key: &'static str, value: Option<u64>) -> Result<u64, PolledLoadError> {
    value.ok_or(PolledLoadError::Missing(key))
}

#[cfg(test)]
mod tests {
    use super::decode_loads;
    use crate::logic::load::{LoadSource, RankLoad};
    use crate::wire::golden;

    #[test]
    fn what_the_engines_own_encoder_wrote_is_read() {
        let recorded =
            std::fs::read(format!("{}/tests/golden/sglang-0.5.23-v1-loads.json", env!("CARGO_MANIFEST_DIR")));
        let loads = decode_loads(&recorded.expect("a recording")).expect("loads");
        let first = RankLoad {
            source: LoadSource::V1Loads,
            running: 3,
            waiting: 2,
            used_tokens: Some(4_000),
            capacity_tokens: Some(100_000),
            waiting_uncached_tokens: Some(120),
            total_tokens: Some(4_500),
            max_running: Some(32),
            prefill_uncached_tokens_total: Some(1_000),
            prefill_busy_us_total: Some(2_000),
        };
        assert_eq!(loads[0], first);
        assert_eq!((loads.len(), loads[1].running, loads[1].waiting), (2, 0, 0), "an idle rank says so");
    }

    #[test]
    fn an_answer_counts_as_a_whole_or_not_at_all() {
        let rank =
            |rank: &str, rest: &str| format!(r#"{{"dp_rank":{rank},"num_running_reqs":1,"num_waiting_reqs":2{rest}}}"#);
        let answer = |ranks: &[String]| format!(r#"{{"loads":[{}]}}"#, ranks.join(","));
        let rows = [
            ("".to_owned(), "malformed"),
            ("[]".to_owned(), "malformed"),
            (r#"{"loads":{}}"#.to_owned(), "malformed"),
            (r#"{"loads":[7]}"#.to_owned(), "malformed"),
            (answer(&[]), "no_rank"),
            (r#"{"loads":[{"dp_rank":0,"num_running_reqs":1}]}"#.to_owned(), "missing"),
            (r#"{"loads":[{"num_running_reqs":1,"num_waiting_reqs":1}]}"#.to_owned(), "missing"),
            (answer(&[rank("0", ""), rank("2", "")]), "ranks"),
            (answer(&[rank("1", "")]), "ranks"),
            (answer(&[rank("0", ""), rank("0", "")]), "ranks"),
            (answer(&[rank("-1", "")]), "not_a_count"),
            (answer(&[rank("0", r#","num_used_tokens":-1"#)]), "not_a_count"),
            (answer(&[rank("0", r#","num_used_tokens":1.5"#)]), "not_a_count"),
            (answer(&[rank("0", r#","num_used_tokens":"1""#)]), "not_a_count"),
            (answer(&[rank("0", r#","num_used_tokens":1e30"#)]), "not_a_count"),
            (answer(&[rank("0", r#","timestamp":0.0"#)]), "not_measured"),
        ];
        for (body, reason) in rows {
            assert_eq!(decode_loads(body.as_bytes()).map_err(|error| error.reason()), Err(reason), "{body}");
        }
        let bare = decode_loads(answer(&[rank("1", ""), rank("0", "")]).as_bytes()).expect("loads");
        assert_eq!(bare.len(), 2);
        assert_eq!((bare[0].used_tokens, bare[0].capacity_tokens), (None, None), "what is missing is not zero");
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let recorded =
            std::fs::read(format!("{}/tests/golden/sglang-0.5.23-v1-loads.json", env!("CARGO_MANIFEST_DIR")));
        golden::check_bytes(2_000, vec![recorded.expect("a recording")], |bytes| {
            let _ = decode_loads(bytes);
        });
    }
}
