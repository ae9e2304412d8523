//! The listener of the `fathom` binary, for whoever wants the same one: TLS or not, limits on connections, and the options that
//! streams need.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::{App, HttpServer};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::config::ServerConfig;
use crate::error::StartError;
use crate::router::RouterHandle;

mod certificate;

pub use certificate::Certificate;

/// Connections of those who read metrics that are kept open at a time.
const MAX_METRICS_CONNECTIONS: usize = 64;
/// Connections that wait to be accepted; the system may have a lower limit.
const BACKLOG: i32 = 1_024;
/// How long a stopped server waits for connections on which nothing runs any more: what was answered may not be sent yet.
const FLUSH_TIMEOUT_SECS: u64 = 1;

/// A server whose addresses are bound. It serves from the moment on which `server` is first polled.
pub struct Listener {
    /// Where it listens; the port is the one that was taken, also where any free one was wanted.
    pub addresses: Vec<SocketAddr>,
    /// What it shows to clients of TLS; `None` without TLS.
    pub certificate: Option<Certificate>,
    /// `https` or `http`.
    pub scheme: &'static str,
    /// Ends when it is stopped through its handle, or with an error.
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
    let certificate = config.tls.as_ref().map(Certificate::read).transpose()?;
    let tls = certificate.as_ref().map(Certificate::tls_config).transpose()?;
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
        // Signals are for whoever runs the process: the router drains first.
        .disable_signals()
        .shutdown_timeout(FLUSH_TIMEOUT_SECS);
    let bind = || -> io::Result<_> {
        let mut server = server;
        for socket in sockets(&config.host, config.port, router.client_timeout())? {
            server = match &tls {
                Some(tls) => server.listen_rustls_0_23(socket, tls.clone())?,
                None if config.h2c => server.listen_auto_h2c(socket)?,
                None => server.listen(socket)?,
            };
        }
        Ok(server)
    };
    let bound = bind()
        .map_err(|source| StartError::Listen { address: format!("{} port {}", config.host, config.port), source })?;
    Ok(Listener { addresses: bound.addrs(), certificate, scheme, server: bound.run() })
}

/// Binds the further listener of whoever reads metrics, where there is to be one.
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
        .disable_signals()
        .shutdown_timeout(FLUSH_TIMEOUT_SECS);
    let bind =
        || sockets(&config.host, port, router.client_timeout())?.into_iter().try_fold(server, HttpServer::listen);
    let bound = bind()
        .map_err(|source| StartError::Listen { address: format!("{} metrics_port {port}", config.host), source })?;
    Ok(Some(Listener { addresses: bound.addrs(), certificate: None, scheme: "http", server: bound.run() }))
}

/// Binds every address of the host that can be bound; one is enough.
fn sockets(host: &str, port: u16, client_timeout: Duration) -> io::Result<Vec<TcpListener>> {
    let mut bound = Vec::new();
    let mut refusal = io::Error::new(io::ErrorKind::AddrNotAvailable, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match socket(address, client_timeout) {
            Ok(socket) => bound.push(socket),
            Err(error) => refusal = error,
        }
    }
    if bound.is_empty() { Err(refusal) } else { Ok(bound) }
}

/// Opens one listening socket. Connections inherit its options.
fn socket(address: SocketAddr, client_timeout: Duration) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Else a restart fails for as long as connections of the process before are waiting for their end.
    socket.set_reuse_address(true)?;
    // A client that takes nothing would hold its answer, and its engine's work, for ever: the server waits until it can write.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(client_timeout))?;
    // One that vanished while an engine is silent is noticed too.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(client_timeout))?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
