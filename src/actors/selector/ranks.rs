//! The choice of a rank after that of the worker.

use std::sync::Arc;
use std::time::Instant;

use crate::actors::selector::driver::OpenRound;
use crate::actors::selector::{Buffers, SelectorActor};
use crate::logic::decide::Choice;
use crate::logic::ids::DpRank;
use crate::logic::rank_choice::{RankFacts, RankReservations, choose_rank};
use crate::logic::request::RequestFacts;
use crate::logic::snapshot::WorkerSnapshot;

/// Buffers that choices of ranks reuse.
#[derive(Debug, Default)]
pub(super) struct RankBuffers {
    reserved: RankReservations,
    held_blocks: Vec<u32>,
}

impl RankBuffers {
    /// Begins a round.
    pub(super) fn begin(&mut self, view: &[Option<Arc<WorkerSnapshot>>]) {
        self.reserved.begin(view.iter().map(Option::as_deref));
    }

    pub(super) fn reserve(&mut self, slot: usize, rank: Option<DpRank>) {
        if let Some(rank) = rank {
            self.reserved.add(slot, rank);
        }
    }
}

/// What a choice of a rank is made for.
#[derive(Clone, Copy)]
pub(super) struct RankQuestion<'a> {
    pub(super) request: &'a RequestFacts,
    pub(super) open: &'a OpenRound,
    /// The place of the request's prompt among those of the round.
    pub(super) prompt_place: Option<usize>,
    pub(super) now: Instant,
    pub(super) seed: u64,
}

impl SelectorActor {
    /// Returns the rank to address; one that the policy has named stands.
    pub(super) fn choose_rank(
        &self,
        question: RankQuestion<'_>,
        choice: &Choice,
        buffers: &mut Buffers,
    ) -> Option<DpRank> {
        let RankQuestion { request, open, prompt_place, now, seed } = question;
        let worker = buffers.view.get(choice.slot)?.as_deref().filter(|worker| worker.addressed_ranks > 0)?;
        if !request.takes_rank {
            return None;
        }
        if let Some(rank) = choice.rank.filter(|rank| rank.number() < worker.addressed_ranks) {
            return Some(rank);
        }
        let held = &mut buffers.ranks.held_blocks;
        held.clear();
        if let (Some(prompt), Some(place)) = (&request.prompt, prompt_place) {
            held.extend_from_slice(open.round.rank_blocks(choice.slot, place));
            buffers.siblings.raise_ranks(prompt, choice.slot, worker, held);
        }
        let facts = RankFacts {
            reserved: buffers.ranks.reserved.of(choice.slot),
            held_blocks: held,
            prompt_blocks: buffers.matches.get(choice.slot).map_or(0, |found| found.prompt_blocks),
        };
        choose_rank(worker, &facts, request.wanted_rank, &self.settings.ranks, now, seed)
    }
}
