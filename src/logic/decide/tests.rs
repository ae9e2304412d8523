use std::sync::Arc;

use crate::logic::decide::{MAX_FALLBACKS, NoWorker, Scratch};
use crate::logic::health::WorkerState;
use crate::logic::ids::DpRank;
use crate::logic::load::{LoadView, RankLoad, RankReport};
use crate::logic::policy::{CacheAwareZmq, Pick, Policy, RoundRobin, View};
use crate::logic::price::Basis;
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;
use crate::logic::snapshot::WorkerSnapshot;
use crate::logic::testing::{Fleet, Worker, secs, start, worker};

mod bursts;
mod parts;
mod properties;

/// Picks what it is told to, whether it exists or not.
#[derive(Debug)]
struct Fixed(Pick);

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn pick(&self, _request: &RequestFacts, _view: &View<'_>, _rng: &mut Rng) -> Pick {
        self.0
    }
}

fn fixed(candidate: usize) -> Fixed {
    Fixed(Pick::new(candidate, "fixed"))
}

#[test]
fn engine_load_overrides_in_flight() {
    let fleet = Fleet::of([worker(1).in_flight(0).depth(40), worker(2).in_flight(30).depth(2)]);
    let choice = fleet.decide(1).unwrap();
    assert_eq!((choice.slot, choice.basis, choice.load), (1, Basis::Engine, 2.0));
}

/// Seen in vllm-project/aibrix#2569 and kubernetes-sigs/gateway-api-inference-extension#1497.
#[test]
fn a_stale_load_falls_back_to_in_flight_for_all() {
    let idle_once = |age| worker(1).in_flight(9).ranks(&[Some((0, age))]);
    let fresh = Fleet::of([idle_once(secs(4)), worker(2).in_flight(2).depth(5)]).decide(1).unwrap();
    assert_eq!((fresh.slot, fresh.basis), (0, Basis::Engine));
    let stale = Fleet::of([idle_once(secs(5)), worker(2).in_flight(2).depth(5)]).decide(1).unwrap();
    assert_eq!((stale.slot, stale.basis, stale.load), (1, Basis::InFlight, 2.0), "the frozen zero draws nothing");
}

#[test]
fn the_matched_set_tie_break_uses_engine_load() {
    // By in-flight slot 2 would win, by load alone slot 3, by position slot 1. Slot 0 did not answer.
    let workers = [worker(1), worker(2).in_flight(9).depth(6), worker(3).in_flight(1).depth(8), worker(4).depth(0)];
    let mut fleet = Fleet::of(workers).matches(&[(8, 8), (8, 8), (8, 8), (1, 8)]).policy(CacheAwareZmq::default());
    fleet.slots[0] = None;
    for seed in 0..20 {
        let choice = fleet.decide(seed).unwrap();
        assert_eq!((choice.slot, choice.reason, choice.basis), (1, "best_match", Basis::Engine));
    }
}

#[test]
fn a_worker_that_takes_no_traffic_is_never_chosen_however_idle() {
    // A worker on probation takes none while its trial is under way.
    let states = WorkerState::ALL.into_iter().filter(|state| *state != WorkerState::Serving);
    for state in states {
        let fleet = Fleet::of([worker(1).depth(0).state(state), worker(2).depth(90)]);
        for seed in 0..20 {
            let choice = fleet.decide(seed).unwrap();
            assert_eq!((choice.slot, choice.fallbacks), (1, vec![]), "{state:?}");
        }
    }
    let mut unanswered = Fleet::of([worker(1).depth(0), worker(2).depth(90)]);
    unanswered.slots[0] = None;
    assert_eq!(unanswered.decide(1).map(|choice| choice.slot), Ok(1), "nor is one that missed the round's deadline");
}

