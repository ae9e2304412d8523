use std::sync::Arc;
use std::time::Instant;

use super::{
    CacheAwareSettings, CacheAwareZmq, LeastLoad, Pick, Policy, PowerOfTwo, PrefixMatch, Random, RoundRobin, View,
};
use crate::logic::price::{Basis, Priced};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;
use crate::logic::snapshot::WorkerSnapshot;
use crate::logic::testing::{start, worker};

/// Candidates with loads and matches. Slot 0 of their round is empty, so that no test confuses slots with candidates.
struct Candidates {
    priced: Vec<Priced>,
    slots: Vec<Option<Arc<WorkerSnapshot>>>,
    matches: Vec<PrefixMatch>,
    turn: u64,
    now: Instant,
}

impl Candidates {
    fn of(loads: &[f64]) -> Self {
        let now = start();
        let filled = (1..=loads.len() as u64).map(|number| Some(worker(number).freeze(now)));
        Self {
            priced: (1..).zip(loads).map(|(slot, load)| Priced::new(slot).at(*load)).collect(),
            slots: std::iter::once(None).chain(filled).collect(),
            matches: Vec::new(),
            turn: 0,
            now,
        }
    }

    /// Matched blocks and blocks of the prompt, by candidate.
    fn matches(mut self, matches: &[(u32, u32)]) -> Self {
        let known = matches
            .iter()
            .map(|&(matched_blocks, prompt_blocks)| PrefixMatch::of_blocks(matched_blocks, prompt_blocks));
        // The empty slot holds everything: a policy that counted it would find the best match there.
        self.matches = std::iter::once(PrefixMatch::of_blocks(99, 99)).chain(known).collect();
        self
    }

    fn turn(mut self, turn: u64) -> Self {
        self.turn = turn;
        self
    }

    fn view(&self) -> View<'_> {
        View {
            candidates: &self.priced,
            slots: &self.slots,
            matches: &self.matches,
            basis: Basis::Engine,
            turn: self.turn,
            now: self.now,
        }
    }

    fn pick(&self, policy: &dyn Policy, seed: u64) -> Pick {
        policy.pick(&RequestFacts::default(), &self.view(), &mut Rng::from_seed(seed))
    }

    /// Returns how often each candidate is picked under 4,000 seeds.
    fn picks(&self, policy: &dyn Policy) -> Vec<u32> {
        let mut picks = vec![0; self.priced.len()];
        for seed in 0..4_000 {
            picks[self.pick(policy, seed).candidate] += 1;
        }
        picks
    }
}

fn policies() -> [Box<dyn Policy>; 5] {
    [
        Box::new(CacheAwareZmq::default()),
        Box::new(LeastLoad),
        Box::new(PowerOfTwo),
        Box::new(RoundRobin),
        Box::new(Random),
    ]
}

/// Seen in smg-project/smg#1714.
#[test]
fn ties_are_broken_at_random_and_not_by_position() {
    let tied = Candidates::of(&[2.0; 4]).matches(&[(9, 9); 4]);
    for policy in [&CacheAwareZmq::default() as &dyn Policy, &LeastLoad, &PowerOfTwo, &Random] {
        let picks = tied.picks(policy);
        assert!(picks.iter().all(|count| (850..1_150).contains(count)), "{}: {picks:?}", policy.name());
    }
    let some_tied = Candidates::of(&[3.0, 1.0, 2.0, 1.0]).picks(&LeastLoad);
    assert!(some_tied[0] == 0 && some_tied[2] == 0 && some_tied[1].abs_diff(some_tied[3]) < 200, "{some_tied:?}");
}

/// Seen in smg-project/smg#1714.
#[test]
fn the_same_seed_and_view_pick_the_same_candidate() {
    let tied = Candidates::of(&[2.0; 6]).matches(&[(9, 9); 6]).turn(4);
    for policy in policies() {
        for seed in 0..200 {
            assert_eq!(tied.pick(&*policy, seed), tied.pick(&*policy, seed), "{} with seed {seed}", policy.name());
        }
    }
}

/// Seen in vllm-project/router#210.
#[test]
fn no_built_in_policy_addresses_a_rank_that_it_does_not_know_the_owner_of() {
    let candidates = Candidates::of(&[1.0, 2.0]).matches(&[(0, 4), (4, 4)]);
    for policy in policies() {
        assert_eq!(candidates.pick(&*policy, 1).rank, None, "{}", policy.name());
    }
}

#[test]
fn a_single_candidate_is_picked_by_every_policy() {
    for policy in policies() {
        let pick = Candidates::of(&[7.0]).turn(u64::MAX).pick(&*policy, 3);
        assert_eq!(pick.candidate, 0, "{}", policy.name());
    }
}

#[test]
fn power_of_two_never_picks_the_worse_of_two() {
    assert_eq!(Candidates::of(&[5.0, 1.0]).picks(&PowerOfTwo), [0, 4_000]);
    assert_eq!(Candidates::of(&[1.0, 5.0]).picks(&PowerOfTwo), [4_000, 0]);
}

#[test]
fn power_of_two_covers_all_candidates_but_the_worst() {
    // Of two different ones of four, the best takes part in every second pair; the worst wins none.
    let picks = Candidates::of(&[4.0, 1.0, 3.0, 2.0]).picks(&PowerOfTwo);
    let expected = [0, 2_000, 667, 1_333];
    assert_eq!(picks[0], 0);
    assert!(picks.iter().zip(expected).all(|(count, wanted)| count.abs_diff(wanted) < 150), "{picks:?}");
}

