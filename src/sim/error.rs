//! Why a simulated engine could not start or could not do as told.

use std::io;

use thiserror::Error;

/// A failure to start or to steer a [`SimEngine`](super::SimEngine).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimError {
    /// A field of the configuration has a value that no engine could run with.
    #[error("invalid configuration: {field} = {value}")]
    Config {
        /// The name of the field.
        field: &'static str,
        /// Its value.
        value: String,
    },

    /// The HTTP port could not be bound.
    #[error("cannot serve http on port {port}")]
    Http {
        /// The port that was asked for; 0 = any.
        port: u16,
        /// What the operating system said.
        source: io::Error,
    },

    /// A ZMQ socket could not be opened, bound or written to.
    #[error("zmq socket on {endpoint}")]
    Socket {
        /// The endpoint, or the rank, of the socket.
        endpoint: String,
        /// What ZMQ said.
        source: zmq::Error,
    },

    /// No run of consecutive free ports was found.
    #[error("no {length} consecutive free ports after {attempts} attempts")]
    NoFreePorts {
        /// The number of ports wanted.
        length: u32,
        /// How many runs were tried.
        attempts: u32,
    },

    /// The engine has no open socket for the rank.
    #[error("no open socket for rank {rank}")]
    NoSocket {
        /// The rank that was named.
        rank: u32,
    },

    /// A thread that publishes could not be started.
    #[error("cannot start a publishing thread")]
    Thread(#[source] io::Error),

    /// A payload could not be encoded as msgpack.
    #[error("cannot encode a frame")]
    Encode(#[from] rmp_serde::encode::Error),
}
