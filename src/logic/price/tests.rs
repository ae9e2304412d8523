use std::time::Duration;

use super::{Basis, BasisRule};
use crate::logic::testing::{Fleet, Worker, millis, secs, worker};

const FRESH: Duration = Duration::ZERO;
const OLD: Duration = secs(6);

fn assert_prices(sentence: &str, fleet: &Fleet, basis: Basis, loads: &[f64]) {
    let (settled, priced) = fleet.price();
    assert_eq!(settled, basis, "{sentence}");
    let close =
        priced.len() == loads.len() && priced.iter().zip(loads).all(|(left, right)| (left - right).abs() < 1e-9);
    assert!(close, "{sentence}: {priced:?} instead of {loads:?}");
}

/// Each way in which a worker with three requests of ours in flight may lack a trusted report.
fn untrusted_workers() -> [(&'static str, Worker); 4] {
    let silent = worker(2).in_flight(3);
    [
        ("nothing was advertised", silent.clone()),
        ("no rank has reported", silent.clone().ranks(&[None])),
        ("one rank of two never reported", silent.clone().ranks(&[Some((80, FRESH)), None])),
        ("one report of two is old", silent.ranks(&[Some((80, FRESH)), Some((80, OLD))])),
    ]
}

#[test]
fn engine_load_overrides_in_flight_where_every_candidate_is_trusted() {
    for rule in [BasisRule::Uniform, BasisRule::Scaled, BasisRule::Mixed] {
        let fleet = Fleet::of([worker(1).in_flight(0).depth(40), worker(2).in_flight(30).depth(2).own_dispatches(3)]);
        assert_prices("both are trusted", &fleet.basis(rule), Basis::Engine, &[40.0, 5.0]);
    }
}

#[test]
fn unlike_quantities_are_never_compared_so_one_worker_without_a_trusted_report_puts_all_on_in_flight() {
    for (sentence, untrusted) in untrusted_workers() {
        let fleet = Fleet::of([worker(1).in_flight(5).depth(40), untrusted]);
        assert_prices(sentence, &fleet, Basis::InFlight, &[5.0, 3.0]);
    }
}

#[test]
fn a_worker_that_is_no_candidate_does_not_decide_the_basis() {
    let mut fleet = Fleet::of([worker(1).in_flight(5).depth(40), worker(2).in_flight(3).ranks(&[Some((1, OLD))])]);
    fleet.slots[1] = None;
    assert_prices("the stale one did not answer", &fleet, Basis::Engine, &[40.0]);
}

/// Seen in llm-d/llm-d-router#2408.
#[test]
fn a_fleet_without_reports_is_priced_by_in_flight_under_every_rule() {
    for rule in [BasisRule::Uniform, BasisRule::Scaled, BasisRule::Mixed] {
        let never = Fleet::of([worker(1).in_flight(4), worker(2), worker(3).in_flight(1)]).basis(rule);
        assert_prices("nobody ever reported", &never, Basis::InFlight, &[4.0, 0.0, 1.0]);
        let stopped = |number| worker(number).in_flight(2).ranks(&[Some((90, OLD))]);
        let stopped = Fleet::of([stopped(1), stopped(2)]).basis(rule);
        assert_prices("all feeds stopped at once", &stopped, Basis::InFlight, &[2.0, 2.0]);
    }
}

#[test]
fn the_scaled_rule_prices_a_silent_worker_by_the_ratio_of_the_others() {
    // The trusted ones hold 60 requests, 12 of them ours: each of ours stands for five.
    let trusted = [worker(1).in_flight(10).depth(40), worker(3).in_flight(2).depth(20)];
    for (sentence, untrusted) in untrusted_workers() {
        let [first, third] = trusted.clone();
        let fleet = Fleet::of([first, untrusted, third]).basis(BasisRule::Scaled);
        assert_prices(sentence, &fleet, Basis::Scaled, &[40.0, 15.0, 20.0]);
    }
}

#[test]
fn the_scaled_rule_falls_back_to_in_flight_where_there_is_nothing_to_scale_by() {
    let silent = || worker(2).in_flight(3);
    let rows = [
        ("none of the reported requests is ours", worker(1).in_flight(0).depth(40), [0.0, 3.0]),
        ("the reports hold no request", worker(1).in_flight(4).depth(0), [4.0, 3.0]),
        ("nothing is going on", worker(1).in_flight(0).depth(0), [0.0, 3.0]),
    ];
    for (sentence, trusted, loads) in rows {
        let fleet = Fleet::of([trusted, silent()]).basis(BasisRule::Scaled);
        assert_prices(sentence, &fleet, Basis::InFlight, &loads);
    }
}

#[test]
fn the_mixed_rule_sets_raw_in_flight_beside_engine_load() {
    for (sentence, untrusted) in untrusted_workers() {
        let fleet = Fleet::of([worker(1).in_flight(5).depth(40), untrusted]).basis(BasisRule::Mixed);
        assert_prices(sentence, &fleet, Basis::Mixed, &[40.0, 3.0]);
    }
}

#[test]
fn requests_reserved_in_this_round_count_on_every_basis() {
    let trusted = || worker(1).in_flight(10).depth(20);
    let silent = || worker(2).in_flight(3);
    let rows = [
        ("engine", Fleet::of([trusted(), worker(2).depth(7)]), Basis::Engine, [24.0, 8.0]),
        ("in-flight", Fleet::of([trusted(), silent()]), Basis::InFlight, [14.0, 4.0]),
        ("scaled by two", Fleet::of([trusted(), silent()]).basis(BasisRule::Scaled), Basis::Scaled, [24.0, 8.0]),
        ("mixed", Fleet::of([trusted(), silent()]).basis(BasisRule::Mixed), Basis::Mixed, [24.0, 4.0]),
    ];
    for (sentence, fleet, basis, loads) in rows {
        assert_prices(sentence, &fleet.reserved(&[4, 1]), basis, &loads);
    }
}

#[test]
fn a_reserved_request_of_a_silent_worker_never_counts_for_less_than_one() {
    // Slow clients: of ten requests that we hold open the engine has finished eight. The ratio is one fifth.
    let fleet = Fleet::of([worker(1).in_flight(10).depth(2), worker(2).in_flight(5)]).basis(BasisRule::Scaled);
    assert_prices(
        "in-flight is scaled, what this round adds is not",
        &fleet.reserved(&[0, 4]),
        Basis::Scaled,
        &[2.0, 5.0],
    );
}

#[test]
fn a_newcomer_ramps_up_while_the_mean_of_the_established_workers_on_top_of_it_falls_to_nothing() {
    let rows = [
        ("at first the whole mean of the others", FRESH, 0, 20.0),
        ("halfway a half of it", secs(5), 0, 10.0),
        ("its own load counts as well", secs(5), 12, 22.0),
        ("at the end of the ramp its own load alone", secs(10), 12, 12.0),
        ("and ever after", secs(3_600), 0, 0.0),
    ];
    for (sentence, serving_for, depth, expected) in rows {
        let newcomer = worker(3).depth(depth).serving_for(serving_for);
        let fleet = Fleet::of([worker(1).depth(10), worker(2).depth(30).serving_for(secs(60)), newcomer]);
        assert_prices(sentence, &fleet, Basis::Engine, &[10.0, 30.0, expected]);
    }
}

#[test]
fn a_newcomer_that_reports_zeros_holds_at_least_what_this_router_sent_it() {
    let newcomer = |depth| worker(2).in_flight(6).depth(depth).serving_for(secs(5));
    for (depth, held) in [(0, 8.0), (5, 8.0), (9, 11.0)] {
        let fleet = Fleet::of([worker(1).in_flight(1).depth(20), newcomer(depth)]).reserved(&[0, 2]);
        assert_prices("six in flight and two reserved", &fleet, Basis::Engine, &[20.0, held + 10.0]);
    }
}

#[test]
fn newcomers_do_not_count_in_the_mean_that_they_are_raised_to() {
    let newcomer = |number| worker(number).depth(0).serving_for(millis(1));
    let mut fleet = Fleet::of([worker(1).depth(100), newcomer(2), newcomer(3)]);
    fleet.price.ramp_up = secs(1_000_000);
    let (_, loads) = fleet.price();
    assert!(loads[1..].iter().all(|load| (99.9..=100.0).contains(load)), "{loads:?}");
}

#[test]
fn a_ramp_of_zero_and_a_fleet_of_only_newcomers_change_no_load() {
    let newcomer = |number, depth| worker(number).depth(depth).serving_for(secs(1));
    let only_newcomers = Fleet::of([newcomer(1, 0), newcomer(2, 8)]);
    assert_prices("there is no mean to be raised to", &only_newcomers, Basis::Engine, &[0.0, 8.0]);
    let mut without_ramp = Fleet::of([newcomer(1, 0), worker(2).depth(8)]);
    without_ramp.price.ramp_up = Duration::ZERO;
    assert_prices("the ramp is off", &without_ramp, Basis::Engine, &[0.0, 8.0]);
}
