//! What people write about the listener and who may use it.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

const HTTP: &str = "HTTP";
const ACCESS: &str = "Access";

/// The listener, and who may use it.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawEdge {
    /// Name or address to listen on; the default is reached from this machine only. Default: 127.0.0.1.
    #[arg(long, env = "FATHOM_HOST", value_name = "HOST", help_heading = HTTP)]
    pub host: Option<String>,

    /// Port to listen on; 0 takes a free one. Default: 30000.
    #[arg(long, env = "FATHOM_PORT", value_name = "PORT", value_parser = listening_port, help_heading = HTTP)]
    pub port: Option<u16>,

    /// Further port that serves /metrics, /healthz and /readyz only, without TLS; 0 takes a free one. Default: none.
    #[arg(long, env = "FATHOM_METRICS_PORT", value_name = "PORT", value_parser = listening_port, help_heading = HTTP)]
    pub metrics_port: Option<u16>,

    /// Threads that serve HTTP, 1 to 1024. Default: one per CPU.
    #[arg(long, env = "FATHOM_HTTP_THREADS", value_name = "COUNT", help_heading = HTTP)]
    pub http_threads: Option<usize>,

    /// Largest request body that is accepted, in bytes, 1 to 1073741824. Default: 67108864.
    #[arg(long, env = "FATHOM_MAX_BODY_BYTES", value_name = "BYTES", help_heading = HTTP)]
    pub max_body_bytes: Option<usize>,

    /// Requests served at a time, 1 to 1000000; more are refused at once. Default: 65536.
    #[arg(long, env = "FATHOM_MAX_CONCURRENT_REQUESTS", value_name = "COUNT", help_heading = HTTP)]
    pub max_concurrent_requests: Option<usize>,

    /// Whether responses tell which worker was chosen and why, which shows the fleet to clients. Default: false.
    #[arg(long, env = "FATHOM_EXPOSE_DECISION", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = HTTP)]
    pub expose_decision: Option<bool>,

    /// Whether a client's Authorization and x-api-key headers are passed to the engine, in place of the configured key.
    /// Default: false.
    #[arg(long, env = "FATHOM_FORWARD_AUTHORIZATION", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = HTTP)]
    pub forward_authorization: Option<bool>,

    /// File with the keys that clients must send, one per line; lines that start with # do not count. It is read again within a
    /// second of a change. Without it, every client is served. Default: none.
    #[arg(long, env = "FATHOM_API_KEYS_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub api_keys_file: Option<PathBuf>,

    /// File with the key that /metrics, /workers and /dashboard want, written and read again like api_keys_file; several are all
    /// accepted. Without it, these paths answer this machine only. Default: none.
    #[arg(long, env = "FATHOM_ADMIN_KEY_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub admin_key_file: Option<PathBuf>,

    /// Whether /metrics, /workers and /dashboard answer everyone who reaches them, because something else guards them.
    /// Default: false.
    #[arg(long, env = "FATHOM_OPEN_ADMIN", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = ACCESS)]
    pub open_admin: Option<bool>,

    /// File with the certificate chain of the listener (PEM), its own certificate first; makes the listener speak TLS, and HTTP/2
    /// with clients that ask for it. Needs tls_key_file. Default: none.
    #[arg(long, env = "FATHOM_TLS_CERT_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub tls_cert_file: Option<PathBuf>,

    /// File with the private key of the certificate (PEM). Needs tls_cert_file. Default: none.
    #[arg(long, env = "FATHOM_TLS_KEY_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub tls_key_file: Option<PathBuf>,

    /// Whether the listener speaks HTTP/2 without TLS too, to clients that begin with it. A connection on which nothing is ever
    /// sent is then kept for ever, so it is for networks of one's own. Default: false.
    #[arg(long, env = "FATHOM_H2C", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = HTTP)]
    pub h2c: Option<bool>,

    /// Connections that each HTTP thread keeps open at a time, 1 to 1000000; more wait until one is closed. Default: 25000.
    #[arg(long, env = "FATHOM_MAX_CONNECTIONS", value_name = "COUNT", help_heading = HTTP)]
    pub max_connections: Option<usize>,

    /// How long a client may take to send the head of its first request, or for the TLS handshake, before the connection is
    /// closed, in milliseconds, 100 to 60000. Default: 5000.
    #[arg(long, env = "FATHOM_HEADER_TIMEOUT_MS", value_name = "MS", help_heading = HTTP)]
    pub header_timeout_ms: Option<u64>,

    /// How long a client may send nothing in the middle of its request, or take nothing of an answer that waits for it, before its
    /// connection is closed, in seconds, 1 to 3600. Default: 60.
    #[arg(long, env = "FATHOM_CLIENT_TIMEOUT_SECS", value_name = "SECS", help_heading = HTTP)]
    pub client_timeout_secs: Option<u64>,

    /// How long an idle connection of a client is kept, in seconds, 1 to 3600. Keep it above the time after which a proxy in front
    /// closes its own, commonly 60. Default: 75.
    #[arg(long, env = "FATHOM_KEEP_ALIVE_SECS", value_name = "SECS", help_heading = HTTP)]
    pub keep_alive_secs: Option<u64>,
}

keys_of! { RawEdge:
    host port metrics_port http_threads max_body_bytes max_concurrent_requests expose_decision forward_authorization api_keys_file
    admin_key_file open_admin tls_cert_file tls_key_file h2c max_connections header_timeout_ms client_timeout_secs
    keep_alive_secs
}

/// Why a flag or variable is not the port to listen on; clap puts the flag and the value in front.
#[derive(Debug, thiserror::Error)]
enum InvalidPort {
    #[error("must be a number from 0 to 65535")]
    NotANumber,
    #[error(
        "this is what Kubernetes sets for a service named fathom; set enableServiceLinks: false, or rename the service"
    )]
    ServiceLink,
}

fn listening_port(text: &str) -> Result<u16, InvalidPort> {
    if text.starts_with("tcp://") {
        return Err(InvalidPort::ServiceLink);
    }
    text.parse().map_err(|_| InvalidPort::NotANumber)
}