#[test]
fn round_robin_takes_every_candidate_in_turn_whatever_its_load() {
    let picked: Vec<usize> =
        (0..7).map(|turn| Candidates::of(&[9.0, 0.0, 5.0]).turn(turn).pick(&RoundRobin, 1).candidate).collect();
    assert_eq!(picked, [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn the_matched_set_tie_break_uses_the_load() {
    let rows = [
        ("the less loaded of two with the best match", vec![9.0, 4.0, 0.0], vec![(8, 8), (8, 8), (0, 8)], 1),
        ("the better match even where it is more loaded", vec![9.0, 4.0, 0.0], vec![(8, 8), (7, 8), (0, 8)], 0),
        ("matches count in parts of the prompt at each worker's block size", vec![9.0, 4.0], vec![(6, 8), (24, 32)], 1),
        ("more blocks are not more of the prompt", vec![4.0, 9.0], vec![(20, 32), (7, 8)], 1),
    ];
    for (sentence, loads, matches, expected) in rows {
        let candidates = Candidates::of(&loads).matches(&matches);
        for seed in 0..50 {
            let pick = candidates.pick(&CacheAwareZmq::default(), seed);
            assert_eq!((pick.candidate, pick.reason), (expected, "best_match"), "{sentence}, seed {seed}");
        }
    }
}

/// The candidate that holds the prompt is the more loaded one, so the pick tells which rule was applied.
#[test]
fn the_cache_counts_only_above_the_threshold() {
    let rows: &[(&str, f64, (u32, u32), &str)] = &[
        ("half is not more than half", 0.5, (4, 8), "no_match"),
        ("a block more is", 0.5, (5, 8), "best_match"),
        ("nothing is not more than nothing", 0.0, (0, 8), "no_match"),
        ("one block is", 0.0, (1, 8), "best_match"),
        ("nobody holds more than everything", 1.0, (8, 8), "no_match"),
        ("a prompt that is not known as tokens", 0.0, (0, 0), "no_match"),
    ];
    for (sentence, cache_threshold, holds, reason) in rows {
        let policy = CacheAwareZmq::new(CacheAwareSettings { cache_threshold: *cache_threshold, ..Default::default() });
        let candidates = Candidates::of(&[3.0, 1.0]).matches(&[*holds, (0, holds.1)]);
        let expected = if *reason == "best_match" { 0 } else { 1 };
        let pick = candidates.pick(&policy, 1);
        assert_eq!((pick.candidate, pick.reason), (expected, *reason), "{sentence}");
    }
    let unknown = Candidates::of(&[3.0, 1.0]).pick(&CacheAwareZmq::default(), 1);
    assert_eq!((unknown.candidate, unknown.reason), (1, "no_match"), "without any matches the load decides");
}

/// The first candidate holds the whole prompt: while the fleet is in balance it is picked.
#[test]
fn balance_outranks_the_cache_only_where_both_thresholds_are_passed() {
    let rows: &[(&str, f64, f64, [f64; 2], &str)] = &[
        ("the default difference itself is not passed", 32.0, 1.1, [32.0, 0.0], "best_match"),
        ("one more is", 32.0, 1.1, [33.0, 0.0], "imbalanced"),
        ("the difference without the factor", 32.0, 1.1, [1_033.0, 1_000.0], "best_match"),
        ("the factor without the difference", 32.0, 1.1, [20.0, 1.0], "best_match"),
        ("the factor itself is not passed", 8.0, 2.0, [40.0, 20.0], "best_match"),
        ("one more is passed", 8.0, 2.0, [41.0, 20.0], "imbalanced"),
        ("the difference itself with the factor passed", 8.0, 2.0, [9.0, 1.0], "best_match"),
        ("thresholds of nothing balance at any difference", 0.0, 0.0, [1.0, 0.0], "imbalanced"),
        ("but not at none", 0.0, 0.0, [0.0, 0.0], "best_match"),
    ];
    for (sentence, balance_abs_threshold, balance_rel_threshold, loads, reason) in rows {
        let settings = CacheAwareSettings {
            cache_threshold: 0.5,
            balance_abs_threshold: *balance_abs_threshold,
            balance_rel_threshold: *balance_rel_threshold,
        };
        let pick = Candidates::of(loads).matches(&[(8, 8), (0, 8)]).pick(&CacheAwareZmq::new(settings), 1);
        let expected = if *reason == "imbalanced" { 1 } else { 0 };
        assert_eq!((pick.candidate, pick.reason), (expected, *reason), "{sentence}");
    }
}

/// Seen in sgl-project/sglang#14532.
#[test]
fn a_miss_follows_the_load_and_not_the_size_of_the_index() {
    // The busy worker knows none of the prompt; the idle one, whose index is large, knows the little that many prompts share.
    for matches in [[(0, 100), (0, 100)], [(0, 100), (50, 100)], [(50, 100), (0, 100)]] {
        let candidates = Candidates::of(&[20.0, 0.0]).matches(&matches);
        assert_eq!(candidates.picks(&CacheAwareZmq::default()), [0, 4_000], "{matches:?}");
    }
}
