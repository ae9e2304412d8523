//! Where a worker is, what it advertises, and which sockets follow from that.
//!
//! A descriptor is text that an engine controls. It is judged as a whole before any socket is opened: a port range that
//! overflows, an absurd rank count or a host that cannot be dialled refuses that feed with a reason, and the worker goes on
//! serving without it.

use std::fmt;
use std::sync::Arc;

use url::Url;

use crate::logic::ranks::{RankRange, RankRule};
use crate::logic::role::Role;

/// The most DP ranks that one worker may advertise. Deployments of today stay below 300; each rank costs a socket per feed.
pub const MAX_DP_RANKS: u32 = 1_024;

/// The address of an engine in canonical form: `http://host:port`, host in lower case, IPv6 in brackets, no trailing slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerUrl {
    text: Arc<str>,
    authority_start: usize,
    host_end: usize,
}

impl WorkerUrl {
    /// Parses an address as people write it: with or without `http://`, with or without a trailing slash.
    ///
    /// # Errors
    /// Refuses, naming the text, whatever is not plain `http://host[:port]`: other schemes, credentials, paths, queries.
    pub fn parse(text: &str) -> Result<Self, InvalidWorkerUrl> {
        let trimmed = text.trim();
        let invalid = |reason| InvalidWorkerUrl { text: text.to_owned(), reason };
        let with_scheme = if trimmed.contains("://") { trimmed.to_owned() } else { format!("http://{trimmed}") };
        let url = Url::parse(&with_scheme).map_err(|_| invalid("it is not a host with an optional port"))?;
        if url.scheme() != "http" {
            return Err(invalid("only http:// workers can be reached"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("credentials do not belong into an address"));
        }
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("an address has no path, query or fragment"));
        }
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| invalid("the host is missing"))?;
        if matches!(url.host(), Some(url::Host::Ipv4(_))) && !trimmed.contains('.') {
            return Err(invalid("a number is not a host"));
        }
        let port =
            url.port_or_known_default().filter(|port| *port != 0).ok_or_else(|| invalid("port 0 cannot be dialled"))?;
        let authority_start = "http://".len();
        Ok(Self {
            text: format!("http://{host}:{port}").into(),
            authority_start,
            host_end: authority_start + host.len(),
        })
    }

    /// Returns the canonical text, `http://host:port`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns `host:port`.
    pub fn authority(&self) -> &str {
        &self.text[self.authority_start..]
    }

    /// Returns the host; an IPv6 address keeps its brackets.
    pub fn host(&self) -> &str {
        &self.text[self.authority_start..self.host_end]
    }

    /// Tells whether the host is this machine by its spelling: `localhost`, 127.0.0.0/8 or `[::1]`.
    pub fn is_loopback(&self) -> bool {
        is_loopback_host(self.host())
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Says why a text is not the address of a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the address of a worker: {reason}")]
pub struct InvalidWorkerUrl {
    text: String,
    reason: &'static str,
}

/// A text that must never be shown: an engine's bearer key. `Debug` prints a placeholder.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps the text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// Whether the platform says that an endpoint may take new requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readiness {
    /// It may.
    #[default]
    Ready,
    /// It may not for now. The worker keeps its load and cache state.
    Suspended,
}

/// One engine that discovery wants served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it is.
    pub url: WorkerUrl,
    /// Which process is behind the address, where discovery knows (a pod's uid). Another value means another worker.
    pub incarnation: Option<Arc<str>>,
    /// Whether it may take new requests.
    pub readiness: Readiness,
    /// What the configuration says of it; outranks what it says of itself.
    pub overrides: EndpointOverrides,
}

impl Endpoint {
    /// Returns a ready endpoint at the address, with nothing overridden.
    pub fn new(url: WorkerUrl) -> Self {
        Self { url, incarnation: None, readiness: Readiness::Ready, overrides: EndpointOverrides::default() }
    }

    /// Tells whether two entries mean the same running worker; readiness may differ.
    pub fn is_same_worker(&self, other: &Self) -> bool {
        self.url == other.url && self.incarnation == other.incarnation && self.overrides == other.overrides
    }
}

