use std::time::{Duration, Instant};

use super::Applied::{InForce, OutOfDate, UnknownRank};
use super::{LoadSource, LoadTable, RankLoad, Trust};
use crate::logic::endpoint::MAX_DP_RANKS;
use crate::logic::ids::DpRank;
use crate::logic::testing::{millis, secs, start};

const FRESHNESS: Duration = secs(5);

fn rank(number: u32) -> DpRank {
    DpRank::new(number)
}

fn load(running: u64, waiting: u64) -> RankLoad {
    RankLoad { running, waiting, ..RankLoad::default() }
}

/// Returns a table whose ranks have all reported at `at`.
fn reported(loads: &[RankLoad], at: Instant) -> LoadTable {
    let mut table = LoadTable::new(Some(loads.len() as u32));
    for (number, load) in (0..).zip(loads) {
        assert_eq!(table.apply(rank(number), 0, *load, at), InForce);
    }
    table
}

#[test]
fn the_depth_is_the_sum_over_all_ranks_of_running_and_waiting_and_own_dispatches() {
    let rows: &[(&str, &[RankLoad], u32, u64)] = &[
        ("one rank", &[load(3, 2)], 0, 5),
        ("the sum over ranks, not the largest or the last", &[load(3, 2), load(0, 0), load(7, 1), load(1, 0)], 0, 14),
        ("own dispatches since the report come on top", &[load(3, 2), load(1, 0)], 4, 10),
        ("zeros that were reported are zero", &[load(0, 0), load(0, 0)], 0, 0),
        ("huge numbers do not wrap to small ones", &[load(u64::MAX, 1), load(1, u64::MAX)], 9, u64::MAX),
    ];
    for (sentence, loads, own_dispatches, depth) in rows {
        let view = reported(loads, start()).freeze(*own_dispatches);
        assert_eq!(view.depth(), *depth, "{sentence}");
    }
}

/// Seen in kubernetes-sigs/gateway-api-inference-extension#1497.
#[test]
fn a_report_is_stale_as_soon_as_it_is_as_old_as_the_window() {
    let t0 = start();
    let view = reported(&[load(0, 0)], t0).freeze(0);
    let stale = |age| Trust::Stale { rank: rank(0), age };
    let rows = [
        (Duration::ZERO, Trust::Trusted),
        (millis(4_999), Trust::Trusted),
        (secs(5), stale(secs(5))),
        (secs(3_600), stale(secs(3_600))),
    ];
    for (age, expected) in rows {
        assert_eq!(view.trust(t0 + age, FRESHNESS), expected, "after {age:?}");
        assert_eq!(view.age(t0 + age), Some(age));
    }
    assert_eq!(
        view.trust(t0 - secs(1), FRESHNESS),
        Trust::Trusted,
        "a report that arrived after the decision began is fresh"
    );
}

#[test]
fn one_rank_with_an_old_report_makes_the_whole_worker_stale() {
    let t0 = start();
    let mut table = reported(&[load(1, 0), load(1, 0), load(1, 0)], t0);
    for fresh in [0, 2] {
        table.apply(rank(fresh), 1, load(2, 0), t0 + secs(6));
    }
    let view = table.freeze(0);
    assert_eq!(
        view.trust(t0 + secs(6), FRESHNESS),
        Trust::Stale { rank: rank(1), age: secs(6) },
        "partial freshness is none"
    );
    table.apply(rank(1), 1, load(2, 0), t0 + secs(7));
    assert_eq!(table.freeze(0).trust(t0 + secs(7), FRESHNESS), Trust::Trusted);
}

/// Seen in sgl-project/sglang#28600.
#[test]
fn a_worker_missing_a_rank_entirely_is_incomplete_however_fresh_the_others_are() {
    let t0 = start();
    let mut table = LoadTable::new(Some(4));
    assert_eq!(table.freeze(0).trust(t0, FRESHNESS), Trust::Incomplete { reported: 0, expected: 4 });
    for number in 0..3 {
        table.apply(rank(number), 0, load(30, 0), t0);
    }
    let incomplete = Trust::Incomplete { reported: 3, expected: 4 };
    assert_eq!(table.freeze(0).trust(t0, FRESHNESS), incomplete);
    assert_eq!(table.freeze(0).trust(t0 + secs(60), FRESHNESS), incomplete, "a missing rank outranks an old report");
    assert_eq!(table.oldest_report_at(), None, "reports that miss a rank date nothing");
    table.apply(rank(3), 0, load(0, 0), t0);
    assert_eq!(table.freeze(0).trust(t0, FRESHNESS), Trust::Trusted);
}

