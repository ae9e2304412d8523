//! One decision: from a request and a frozen round to a worker, and the reason.
//!
//! The order of questions: who serves the model, who takes traffic (one whose engine has no room only when nobody else has, and
//! one that is out or on probation only when nobody else is left), who has not failed this request already, what each one's load
//! is on one common basis, what the policy picks, and who comes next should the pick fail before its first byte.
//!
//! One question comes before the policy's: a worker on probation whose trial is free gets the next request that it can serve, for
//! a policy might never pick it and it would never return. The request has the serving workers as fallbacks, and must not have
//! failed anywhere yet. Nobody is tried in this way while nobody serves: then everybody who is out or on probation takes traffic.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::logic::admission::Caps;
use crate::logic::health::WorkerState;
use crate::logic::ids::DpRank;
use crate::logic::policy::{Pick, Policy, PrefixMatch, View};
use crate::logic::price::{Basis, PriceRules, Priced, price};
use crate::logic::request::RequestFacts;
use crate::logic::rng::Rng;
use crate::logic::role::Part;
use crate::logic::snapshot::WorkerSnapshot;

/// The most workers named as fallbacks of one decision.
pub const MAX_FALLBACKS: usize = 3;

/// A frozen round, as all its decisions see it. Slots are workers in the order of their ids; an empty slot is a worker that did
/// not answer in time.
#[derive(Debug, Clone, Copy)]
pub struct FrozenRound<'a> {
    /// What each worker said.
    pub slots: &'a [Option<Arc<WorkerSnapshot>>],
    /// Requests that earlier decisions of this round sent to each slot, which its snapshot cannot contain.
    pub reserved: &'a [u32],
    /// What each slot holds of this request's prompt; empty where nothing is known.
    pub matches: &'a [PrefixMatch],
    /// The time of the decision.
    pub now: Instant,
}

/// What decided, beside the round and the request.
#[derive(Debug, Clone, Copy)]
pub struct DecideRules<'a> {
    /// How loads are made.
    pub price: PriceRules,
    /// Who picks.
    pub policy: &'a dyn Policy,
    /// Number of decisions for this model before this one.
    pub turn: u64,
    /// Seed of this decision's random numbers.
    pub seed: u64,
    /// Limits beyond which a worker takes no more.
    pub caps: Caps,
    /// The part of the request that is decided on.
    pub part: Part,
}

/// The result of a decision, in slots of the round.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The slot chosen.
    pub slot: usize,
    /// The rank that the policy named, where it did.
    pub rank: Option<DpRank>,
    /// Slots to try next, best first. None where workers have limits.
    pub fallbacks: Vec<usize>,
    /// Why, from the policy's closed set.
    pub reason: &'static str,
    /// What the loads were made of.
    pub basis: Basis,
    /// The load of the chosen slot on that basis; zero for the trial of a worker on probation, which is not compared.
    pub load: f64,
}

/// Why no worker could be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NoWorker {
    /// The fleet has no worker at all.
    #[error("no worker is known")]
    EmptyFleet,
    /// Workers are known, but none of them may take traffic now.
    #[error("no worker is serving")]
    NoneServing,
    /// Workers serve, but none of them this model.
    #[error("no worker serves this model")]
    UnknownModel,
    /// Every worker that serves the model has as many requests as it may have.
    #[error("every worker that serves this model has as many requests as it may have")]
    Full,
    /// Every worker that serves the model has failed this request.
    #[error("every worker that serves this model has failed")]
    AllFailed,
    /// Decode workers serve the model, but no prefill worker takes traffic.
    #[error("this model has decode workers, but no prefill worker that takes traffic")]
    NoPrefill,
    /// Prefill workers serve the model, but no decode worker takes traffic.
    #[error("this model has prefill workers, but no decode worker that takes traffic")]
    NoDecode,
    /// No worker answered in time.
    #[error("no worker answered in time")]
    NoAnswer,
}

impl NoWorker {
    /// Every cause, for counters that show zeros too.
    pub const ALL: [Self; 8] = [
        Self::EmptyFleet,
        Self::NoneServing,
        Self::UnknownModel,
        Self::Full,
        Self::AllFailed,
        Self::NoPrefill,
        Self::NoDecode,
        Self::NoAnswer,
    ];

    /// Returns the name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::EmptyFleet => "empty_fleet",
            Self::NoneServing => "none_serving",
            Self::UnknownModel => "unknown_model",
            Self::Full => "full",
            Self::AllFailed => "all_failed",
            Self::NoPrefill => "no_prefill",
            Self::NoDecode => "no_decode",
            Self::NoAnswer => "no_answer",
        }
    }
}