/// Settings per worker for engines that cannot be asked, or whose answer is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointOverrides {
    /// Served model names. Empty: ask the engine.
    pub models: Vec<Arc<str>>,
    /// The feeds. `None`: ask the engine.
    pub feeds: Option<FeedDescriptor>,
    /// The bearer key that this engine wants.
    pub api_key: Option<Secret>,
    /// Its DP ranks as targets. `None`: the ones that it says it owns, where ranks are addressed at all.
    pub ranks: Option<RankRule>,
    /// Its part in requests. `None`: what it says.
    pub role: Option<Role>,
}

/// Where an engine publishes, as its `kv_events` block in `/server_info` says it (SGLang 0.5.12 to 0.5.23) or as the
/// configuration says it for engines without one. Field names are the engine's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedDescriptor {
    /// Number of publishers, one per DP rank.
    pub dp_size: u32,
    /// Host part of the KV event endpoint: a wildcard, or a host.
    pub endpoint_host: String,
    /// Rank `r` publishes KV events on this port plus `r`. `None`: no KV events.
    pub endpoint_port_base: Option<u16>,
    /// ZMQ topic prefix of KV events; empty subscribes to everything.
    pub topic: String,
    /// Tokens per KV block in events.
    pub block_size: Option<u32>,
    /// Rank `r` publishes load on this port plus `r`. `None`: no load is published.
    pub load_endpoint_port_base: Option<u16>,
    /// ZMQ topic prefix of load frames. `None`: subscribe to everything.
    pub load_topic: Option<String>,
    /// Rank `r` replays KV events on this port plus `r`.
    pub replay_endpoint_port_base: Option<u16>,
}

/// Why a feed is not opened although it was advertised. Each refusal covers all ranks of the feed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FeedRefusal {
    /// The last rank's port does not exist.
    #[error("port base {port_base} leaves no room for {dp_size} ranks below port 65536")]
    PortsOverflow {
        /// The advertised base.
        port_base: u16,
        /// The advertised rank count.
        dp_size: u32,
    },
    /// Port 0 was advertised.
    #[error("port base 0 cannot be dialled")]
    PortZero,
    /// No ranks, or more than [`MAX_DP_RANKS`].
    #[error("dp_size {dp_size} is not between 1 and {MAX_DP_RANKS}")]
    RankCount {
        /// The advertised rank count.
        dp_size: u32,
    },
    /// The host is neither a wildcard nor the worker's own.
    #[error("host {host:?} is not the worker's own host")]
    ForeignHost {
        /// The advertised host.
        host: String,
    },
    /// The descriptor could not be read at all.
    #[error("{0}")]
    Descriptor(String),
}

/// The sockets of one feed: one per DP rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPlan {
    /// Host to dial, brackets included where it is IPv6.
    pub host: Arc<str>,
    /// Port of rank 0; rank `r` is on this plus `r`, which is known to fit.
    pub port_base: u16,
    /// Number of ranks.
    pub dp_size: u32,
    /// Topic prefix to subscribe to; empty means everything.
    pub topic: Arc<str>,
}

impl FeedPlan {
    /// Returns the port of the rank.
    pub fn port(&self, rank: crate::logic::ids::DpRank) -> u16 {
        // resolve() has checked that the last rank fits; saturating keeps a foreign plan from wrapping to another port.
        self.port_base.saturating_add(u16::try_from(rank.number()).unwrap_or(u16::MAX))
    }
}

/// What became of one feed of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Feed {
    /// The engine does not publish it.
    #[default]
    NotAdvertised,
    /// It was advertised, but cannot be used; the reason is for the operator.
    Refused(FeedRefusal),
    /// One socket per rank follows from it.
    Planned(FeedPlan),
}

impl Feed {
    /// Returns the plan, where there is one.
    pub fn plan(&self) -> Option<&FeedPlan> {
        match self {
            Self::Planned(plan) => Some(plan),
            Self::NotAdvertised | Self::Refused(_) => None,
        }
    }
}

