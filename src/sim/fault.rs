//! The ways in which a simulated engine misbehaves on command.
//!
//! A mode holds from the next request on; requests that are already being served keep the mode they arrived under.

use std::time::Duration;

use serde_json::Value;

/// How `/server_info` and `/get_server_info` answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ServerInfoMode {
    /// The whole, true description.
    #[default]
    Normal,
    /// 404, as from an engine that has no such route.
    NotFound,
    /// 401 unless the request carries `Authorization: Bearer <bearer>`.
    Unauthorized {
        /// The key that opens the route.
        bearer: String,
    },
    /// This status with an empty body.
    Status(u16),
    /// No answer: the connection stays open and silent.
    Hang,
    /// Headers and half of the body, then the connection ends.
    BrokenBody,
    /// 200 with a body that is not JSON.
    NotJson,
    /// The description with `kv_events` null.
    NoKvEvents,
    /// The description without the key `kv_events`.
    AbsentKvEvents,
    /// This body.
    Custom(Value),
}

/// How the inference routes answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ResponseMode {
    /// As asked.
    #[default]
    Normal,
    /// This status with this body, at once and without a slot.
    Status(u16, String),
    /// The connection ends before the first byte of an answer.
    ///
    /// actix-web then closes the socket in the ordinary way, so that the client sees an end of stream and not a TCP
    /// reset, unless bytes of it were still unread.
    ResetBeforeHeaders,
    /// Headers and so many chunks of a stream, then the connection ends; at the latest before the closing chunk. An
    /// answer that is not streamed breaks off half-way through its body. The request counts as failed.
    BreakAfterChunks(u64),
    /// The request takes its place in the queue and its slot, and is never answered.
    HangBeforeHeaders,
    /// This long in addition to the prefill, before the headers are sent.
    FirstTokenDelay(Duration),
}

/// How an engine stops publishing its load. `/server_info` goes on advertising the ports in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedStop {
    /// The sockets stay open and say nothing, like an engine that hangs.
    Silence,
    /// The sockets are closed and connections to them are refused.
    Close,
}
