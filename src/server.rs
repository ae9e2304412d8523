//! The listener of the `fathom` binary, for whoever wants the same one: TLS or not, limits on connections, and the options that
//! streams need.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use actix_web::dev::Server;
use actix_web::{App, HttpServer};
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error as TlsError, ServerConfig as TlsConfig};

use crate::config::{ConfigError, ServerConfig, TlsFiles};
use crate::error::StartError;
use crate::router::RouterHandle;

/// Connections of those who read metrics that are kept open at a time.
const MAX_METRICS_CONNECTIONS: usize = 64;

/// A server whose addresses are bound. It serves from the moment on which `server` is first polled.
pub struct Listener {
    /// Where it listens; the port is the one that was taken, also where any free one was wanted.
    pub addresses: Vec<SocketAddr>,
    /// `https` or `http`.
    pub scheme: &'static str,
    /// Ends when the process is told to stop, or with an error.
    pub server: Server,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("addresses", &self.addresses)
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

/// Binds the router's listener.
///
/// # Errors
/// Where the certificate or the key cannot be used, or the address cannot be bound. Names the setting and its value.
pub fn listen(router: &RouterHandle, config: &ServerConfig) -> Result<Listener, StartError> {
    config.check()?;
    let tls = config.tls.as_ref().map(tls_config).transpose()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let routes = router.configure();
    let server = HttpServer::new(move || App::new().configure(routes.clone()))
        .workers(config.http_threads)
        .max_connections(config.max_connections)
        .client_request_timeout(config.header_timeout)
        .tls_handshake_timeout(config.header_timeout)
        .keep_alive(config.keep_alive)
        // A client that leaves must end the engine's work at once, also while the engine is silent.
        .h1_allow_half_closed(false)
        // Else the first chunk of a stream on a reused connection waits for the delayed acknowledgement, some 45 ms.
        .tcp_nodelay(true)
        .shutdown_timeout(router.drain_timeout().as_secs());
    let address = (config.host.as_str(), config.port);
    let bound = match tls {
        Some(tls) => server.bind_rustls_0_23(address, tls),
        None if config.h2c => server.bind_auto_h2c(address),
        None => server.bind(address),
    };
    let bound = bound
        .map_err(|source| StartError::Listen { address: format!("{} port {}", config.host, config.port), source })?;
    Ok(Listener { addresses: bound.addrs(), scheme, server: bound.run() })
}

/// Binds the further listener of whoever reads metrics, where there is to be one. The server does not end with a signal.
///
/// # Errors
/// Where the address cannot be bound.
pub fn listen_metrics(router: &RouterHandle, config: &ServerConfig) -> Result<Option<Listener>, StartError> {
    config.check()?;
    let Some(port) = config.metrics_port else { return Ok(None) };
    let routes = router.configure_metrics();
    let server = HttpServer::new(move || App::new().configure(routes.clone()))
        .workers(1)
        .max_connections(MAX_METRICS_CONNECTIONS)
        .client_request_timeout(config.header_timeout)
        .keep_alive(config.keep_alive)
        .h1_allow_half_closed(false)
        .disable_signals();
    let bound = server
        .bind((config.host.as_str(), port))
        .map_err(|source| StartError::Listen { address: format!("{} metrics_port {port}", config.host), source })?;
    Ok(Some(Listener { addresses: bound.addrs(), scheme: "http", server: bound.run() }))
}

/// Reads certificate and key. The versions are TLS 1.2 and 1.3; which HTTP is spoken is agreed with the client (ALPN).
fn tls_config(files: &TlsFiles) -> Result<TlsConfig, ConfigError> {
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refused("tls_cert_file", &files.cert, pem_reason(&error, "no certificate in PEM form")))?;
    if chain.is_empty() {
        return Err(refused("tls_cert_file", &files.cert, "holds no certificate in PEM form".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| refused("tls_key_file", &files.key, pem_reason(&error, "no private key in PEM form")))?;
    let builder = TlsConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| refused("tls_cert_file", &files.cert, error.to_string()))?;
    builder.with_no_client_auth().with_single_cert(chain, key).map_err(|error| match error {
        TlsError::InconsistentKeys(_) => {
            refused("tls_key_file", &files.key, format!("is not the key of the certificate in {:?}", files.cert))
        }
        TlsError::InvalidCertificate(_) => refused("tls_cert_file", &files.cert, error.to_string()),
        error => refused("tls_key_file", &files.key, error.to_string()),
    })
}

/// The parser's own texts may quote the file.
fn pem_reason(error: &PemError, nothing: &str) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        _ => format!("holds {nothing}"),
    }
}

fn refused(key: &'static str, path: &Path, reason: String) -> ConfigError {
    ConfigError::NamedFile { key, path: path.to_owned(), reason }
}
