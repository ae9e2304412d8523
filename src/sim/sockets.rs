//! One ZMQ socket per rank, on consecutive ports.

use std::sync::atomic::{AtomicU64, Ordering};

use super::config::BindScope;
use super::error::SimError;
use crate::logic::rng::Rng;

/// Where ports are tried that the system does not give by itself (Linux gives those from 32768 on).
const FIRST_TRIED: u16 = 12_000;
const FIRST_OF_THE_SYSTEM: u16 = 32_000;

/// How many runs of ports are tried before giving up. One fails only when a neighbour of a free port is taken.
const MAX_ATTEMPTS: u32 = 64;

/// The sockets of all ranks. Rank r listens on `port_base` + r.
///
/// The sockets are all there is of their ZMQ context, and nothing lingers in them. Dropping them therefore ends the
/// context, which waits until the operating system has the ports back: they can be bound again at once. Whoever adds a
/// socket to the context has to drop it as well.
pub(super) struct RankSockets {
    port_base: u16,
    sockets: Vec<zmq::Socket>,
    context: zmq::Context,
}

/// What all sockets of a run have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketOptions {
    pub(super) kind: zmq::SocketType,
    pub(super) scope: BindScope,
    /// PUB and ROUTER drop what exceeds it, separately for each peer.
    pub(super) send_high_water_mark: i32,
}

impl RankSockets {
    /// Binds `dp_size` sockets, from `port_base` on or wherever that many neighbouring ports are free.
    pub(super) fn open(dp_size: u32, port_base: Option<u16>, options: SocketOptions) -> Result<Self, SimError> {
        match port_base {
            Some(port_base) => Self::open_at(dp_size, port_base, options),
            None => Self::open_anywhere(dp_size, options),
        }
    }

    pub(super) fn port_base(&self) -> u16 {
        self.port_base
    }

    /// Returns the sockets, that of rank 0 first.
    pub(super) fn sockets(&self) -> &[zmq::Socket] {
        &self.sockets
    }

    pub(super) fn context(&self) -> &zmq::Context {
        &self.context
    }

    /// Sends a multipart message over the socket of a rank. It never blocks.
    pub(super) fn send(&self, rank: u32, frames: Vec<Vec<u8>>) -> Result<(), SimError> {
        let Some(socket) = self.sockets.get(rank as usize) else {
            return Err(SimError::NoSocket { rank });
        };
        socket
            .send_multipart(frames, zmq::DONTWAIT)
            .map_err(|source| SimError::Socket { endpoint: format!("rank {rank}"), source })
    }

    fn open_at(dp_size: u32, port_base: u16, options: SocketOptions) -> Result<Self, SimError> {
        let context = zmq::Context::new();
        let sockets = (0..dp_size)
            .map(|rank| bind(&context, &port_of_rank(port_base, rank)?.to_string(), options))
            .collect::<Result<_, _>>()?;
        Ok(Self { port_base, sockets, context })
    }

    /// The first socket takes any free port. The others need its neighbours; when one of these is taken, it is all
    /// done again from another port.
    fn open_anywhere(dp_size: u32, options: SocketOptions) -> Result<Self, SimError> {
        for attempt in 0..MAX_ATTEMPTS {
            let opened = if attempt < MAX_ATTEMPTS / 2 {
                Self::open_from_a_free_port(dp_size, options)
            } else {
                Self::open_at(dp_size, port_below_the_systems_own(), options)
            };
            match opened {
                Err(SimError::Socket { source: zmq::Error::EADDRINUSE, .. } | SimError::Config { .. }) => {}
                done => return done,
            }
        }
        Err(SimError::NoFreePorts { length: dp_size, attempts: MAX_ATTEMPTS })
    }

    fn open_from_a_free_port(dp_size: u32, options: SocketOptions) -> Result<Self, SimError> {
        let context = zmq::Context::new();
        let first = bind(&context, "*", options)?;
        let port_base = bound_port(&first)?;
        let mut sockets = vec![first];
        for rank in 1..dp_size {
            sockets.push(bind(&context, &port_of_rank(port_base, rank)?.to_string(), options)?);
        }
        Ok(Self { port_base, sockets, context })
    }
}

/// Returns a port below those that the system gives: after thousands of connections, most of those wait for their end and leave
/// no run of free ones.
fn port_below_the_systems_own() -> u16 {
    static NUM_CALLS: AtomicU64 = AtomicU64::new(0);
    let seed = (u64::from(std::process::id()) << 32) | NUM_CALLS.fetch_add(1, Ordering::Relaxed);
    let span = usize::from(FIRST_OF_THE_SYSTEM - FIRST_TRIED);
    FIRST_TRIED + Rng::from_seed(seed).below(span) as u16
}

fn port_of_rank(port_base: u16, rank: u32) -> Result<u16, SimError> {
    u16::try_from(rank)
        .ok()
        .and_then(|rank| port_base.checked_add(rank))
        .ok_or_else(|| SimError::Config { field: "port_base", value: format!("{port_base} for rank {rank}") })
}

fn bind(context: &zmq::Context, port: &str, options: SocketOptions) -> Result<zmq::Socket, SimError> {
    let host = match options.scope {
        BindScope::Loopback => "127.0.0.1",
        BindScope::AllInterfaces => "*",
    };
    let endpoint = format!("tcp://{host}:{port}");
    try_bind(context, &endpoint, options).map_err(|source| SimError::Socket { endpoint, source })
}

fn try_bind(context: &zmq::Context, endpoint: &str, options: SocketOptions) -> Result<zmq::Socket, zmq::Error> {
    let socket = context.socket(options.kind)?;
    socket.set_sndhwm(options.send_high_water_mark)?;
    socket.set_linger(0)?;
    // Like the engines, for wildcards only: a concrete IPv4 address needs no IPv6 in the kernel.
    socket.set_ipv6(options.scope == BindScope::AllInterfaces)?;
    socket.bind(endpoint)?;
    Ok(socket)
}

fn bound_port(socket: &zmq::Socket) -> Result<u16, SimError> {
    let failed = |endpoint: String, source| SimError::Socket { endpoint, source };
    let endpoint = socket
        .get_last_endpoint()
        .map_err(|source| failed("the bound endpoint".to_owned(), source))?
        .unwrap_or_default();
    let port = endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
    port.ok_or_else(|| failed(endpoint, zmq::Error::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: SocketOptions =
        SocketOptions { kind: zmq::PUB, scope: BindScope::Loopback, send_high_water_mark: 8 };

    #[test]
    fn the_ports_of_dropped_sockets_can_be_bound_again_at_once() {
        let port_base = RankSockets::open(4, None, OPTIONS).unwrap().port_base();
        for _ in 0..20 {
            let sockets = RankSockets::open(4, Some(port_base), OPTIONS).unwrap();
            assert_eq!(sockets.port_base(), port_base);
        }
    }

    #[test]
    fn a_taken_port_fails_a_fixed_run_and_is_avoided_by_a_free_one() {
        let taken = RankSockets::open(1, None, OPTIONS).unwrap();
        let again = RankSockets::open(1, Some(taken.port_base()), OPTIONS);
        assert!(matches!(again, Err(SimError::Socket { source: zmq::Error::EADDRINUSE, .. })));
        assert_ne!(RankSockets::open(1, None, OPTIONS).unwrap().port_base(), taken.port_base());
    }

    #[test]
    fn a_run_that_leaves_the_port_range_is_refused() {
        assert!(port_of_rank(65_534, 1).is_ok());
        assert!(matches!(port_of_rank(65_534, 2), Err(SimError::Config { field: "port_base", .. })));
    }
}
