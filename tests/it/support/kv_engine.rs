//! An engine whose KV events are sent by hand: its HTTP side is simulated, its publishers and its replay sockets are the test's.

use std::sync::Arc;
use std::time::Duration;

use fathom_router::config::RouterConfig;
use fathom_router::logic::block_hash::{Units, engine_keys, prompt_keys};
use fathom_router::logic::endpoint::{Endpoint, FeedDescriptor, WorkerUrl};
use fathom_router::logic::prompt_keys::{HashVariant, PromptKeys};
use fathom_router::sim::SimEngine;
use serde_json::{Value, json};

use super::{Publisher, engine, eventually, fast_config, msgpack};

pub(crate) const BLOCK_SIZE: u32 = 4;

/// Which parts an answer to a replay request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Delimiter, sequence, payload: SGLang up to 0.5.21.
    Three,
    /// Delimiter, topic, sequence, payload: SGLang from 0.5.22, vLLM.
    Four,
}

/// An engine of one rank.
pub(crate) struct KvEngine {
    pub(crate) http: SimEngine,
    pub(crate) publisher: Publisher,
    replay: Option<(zmq::Socket, zmq::Context)>,
    replay_port: Option<u16>,
}

impl KvEngine {
    pub(crate) async fn start(name: &str) -> Self {
        Self { http: engine(name).await, publisher: Publisher::bind(), replay: None, replay_port: None }
    }

    pub(crate) async fn with_replay(name: &str) -> Self {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::ROUTER).unwrap();
        socket.set_linger(0).unwrap();
        socket.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        let port = endpoint.rsplit(':').next().unwrap().parse().unwrap();
        Self { replay: Some((socket, context)), replay_port: Some(port), ..Self::start(name).await }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let mut endpoint = Endpoint::new(WorkerUrl::parse(&self.http.url()).unwrap());
        endpoint.overrides.feeds = Some(FeedDescriptor {
            dp_size: 1,
            endpoint_host: "*".to_owned(),
            endpoint_port_base: Some(self.publisher.port()),
            topic: String::new(),
            block_size: Some(BLOCK_SIZE),
            load_endpoint_port_base: None,
            load_topic: None,
            replay_endpoint_port_base: self.replay_port,
        });
        endpoint
    }

    /// Returns the configuration of a router over the engines.
    pub(crate) fn config_of(engines: &[&Self]) -> RouterConfig {
        let mut config = fast_config(&[]);
        config.workers = engines.iter().map(|engine| engine.endpoint()).collect();
        config.kv.replay_timeout = Duration::from_millis(300);
        config
    }

    pub(crate) fn publish(&self, sequence: u64, events: &[Value]) {
        self.publisher.send_parts(vec![Vec::new(), sequence.to_be_bytes().to_vec(), batch(events)]);
    }

    /// Waits for the next replay request, and returns who asks and from which number on.
    pub(crate) async fn replay_request(&self) -> (Vec<u8>, u64) {
        let (socket, _) = self.replay.as_ref().expect("an engine with replay");
        eventually("somebody asks for a replay", || async {
            let parts = socket.recv_multipart(zmq::DONTWAIT).ok()?;
            let [asker, delimiter, from] = parts.try_into().expect("three parts");
            assert!(delimiter.is_empty());
            Some((asker, u64::from_be_bytes(from.try_into().expect("eight bytes"))))
        })
        .await
    }

    /// Answers one batch of a replay.
    pub(crate) fn answer(&self, asker: &[u8], layout: Layout, sequence: u64, events: &[Value]) {
        self.send_answer(asker, layout, sequence, batch(events));
    }

    /// Ends a replay.
    pub(crate) fn end_replay(&self, asker: &[u8], layout: Layout) {
        self.send_answer(asker, layout, u64::MAX, Vec::new());
    }

    fn send_answer(&self, asker: &[u8], layout: Layout, sequence: u64, payload: Vec<u8>) {
        let (socket, _) = self.replay.as_ref().expect("an engine with replay");
        let mut parts = vec![asker.to_vec(), Vec::new()];
        if layout == Layout::Four {
            parts.push(b"kv".to_vec());
        }
        parts.extend([sequence.to_be_bytes().to_vec(), payload]);
        socket.send_multipart(parts, zmq::DONTWAIT).unwrap();
    }
}

fn batch(events: &[Value]) -> Vec<u8> {
    // Rank 3 is not this engine's: the socket says whose a batch is.
    msgpack(&json!([1.5, events, 3]))
}

/// A prompt, and what an engine says of its blocks.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) tokens: Vec<u32>,
}

impl Chain {
    /// Returns a prompt of so many blocks that shares none with those of another number.
    pub(crate) fn new(number: u32, num_blocks: u32) -> Self {
        Self { tokens: (0..num_blocks * BLOCK_SIZE).map(|token| 10_000 * number + token).collect() }
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        engine_keys(Units::Tokens(&self.tokens), BLOCK_SIZE, None).into_iter().map(u64::cast_signed).collect()
    }

    /// Returns the event that all blocks were stored.
    pub(crate) fn stored(&self) -> Value {
        self.stored_from(0)
    }

    /// Returns the event that the blocks from this one on were stored.
    pub(crate) fn stored_from(&self, block: usize) -> Value {
        let ids = self.ids();
        json!({
            "type": "BlockStored", "block_hashes": ids[block..], "block_size": BLOCK_SIZE, "medium": "GPU",
            "parent_block_hash": block.checked_sub(1).map(|parent| ids[parent]),
            "token_ids": self.tokens[block * BLOCK_SIZE as usize..], "lora_id": null,
        })
    }

    /// Returns the event that the blocks from this one on were evicted.
    pub(crate) fn removed_from(&self, block: usize) -> Value {
        json!({"type": "BlockRemoved", "block_hashes": self.ids()[block..], "medium": "GPU"})
    }

    /// Returns the prompt's keys for a decision.
    pub(crate) fn keys(&self, variant: HashVariant) -> Arc<PromptKeys> {
        let keys = prompt_keys(&self.tokens, variant, None);
        Arc::new(PromptKeys::new(self.tokens.len() as u32, vec![(variant, keys.into())]))
    }
}
