//! Where workers come from beside the configured list.

use std::path::PathBuf;

/// The sources of workers beside [`RouterConfig::workers`](crate::config::RouterConfig::workers). A worker that several sources
/// name is served once, until the last of them drops it.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct DiscoverySettings {
    /// File that keeps the workers which the operator added while the router ran: read at start, replaced with each change, readable by
    /// its owner only. It holds names of variables with keys, never a key. Default: none, and they are forgotten at the end.
    pub admin_workers_file: Option<PathBuf>,
}
