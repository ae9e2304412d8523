//! The load in vLLM's `GET /metrics`, which is text in the Prometheus exposition format.
//!
//! A line is `name{label="value",...} number [timestamp]`. Of the series, three gauges count: `vllm:num_requests_running`,
//! `vllm:num_requests_waiting` and `vllm:kv_cache_usage_perc` (0 to 1, until 0.10 `vllm:gpu_cache_usage_perc`), each with the label `engine`
//! for the DP rank (absent before 0.9: rank 0). `vllm:cache_config_info` has the size of the cache in its labels `num_gpu_blocks`
//! and `block_size`; where it is missing, the use of the cache is not known in tokens and is left out.
//!
//! Everything else is passed over, however it looks: an exposition holds much that is none of our business. A gauge of ours that
//! is not a count (NaN, infinite, negative, a fraction) refuses the whole answer, and so does one that a rank lacks. Gauges of
//! several models of one rank add up.

use std::collections::BTreeMap;

use crate::logic::endpoint::MAX_DP_RANKS;
use crate::logic::load::{LoadSource, RankLoad};
use crate::wire::load_frame::{MAX_REQUESTS, MAX_TOKENS};
use crate::wire::polled_load::{PolledLoadError, in_order};

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
const KV_USAGE_BEFORE_0_10: &str = "vllm:gpu_cache_usage_perc";
const CACHE_CONFIG: &str = "vllm:cache_config_info";

#[derive(Debug, Default)]
struct Gauges {
    running: Option<u64>,
    waiting: Option<u64>,
    kv_usage: Option<f64>,
    capacity_tokens: Option<u64>,
}

/// Reads the loads of the ranks, in order.
///
/// # Errors
/// Refuses the whole text for one rank that cannot be used.
pub fn decode_metrics(text: &[u8]) -> Result<Vec<RankLoad>, PolledLoadError> {
    let text = std::str::from_utf8(text).map_err(|_| PolledLoadError::Malformed)?;
    let mut ranks: BTreeMap<u32, Gauges> = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim_start();
        if !line.starts_with("vllm:") {
            continue;
        }
        let name_end = line.find(['{', ' ', '\t']).unwrap_or(line.len());
        let name = &line[..name_end];
        if ![RUNNING, WAITING, KV_USAGE, KV_USAGE_BEFORE_0_10, CACHE_CONFIG].contains(&name) {
            continue;
        }
        let sample = Sample::parse(&line[name_end..]).ok_or(PolledLoadError::Malformed)?;
        let rank = sample.rank()?;
        if ranks.len() >= MAX_DP_RANKS as usize && !ranks.contains_key(&rank) {
            return Err(PolledLoadError::Ranks);
        }
        ranks.entry(rank).or_default().take(name, &sample)?;
    }
    // The size of a cache alone is no rank: it has no requests.
    ranks.retain(|_, gauges| gauges.running.is_some() || gauges.waiting.is_some() || gauges.kv_usage.is_some());
    let loads = ranks.into_iter().map(|(rank, gauges)| Ok((rank, gauges.to_load()?)));
    in_order(loads.collect::<Result<Vec<_>, _>>()?)
}

impl Gauges {
    fn take(&mut self, name: &str, sample: &Sample<'_>) -> Result<(), PolledLoadError> {
        match name {
            RUNNING => add(&mut self.running, sample.count(RUNNING)?),
            WAITING => add(&mut self.waiting, sample.count(WAITING)?),
            KV_USAGE | KV_USAGE_BEFORE_0_10 => self.kv_usage = Some(sample.part(KV_USAGE)?),
            _ => self.capacity_tokens = sample.cache_size(),
        }
        Ok(())
    }

    fn to_load(&self) -> Result<RankLoad, PolledLoadError> {
        let kv_usage = self.kv_usage.ok_or(PolledLoadError::Missing(KV_USAGE))?;
        Ok(RankLoad {
            source: LoadSource::VllmMetrics,
            running: self.running.ok_or(PolledLoadError::Missing(RUNNING))?,
            waiting: self.waiting.ok_or(PolledLoadError::Missing(WAITING))?,
            used_tokens: self.capacity_tokens.map(|capacity| (kv_usage * capacity as f64).round() as u64),
            capacity_tokens: self.capacity_tokens,
            ..RankLoad::default()
        })
    }
}

fn add(sum: &mut Option<u64>, count: u64) {
    *sum = Some(sum.unwrap_or(0).saturating_add(count));
}

/// One sample without its name.
struct Sample<'a> {
    labels: &'a str,
    value: &'a str,
}

impl<'a> Sample<'a> {
    /// Splits the rest of a line after its name. Braces and quotes may stand inside the value of a label.
    fn parse(rest: &'a str) -> Option<Self> {
        let (labels, rest) = match rest.strip_prefix('{') {
            None => ("", rest),
            Some(inner) => {
                let end = end_of_labels(inner)?;
                (&inner[..end], &inner[end + 1..])
            }
        };
        Some(Self { labels, value: rest.split_whitespace().next()? })
    }

    /// Returns the value of the label. One with an escape in it is none of those that are asked for.
    fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once("=\"")?;
            let end = end_of_text(after)?;
            if key.trim_start_matches([',', ' ']) == name {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
    }

    fn rank(&self) -> Result<u32, PolledLoadError> {
        match self.label("engine") {
            None => Ok(0),
            Some(text) => text.parse().map_err(|_| PolledLoadError::Ranks),
        }
    }

    fn number(&self, name: &'static str) -> Result<f64, PolledLoadError> {
        let number: f64 = self.value.parse().map_err(|_| PolledLoadError::NotACount(name))?;
        if number.is_finite() && number >= 0.0 { Ok(number) } else { Err(PolledLoadError::NotACount(name)) }
    }

    fn count(&self, name: &'static str) -> Result<u64, PolledLoadError> {
        let number = self.number(name)?;
        let is_count = number.fract() == 0.0 && number <= MAX_REQUESTS as f64;
        if is_count { Ok(number as u64) } else { Err(PolledLoadError::NotACount(name)) }
    }

    /// A cache that is full may be told as a hair more than one.
    fn part(&self, name: &'static str) -> Result<f64, PolledLoadError> {
        let number = self.number(name)?;
        if number <= 1.001 { Ok(number.min(1.0)) } else { Err(PolledLoadError::NotACount(name)) }
    }

    fn cache_size(&self) -> Option<u64> {
        let number = |name| self.label(name)?.parse::<u64>().ok();
        let tokens = number("num_gpu_blocks")?.checked_mul(number("block_size")?)?;
        (1..=MAX_TOKENS).contains(&tokens).then_some(tokens)
    }
}

/// Returns where the closing brace is.
fn end_of_labels(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let next = rest.find(['"', '}'])?;
        if rest[next..].starts_with('}') {
            return Some(at + next);
        }
        at += next + 1;
        at += end_of_text(&text[at..])? + 1;
    }
}

/// Returns where the closing quote is.
fn end_of_text(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
