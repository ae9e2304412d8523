//! Whether a worker has room for one more request, by limits that the operator sets.
//!
//! The in-flight limit holds exactly for what this router sends, whatever the engine reports: a place is reserved when a request is
//! decided on. The other limits look at what the engine reports, and only at reports that can be trusted: a value that is missing
//! limits nothing, since it is no reason to refuse a client.

use std::time::{Duration, Instant};

use crate::logic::snapshot::WorkerSnapshot;

/// Limits per worker; `None` sets none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Caps {
    /// Requests of this router in flight.
    pub max_in_flight: Option<u32>,
    /// Requests in the engine's queues, running ones included, whoever sent them.
    pub max_depth: Option<u64>,
    /// Part of a rank's KV tokens in use, 0 to 1; the least used rank counts, since the engine has room there.
    pub max_kv_used: Option<f64>,
    /// Prompt tokens that wait to be computed.
    pub max_pending_tokens: Option<u64>,
}

impl Caps {
    /// Tells whether there is any limit. A worker is then sent to by decisions alone, for only these look at its load of that moment: there
    /// are no fallbacks, and a retry is one more decision.
    pub fn limit_anything(&self) -> bool {
        *self != Self::default()
    }

    /// Tells whether the worker has room, with `reserved` requests of this round on their way to it.
    pub fn have_room(&self, worker: &WorkerSnapshot, reserved: u32, freshness: Duration, now: Instant) -> bool {
        let in_flight = worker.in_flight.saturating_add(reserved);
        if self.max_in_flight.is_some_and(|limit| in_flight >= limit) {
            return false;
        }
        let looks_at_reports =
            self.max_depth.is_some() || self.max_kv_used.is_some() || self.max_pending_tokens.is_some();
        if !looks_at_reports || !worker.load.trust(now, freshness).is_trusted() {
            return true;
        }
        let depth = worker.load.depth().saturating_add(u64::from(reserved));
        let is_deep = self.max_depth.is_some_and(|limit| depth >= limit);
        let is_filled = self.max_kv_used.is_some_and(|limit| least_kv_used(worker).is_some_and(|used| used >= limit));
        let pending = worker.load.reports().iter().flatten().filter_map(|report| report.load.waiting_uncached_tokens);
        let is_behind = self.max_pending_tokens.is_some_and(|limit| pending.sum::<u64>() >= limit);
        !is_deep && !is_filled && !is_behind
    }
}

fn least_kv_used(worker: &WorkerSnapshot) -> Option<f64> {
    let used = worker.load.reports().iter().flatten().filter_map(|report| {
        let capacity = report.load.capacity_tokens.filter(|capacity| *capacity > 0)?;
        Some(report.load.used_tokens? as f64 / capacity as f64)
    });
    used.min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Caps;
    use crate::logic::load::{LoadView, RankLoad, RankReport};
    use crate::logic::snapshot::WorkerSnapshot;
    use crate::logic::testing::{secs, start, worker};

    fn reporting(ranks: &[RankLoad]) -> WorkerSnapshot {
        let snapshot = WorkerSnapshot::clone(&Arc::clone(&worker(1).in_flight(3).freeze(start())));
        let reports = ranks.iter().map(|load| Some(RankReport { load: *load, received_at: start() })).collect();
        WorkerSnapshot { load: LoadView::new(Some(ranks.len() as u32), reports, 0), ..snapshot }
    }

    #[test]
    fn each_limit_holds_by_itself() {
        let rank = |running, used_tokens, pending| RankLoad {
            running,
            used_tokens: Some(used_tokens),
            capacity_tokens: Some(1_000),
            waiting_uncached_tokens: Some(pending),
            ..RankLoad::default()
        };
        let snapshot = reporting(&[rank(4, 900, 50), rank(2, 500, 70)]);
        let none = Caps::default();
        let rows = [
            ("no limit", none, 0, true),
            ("below the in-flight limit", Caps { max_in_flight: Some(4), ..none }, 0, true),
            ("at it with what this round has sent", Caps { max_in_flight: Some(4), ..none }, 1, false),
            ("below the depth limit", Caps { max_depth: Some(7), ..none }, 0, true),
            ("at it", Caps { max_depth: Some(6), ..none }, 0, false),
            ("at it with what this round has sent", Caps { max_depth: Some(7), ..none }, 1, false),
            ("a rank with room is enough", Caps { max_kv_used: Some(0.6), ..none }, 0, true),
            ("no rank has room", Caps { max_kv_used: Some(0.5), ..none }, 0, false),
            ("few tokens wait", Caps { max_pending_tokens: Some(121), ..none }, 0, true),
            ("too many tokens wait", Caps { max_pending_tokens: Some(120), ..none }, 0, false),
        ];
        for (sentence, caps, reserved, expected) in rows {
            assert_eq!(caps.have_room(&snapshot, reserved, secs(5), start()), expected, "{sentence}");
        }
    }

    #[test]
    fn what_is_not_reported_or_too_old_limits_nothing() {
        let caps = Caps { max_depth: Some(1), max_kv_used: Some(0.1), max_pending_tokens: Some(1), ..Caps::default() };
        let unknown = RankLoad { used_tokens: Some(500), ..RankLoad::default() };
        assert!(caps.have_room(&reporting(&[unknown]), 0, secs(5), start()));
        let deep = RankLoad { running: 9, ..RankLoad::default() };
        assert!(!caps.have_room(&reporting(&[deep]), 0, secs(5), start()));
        assert!(caps.have_room(&reporting(&[deep]), 0, secs(5), start() + secs(6)), "an old report");
        assert!(caps.have_room(&worker(1).freeze(start()), 0, secs(5), start()), "no report");
    }
}