/// Seen in smg-project/smg#1621.
#[test]
fn an_engine_whose_memory_is_full_with_requests_waiting_is_chosen_only_where_nobody_has_room() {
    let reporting = |number, running, waiting, used_percent: u64| {
        let load = RankLoad {
            running,
            waiting,
            used_tokens: Some(used_percent * 1_000),
            capacity_tokens: Some(100_000),
            ..RankLoad::default()
        };
        let report = Some(RankReport { load, received_at: start() });
        let snapshot = WorkerSnapshot::clone(&worker(number).freeze(start()));
        Some(Arc::new(WorkerSnapshot { load: LoadView::new(Some(1), Box::new([report]), 0), ..snapshot }))
    };
    let chosen = |slots: Vec<_>, matches: &[(u32, u32)], now| {
        Fleet::frozen(slots, now).policy(CacheAwareZmq::default()).matches(matches).decide(1).unwrap().slot
    };
    let (few_but_long, many_but_short) = (reporting(1, 3, 5, 98), reporting(2, 10, 0, 20));
    let both = vec![few_but_long.clone(), many_but_short.clone()];
    assert_eq!(chosen(both.clone(), &[(100, 3_000), (0, 3_000)], start()), 1, "the shorter queue stands still");
    assert_eq!(chosen(both.clone(), &[(2_900, 3_000), (0, 3_000)], start()), 1, "its cache does not help either");
    let later = start() + secs(5);
    assert_eq!(chosen(vec![few_but_long.clone(), None], &[], start()), 0, "where nobody else is, it waits there");
    let still_moves = vec![reporting(1, 3, 0, 98), many_but_short.clone()];
    assert_eq!(chosen(still_moves, &[], start()), 0, "full memory alone holds nobody up");
    let queue_only = vec![reporting(1, 3, 5, 60), many_but_short];
    assert_eq!(chosen(queue_only, &[], start()), 0, "nor does a queue alone");
    let is_short = |slot: &Option<Arc<WorkerSnapshot>>, now| {
        slot.as_ref().is_some_and(|snapshot| snapshot.load.is_short_of_memory(now, secs(5)))
    };
    assert!(is_short(&few_but_long, start()) && !is_short(&few_but_long, later), "an old report says nothing");
}

#[test]
fn an_ejected_worker_is_chosen_only_where_nobody_serves() {
    let ejected = |number| worker(number).depth(number).state(WorkerState::Ejected);
    let suspended = worker(3).depth(0).state(WorkerState::Suspended);
    let choice = Fleet::of([ejected(1), ejected(2), suspended]).decide(1).unwrap();
    assert_eq!((choice.slot, choice.fallbacks), (0, vec![1]));
    let other_model = Fleet::of([ejected(1), worker(2).models(&["other"])]).decide(1);
    assert_eq!(other_model.map(|choice| choice.slot), Ok(0), "whoever serves another model does not count");
    let excluded = Fleet::of([ejected(1), worker(2)]).excluded(&[2]).decide(1);
    assert_eq!(excluded.map(|choice| choice.slot), Ok(0), "nor does one that failed this request");
}

/// Seen in sgl-project/sglang#31206.
#[test]
fn a_worker_on_probation_gets_the_next_request_and_no_other_until_that_ends() {
    let serving = || (2..=4).map(|number| worker(number).depth(number));
    let mut fleet = Fleet::of([worker(1).depth(90).on_probation()].into_iter().chain(serving()));
    let choice = fleet.decide(1).unwrap();
    assert_eq!((choice.slot, choice.reason, choice.load), (0, "trial", 0.0), "however loaded it seems");
    assert_eq!(choice.fallbacks, [1, 2, 3]);
    assert_eq!(fleet.send(20)[0], 1, "a burst in one round brings one trial");
    let mut two = Fleet::of([worker(1).on_probation(), worker(2).on_probation(), worker(3)]);
    assert_eq!(two.send(20), [1, 1, 18], "each has its own");
}

