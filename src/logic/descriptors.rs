//! How the file descriptors that a process may open are shared out, so that none of its parts can starve another: a listener without
//! descriptors cannot refuse anybody, and an engine that cannot be reached for want of one looks dead.

/// Held by the process itself: the log, listeners, the pollers of the runtimes and of ZMQ, files that are looked at.
const OWN: u64 = 48;
/// Held by each HTTP thread: its poller and wakers.
const PER_HTTP_THREAD: u64 = 4;

/// The most that a subscription has: a socket to its engine beside the waking ends of its ZMQ sockets, which are itself and the two
/// that watch its connection.
pub const PER_SUBSCRIPTION: u64 = 4;

/// What each part of the process may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorPlan {
    /// Descriptors of subscriptions to load and KV events. The rest of these feeds stay closed, and their workers are priced as if
    /// they reported nothing.
    pub feeds: u64,
    /// Requests of clients that are open, each with a connection of its client and one to its engine; further ones are refused.
    pub requests: u64,
    /// Connections of clients, those included that wait for their refusal; further ones wait to be accepted.
    pub connections: u64,
}

impl DescriptorPlan {
    /// Shares out what a process may open: half to feeds; of the other half a third to connections with a request, a third to those
    /// of its engines, and a third to connections of clients that are idle or are being refused.
    #[must_use]
    pub fn of(limit: u64, http_threads: u64) -> Self {
        let own = http_threads.saturating_mul(PER_HTTP_THREAD).saturating_add(OWN);
        let free = limit.saturating_sub(own);
        let feeds = free / 2;
        let third = (free - feeds) / 3;
        Self { feeds, requests: third.max(1), connections: (2 * third).max(2) }
    }
}

/// Returns the descriptors that the feeds of workers take at least, given the number of DP ranks of each: two feeds per rank.
pub fn wanted_by_feeds(ranks_per_worker: impl IntoIterator<Item = u32>) -> u64 {
    ranks_per_worker.into_iter().map(|ranks| 2 * PER_SUBSCRIPTION * u64::from(ranks.max(1))).sum()
}

#[cfg(test)]
mod tests {
    use super::{DescriptorPlan, wanted_by_feeds};

    #[test]
    fn no_part_can_take_what_another_was_promised() {
        for limit in (128..5_000).chain([65_536, 1 << 20, u64::MAX]) {
            let plan = DescriptorPlan::of(limit, 2);
            let most = plan.feeds + plan.requests + plan.connections;
            assert!(most <= limit - 56, "{limit}: {plan:?}");
            assert!(plan.requests < plan.connections, "{limit}: a refusal needs a connection too, {plan:?}");
        }
    }

    #[test]
    fn the_usual_limits_give_round_figures() {
        assert_eq!(DescriptorPlan::of(1_024, 4), DescriptorPlan { feeds: 480, requests: 160, connections: 320 });
        assert_eq!(DescriptorPlan::of(0, 1_024), DescriptorPlan { feeds: 0, requests: 1, connections: 2 });
    }

    #[test]
    fn feeds_are_wanted_per_rank_and_a_worker_of_unknown_ranks_has_one() {
        assert_eq!(wanted_by_feeds(std::iter::repeat_n(8, 200)), 12_800);
        assert_eq!(wanted_by_feeds([0, 1]), 16);
    }
}
