//! Workers that do a part of a request, and requests that name a rank.

use crate::logic::decide::{FrozenRound, NoWorker, is_for_a_pair};
use crate::logic::health::WorkerState;
use crate::logic::role::{Part, Role};
use crate::logic::testing::{Fleet, Worker, worker};

const PREFILL: Role = Role::Prefill { bootstrap_port: 8_998 };

fn fleet(workers: &[Worker], part: Part) -> Fleet {
    Fleet { part, ..Fleet::of(workers.iter().cloned()) }
}

fn slots(fleet: &Fleet) -> Vec<usize> {
    let mut slots: Vec<usize> = (0..64).filter_map(|seed| Some(fleet.decide(seed).ok()?.slot)).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

#[test]
fn each_part_has_candidates_of_its_own() {
    let workers = [worker(0), worker(1).role(PREFILL), worker(2).role(Role::Decode), worker(3).role(PREFILL)];
    for (part, expected) in [(Part::Whole, vec![0]), (Part::Prefill, vec![1, 3]), (Part::Decode, vec![2])] {
        assert_eq!(slots(&fleet(&workers, part)), expected, "{part:?}");
    }
    let choice = fleet(&workers, Part::Prefill).decide(1).unwrap_or_else(|cause| panic!("{cause}"));
    assert!(choice.fallbacks.iter().all(|slot| [1, 3].contains(slot)), "{:?}", choice.fallbacks);
}

#[test]
fn what_is_missing_of_a_pair_is_named() {
    let out = |role| worker(9).role(role).state(WorkerState::Draining);
    let rows = [
        (vec![worker(0).role(PREFILL)], Part::Decode, NoWorker::NoDecode),
        (vec![worker(0).role(Role::Decode)], Part::Prefill, NoWorker::NoPrefill),
        (vec![worker(0).role(PREFILL), out(Role::Decode)], Part::Decode, NoWorker::NoDecode),
        (vec![worker(0).role(PREFILL), worker(1).role(Role::Decode)], Part::Whole, NoWorker::NoneServing),
        (vec![worker(0).role(PREFILL).models(&["x"])], Part::Whole, NoWorker::UnknownModel),
    ];
    for (workers, part, expected) in rows {
        assert_eq!(fleet(&workers, part).decide(0), Err(expected), "{part:?} {workers:?}");
    }
    let failed = fleet(&[worker(0).role(PREFILL)], Part::Prefill).excluded(&[0]);
    assert_eq!(failed.decide(0), Err(NoWorker::AllFailed));
}

#[test]
fn a_request_is_for_a_pair_where_somebody_does_a_part_of_it() {
    let asks = |workers: &[Worker], may_be_shared: bool| {
        let mut fleet = fleet(workers, Part::Whole);
        fleet.request.may_be_shared = may_be_shared;
        let (slots, now) = (&fleet.slots, fleet.now);
        is_for_a_pair(&fleet.request, &FrozenRound { slots, reserved: &[], matches: &[], now })
    };
    assert!(asks(&[worker(0), worker(1).role(Role::Decode)], true));
    assert!(!asks(&[worker(0), worker(1).role(Role::Decode)], false));
    assert!(!asks(&[worker(0)], true));
    assert!(!asks(&[worker(0).role(PREFILL).models(&["another"])], true));
}

#[test]
fn a_rank_that_the_client_named_goes_to_its_owner_and_counts_for_nothing_where_there_is_none() {
    let workers = [worker(0).owning(0, 4), worker(1).owning(4, 4).in_flight(9), worker(2)];
    let wishing = |wanted| {
        let mut fleet = fleet(&workers, Part::Whole);
        fleet.request.wanted_rank = wanted;
        slots(&fleet)
    };
    assert_eq!(wishing(Some(5)), [1], "however busy it is");
    assert_eq!(wishing(Some(3)), [0]);
    assert_eq!(wishing(Some(8)), [0, 2]);
    assert_eq!(wishing(None), [0, 2]);
}
