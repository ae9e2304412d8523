use std::sync::Arc;
use std::time::Duration;

use super::{RankFacts, RankReservations, RankRules, choose_rank};
use crate::logic::endpoint::WorkerFacts;
use crate::logic::ids::DpRank;
use crate::logic::policy::CacheAwareSettings;
use crate::logic::ranks::RankRange;
use crate::logic::snapshot::{RankFlight, WorkerSnapshot};
use crate::logic::testing::{secs, start, worker};

fn rules() -> RankRules {
    RankRules { freshness: secs(5), cache: CacheAwareSettings::default() }
}

/// A worker that owns ranks 4 to 7, with the depth that each reported (`None` for one that has not), and what is in flight and not
/// yet in the report.
fn ranked(reports: &[Option<(u64, Duration)>], flights: &[(u32, u32)]) -> WorkerSnapshot {
    let mut snapshot = Arc::unwrap_or_clone(worker(1).ranks(reports).freeze(start_of_test()));
    snapshot.addressed_ranks = reports.len() as u32;
    let flight = |&(in_flight, dispatches_since): &(u32, u32)| RankFlight { in_flight, dispatches_since };
    snapshot.rank_flights = flights.iter().map(flight).collect();
    let facts = WorkerFacts { ranks: RankRange::new(4, reports.len() as u32), ..WorkerFacts::default() };
    snapshot.facts = Arc::new(facts);
    snapshot
}

fn start_of_test() -> std::time::Instant {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    *START.get_or_init(start)
}

fn fresh(depths: &[u64]) -> Vec<Option<(u64, Duration)>> {
    depths.iter().map(|depth| Some((*depth, Duration::ZERO))).collect()
}

/// Which ranks are chosen over many seeds.
fn chosen(worker: &WorkerSnapshot, facts: &RankFacts<'_>, wish: Option<u32>) -> Vec<u32> {
    let mut seen: Vec<u32> = (0..64)
        .filter_map(|seed| choose_rank(worker, facts, wish, &rules(), start_of_test(), seed))
        .map(DpRank::number)
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn a_rank_is_priced_by_its_own_report_and_what_was_sent_there_since() {
    type Row<'a> = (&'a str, &'a [u64], &'a [(u32, u32)], &'a [u32], &'a [u32]);
    let rows: &[Row<'_>] = &[
        ("the one that reported least", &[5, 3, 4, 9], &[], &[], &[1]),
        ("what was sent since counts on top", &[5, 3, 4, 9], &[(0, 0), (9, 2)], &[], &[2]),
        ("in flight does not, the report contains it", &[5, 3, 4, 9], &[(0, 0), (9, 0)], &[], &[1]),
        ("what this round has sent there does", &[5, 3, 4, 9], &[], &[0, 3], &[2]),
        ("equals share", &[3, 3, 4, 3], &[], &[], &[0, 1, 3]),
    ];
    for (sentence, depths, flights, reserved, expected) in rows {
        let facts = RankFacts { reserved, ..RankFacts::default() };
        assert_eq!(chosen(&ranked(&fresh(depths), flights), &facts, None), *expected, "{sentence}");
    }
}

#[test]
fn without_a_fresh_report_of_every_rank_all_are_priced_by_in_flight() {
    let flights = [(4, 4), (2, 2), (3, 3)];
    for reports in [
        vec![Some((0, Duration::ZERO)), Some((90, Duration::ZERO)), None],
        vec![Some((0, Duration::ZERO)), Some((90, Duration::ZERO)), Some((0, secs(5)))],
    ] {
        assert_eq!(chosen(&ranked(&reports, &flights), &RankFacts::default(), None), [1], "{reports:?}");
    }
}

#[test]
fn the_rank_that_holds_the_prompt_wins_unless_the_ranks_are_out_of_balance() {
    let held = |held_blocks: &'static [u32]| RankFacts { held_blocks, prompt_blocks: 10, ..RankFacts::default() };
    type Row<'a> = (&'a str, &'a [u64], &'static [u32], &'a [u32]);
    let rows: &[Row<'_>] = &[
        ("the holder, although it is busier", &[0, 9, 0], &[0, 8, 2], &[1]),
        ("of two holders the idler one", &[9, 9, 8], &[8, 0, 8], &[2]),
        ("a small match does not count", &[0, 9, 0], &[0, 5, 0], &[0, 2]),
        ("but it breaks ties", &[0, 9, 0], &[0, 5, 1], &[2]),
        ("out of balance, the least loaded", &[0, 40, 1], &[0, 8, 2], &[0]),
    ];
    for (sentence, depths, held_blocks, expected) in rows {
        assert_eq!(chosen(&ranked(&fresh(depths), &[]), &held(held_blocks), None), *expected, "{sentence}");
    }
}

#[test]
fn a_wish_is_honoured_where_the_worker_owns_the_rank() {
    let worker = ranked(&fresh(&[0, 9]), &[]);
    assert_eq!(chosen(&worker, &RankFacts::default(), Some(5)), [1], "by the engine's own number");
    assert_eq!(chosen(&worker, &RankFacts::default(), Some(1)), [0], "not its own");
}

#[test]
fn a_worker_whose_engine_takes_no_rank_gets_none() {
    let mut worker = ranked(&fresh(&[0, 9]), &[]);
    worker.addressed_ranks = 0;
    assert_eq!(chosen(&worker, &RankFacts::default(), Some(5)), [0_u32; 0]);
}

#[test]
fn the_same_seed_chooses_the_same_rank() {
    let worker = ranked(&fresh(&[0; 8]), &[]);
    let choose = |seed| choose_rank(&worker, &RankFacts::default(), None, &rules(), start_of_test(), seed);
    assert!((0..64).all(|seed| choose(seed) == choose(seed)));
    assert_eq!(chosen(&worker, &RankFacts::default(), None).len(), 8);
}

#[test]
fn reservations_of_a_round_are_counted_by_slot_and_rank() {
    let [two, three] = [ranked(&fresh(&[0, 0]), &[]), ranked(&fresh(&[0, 0, 0]), &[])];
    let mut reserved = RankReservations::default();
    for _ in 0..2 {
        reserved.begin([Some(&two), None, Some(&three)].into_iter());
        for (slot, rank) in [(0, 1), (2, 2), (2, 2), (1, 0), (0, 2), (9, 0)] {
            reserved.add(slot, DpRank::new(rank));
        }
        assert_eq!((reserved.of(0), reserved.of(1), reserved.of(2)), (&[0, 1][..], &[][..], &[0, 0, 2][..]));
        assert_eq!(reserved.of(7), [0_u32; 0]);
    }
}
