//! The limit of file descriptors, and settings that fit it.

use crate::config::{RouterConfig, ServerConfig};
use crate::feed;
use crate::logic::descriptors::{DescriptorPlan, wanted_by_feeds};

/// More than the default limits of requests and connections can come to.
const WANTED: u64 = 1 << 19;

/// Raises the soft limit of descriptors as far as the hard one allows, and lowers what the settings permit to what then fits, with a
/// line in the log for each.
pub fn fit_descriptors(router: &mut RouterConfig, server: &mut ServerConfig) {
    match rlimit::increase_nofile_limit(WANTED) {
        Ok(limit) => fit(DescriptorPlan::of(limit, server.http_threads as u64), limit, router, server),
        Err(error) => tracing::warn!(%error, "the limit of file descriptors cannot be read or raised"),
    }
}

fn fit(plan: DescriptorPlan, limit: u64, router: &mut RouterConfig, server: &mut ServerConfig) {
    feed::limit_descriptors(usize_of(plan.feeds));
    let ranks = router.workers.iter().map(|worker| worker.overrides.feeds.as_ref().map_or(1, |feeds| feeds.dp_size));
    let wanted = wanted_by_feeds(ranks);
    if wanted > plan.feeds {
        tracing::warn!(
            limit,
            room_for_feeds = plan.feeds,
            wanted_by_feeds = wanted,
            "too few file descriptors for the feeds of all workers: some will be priced by in-flight"
        );
    }
    let requests = usize_of(plan.requests);
    if requests < router.http.max_concurrent_requests {
        let configured = router.http.max_concurrent_requests;
        tracing::warn!(limit, max_concurrent_requests = requests, configured, "lowered to the file descriptors");
        router.http.max_concurrent_requests = requests;
    }
    let connections = (usize_of(plan.connections) / server.http_threads.max(1)).max(1);
    if connections < server.max_connections {
        let configured = server.max_connections;
        tracing::warn!(limit, max_connections = connections, configured, "lowered to the file descriptors");
        server.max_connections = connections;
    }
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