#[test]
fn a_trial_needs_a_request_that_the_worker_can_serve_and_that_has_somewhere_else_to_go() {
    let trial = || worker(1).on_probation();
    let chosen = |fleet: Fleet| fleet.decide(1).map(|choice| (choice.slot, choice.reason == "trial"));
    assert_eq!(chosen(Fleet::of([trial(), worker(2)])), Ok((0, true)));
    assert_eq!(chosen(Fleet::of([trial().models(&["other"]), worker(2)])), Ok((1, false)), "another model");
    let failed_once = Fleet::of([trial(), worker(2), worker(3)]).excluded(&[3]);
    assert_eq!(chosen(failed_once), Ok((1, false)), "one that has failed elsewhere is not risked again");
    let full = Fleet::of([trial().left_alone_for(secs(1)), worker(2)]);
    assert_eq!(chosen(full), Ok((1, false)), "its engine wants to be left alone");
    assert_eq!(chosen(Fleet::of([trial()])), Ok((0, false)), "with nobody serving it is a last resort");
    let all_out =
        Fleet::of([worker(1).state(WorkerState::Ejected), worker(2).in_flight(1).state(WorkerState::Probation)]);
    assert_eq!(chosen(all_out), Ok((0, false)), "then everybody takes traffic, and the load decides");
}

#[test]
fn an_excluded_worker_is_neither_chosen_nor_a_fallback() {
    let fleet = Fleet::of((1..=4).map(|number| worker(number).depth(number))).excluded(&[1, 3, 77]);
    let choice = fleet.decide(1).unwrap();
    assert_eq!((choice.slot, choice.fallbacks), (1, vec![3]));
}

#[test]
fn a_request_goes_only_to_workers_of_its_model() {
    let fleet = || Fleet::of([worker(1).models(&["a"]), worker(2).models(&["b", "lora"]), worker(3).models(&["b"])]);
    let rows = [(Some("a"), vec![0]), (Some("lora"), vec![1]), (Some("b"), vec![1, 2]), (None, vec![0, 1, 2])];
    for (model, expected) in rows {
        let choice = fleet().model(model).decide(1).unwrap();
        let mut reached = [vec![choice.slot], choice.fallbacks].concat();
        reached.sort_unstable();
        assert_eq!(reached, expected, "{model:?}");
    }
}

/// A worker that has not said yet what it serves.
fn unspoken(number: u64, state: WorkerState) -> Worker {
    worker(number).models(&[]).state(state)
}

#[test]
fn each_cause_of_no_worker_is_named() {
    let other = || worker(1).models(&["other"]);
    let m = |state| worker(2).state(state);
    let silent = |mut fleet: Fleet| {
        fleet.slots.fill(None);
        fleet
    };
    let rows = [
        ("there is no worker", Fleet::of([]), NoWorker::EmptyFleet),
        ("nobody answered", silent(Fleet::of([other(), m(WorkerState::Serving)])), NoWorker::NoAnswer),
        ("the only worker is suspended", Fleet::of([m(WorkerState::Suspended)]), NoWorker::NoneServing),
        ("the only worker drains", Fleet::of([other(), m(WorkerState::Draining)]), NoWorker::NoneServing),
        (
            "the only worker has failed",
            Fleet::of([other(), m(WorkerState::Serving)]).excluded(&[2]),
            NoWorker::AllFailed,
        ),
        ("so has the last resort", Fleet::of([m(WorkerState::Ejected)]).excluded(&[2]), NoWorker::AllFailed),
        (
            "one has failed, one is suspended",
            Fleet::of([m(WorkerState::Serving), worker(3).state(WorkerState::Suspended)]).excluded(&[2]),
            NoWorker::AllFailed,
        ),
        (
            "one that takes no traffic has not failed",
            Fleet::of([m(WorkerState::Draining)]).excluded(&[2]),
            NoWorker::NoneServing,
        ),
        ("others serve other models", Fleet::of([other(), worker(2).models(&["b"])]), NoWorker::UnknownModel),
        (
            "no model was named, nobody serves",
            Fleet::of([unspoken(1, WorkerState::Pending)]).model(None),
            NoWorker::NoneServing,
        ),
    ];
    for (sentence, fleet, expected) in rows {
        assert_eq!(fleet.decide(1), Err(expected), "{sentence}");
    }
}