#[test]
fn a_worker_that_advertised_no_load_is_taken_at_face_value_by_the_ranks_that_report() {
    let t0 = start();
    let mut table = LoadTable::new(None);
    assert_eq!(table.freeze(0).trust(t0, FRESHNESS), Trust::Unreported, "without a report nothing is trusted");
    assert_eq!(table.apply_unsequenced(rank(3), load(6, 1), t0), InForce);
    let view = table.freeze(0);
    assert_eq!((view.trust(t0, FRESHNESS), view.depth()), (Trust::Trusted, 7));
    assert_eq!(view.trust(t0 + secs(5), FRESHNESS), Trust::Stale { rank: rank(3), age: secs(5) });
    assert_eq!(table.oldest_report_at(), Some(t0), "own dispatches are counted from the reports that there are");
}

#[test]
fn a_report_of_a_rank_that_cannot_exist_changes_nothing() {
    let t0 = start();
    let rows = [
        ("beyond the advertised count", Some(2), 2),
        ("far beyond it", Some(2), u32::MAX),
        ("any rank of a worker with none", Some(0), 0),
        ("beyond what any worker may have", None, MAX_DP_RANKS),
    ];
    for (sentence, expected_ranks, number) in rows {
        let mut table = LoadTable::new(expected_ranks);
        let before = table.freeze(0);
        assert_eq!(table.apply(rank(number), 0, load(1, 0), t0), UnknownRank, "{sentence}");
        assert_eq!(table.apply_unsequenced(rank(number), load(1, 0), t0), UnknownRank, "{sentence}");
        table.restart_stream(rank(number));
        assert_eq!(table.freeze(0), before, "{sentence}");
    }
}

/// Seen in ai-dynamo/dynamo#13435.
#[test]
fn out_of_order_frames_change_nothing_and_a_restart_is_in_force_at_once() {
    let rows = [
        ("a late frame changes nothing", vec![(1_000, InForce), (999, OutOfDate)], 1_000),
        ("nor does a repeated one", vec![(1_000, InForce), (1_001, InForce), (1_001, OutOfDate)], 1_001),
        ("a gap is no reason to wait", vec![(1_000, InForce), (1_900, InForce)], 1_900),
        ("a restarted publisher is heard with its first frame", vec![(1_000, InForce), (0, InForce)], 0),
        ("also if it restarts early", vec![(1, InForce), (0, InForce)], 0),
        ("or, where that was lost, with the second that comes", vec![(12, InForce), (1, OutOfDate), (2, InForce)], 2),
    ];
    for (sentence, frames, in_force) in rows {
        let mut table = LoadTable::new(Some(1));
        for (sequence, expected) in frames {
            // The load says which frame it came with.
            let applied = table.apply(rank(0), sequence, load(sequence, 0), start());
            assert_eq!(applied, expected, "{sentence}: frame {sequence}");
        }
        assert_eq!(table.freeze(0).depth(), in_force, "{sentence}");
    }
}

#[test]
fn a_frame_that_is_out_of_date_does_not_make_the_report_younger() {
    let t0 = start();
    let mut table = LoadTable::new(Some(1));
    table.apply(rank(0), 8, load(1, 0), t0);
    for sequence in [8, 7] {
        assert_eq!(table.apply(rank(0), sequence, load(0, 0), t0 + secs(4)), OutOfDate);
    }
    assert_eq!(table.freeze(0).age(t0 + secs(4)), Some(secs(4)));
}

#[test]
fn the_streams_of_two_ranks_are_numbered_apart() {
    let mut table = LoadTable::new(Some(2));
    assert_eq!(table.apply(rank(0), 500, load(1, 0), start()), InForce);
    assert_eq!(table.apply(rank(1), 499, load(2, 0), start()), InForce, "499 is late on the other stream only");
    assert_eq!(table.freeze(0).depth(), 3);
}

