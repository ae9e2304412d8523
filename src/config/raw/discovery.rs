//! What people write about where workers come from, beside the list.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

const DISCOVERY: &str = "Discovery";

/// Where workers come from, beside the list.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawDiscovery {
    /// File that keeps the workers added by POST /workers: read at start, and replaced with each change. It holds the names of
    /// variables with keys, never a key. Default: none.
    #[arg(long, env = "FATHOM_ADMIN_WORKERS_FILE", value_name = "FILE", help_heading = DISCOVERY)]
    pub admin_workers_file: Option<PathBuf>,

    /// File with worker_urls and worker tables as in the configuration, looked at each second; must be readable at start. A bad or
    /// missing one changes nothing afterwards. Default: none.
    #[arg(long, env = "FATHOM_WORKERS_FILE", value_name = "FILE", help_heading = DISCOVERY)]
    pub workers_file: Option<PathBuf>,

    /// Names to look up (host:port), separated by commas or spaces; each address that a name stands for is a worker. May be
    /// repeated. Default: none.
    #[arg(long, env = "FATHOM_DNS_NAMES", value_name = "NAME", num_args = 1.., help_heading = DISCOVERY)]
    pub dns_names: Option<Vec<String>>,

    /// Pause before a name is looked up again, give or take a tenth, in seconds, 1 to 86400. Default: 30.
    #[arg(long, env = "FATHOM_DNS_INTERVAL_SECS", value_name = "SECS", help_heading = DISCOVERY)]
    pub dns_interval_secs: Option<u64>,
}

keys_of! { RawDiscovery: admin_workers_file workers_file dns_names dns_interval_secs }
