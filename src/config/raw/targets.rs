//! What people write about DP ranks, and about engines that share the work of a request.

use clap::Args;
use serde::Deserialize;

const RANKS: &str = "DP ranks";
const PARTS: &str = "Prefill and decode";

/// Targets that are more than one worker, or less.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawTargets {
    /// Whether requests are addressed to DP ranks, each priced by its own load: auto (where an engine says that it has several) or
    /// off. The dp_ranks of a worker's table outranks it. Default: auto.
    #[arg(long, env = "FATHOM_ROUTE_DP_RANKS", value_name = "NAME", help_heading = RANKS)]
    pub route_dp_ranks: Option<String>,

    /// Whether the DP rank that a client names (x-data-parallel-rank, or routed_dp_rank in the body) is honoured, where a worker owns
    /// it. Otherwise it is dropped wherever a rank is chosen here. Default: false.
    #[arg(long, env = "FATHOM_FORWARD_DP_RANK", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = RANKS)]
    pub forward_dp_rank: Option<bool>,

    /// Who picks the prefill worker of a request that two workers share, as in policy. Default: that of policy.
    #[arg(long, env = "FATHOM_PREFILL_POLICY", value_name = "NAME", help_heading = PARTS)]
    pub prefill_policy: Option<String>,

    /// Who picks its decode worker, as in policy. Default: that of policy.
    #[arg(long, env = "FATHOM_DECODE_POLICY", value_name = "NAME", help_heading = PARTS)]
    pub decode_policy: Option<String>,
}

keys_of! { RawTargets: route_dp_ranks forward_dp_rank prefill_policy decode_policy }
