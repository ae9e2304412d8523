//! Load reports as bytes.

/// A report of an idle rank but for its requests, in the form of SGLang 0.5.19.
pub(crate) fn stat(running: u64, waiting: u64) -> Vec<u8> {
    rmp_serde::to_vec(&("LoadStat", running, waiting, 0, 1_000, 0)).unwrap()
}

/// Any value as msgpack.
pub(crate) fn msgpack(value: &impl serde::Serialize) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}
