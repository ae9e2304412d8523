//! What this router itself has sent to one worker and not yet seen end.
//!
//! Two numbers come from it. **In-flight** is every request reserved and not finished. **Own dispatches since a report** is the
//! part of those that the engine's report cannot yet contain: a request takes a while from its reservation here until the
//! engine's scheduler counts it, so each counts on top of any report received less than `visibility_delay` after it was
//! reserved. That bound errs towards counting a request twice for a moment, never towards missing it.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::logic::endpoint::MAX_DP_RANKS;
use crate::logic::ids::{DecisionId, DpRank};
use crate::logic::snapshot::RankFlight;

/// Requests of this router at one worker. Its size is bounded by the requests in flight.
#[derive(Debug, Clone, Default)]
pub struct FlightBook {
    in_flight: FxHashMap<DecisionId, Flight>,
    /// Reservations in order of time that may still be missing from a report; finished ones are skipped when met.
    recent: VecDeque<(Instant, DecisionId)>,
    num_recent: u32,
    /// Requests in flight by the rank that they were addressed to.
    by_rank: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    reserved_at: Instant,
    rank: Option<DpRank>,
    is_recent: bool,
}

impl FlightBook {
    /// Records a reservation, at a rank or at whichever the engine takes. A second one under the same id changes nothing.
    pub fn reserve(&mut self, decision: DecisionId, rank: Option<DpRank>, now: Instant) {
        let Entry::Vacant(place) = self.in_flight.entry(decision) else { return };
        place.insert(Flight { reserved_at: now, rank, is_recent: true });
        self.recent.push_back((now, decision));
        self.num_recent += 1;
        if let Some(rank) = rank.filter(|rank| rank.number() < MAX_DP_RANKS) {
            if self.by_rank.len() <= rank.index() {
                self.by_rank.resize(rank.index() + 1, 0);
            }
            self.by_rank[rank.index()] += 1;
        }
        self.drop_finished_when_many();
    }