/// Seen in sgl-project/sglang#27980.
#[test]
fn a_model_is_unknown_only_where_every_worker_has_spoken() {
    let fleet_with = |last: Worker| Fleet::of([worker(1).models(&["other"]), last]);
    let rows = [
        ("all have spoken", fleet_with(worker(2).models(&["b"])), NoWorker::UnknownModel),
        (
            "one that is suspended has spoken before",
            fleet_with(worker(2).models(&["b"]).state(WorkerState::Suspended)),
            NoWorker::UnknownModel,
        ),
        ("one is pending", fleet_with(unspoken(2, WorkerState::Pending)), NoWorker::NoneServing),
        ("one was suspended before it spoke", fleet_with(unspoken(2, WorkerState::Suspended)), NoWorker::NoneServing),
        ("one was drained before it spoke", fleet_with(unspoken(2, WorkerState::Draining)), NoWorker::NoneServing),
    ];
    for (sentence, fleet, expected) in rows {
        assert_eq!(fleet.decide(1), Err(expected), "{sentence}");
    }
    let mut missed = fleet_with(worker(2).models(&["b"]));
    missed.slots[1] = None;
    assert_eq!(missed.decide(1), Err(NoWorker::NoneServing), "one did not answer in time");
}

#[test]
fn fallbacks_are_the_least_loaded_of_the_others_in_order_and_bounded() {
    let depths = [9, 3, 7, 1, 5, 2];
    let fleet =
        |count: usize| Fleet::of((1..).zip(&depths[..count]).map(|(number, depth)| worker(number).depth(*depth)));
    let rows = [(6, 3, vec![5, 1, 4]), (3, 1, vec![2, 0]), (2, 1, vec![0]), (1, 0, vec![])];
    for (count, slot, fallbacks) in rows {
        assert!(fallbacks.len() <= MAX_FALLBACKS);
        let choice = fleet(count).decide(1).unwrap();
        assert_eq!((choice.slot, choice.fallbacks), (slot, fallbacks), "{count} workers");
    }
    let choice = fleet(6).policy(fixed(0)).decide(1).unwrap();
    assert_eq!((choice.slot, choice.fallbacks), (0, vec![3, 5, 1]), "whatever the policy picked");
}

#[test]
fn fallbacks_never_contain_the_pick_and_ties_among_them_are_broken_at_random() {
    let fleet = Fleet::of((1..=5).map(|number| worker(number).depth(4)));
    let mut first = [0_u32; 5];
    for seed in 0..2_000 {
        let choice = fleet.decide(seed).unwrap();
        assert!(!choice.fallbacks.contains(&choice.slot), "{choice:?}");
        first[choice.fallbacks[0]] += 1;
    }
    assert!(first.iter().all(|count| (300..500).contains(count)), "{first:?}");
}

/// Seen in ai-dynamo/dynamo#2294.
#[test]
fn a_custom_pick_out_of_range_goes_to_the_least_loaded_worker() {
    for candidate in [2, 3, usize::MAX] {
        let mut fleet =
            Fleet::of([worker(1).depth(0), worker(2).depth(8), worker(3).depth(4)]).policy(fixed(candidate));
        fleet.slots[0] = None;
        let choice = fleet.decide(1).unwrap();
        assert_eq!(
            (choice.slot, choice.reason, choice.load),
            (2, "pick_out_of_range", 4.0),
            "candidate {candidate} of two"
        );
        assert_eq!(choice.fallbacks, [1]);
    }
}

#[test]
fn the_policys_rank_and_reason_are_handed_on() {
    let pick = Pick { candidate: 1, rank: Some(DpRank::new(3)), reason: "because" };
    let choice = Fleet::of([worker(1), worker(2)]).policy(Fixed(pick)).decide(1).unwrap();
    assert_eq!((choice.slot, choice.rank, choice.reason), (1, Some(DpRank::new(3)), "because"));
}

