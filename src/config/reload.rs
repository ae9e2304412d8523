//! Which settings can change while a router runs.

use crate::config::RouterConfig;

/// Keys that can change while the process runs; the others need a restart. `log_level` is the binary's own.
pub const RELOADABLE_KEYS: [&str; 17] = [
    "worker_urls",
    "worker",
    "policy",
    "prefill_policy",
    "decode_policy",
    "cache_threshold",
    "balance_abs_threshold",
    "balance_rel_threshold",
    "basis",
    "max_in_flight_per_worker",
    "max_depth_per_worker",
    "max_kv_used",
    "max_pending_tokens",
    "queue_size",
    "queue_timeout_ms",
    "round_deadline_ms",
    "log_level",
];

impl RouterConfig {
    /// Tells whether a router that runs with this configuration can go over to the other without a restart.
    pub fn differs_only_in_what_can_change(&self, other: &Self) -> bool {
        let reached = Self {
            workers: other.workers.clone(),
            policy: other.policy,
            prefill_policy: other.prefill_policy,
            decode_policy: other.decode_policy,
            cache_aware: other.cache_aware,
            basis: other.basis,
            caps: other.caps,
            queue: other.queue,
            round_deadline: other.round_deadline,
            ..self.clone()
        };
        reached == *other
    }
}
