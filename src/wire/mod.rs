//! Bytes that engines and clients send, decoded into the types of [`crate::logic`].
//!
//! Engines of many versions run side by side, so each decoder takes every known form of its message, refuses what is
//! malformed with a reason from a closed set, and never reads "absent" as "idle". Nothing here performs I/O or reads a clock.

pub mod body_edit;
pub mod json;
pub mod kubernetes;
pub mod kv_event;
pub mod load_frame;
pub mod message;
pub mod msgpack;
pub mod openai;
#[cfg(feature = "otel")]
pub mod otlp;
pub mod polled_load;
pub mod replay;
pub mod server_info;
pub mod shared_body;
pub mod token_prompt;
pub mod usage;

mod lenient;

#[cfg(test)]
mod golden;
