//! What holds for every fleet and every request.

use proptest::prelude::{Just, Strategy, any, prop};
use proptest::prop_oneof;
use proptest::test_runner::{Config, RngSeed, TestCaseResult, TestRunner};
use proptest::{prop_assert, prop_assert_eq};

use super::fixed;
use crate::logic::decide::{Choice, MAX_FALLBACKS, Scratch};
use crate::logic::health::WorkerState;
use crate::logic::policy::{CacheAwareZmq, LeastLoad, PowerOfTwo, Random, RoundRobin};
use crate::logic::price::BasisRule;
use crate::logic::testing::{Fleet, Worker, secs, worker};

/// Checks the property on 4,000 fleets, the same ones in every run.
fn check(property: impl Fn(Fleet, u64) -> TestCaseResult) {
    let config =
        Config { cases: 4_000, failure_persistence: None, rng_seed: RngSeed::Fixed(0x5eed), ..Config::default() };
    let cases = (fleets(), any::<u64>());
    TestRunner::new(config)
        .run(&cases, |(fleet, seed)| property(fleet, seed))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

fn workers() -> impl Strategy<Value = Worker> {
    let states = prop_oneof![
        4 => Just(WorkerState::Serving),
        1 => prop::sample::select(WorkerState::ALL.to_vec()),
    ];
    let models = prop::sample::subsequence(vec!["a", "b", "m"], 0..=3);
    let reports = prop::collection::vec(prop::option::weighted(0.9, (0_u64..60, 0_u64..6)), 0..3);
    let serving_for = prop::option::of(0_u64..20);
    (states, models, 0_u32..60, reports, 0_u32..5, serving_for).prop_map(
        |(state, models, in_flight, reports, own_dispatches, serving_for)| {
            let reports: Vec<_> =
                reports.into_iter().map(|report| report.map(|(depth, age)| (depth, secs(age)))).collect();
            let made = worker(0).state(state).models(&models).in_flight(in_flight).own_dispatches(own_dispatches);
            let made = if reports.is_empty() { made } else { made.ranks(&reports) };
            serving_for.into_iter().fold(made, |made, age| made.serving_for(secs(age)))
        },
    )
}

fn fleets() -> impl Strategy<Value = Fleet> {
    let slot = (prop::option::weighted(0.9, workers()), 0_u32..40, (0_u32..9, 0_u32..9), any::<bool>());
    let slots = prop::collection::vec(slot, 0..10);
    let model = prop::sample::select(vec![None, Some("a"), Some("b"), Some("m"), Some("nobody's")]);
    let basis = prop::sample::select(vec![BasisRule::Uniform, BasisRule::Scaled, BasisRule::Mixed]);
    let knows_matches = any::<bool>();
    (slots, model, basis, 0_usize..7, any::<u64>(), knows_matches).prop_map(
        |(slots, model, basis, policy, turn, knows_matches)| {
            let mut made = Fleet::of([]);
            let mut excluded = Vec::new();
            let mut matches = Vec::new();
            for (number, (slot, reserved, (matched, prompt), is_excluded)) in (1..).zip(slots) {
                made.slots.push(slot.map(|slot| slot.number(number).freeze(made.now)));
                made.reserved.push(reserved);
                matches.push((matched.min(prompt), prompt));
                excluded.extend((is_excluded && number % 3 == 0).then_some(number));
            }
            made.turn = turn;
            let made = made.model(model).basis(basis).excluded(&excluded);
            let made = if knows_matches { made.matches(&matches) } else { made };
            match policy {
                0 => made.policy(CacheAwareZmq::default()),
                1 => made.policy(LeastLoad),
                2 => made.policy(PowerOfTwo),
                3 => made.policy(Random),
                4 => made.policy(RoundRobin),
                other => made.policy(fixed(other - 5 + (turn % 5) as usize)),
            }
        },
    )
}

/// Returns the slots that may be chosen, by the letter of the rule.
fn eligible(fleet: &Fleet) -> Vec<usize> {
    let in_state = |state: WorkerState| -> Vec<usize> {
        let may_be_chosen = |slot: &usize| {
            fleet.slots[*slot].as_ref().is_some_and(|worker| {
                worker.state == state
                    && fleet.request.model.as_ref().is_none_or(|model| worker.facts.models.contains(model))
                    && !fleet.request.excluded.contains(&worker.id)
            })
        };
        (0..fleet.slots.len()).filter(may_be_chosen).collect()
    };
    let serving = in_state(WorkerState::Serving);
    if serving.is_empty() {
        let mut out = in_state(WorkerState::Probation);
        out.extend(in_state(WorkerState::Ejected));
        return out;
    }
    serving
}

fn decided(fleet: &Fleet, seed: u64) -> Option<(Choice, Vec<(usize, f64)>)> {
    let mut scratch = Scratch::default();
    let choice = fleet.decide_with(seed, &mut scratch).ok()?;
    Some((choice, scratch.candidates().iter().map(|candidate| (candidate.slot, candidate.load)).collect()))
}

#[test]
fn a_worker_that_may_not_be_chosen_never_is_and_one_that_may_always_is() {
    check(|fleet, seed| {
        let eligible = eligible(&fleet);
        match fleet.decide(seed) {
            Ok(choice) => {
                prop_assert!(eligible.contains(&choice.slot));
                prop_assert!(choice.fallbacks.iter().all(|slot| eligible.contains(slot)));
            }
            Err(cause) => prop_assert!(eligible.is_empty(), "{} though {:?} might be chosen", cause, eligible),
        }
        Ok(())
    });
}

#[test]
fn fallbacks_are_distinct_without_the_pick_bounded_and_in_order_of_load() {
    check(|fleet, seed| {
        let Some((choice, loads)) = decided(&fleet, seed) else { return Ok(()) };
        let load_of = |slot: &usize| loads.iter().find(|(other, _)| other == slot).map(|(_, load)| *load);
        let mut all = [vec![choice.slot], choice.fallbacks.clone()].concat();
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(all.len(), 1 + choice.fallbacks.len(), "{:?}", &choice);
        prop_assert_eq!(choice.fallbacks.len(), MAX_FALLBACKS.min(loads.len() - 1));
        let in_order: Vec<_> = choice.fallbacks.iter().map(load_of).collect();
        prop_assert!(in_order.is_sorted(), "{:?} with loads {:?}", &choice, loads);
        Ok(())
    });
}

#[test]
fn the_same_inputs_give_the_same_choice() {
    check(|fleet, seed| {
        let first = decided(&fleet, seed);
        prop_assert_eq!(decided(&fleet, seed), first);
        Ok(())
    });
}

#[test]
fn loads_are_finite_and_never_negative() {
    check(|fleet, seed| {
        let Some((choice, loads)) = decided(&fleet, seed) else { return Ok(()) };
        prop_assert!(loads.iter().all(|(_, load)| load.is_finite() && *load >= 0.0), "{:?}", loads);
        prop_assert!(loads.contains(&(choice.slot, choice.load)));
        Ok(())
    });
}