/// Buffers that decisions reuse; they hold nothing between decisions but their capacity, and the prices of the last one.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Vec<Priced>,
}

impl Scratch {
    /// Returns the candidates of the last decision with their loads.
    pub fn candidates(&self) -> &[Priced] {
        &self.candidates
    }
}

/// Tells whether a request for which no regular worker was found is one for a pair: some worker does a part of it.
pub fn is_for_a_pair(request: &RequestFacts, round: &FrozenRound<'_>) -> bool {
    let does_a_part =
        |worker: &WorkerSnapshot| worker.facts.role.part() != Part::Whole && worker.serves(request.model.as_deref());
    request.may_be_shared && round.slots.iter().flatten().any(|worker| does_a_part(worker))
}

/// Decides where the request goes.
///
/// # Errors
/// Says which question left nobody.
pub fn decide(
    request: &RequestFacts,
    round: &FrozenRound<'_>,
    rules: &DecideRules<'_>,
    scratch: &mut Scratch,
) -> Result<Choice, NoWorker> {
    collect_candidates(request, round, rules, &mut scratch.candidates)?;
    let basis = price(
        &mut scratch.candidates,
        |slot| round.slots.get(slot).and_then(Option::as_deref),
        |slot| round.reserved.get(slot).copied().unwrap_or(0),
        &rules.price,
        round.now,
    );
    let view = View {
        candidates: &scratch.candidates,
        slots: round.slots,
        matches: round.matches,
        basis,
        turn: rules.turn,
        now: round.now,
    };
    let mut rng = Rng::from_seed(rules.seed);
    let max_fallbacks = if rules.caps.limit_anything() { 0 } else { MAX_FALLBACKS };
    if let Some(slot) = trial(request, round, rules, &view) {
        let fallbacks = fallbacks(&view, None, max_fallbacks, &mut rng);
        return Ok(Choice { slot, rank: None, fallbacks, reason: "trial", basis, load: 0.0 });
    }
    let pick = checked(rules.policy.pick(request, &view, &mut rng), &view, &mut rng);
    Ok(Choice {
        slot: view.candidates[pick.candidate].slot,
        rank: pick.rank,
        fallbacks: fallbacks(&view, Some(pick.candidate), max_fallbacks, &mut rng),
        reason: pick.reason,
        basis,
        load: view.load_of(pick.candidate),
    })
}

fn collect_candidates(
    request: &RequestFacts,
    round: &FrozenRound<'_>,
    rules: &DecideRules<'_>,
    candidates: &mut Vec<Priced>,
) -> Result<(), NoWorker> {
    let mut is_full = false;
    let tiers: [(&[WorkerState], bool); 3] = [
        (&[WorkerState::Serving], true),
        (&[WorkerState::Serving], false),
        (&[WorkerState::Probation, WorkerState::Ejected], false),
    ];
    for (wanted, must_have_room) in tiers {
        candidates.clear();
        candidates.extend(round.slots.iter().enumerate().filter_map(|(slot, snapshot)| {
            let snapshot = snapshot.as_ref()?;
            let may_take_it = wanted.contains(&snapshot.state)
                && (!must_have_room || has_room(snapshot, rules.price.freshness, round.now))
                && snapshot.serves(request.model.as_deref())
                && snapshot.facts.role.part() == rules.part
                && !request.excluded.contains(&snapshot.id);
            if may_take_it && !is_admitted(slot, snapshot, round, rules) {
                is_full = true;
                return None;
            }
            may_take_it.then_some(Priced::new(slot))
        }));
        if !candidates.is_empty() {
            keep_owners(request, round, candidates);
            return Ok(());
        }
        if is_full && !must_have_room {
            // Somebody serves and will have room: who is out is not to be loaded with what the others cannot take.
            break;
        }
    }
    Err(if is_full { NoWorker::Full } else { nobody(request, round, rules.part) })
}

/// Where the client named a DP rank, those that own it are preferred; where none does, the wish is void.
fn keep_owners(request: &RequestFacts, round: &FrozenRound<'_>, candidates: &mut Vec<Priced>) {
    let Some(wanted) = request.wanted_rank else { return };
    let owns = |candidate: &Priced| {
        let snapshot = round.slots.get(candidate.slot).and_then(Option::as_deref);
        snapshot.is_some_and(|worker| worker.rank_numbered(wanted).is_some())
    };
    if candidates.iter().any(owns) {
        candidates.retain(owns);
    }
}