/// Resolves the load feed. It is always paired with the worker's own host: the engine binds it on a wildcard even where the
/// KV endpoint names a host.
pub fn load_feed(worker: &WorkerUrl, descriptor: &FeedDescriptor) -> Feed {
    let Some(port_base) = descriptor.load_endpoint_port_base else {
        return Feed::NotAdvertised;
    };
    resolve(worker.host(), port_base, descriptor.dp_size, descriptor.load_topic.as_deref().unwrap_or(""))
}

/// Resolves the KV event feed. Wildcards, and a loopback host named by a worker that is not on loopback, become the worker's
/// own host; any other host is refused, since a worker must not choose whom this process dials.
pub fn kv_feed(worker: &WorkerUrl, descriptor: &FeedDescriptor) -> Feed {
    let Some(port_base) = descriptor.endpoint_port_base else {
        return Feed::NotAdvertised;
    };
    let advertised = descriptor.endpoint_host.as_str();
    let own = is_wildcard_host(advertised) || is_loopback_host(advertised) || same_host(advertised, worker.host());
    if !own {
        return Feed::Refused(FeedRefusal::ForeignHost { host: advertised.to_owned() });
    }
    resolve(worker.host(), port_base, descriptor.dp_size, &descriptor.topic)
}

/// Resolves the replay of KV events. Like the load feed it is paired with the worker's own host.
pub fn replay_feed(worker: &WorkerUrl, descriptor: &FeedDescriptor) -> Feed {
    match descriptor.replay_endpoint_port_base {
        None => Feed::NotAdvertised,
        Some(port_base) => resolve(worker.host(), port_base, descriptor.dp_size, ""),
    }
}

fn resolve(host: &str, port_base: u16, dp_size: u32, topic: &str) -> Feed {
    if dp_size == 0 || dp_size > MAX_DP_RANKS {
        return Feed::Refused(FeedRefusal::RankCount { dp_size });
    }
    if port_base == 0 {
        return Feed::Refused(FeedRefusal::PortZero);
    }
    if u32::from(port_base) + (dp_size - 1) > u32::from(u16::MAX) {
        return Feed::Refused(FeedRefusal::PortsOverflow { port_base, dp_size });
    }
    Feed::Planned(FeedPlan { host: host.into(), port_base, dp_size, topic: topic.into() })
}

fn is_wildcard_host(host: &str) -> bool {
    matches!(host, "" | "*" | "0.0.0.0" | "::" | "[::]")
}

fn is_loopback_host(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn same_host(left: &str, right: &str) -> bool {
    let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    bare(left) == bare(right)
}

/// What is known of a worker once it was asked, or configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerFacts {
    /// Names that requests may use for its models, LoRA adapters included.
    pub models: Arc<[Arc<str>]>,
    /// The worker's own `/v1/models` objects as JSON texts, every field kept.
    pub model_objects: Arc<[Arc<str>]>,
    /// Its load feed.
    pub load_feed: Feed,
    /// Its KV event feed.
    pub kv_feed: Feed,
    /// Where KV events that were missed can be asked for.
    pub replay_feed: Feed,
    /// Tokens per KV block, as it says; its events outrank this.
    pub block_size: Option<u32>,
    /// Those of `models` that are LoRA adapters.
    pub adapters: Arc<[Arc<str>]>,
    /// Whether it says that it speaks HTTP/2 in cleartext.
    pub speaks_http2: bool,
    /// The DP ranks that it owns, where that is known; only they can be addressed.
    pub ranks: Option<RankRange>,
    /// Its part in requests.
    pub role: Role,
    /// The engine's version text, where it said one.
    pub version: Option<Arc<str>>,
}

impl WorkerFacts {
    /// Tells whether another answer describes the same engine: the same first model and the same sockets. Anything else is a
    /// restart with other settings, and what was learnt before does not apply to it. Further names may come and go: an adapter
    /// that is loaded at run time makes no other engine.
    pub fn is_same_engine(&self, other: &Self) -> bool {
        self.models.first() == other.models.first()
            && self.load_feed == other.load_feed
            && self.kv_feed == other.kv_feed
            && self.version == other.version
            && self.ranks == other.ranks
            && self.role == other.role
    }
}

#[cfg(test)]
mod tests;