    /// Records the end of a request. Returns when it was reserved; `None` where it was not in flight here, as a late or repeated
    /// end is not.
    pub fn finish(&mut self, decision: DecisionId) -> Option<Instant> {
        let flight = self.in_flight.remove(&decision)?;
        if flight.is_recent {
            self.num_recent -= 1;
        }
        if let Some(count) = flight.rank.and_then(|rank| self.by_rank.get_mut(rank.index())) {
            *count -= 1;
        }
        Some(flight.reserved_at)
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX)
    }

    /// Returns how many requests in flight a report received at `report_at` cannot contain. Those that it contains are settled
    /// for good, so `report_at` should be the worker's oldest report in force.
    pub fn dispatches_since(&mut self, report_at: Instant, visibility_delay: Duration) -> u32 {
        while let Some((reserved_at, decision)) = self.recent.front().copied() {
            if report_at.saturating_duration_since(reserved_at) <= visibility_delay {
                break;
            }
            self.recent.pop_front();
            if let Some(flight) = self.in_flight.get_mut(&decision) {
                flight.is_recent = false;
                self.num_recent -= 1;
            }
        }
        self.num_recent
    }

    /// Returns what is in flight at each of the first `num_ranks` ranks. `report_at` tells when a rank's report in force was
    /// received; without one nothing counts as missing from it.
    pub fn of_ranks(
        &self,
        num_ranks: usize,
        report_at: impl Fn(usize) -> Option<Instant>,
        visibility_delay: Duration,
    ) -> Box<[RankFlight]> {
        let in_flight = |rank: usize| self.by_rank.get(rank).copied().unwrap_or(0);
        let mut ranks: Box<[RankFlight]> =
            (0..num_ranks).map(|rank| RankFlight { in_flight: in_flight(rank), dispatches_since: 0 }).collect();
        for (reserved_at, decision) in &self.recent {
            let rank = self.in_flight.get(decision).and_then(|flight| flight.rank).map_or(usize::MAX, DpRank::index);
            if let Some(flights) = ranks.get_mut(rank)
                && let Some(report_at) = report_at(rank)
                && report_at.saturating_duration_since(*reserved_at) <= visibility_delay
            {
                flights.dispatches_since += 1;
            }
        }
        ranks
    }

    /// Without reports nothing settles the recent list; finished entries must not pile up in it.
    fn drop_finished_when_many(&mut self) {
        if self.recent.len() > 2 * self.in_flight.len() + 64 {
            self.recent.retain(|(_, decision)| self.in_flight.contains_key(decision));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::FlightBook;
    use crate::logic::ids::{DecisionId, DpRank};
    use crate::logic::testing::{millis, secs, start};

    const DELAY: Duration = millis(50);

    #[test]
    fn a_dispatch_counts_until_a_report_can_contain_it() {
        let t0 = start();
        let mut book = FlightBook::default();
        book.reserve(DecisionId::new(1), None, t0);
        assert_eq!(book.dispatches_since(t0 - millis(10), DELAY), 1, "the report is older than the dispatch");
        assert_eq!(book.dispatches_since(t0 + millis(50), DELAY), 1, "the engine may not have seen it yet");
        assert_eq!(book.dispatches_since(t0 + millis(51), DELAY), 0, "the report contains it");
        assert_eq!(book.in_flight(), 1, "it is still running");
    }

    #[test]
    fn a_finished_dispatch_counts_nowhere() {
        let t0 = start();
        let mut book = FlightBook::default();
        book.reserve(DecisionId::new(1), None, t0);
        book.reserve(DecisionId::new(2), None, t0);
        assert_eq!(book.finish(DecisionId::new(1)), Some(t0));
        assert_eq!(book.finish(DecisionId::new(1)), None, "a second end is ignored");
        assert_eq!(book.finish(DecisionId::new(9)), None, "so is one of a request never sent here");
        assert_eq!((book.in_flight(), book.dispatches_since(t0, DELAY)), (1, 1));
    }

    #[test]
    fn a_book_without_reports_does_not_grow_with_finished_requests() {
        let t0 = start();
        let mut book = FlightBook::default();
        for number in 0..10_000 {
            book.reserve(DecisionId::new(number), None, t0);
            book.finish(DecisionId::new(number));
        }
        assert_eq!(book.in_flight(), 0);
        assert!(book.recent.len() < 200, "{} entries are kept", book.recent.len());
        assert_eq!(book.num_recent, 0);
    }

    /// Seen in sgl-project/sglang#9491.
    #[test]
    fn a_stream_is_in_flight_from_its_reservation_to_its_end() {
        let t0 = start();
        let mut book = FlightBook::default();
        book.reserve(DecisionId::new(1), None, t0);
        for age in [secs(1), secs(15), secs(3_600)] {
            assert_eq!((book.in_flight(), book.dispatches_since(t0 + age, DELAY)), (1, 0), "after {age:?}");
        }
        book.finish(DecisionId::new(1));
        assert_eq!(book.in_flight(), 0);
    }

    #[test]
    fn a_reservation_that_is_repeated_counts_once() {
        let mut book = FlightBook::default();
        book.reserve(DecisionId::new(1), None, start());
        book.reserve(DecisionId::new(1), None, start());
        assert_eq!((book.in_flight(), book.dispatches_since(start(), DELAY)), (1, 1));
        book.finish(DecisionId::new(1));
        assert_eq!((book.in_flight(), book.dispatches_since(start(), DELAY)), (0, 0));
    }

    #[test]
    fn requests_count_at_the_rank_that_they_were_addressed_to_until_its_own_report_contains_them() {
        let t0 = start();
        let mut book = FlightBook::default();
        for (number, rank) in [(1, Some(0)), (2, Some(1)), (3, Some(1)), (4, None)] {
            book.reserve(DecisionId::new(number), rank.map(DpRank::new), t0);
        }
        let counts = |book: &FlightBook, report_at: [Option<Instant>; 2]| {
            let ranks = book.of_ranks(2, |rank| report_at[rank], DELAY);
            ranks.iter().map(|rank| (rank.in_flight, rank.dispatches_since)).collect::<Vec<_>>()
        };
        assert_eq!(counts(&book, [Some(t0), Some(t0)]), [(1, 1), (2, 2)]);
        assert_eq!(counts(&book, [Some(t0 + secs(1)), Some(t0)]), [(1, 0), (2, 2)], "each rank has its own report");
        assert_eq!(counts(&book, [None, Some(t0)]), [(1, 0), (2, 2)]);
        book.finish(DecisionId::new(2));
        assert_eq!(counts(&book, [Some(t0), Some(t0)]), [(1, 1), (1, 1)]);
        book.finish(DecisionId::new(2));
        for number in [1, 3, 4] {
            book.finish(DecisionId::new(number));
        }
        assert_eq!(counts(&book, [Some(t0), Some(t0)]), [(0, 0), (0, 0)]);
    }
}
