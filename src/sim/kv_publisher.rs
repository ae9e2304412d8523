//! A stub of the KV event publisher: sockets that exist, so that a subscriber can connect.
//!
//! The engine has no cache, hence nothing to report. Each rank sends what a fresh SGLang engine sends first, a batch
//! with sequence 0 that holds `AllBlocksCleared`, right after its socket is bound, and nothing ever after. PUB does
//! not keep messages for later subscribers, so that in practice nobody receives it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::clock;
use super::config::{KvEvents, SimConfig};
use super::error::SimError;
use super::lock::lock;
use super::sockets::{RankSockets, SocketOptions};

/// The default topic of SGLang: the frame is present and empty.
pub(super) const TOPIC: &str = "";

/// The default of SGLang's `KVEventsConfig`.
const SEND_HIGH_WATER_MARK: i32 = 100_000;

/// The KV event sockets of an engine, if it has any.
pub(super) struct KvPublisher {
    sockets: Mutex<Option<RankSockets>>,
    port_base: Option<u16>,
}

impl KvPublisher {
    pub(super) fn open(config: &SimConfig) -> Result<Self, SimError> {
        let KvEvents::Published { port_base } = config.kv_events else {
            return Ok(Self { sockets: Mutex::new(None), port_base: None });
        };
        let options = SocketOptions { scope: config.scope, send_high_water_mark: SEND_HIGH_WATER_MARK };
        let sockets = RankSockets::open(config.dp_size, port_base, options)?;
        for rank in 0..config.dp_size {
            let frames = vec![TOPIC.into(), 0u64.to_be_bytes().to_vec(), cleared(rank, clock::wall_seconds())?];
            sockets.send(rank, frames)?;
        }
        let port_base = Some(sockets.port_base());
        Ok(Self { sockets: Mutex::new(Some(sockets)), port_base })
    }

    pub(super) fn port_base(&self) -> Option<u16> {
        self.port_base
    }

    /// Closes the sockets; their ports are free when it returns.
    pub(super) fn close(&self) {
        drop(lock(&self.sockets).take());
    }
}

/// Encodes a batch `[ts, events, attn_dp_rank]` whose one event is the tagged map of SGLang 0.5.20 and later.
fn cleared(rank: u32, wall_seconds: f64) -> Result<Vec<u8>, SimError> {
    let event = BTreeMap::from([("type", "AllBlocksCleared")]);
    Ok(rmp_serde::to_vec(&(wall_seconds, [event], rank))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_is_an_array_with_one_tagged_map() {
        let mut expected = vec![0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x91, 0x81, 0xa4];
        expected.extend(b"type\xb0AllBlocksCleared\x01");
        assert_eq!(cleared(1, 1.0).unwrap(), expected);
    }
}