/// Seen in smg-project/smg#1714.
#[test]
fn the_same_seed_decides_the_same_and_other_seeds_share_the_ties_out() {
    let fleet = Fleet::of((1..=4).map(worker));
    let mut slots = [0_u32; 4];
    for seed in 0..2_000 {
        let choice = fleet.decide(seed).unwrap();
        assert_eq!(fleet.decide(seed), Ok(choice.clone()));
        slots[choice.slot] += 1;
    }
    assert!(slots.iter().all(|count| (400..600).contains(count)), "{slots:?}");
}

#[test]
fn buffers_of_earlier_decisions_change_nothing() {
    let mut scratch = Scratch::default();
    let large = Fleet::of((1..=9).map(worker));
    let small = Fleet::of([worker(1).depth(5), worker(2).depth(3)]);
    assert!(large.decide_with(1, &mut scratch).is_ok());
    assert_eq!(small.decide_with(2, &mut scratch), small.decide(2));
    let loads: Vec<(usize, f64)> =
        scratch.candidates().iter().map(|candidate| (candidate.slot, candidate.load)).collect();
    assert_eq!(loads, [(0, 5.0), (1, 3.0)], "the prices of the last decision can be shown");
}

#[test]
fn round_robin_turns_per_model_so_that_interleaved_models_do_not_pin_each_other() {
    let mut fleet = Fleet::of([worker(1).models(&["a", "b"]), worker(2).models(&["a", "b"])]).policy(RoundRobin);
    let mut slots = [Vec::new(), Vec::new()];
    for request in 0..8 {
        let model = request % 2;
        fleet = fleet.model(Some(["a", "b"][model]));
        fleet.turn = slots[model].len() as u64;
        slots[model].push(fleet.decide(request as u64).unwrap().slot);
    }
    assert_eq!(slots, [[0, 1, 0, 1], [0, 1, 0, 1]]);
}

/// Seen in llm-d/llm-d-router#2408.
#[test]
fn a_fleet_entirely_without_reports_still_decides() {
    let stopped = |number| worker(number).ranks(&[Some((99, secs(60)))]);
    let mut fleets = [
        ("one worker that never reported", Fleet::of([worker(1).ranks(&[None])])),
        ("one that advertised nothing", Fleet::of([worker(1)])),
        ("three whose feeds all stopped at once", Fleet::of((1..=3).map(stopped))),
    ];
    for (sentence, fleet) in &mut fleets {
        for seed in 0..100 {
            let choice = fleet.decide(seed).unwrap();
            assert_eq!(choice.basis, Basis::InFlight, "{sentence}");
        }
        let sent = fleet.send(99);
        let share = 99 / sent.len() as u32;
        assert!(sent.iter().all(|count| *count == share), "{sentence}: {sent:?}");
    }
}

#[test]
fn a_worker_that_is_out_takes_nothing_while_one_serves_however_full_that_is() {
    for state in [WorkerState::Ejected, WorkerState::Probation] {
        let mut fleet = Fleet::of([worker(1).in_flight(3), worker(2).state(state)]);
        fleet.caps.max_in_flight = Some(3);
        assert_eq!(fleet.decide(1).map(|choice| choice.slot), Err(NoWorker::Full), "{state:?}");
        let fleet = fleet.excluded(&[1]);
        assert_eq!(
            fleet.decide(1).map(|choice| choice.slot),
            Ok(1),
            "{state:?}: where the other has failed it is a last resort"
        );
    }
}

#[test]
fn every_cause_is_listed_once() {
    let mut names: Vec<&str> = NoWorker::ALL.map(NoWorker::name).into();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), NoWorker::ALL.len());
    for cause in [NoWorker::NoPrefill, NoWorker::NoDecode] {
        assert!(NoWorker::ALL.contains(&cause), "{}", cause.name());
    }
}