/// Seen in zeromq/libzmq#1245.
#[test]
fn a_new_connection_keeps_the_last_report_until_it_is_stale_and_takes_any_number_next() {
    let t0 = start();
    let mut table = LoadTable::new(Some(1));
    table.apply(rank(0), 40, load(9, 0), t0);
    table.restart_stream(rank(0));
    let view = table.freeze(0);
    assert_eq!((view.depth(), view.trust(t0 + secs(4), FRESHNESS)), (9, Trust::Trusted));
    assert!(!view.trust(t0 + secs(5), FRESHNESS).is_trusted());
    assert_eq!(table.apply(rank(0), 35, load(2, 0), t0), InForce, "35 would be late on the old connection");
}

#[test]
fn a_frozen_view_does_not_follow_the_table() {
    let t0 = start();
    let mut table = reported(&[load(1, 0)], t0);
    let view = table.freeze(2);
    table.apply(rank(0), 1, load(50, 0), t0 + secs(1));
    assert_eq!((view.depth(), view.age(t0 + secs(1))), (3, Some(secs(1))));
    assert_eq!(view.reports()[0].map(|report| report.load), Some(load(1, 0)));
}

#[test]
fn own_dispatches_are_counted_from_the_oldest_report_in_force() {
    let t0 = start();
    let mut table = reported(&[load(1, 0), load(1, 0)], t0);
    table.apply(rank(0), 1, load(1, 0), t0 + secs(2));
    assert_eq!(table.oldest_report_at(), Some(t0));
    table.apply(rank(1), 1, load(1, 0), t0 + secs(3));
    assert_eq!(table.oldest_report_at(), Some(t0 + secs(2)));
}

fn polled(running: u64) -> RankLoad {
    RankLoad { source: LoadSource::V1Loads, ..load(running, 0) }
}

#[test]
fn what_an_engine_said_when_asked_covers_all_its_ranks_and_is_as_old_as_the_question() {
    let t0 = start();
    let mut table = LoadTable::new(None);
    assert_eq!(table.apply_polled(&[], t0, FRESHNESS), UnknownRank, "nothing is not zero");
    assert_eq!(table.freeze(0).trust(t0, FRESHNESS), Trust::Unreported);
    assert_eq!(table.apply_polled(&[polled(3), polled(4)], t0, FRESHNESS), InForce);
    let view = table.freeze(0);
    assert_eq!((view.depth(), view.trust(t0 + secs(4), FRESHNESS)), (7, Trust::Trusted));
    assert!(!view.trust(t0 + FRESHNESS, FRESHNESS).is_trusted());
    assert_eq!(table.apply_polled(&[polled(9), polled(9)], t0 - secs(1), FRESHNESS), OutOfDate, "a late answer");

    assert_eq!(table.apply_polled(&[polled(1)], t0 + secs(1), FRESHNESS), InForce, "restarted with one rank");
    assert_eq!(table.freeze(0).depth(), 1);
    let too_many = vec![polled(0); 1 + crate::logic::endpoint::MAX_DP_RANKS as usize];
    assert_eq!(table.apply_polled(&too_many, t0 + secs(2), FRESHNESS), UnknownRank);
}

#[test]
fn what_comes_by_itself_outranks_what_is_asked_for_while_it_is_fresh() {
    let t0 = start();
    let mut table = LoadTable::new(None);
    table.apply_unsequenced(rank(0), load(5, 0), t0);
    assert_eq!(table.apply_polled(&[polled(1)], t0 + secs(4), FRESHNESS), OutOfDate);
    assert_eq!(table.apply_polled(&[polled(1)], t0 + FRESHNESS, FRESHNESS), InForce, "stale, it gives way");
    assert_eq!(table.apply_unsequenced(rank(0), load(6, 0), t0 + secs(6)), InForce, "and comes back");
    assert_eq!(table.apply_polled(&[polled(1)], t0 + secs(7), FRESHNESS), OutOfDate);
    assert_eq!(table.freeze(0).depth(), 6);

    let mut advertised = LoadTable::new(Some(2));
    assert_eq!(advertised.apply_polled(&[polled(1)], t0, FRESHNESS), UnknownRank, "another number of ranks");
    assert_eq!(advertised.apply_polled(&[polled(1), polled(1)], t0, FRESHNESS), InForce);
    advertised.apply(rank(0), 1, load(8, 0), t0 + secs(1));
    assert_eq!(advertised.apply_polled(&[polled(1), polled(1)], t0 + secs(2), FRESHNESS), OutOfDate);
    assert_eq!(advertised.freeze(0).depth(), 9);
}
