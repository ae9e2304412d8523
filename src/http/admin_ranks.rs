//! A worker's DP ranks as targets, for the operator.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::logic::snapshot::WorkerSnapshot;

/// The ranks of one worker in the answer of `/workers`.
#[derive(Serialize)]
pub(super) struct RanksAnswer {
    /// The engine's own number of the first.
    first: u32,
    count: u32,
    /// Whether requests are addressed to them, or why not.
    addressed: &'static str,
    /// What was sent to each that is addressed.
    ranks: Vec<RankAnswer>,
}

#[derive(Serialize)]
struct RankAnswer {
    number: u32,
    /// What its load report is worth.
    trust: &'static str,
    in_flight: u32,
    own_dispatches_since_report: u32,
}

impl RanksAnswer {
    /// Returns nothing where it is not known which ranks the engine owns.
    pub(super) fn of(worker: &WorkerSnapshot, is_refused: bool, freshness: Duration, now: Instant) -> Option<Self> {
        let ranks = worker.facts.ranks?;
        let rank = |(number, flight): (u32, &crate::logic::snapshot::RankFlight)| RankAnswer {
            number,
            trust: trust_of(worker, (number - ranks.first()) as usize, freshness, now),
            in_flight: flight.in_flight,
            own_dispatches_since_report: flight.dispatches_since,
        };
        Some(Self {
            first: ranks.first(),
            count: ranks.count(),
            addressed: match worker.addressed_ranks {
                _ if is_refused => "refused",
                0 if ranks.count() == 1 => "single",
                0 => "off",
                _ => "yes",
            },
            ranks: (ranks.first()..).zip(&worker.rank_flights).map(rank).collect(),
        })
    }
}

fn trust_of(worker: &WorkerSnapshot, rank: usize, freshness: Duration, now: Instant) -> &'static str {
    match worker.load.reports().get(rank).copied().flatten() {
        None => "unreported",
        Some(report) if now.saturating_duration_since(report.received_at) < freshness => "trusted",
        Some(_) => "stale",
    }
}
