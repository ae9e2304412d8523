//! How clients' requests end: each exactly once, by who produced what the client saw last.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::Kind;

/// How a client's request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestEnd {
    /// A worker's answer below 400 was passed on to its end.
    Answered,
    /// A worker's answer of 400 to 499 was passed on to its end.
    WorkerRefused,
    /// A worker's answer of 500 or more was passed on to its end.
    WorkerFailed,
    /// A worker's answer broke off.
    BrokeOff,
    /// A worker's answer stood still for too long.
    StoodStill,
    /// The router answered with 400 to 499.
    RouterRefused,
    /// The router answered with 500 or more.
    RouterFailed,
    /// The client's body did not arrive whole.
    BodyBroken,
    /// The client left before the end.
    ClientGone,
}

impl RequestEnd {
    /// Every end, so that counters show zeros too.
    pub const ALL: [Self; 9] = [
        Self::Answered,
        Self::WorkerRefused,
        Self::WorkerFailed,
        Self::BrokeOff,
        Self::StoodStill,
        Self::RouterRefused,
        Self::RouterFailed,
        Self::BodyBroken,
        Self::ClientGone,
    ];

    /// Returns the end of a request whose worker's answer of that status was passed on whole.
    pub fn of_worker(status: u16) -> Self {
        match status {
            0..400 => Self::Answered,
            400..500 => Self::WorkerRefused,
            _ => Self::WorkerFailed,
        }
    }

    /// Returns the end of a request that the router answered itself.
    pub fn of_router(status: u16) -> Self {
        if status < 500 { Self::RouterRefused } else { Self::RouterFailed }
    }

    /// Returns who produced what the client saw last, or ended the request: `worker`, `router` or `client`.
    pub fn source(self) -> &'static str {
        match self {
            Self::Answered | Self::WorkerRefused | Self::WorkerFailed | Self::BrokeOff | Self::StoodStill => "worker",
            Self::RouterRefused | Self::RouterFailed => "router",
            Self::BodyBroken | Self::ClientGone => "client",
        }
    }

    /// Returns the name used in metrics and logs.
    pub fn outcome(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::WorkerRefused | Self::RouterRefused => "client_error",
            Self::WorkerFailed | Self::RouterFailed => "server_error",
            Self::BrokeOff => "broke_off",
            Self::StoodStill => "stood_still",
            Self::BodyBroken => "body_broken",
            Self::ClientGone => "client_gone",
        }
    }

    /// Returns how a stream has ended with it; `None` of a request that cannot have been one.
    fn stream_outcome(self) -> Option<&'static str> {
        match self {
            Self::Answered | Self::WorkerRefused | Self::WorkerFailed => Some("completed"),
            Self::BrokeOff | Self::StoodStill | Self::ClientGone => Some(self.outcome()),
            Self::RouterRefused | Self::RouterFailed | Self::BodyBroken => None,
        }
    }
}

/// Labels of a client's request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// Who produced what the client saw last.
    pub source: &'static str,
    /// How it ended.
    pub outcome: &'static str,
}

/// Counters of clients' requests. Made once, so that a request costs no look-up.
#[derive(Debug, Clone)]
pub struct RequestCounters {
    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) streams: Family<Kind, Counter>,
    by_end: [(Counter, Option<Counter>); RequestEnd::ALL.len()],
}

impl Default for RequestCounters {
    fn default() -> Self {
        let requests = Family::<RequestLabels, Counter>::default();
        let streams = Family::<Kind, Counter>::default();
        let by_end = RequestEnd::ALL.map(|end| {
            let labels = RequestLabels { source: end.source(), outcome: end.outcome() };
            let stream = end.stream_outcome().map(|kind| streams.get_or_create_owned(&Kind { kind }));
            (requests.get_or_create_owned(&labels), stream)
        });
        Self { requests, streams, by_end }
    }
}

impl RequestCounters {
    /// Counts the end of a request.
    pub fn ended(&self, end: RequestEnd, is_stream: bool) {
        let (request, stream) = &self.by_end[end as usize];
        request.inc();
        if let Some(stream) = stream.as_ref().filter(|_| is_stream) {
            stream.inc();
        }
    }

    /// Returns how many requests have ended so.
    pub fn count(&self, end: RequestEnd) -> u64 {
        self.by_end[end as usize].0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestCounters, RequestEnd};

    #[test]
    fn each_end_has_a_series_of_its_own() {
        let counters = RequestCounters::default();
        for (number, end) in RequestEnd::ALL.into_iter().enumerate() {
            (0..=number).for_each(|_| counters.ended(end, false));
        }
        for (number, end) in RequestEnd::ALL.into_iter().enumerate() {
            assert_eq!(counters.count(end), number as u64 + 1, "{end:?}");
        }
    }

    #[test]
    fn a_status_has_an_end_whoever_produced_it() {
        for (status, of_worker, of_router) in [
            (200, RequestEnd::Answered, RequestEnd::RouterRefused),
            (404, RequestEnd::WorkerRefused, RequestEnd::RouterRefused),
            (503, RequestEnd::WorkerFailed, RequestEnd::RouterFailed),
        ] {
            assert_eq!((RequestEnd::of_worker(status), RequestEnd::of_router(status)), (of_worker, of_router));
        }
    }
}
