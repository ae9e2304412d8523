//! One load report as msgpack, in each of the forms that engines publish.
//!
//! `LoadStat` is a tagged array that omits nothing. `LoadSnapshot` is a map that omits every field that is zero, and
//! whose header is always the three bytes of map16, even when it is empty.

use rmp_serde::encode::Error;
use serde::Serialize;

const STAT_TAG: &str = "LoadStat";
const MAP16: u8 = 0xde;

/// The wire form of a load report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadForm {
    /// `LoadStat` with 11 elements, topic `load`: SGLang 0.5.20 and later.
    #[default]
    Stat11,
    /// `LoadStat` with 6 elements, topic `load`: SGLang 0.5.19.
    Stat6,
    /// The `LoadSnapshot` map, empty topic: the form of branches, in no release.
    Snapshot,
}

impl LoadForm {
    /// Returns the first frame of every report in this form.
    pub(super) fn topic(self) -> &'static str {
        match self {
            Self::Stat11 | Self::Stat6 => "load",
            Self::Snapshot => "",
        }
    }

    /// Returns what `/server_info` has under `load_topic`; the engines of the map form have no such key.
    pub(super) fn advertised_topic(self) -> Option<&'static str> {
        match self {
            Self::Stat11 | Self::Stat6 => Some(self.topic()),
            Self::Snapshot => None,
        }
    }

    /// Encodes a report. `wall_seconds` is sent by the map form only.
    pub(super) fn encode(self, load: &Reported, rank: Option<u32>, wall_seconds: f64) -> Result<Vec<u8>, Error> {
        match self {
            Self::Stat11 => stat11(load, rank),
            Self::Stat6 => stat6(load, rank),
            Self::Snapshot => snapshot(load, rank, wall_seconds),
        }
    }
}

/// The numbers of one report, under the names that SGLang gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reported {
    /// Requests in slots.
    pub num_running_reqs: u64,
    /// Requests in the queue.
    pub num_waiting_reqs: u64,
    /// KV tokens held by running requests.
    pub num_used_tokens: u64,
    /// KV capacity in tokens.
    pub max_total_num_tokens: u64,
    /// Prompt tokens of waiting requests that no cache covers.
    pub num_waiting_uncached_tokens: u64,
    /// Tokens held by running requests and asked for by waiting ones.
    pub num_total_tokens: u64,
    /// Slots.
    pub max_running_requests: u64,
    /// Prompt tokens computed since the start.
    pub total_prefill_uncached_tokens: u64,
    /// Microseconds spent in prefill since the start.
    pub total_prefill_busy_us: u64,
}

fn stat6(load: &Reported, rank: Option<u32>) -> Result<Vec<u8>, Error> {
    rmp_serde::to_vec(&(
        STAT_TAG,
        load.num_running_reqs,
        load.num_waiting_reqs,
        load.num_used_tokens,
        load.max_total_num_tokens,
        rank,
    ))
}

fn stat11(load: &Reported, rank: Option<u32>) -> Result<Vec<u8>, Error> {
    rmp_serde::to_vec(&(
        STAT_TAG,
        load.num_running_reqs,
        load.num_waiting_reqs,
        load.num_used_tokens,
        load.max_total_num_tokens,
        rank,
        load.num_waiting_uncached_tokens,
        load.num_total_tokens,
        load.max_running_requests,
        load.total_prefill_uncached_tokens,
        load.total_prefill_busy_us,
    ))
}

fn snapshot(load: &Reported, rank: Option<u32>, wall_seconds: f64) -> Result<Vec<u8>, Error> {
    let mut map = SnapshotMap::default();
    map.real("timestamp", wall_seconds)?;
    map.count("dp_rank", rank.map_or(0, u64::from))?;
    map.count("num_running_reqs", load.num_running_reqs)?;
    map.count("num_waiting_reqs", load.num_waiting_reqs)?;
    map.count("num_waiting_uncached_tokens", load.num_waiting_uncached_tokens)?;
    map.count("num_used_tokens", load.num_used_tokens)?;
    map.count("num_total_tokens", load.num_total_tokens)?;
    map.count("max_total_num_tokens", load.max_total_num_tokens)?;
    map.count("max_running_requests", load.max_running_requests)?;
    map.count("total_prefill_uncached_tokens", load.total_prefill_uncached_tokens)?;
    map.count("total_prefill_busy_us", load.total_prefill_busy_us)?;
    Ok(map.into_bytes())
}

/// Entries in the order in which they were added, without those that are zero.
#[derive(Default)]
struct SnapshotMap {
    num_entries: u16,
    entries: Vec<u8>,
}

impl SnapshotMap {
    fn count(&mut self, key: &str, value: u64) -> Result<(), Error> {
        if value == 0 { Ok(()) } else { self.entry(key, &value) }
    }

    fn real(&mut self, key: &str, value: f64) -> Result<(), Error> {
        if value == 0.0 { Ok(()) } else { self.entry(key, &value) }
    }

    fn entry(&mut self, key: &str, value: &impl Serialize) -> Result<(), Error> {
        rmp_serde::encode::write(&mut self.entries, key)?;
        rmp_serde::encode::write(&mut self.entries, value)?;
        self.num_entries += 1;
        Ok(())
    }

    fn into_bytes(self) -> Vec<u8> {
        let mut bytes = vec![MAP16];
        bytes.extend(self.num_entries.to_be_bytes());
        bytes.extend(self.entries);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Reported = Reported {
        num_running_reqs: 2,
        num_waiting_reqs: 3,
        num_used_tokens: 4,
        max_total_num_tokens: 100,
        num_waiting_uncached_tokens: 500,
        num_total_tokens: 600,
        max_running_requests: 32,
        total_prefill_uncached_tokens: 1000,
        total_prefill_busy_us: 2000,
    };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn every_form_has_the_bytes_that_real_encoders_make() {
        let one_used_17 = Reported { num_running_reqs: 1, num_used_tokens: 17, ..Reported::default() };
        let cases = [
            (LoadForm::Stat6, LOAD, Some(0), 0.0, "96a84c6f6164537461740203046400"),
            (LoadForm::Stat11, LOAD, None, 0.0, "9ba84c6f61645374617402030464c0cd01f4cd025820cd03e8cd07d0"),
            (LoadForm::Snapshot, Reported::default(), None, 0.0, "de0000"),
            (LoadForm::Snapshot, Reported::default(), Some(2), 0.0, "de0001a764705f72616e6b02"),
            (
                LoadForm::Snapshot,
                one_used_17,
                Some(0),
                1_700_000_000.5,
                "de0003a974696d657374616d70cb41d954fc40200000b06e756d5f72756e6e696e675f7265717301\
                 af6e756d5f757365645f746f6b656e7311",
            ),
        ];
        for (form, load, rank, wall_seconds, expected) in cases {
            let bytes = form.encode(&load, rank, wall_seconds).unwrap();
            assert_eq!(hex(&bytes), expected, "{form:?} {load:?}");
        }
    }
}
