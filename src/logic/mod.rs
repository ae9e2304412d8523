//! The rules: plain functions and small state machines. Time and randomness are arguments; nothing here waits, logs, reads a
//! clock or touches a socket, so the same code decides in production, in tests and in replay.

pub mod address_guard;
pub mod admin_set;
pub mod admission;
pub mod block_hash;
pub mod decide;
pub mod descriptors;
pub mod dns_set;
pub mod endpoint;
pub mod flight;
pub mod health;
pub mod ids;
pub mod introspect;
pub mod kubernetes;
pub mod kv_event;
pub mod kv_stream;
pub mod load;
pub mod membership;
pub mod parking;
pub mod policy;
pub mod poll_plan;
pub mod prefix_index;
pub mod price;
pub mod probe;
pub mod prompt_keys;
pub mod pulse;
pub mod rank_acceptance;
pub mod rank_choice;
pub mod ranks;
pub mod rate_limit;
pub mod recent;
pub mod request;
pub mod retry;
pub mod rng;
pub mod role;
pub mod rooms;
pub mod round;
pub mod sequence;
pub mod siblings;
pub mod snapshot;
pub mod span;
pub mod span_queue;
pub mod trace_context;
pub mod truth;
pub mod variant_board;

#[cfg(test)]
pub(crate) mod testing;