/// Tells whether the engine has not asked to be left alone, and has memory for another prompt as far as it says.
fn has_room(snapshot: &WorkerSnapshot, freshness: Duration, now: Instant) -> bool {
    snapshot.left_alone_until.is_none_or(|until| until <= now) && !snapshot.load.is_short_of_memory(now, freshness)
}

fn is_admitted(slot: usize, snapshot: &WorkerSnapshot, round: &FrozenRound<'_>, rules: &DecideRules<'_>) -> bool {
    let reserved = round.reserved.get(slot).copied().unwrap_or(0);
    rules.caps.have_room(snapshot, reserved, rules.price.freshness, round.now)
}

/// Returns the first worker on probation that this request may try, where others serve.
fn trial(request: &RequestFacts, round: &FrozenRound<'_>, rules: &DecideRules<'_>, view: &View<'_>) -> Option<usize> {
    let somebody_serves = (0..view.len()).any(|candidate| view.snapshot(candidate).state == WorkerState::Serving);
    if !somebody_serves || !request.excluded.is_empty() {
        return None;
    }
    let may_be_tried = |(slot, snapshot): (usize, &Option<Arc<WorkerSnapshot>>)| {
        let snapshot = snapshot.as_deref()?;
        let is_free = snapshot.state == WorkerState::Probation
            && snapshot.health.may_be_tried
            && round.reserved.get(slot).is_none_or(|reserved| *reserved == 0);
        let is_fit = is_free
            && has_room(snapshot, rules.price.freshness, round.now)
            && is_admitted(slot, snapshot, round, rules)
            && snapshot.serves(request.model.as_deref())
            && snapshot.facts.role.part() == rules.part;
        is_fit.then_some(slot)
    };
    round.slots.iter().enumerate().find_map(may_be_tried)
}

fn nobody(request: &RequestFacts, round: &FrozenRound<'_>, part: Part) -> NoWorker {
    if round.slots.is_empty() {
        return NoWorker::EmptyFleet;
    }
    let known: Vec<&WorkerSnapshot> = round.slots.iter().flatten().map(|snapshot| &**snapshot).collect();
    if known.is_empty() {
        return NoWorker::NoAnswer;
    }
    let takes_traffic = |state| matches!(state, WorkerState::Serving | WorkerState::Probation | WorkerState::Ejected);
    let serving_model = known.iter().filter(|worker| worker.serves(request.model.as_deref()));
    let of_part = serving_model.clone().filter(|worker| worker.facts.role.part() == part);
    if of_part.clone().any(|worker| takes_traffic(worker.state) && request.excluded.contains(&worker.id)) {
        return NoWorker::AllFailed;
    }
    match part {
        Part::Whole => {}
        Part::Prefill => return NoWorker::NoPrefill,
        Part::Decode => return NoWorker::NoDecode,
    }
    // A worker that has not said yet what it serves, or did not answer, may turn out to serve this model: "unknown" would be a
    // claim that nobody can make. One that is suspended or drained may never have come to say it.
    let has_spoken = |worker: &WorkerSnapshot| takes_traffic(worker.state) || !worker.facts.models.is_empty();
    let all_have_spoken = round.slots.iter().all(|slot| slot.as_deref().is_some_and(has_spoken));
    if all_have_spoken && serving_model.count() == 0 { NoWorker::UnknownModel } else { NoWorker::NoneServing }
}

/// A custom policy may name a candidate that does not exist; the request goes to the least loaded one instead.
fn checked(pick: Pick, view: &View<'_>, rng: &mut Rng) -> Pick {
    if pick.candidate < view.len() {
        return pick;
    }
    Pick::new(view.least_loaded(|_| true, rng).unwrap_or(0), "pick_out_of_range")
}

/// The least loaded of the others, in order. One pass from a random start, so that equals are not taken by position.
fn fallbacks(view: &View<'_>, picked: Option<usize>, max: usize, rng: &mut Rng) -> Vec<usize> {
    let wanted = max.min(view.len() - usize::from(picked.is_some()));
    if wanted == 0 {
        return Vec::new();
    }
    let mut best: Vec<usize> = Vec::with_capacity(wanted + 1);
    let start = rng.below(view.len());
    for candidate in (start..view.len()).chain(0..start).filter(|candidate| Some(*candidate) != picked) {
        let load = view.load_of(candidate);
        if best.len() == wanted && best.last().is_none_or(|worst| view.load_of(*worst) <= load) {
            continue;
        }
        let place = best.partition_point(|other| view.load_of(*other) <= load);
        best.insert(place, candidate);
        best.truncate(wanted);
    }
    for candidate in &mut best {
        *candidate = view.candidates[*candidate].slot;
    }
    best
}

#[cfg(test)]
mod tests;
