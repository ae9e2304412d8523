//! What every feed socket has in common: where it connects, and the options that must be set before it does.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::feed::SubscribeError;

/// Reconnection starts after this many milliseconds, and doubles up to [`RECONNECT_MAX_MS`].
const RECONNECT_MS: i32 = 100;
const RECONNECT_MAX_MS: i32 = 2_000;
/// A peer that accepts the connection but speaks no ZMTP is given up after this many milliseconds.
const HANDSHAKE_MS: i32 = 1_000;
/// TCP keepalive: first probe after 10 s of silence, then every 5 s, dead after 3.
const KEEPALIVE_IDLE_SECS: i32 = 10;
const KEEPALIVE_INTERVAL_SECS: i32 = 5;
const KEEPALIVE_PROBES: i32 = 3;
/// How long one address of a name with several is tried before the next.
const ADDRESS_TIMEOUT: Duration = Duration::from_millis(500);

/// libzmq tries only the IPv6 address of a name that has both kinds, and never falls back. So a name is resolved here, at each
/// opening anew, and of several addresses the first one that accepts a connection is taken.
pub(super) async fn resolve(host: &Arc<str>, port: u16) -> Result<SocketAddr, SubscribeError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let failed = |source| SubscribeError::Resolve { host: Arc::clone(host), source };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((bare, port)).await.map_err(failed)?.collect();
    let Some((first, others)) = addresses.split_first() else {
        return Err(failed(std::io::Error::from(std::io::ErrorKind::NotFound)));
    };
    let accepting = if others.is_empty() { None } else { first_that_accepts(&addresses).await };
    Ok(accepting.unwrap_or(*first))
}

async fn first_that_accepts(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    for address in addresses {
        let attempt = tokio::time::timeout(ADDRESS_TIMEOUT, tokio::net::TcpStream::connect(address));
        if matches!(attempt.await, Ok(Ok(_))) {
            return Some(*address);
        }
    }
    None
}

/// Sets the options. Later ones would not reach the session that connect makes.
///
/// Heartbeats are not among them: on a socket with a bounded receive queue they abort the whole process (libzmq 4.3.4 and 4.3.5,
/// zeromq/libzmq 3937).
pub(super) fn set_options(socket: &zmq::Socket, receive_limit: i32, max_message_bytes: i64) -> zmq::Result<()> {
    socket.set_linger(0)?;
    socket.set_ipv6(true)?;
    socket.set_rcvhwm(receive_limit)?;
    socket.set_maxmsgsize(max_message_bytes)?;
    socket.set_handshake_ivl(HANDSHAKE_MS)?;
    socket.set_reconnect_ivl(RECONNECT_MS)?;
    socket.set_reconnect_ivl_max(RECONNECT_MAX_MS)?;
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(KEEPALIVE_IDLE_SECS)?;
    socket.set_tcp_keepalive_intvl(KEEPALIVE_INTERVAL_SECS)?;
    socket.set_tcp_keepalive_cnt(KEEPALIVE_PROBES)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
    use std::sync::Arc;

    use super::{first_that_accepts, resolve};

    /// Seen in zeromq/libzmq#4313: of a name with both kinds of address, only the IPv6 one was ever tried.
    #[tokio::test]
    async fn of_several_addresses_the_first_that_accepts_is_taken() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let [v6, v4] = [SocketAddr::from((Ipv6Addr::LOCALHOST, port)), SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
        assert_eq!(first_that_accepts(&[v6, v4]).await, Some(v4));
        drop(listener);
        assert_eq!(first_that_accepts(&[v6, v4]).await, None, "nobody listens any more");
    }

    #[tokio::test]
    async fn a_literal_address_needs_no_resolver_with_or_without_brackets() {
        for (host, expected) in [("127.0.0.1", "127.0.0.1:5559"), ("[::1]", "[::1]:5559"), ("::1", "[::1]:5559")] {
            let resolved = resolve(&Arc::from(host), 5559).await.unwrap();
            assert_eq!(resolved.to_string(), expected);
        }
    }
}
