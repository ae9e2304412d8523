//! The addresses that a name stands for, and what an answer of the name service changes about them.
//!
//! The rules:
//! - A look-up that fails changes nothing, however often it does: a name service that is away takes no worker away.
//! - An answer without addresses changes nothing until it came [`EMPTY_ANSWERS`] times in a row; then the name stands for none.
//! - A host that is reached by IPv4 and IPv6 is one worker, and nothing in the answer tells which addresses belong together. So one
//!   family counts for each name: IPv4 where the first answer holds any, else IPv6. It stays as long as answers hold addresses of it;
//!   an answer that holds only the other one counts as an answer without addresses, and the last of those in a row changes the family.
//! - Addresses that no engine has ([`objection_to`]) are left out. More than [`MAX_ADDRESSES`] are cut, the lowest stay.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::logic::address_guard::objection_to;
use crate::logic::endpoint::{Endpoint, WorkerUrl};
use crate::logic::rng::Rng;

/// Names that may be configured.
pub const MAX_DNS_NAMES: usize = 64;
/// Addresses of one name that count. A name service answers with some hundred at most.
pub const MAX_ADDRESSES: usize = 1_024;
/// Answers without addresses, in a row, before a name stands for none.
pub const EMPTY_ANSWERS: u32 = 3;

/// A host name and the port of the engines behind it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsName {
    host: Arc<str>,
    port: u16,
}

impl DnsName {
    /// Reads `host:port`; `None` where it is none, or the port is 0.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let is_name = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        (!host.is_empty() && host.len() <= 253 && is_name(host))
            .then(|| Self { host: host.to_ascii_lowercase().into(), port })
    }

    /// Returns the host name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What an answer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// The name stands for other addresses now.
    Changed,
    /// It stands for the same ones.
    Same,
    /// It held none that counts; the earlier ones stay for now.
    Empty,
}

/// What one name stands for.
#[derive(Debug, Clone)]
pub struct DnsSet {
    name: DnsName,
    addresses: BTreeSet<IpAddr>,
    is_ipv6: Option<bool>,
    empty_answers: u32,
}

impl DnsSet {
    /// Returns a name that stands for nothing yet.
    pub fn new(name: DnsName) -> Self {
        Self { name, addresses: BTreeSet::new(), is_ipv6: None, empty_answers: 0 }
    }

    /// Returns the name.
    pub fn name(&self) -> &DnsName {
        &self.name
    }

    /// Takes the addresses of an answer.
    pub fn answered(&mut self, answer: impl IntoIterator<Item = IpAddr>) -> Answered {
        let usable = answer.into_iter().map(|address| address.to_canonical());
        let usable = usable.filter(|address| objection_to(*address).is_none());
        let (v6, v4): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = usable.partition(IpAddr::is_ipv6);
        let is_ipv6 = self.is_ipv6.unwrap_or(v4.is_empty());
        let (own, other) = if is_ipv6 { (v6, v4) } else { (v4, v6) };
        if !own.is_empty() {
            self.empty_answers = 0;
            return self.replace(own, is_ipv6);
        }
        self.empty_answers = self.empty_answers.saturating_add(1);
        if self.empty_answers < EMPTY_ANSWERS {
            return Answered::Empty;
        }
        if !other.is_empty() {
            self.empty_answers = 0;
            return self.replace(other, !is_ipv6);
        }
        self.is_ipv6 = None;
        match std::mem::take(&mut self.addresses).is_empty() {
            true => Answered::Empty,
            false => Answered::Changed,
        }
    }

    /// Returns the workers that the name stands for. Their address is what they are called by.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        let url = |address: &IpAddr| WorkerUrl::parse(&SocketAddr::new(*address, self.name.port).to_string()).ok();
        self.addresses.iter().filter_map(url).map(Endpoint::new)
    }

    fn replace(&mut self, addresses: BTreeSet<IpAddr>, is_ipv6: bool) -> Answered {
        self.is_ipv6 = Some(is_ipv6);
        let addresses = addresses.into_iter().take(MAX_ADDRESSES).collect();
        match std::mem::replace(&mut self.addresses, addresses) == self.addresses {
            true => Answered::Same,
            false => Answered::Changed,
        }
    }
}

/// Returns the pause before the next look-up: the interval, give or take a tenth, so that many routers do not ask at once.
pub fn next_pause(interval: Duration, rng: &mut Rng) -> Duration {
    let thousandths = 900 + rng.below(201) as u32;
    interval * thousandths / 1_000
}

#[cfg(test)]
mod tests;
