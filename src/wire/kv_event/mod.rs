//! Batches of KV cache events, in every form that SGLang and vLLM have sent.
//!
//! An engine tells which blocks of tokens its cache gained and lost. SGLang up to 0.5.19 sends events as tagged arrays, later
//! versions and vLLM as tagged maps; hashes are signed or unsigned 64-bit integers, or digests. One decoder takes them all.
//!
//! An event is applied whole or not at all: one that cannot be read is counted by its reason, and the others of its batch
//! still apply. Only broken encoding, or a payload without a list of events, refuses a batch.

mod batch;
mod event;
mod extra_keys;
mod field;
mod hash;
mod tokens;

pub use batch::{BadEvents, KvBatch, KvFrameError, decode_batch};
pub use event::BadEvent;
pub use hash::MAX_HASHES_PER_EVENT;
pub use tokens::TokenUse;

#[cfg(test)]
mod tests;
