//! Decisions on a prefill worker and a decode worker that share a request, both on one frozen view.

use std::sync::Arc;

use crate::actors::selector::ranks::RankQuestion;
use crate::actors::selector::{Buffers, SelectorActor, decide_or_least_load};
use crate::logic::decide::{Choice, DecideRules, FrozenRound, NoWorker};
use crate::logic::ids::DecisionId;
use crate::logic::policy::Policy;
use crate::logic::rng::Rng;
use crate::logic::role::{DEFAULT_BOOTSTRAP_PORT, Part, Role};
use crate::logic::rooms::RoomRank;
use crate::messages::{Decision, PrefillLeg};

impl SelectorActor {
    /// Each part has candidates, a policy and a seed of its own. Nothing is reserved before both are found.
    pub(super) fn decide_pair(
        &mut self,
        question: RankQuestion<'_>,
        buffers: &mut Buffers,
    ) -> Result<Decision, NoWorker> {
        let mut seeds = Rng::from_seed(question.seed);
        let (prefill_seed, decode_seed, room_seed) = (seeds.next_u64(), seeds.next_u64(), seeds.next_u64());
        let policies = [Arc::clone(&self.settings.prefill_policy), Arc::clone(&self.settings.decode_policy)];
        let [prefill_policy, decode_policy] = &policies;
        let prefill = self.decide_part(question, buffers, Part::Prefill, &**prefill_policy, prefill_seed)?;
        // The record of each part shows its own candidates.
        std::mem::swap(&mut buffers.scratch, &mut buffers.prefill_scratch);
        let decode = self.decide_part(question, buffers, Part::Decode, &**decode_policy, decode_seed)?;
        self.num_decisions += 1;
        let id = DecisionId::new(self.settings.seed.wrapping_add(self.num_decisions));
        self.settle(id, decode_seed, decode_policy.name(), &decode, question, buffers);
        std::mem::swap(&mut buffers.scratch, &mut buffers.prefill_scratch);
        self.settle(id, prefill_seed, prefill_policy.name(), &prefill, question, buffers);
        self.advance_turn(question.request);
        let leg = prefill_leg(id, &prefill, question, buffers, room_seed);
        let worker = Arc::clone(&question.open.workers[decode.slot]);
        let decision = Decision::at_rank(id, worker, decode.rank, question.request, decode.reason, decode.basis);
        Ok(decision.with_prefill(leg))
    }

    fn decide_part(
        &self,
        question: RankQuestion<'_>,
        buffers: &mut Buffers,
        part: Part,
        policy: &dyn Policy,
        seed: u64,
    ) -> Result<Choice, NoWorker> {
        let RankQuestion { request, now, .. } = question;
        let rules = DecideRules {
            price: self.settings.price,
            policy,
            turn: self.turns.get(&request.model).copied().unwrap_or(0),
            seed,
            caps: self.settings.caps,
            part,
        };
        let round = FrozenRound { slots: &buffers.view, reserved: &buffers.reserved, matches: &buffers.matches, now };
        let mut choice = decide_or_least_load(request, &round, &rules, &mut buffers.scratch, &self.telemetry)?;
        choice.rank = self.choose_rank(RankQuestion { seed, ..question }, &choice, buffers);
        Ok(choice)
    }

    /// Counts one part of a decision where later decisions of the round and observers see it.
    fn settle(
        &mut self,
        id: DecisionId,
        seed: u64,
        policy: &'static str,
        choice: &Choice,
        question: RankQuestion<'_>,
        buffers: &mut Buffers,
    ) {
        buffers.reserved[choice.slot] += 1;
        buffers.ranks.reserve(choice.slot, choice.rank);
        if let Some(prompt) = &question.request.prompt {
            buffers.siblings.note(choice.slot, choice.rank, prompt);
        }
        self.record(id, seed, policy, choice, buffers, question.now);
    }
}

/// An engine gives a request to the rank that is its room's remainder, counted from zero.
fn prefill_leg(
    id: DecisionId,
    prefill: &Choice,
    question: RankQuestion<'_>,
    buffers: &Buffers,
    room_seed: u64,
) -> PrefillLeg {
    let snapshot = buffers.view[prefill.slot].as_deref();
    let bootstrap_port = match snapshot.map(|worker| worker.facts.role) {
        Some(Role::Prefill { bootstrap_port }) => bootstrap_port,
        _ => DEFAULT_BOOTSTRAP_PORT,
    };
    let num_ranks = snapshot.filter(|worker| worker.facts.ranks.is_some_and(|ranks| ranks.first() == 0));
    let rank = num_ranks
        .zip(prefill.rank)
        .map(|(worker, rank)| RoomRank { rank: rank.number(), num_ranks: worker.addressed_ranks });
    let worker = Arc::clone(&question.open.workers[prefill.slot]);
    PrefillLeg::new(id, worker, rank, question.request, bootstrap_port, room_seed)
}
