//! A simulated SGLang engine: real HTTP, real ZMQ, no GPU.
//!
//! Tests, examples and benches need engines that look on the wire like SGLang 0.5.23, whose load can be set, and which
//! can be made to fail in every way that was seen in the field. [`SimEngine`] is one such engine. It answers
//! `/server_info`, `/v1/models`, the health routes and the inference routes, it queues requests per data-parallel rank
//! before a limited number of slots, and it publishes the depth of those queues over one ZMQ PUB socket per rank. Each rank
//! has a prefix cache with the block ids of SGLang, whose changes are published over sockets of their own and can be replayed.
//! Nothing in it is random: the same requests in the same order meet the same ranks and get the same text.
//!
//! What a test does with it:
//! 1. start it from a [`SimConfig`] on port 0 and give [`SimEngine::url`] to the router under test;
//! 2. make it misbehave: [`SimEngine::set_response_mode`], [`SimEngine::set_server_info`],
//!    [`SimEngine::stop_publishing`], [`SimEngine::set_reported_load`], [`SimEngine::publish_raw`],
//!    [`SimEngine::drop_next_kv_batches`], [`SimEngine::evict_cached_blocks`], [`SimEngine::flush_cache`];
//! 3. ask what reached it and what it holds: [`SimEngine::stats`], [`SimEngine::cached_blocks`];
//! 4. end it, politely with [`SimEngine::stop`] or like a crash with [`SimEngine::kill`], and start another one on the
//!    same port.
//!
//! What it is not: a model of speed. Prefill and decode take the fixed times of the configuration, whatever the batch; all
//! that makes a difference is how much of a prompt is cached. Nor is it a model of memory: the cache is bounded, but no request
//! waits or fails because it is full.
//!
//! | file | what |
//! |---|---|
//! | `config`, `error`, `fault` | what is configured, what can fail, how it misbehaves on command |
//! | `scheduler`, `slot` | queues and slots as plain data; the guard that frees a slot when its client leaves |
//! | `call`, `tokens`, `reply`, `server_info` | bodies in and out, without I/O |
//! | `prefix_cache`, `kv_cache` | the pages of one rank as plain data; what requests do with those of all ranks |
//! | `http`, `generation`, `cut` | routes; token by token into a body; answers that break off |
//! | `load_frame`, `load_answer`, `publisher` | bytes of a load report, published or asked for; when to send |
//! | `kv_frame`, `kv_publisher`, `kv_replay` | bytes of cache events; sending them; sending them again |
//! | `sockets` | ZMQ sockets on a run of ports |
//! | `state`, `stats`, `engine` | what the parts share; what was seen; the handle |

mod call;
mod clock;
mod config;
mod cut;
mod engine;
mod error;
mod fault;
mod generation;
mod http;
mod kv_cache;
mod kv_frame;
mod kv_publisher;
mod kv_replay;
mod load_answer;
mod load_frame;
mod lock;
mod meeting;
mod prefix_cache;
mod publisher;
mod reply;
mod scheduler;
mod server_info;
mod slot;
mod sockets;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod tokens;

pub use config::{BindScope, KvEvents, KvPublishing, KvReplay, LoadPaths, LoadPublishing, SimConfig, SimPart};
pub use engine::SimEngine;
pub use error::SimError;
pub use fault::{FeedStop, ResponseMode, ServerInfoMode};
pub use load_frame::{LoadForm, Reported};
pub use stats::{RankStats, RecordedRequest, SimStats};
pub use tokens::Tokenizer;
