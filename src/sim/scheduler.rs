//! Which rank a request goes to, and when it runs: queues and slots as plain data.
//!
//! A request goes to the rank with the fewest running and waiting requests, the lowest rank first when several are
//! equal, unless it names one itself. There it runs at once when a slot is free, and waits behind the others if not.
//! A slot that becomes free goes to the request that waits longest. Nothing is ever refused for lack of space.
//!
//! The reported tokens are those of requests: what is cached and used by none does not count as used, as in SGLang. Unlike
//! there, a prefix that several running requests share counts for each of them, and the prompt of a waiting request counts
//! as uncached, since nothing is looked up before it has a slot.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::load_frame::Reported;
use super::stats::RankStats;

/// How many aborts are remembered with their time; the oldest are forgotten first.
const MAX_RECENT_ABORTS: usize = 256;

/// The limits that hold for each rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankLimits {
    pub(super) max_running: usize,
    pub(super) max_total_tokens: u64,
}

/// Names one request for as long as it is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) id: u64,
    pub(super) rank: u32,
}

/// What computing a prompt took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefill {
    /// The tokens that were cached and not computed.
    pub(super) cached_tokens: u64,
    pub(super) busy: Duration,
}

/// Whether a request that was just placed has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Now,
    Queued,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All tokens were generated.
    Completed,
    /// The client left.
    Aborted,
    /// The engine broke the answer off, as it was told to.
    Failed,
}

/// The rank that a request named does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("data parallel rank {rank} is out of range, the engine has {dp_size}")]
pub(super) struct RankOutOfRange {
    rank: u32,
    dp_size: usize,
}

/// The queues and slots of all ranks.
#[derive(Debug)]
pub(super) struct Scheduler {
    limits: RankLimits,
    ranks: Vec<Rank>,
    next_id: u64,
    recent_aborts: VecDeque<Instant>,
}

impl Scheduler {
    pub(super) fn new(dp_size: u32, limits: RankLimits) -> Self {
        let ranks = (0..dp_size).map(|_| Rank::default()).collect();
        Self { limits, ranks, next_id: 0, recent_aborts: VecDeque::new() }
    }

    /// Gives a request to the rank it names, or to the one with the fewest requests.
    pub(super) fn place(
        &mut self,
        named_rank: Option<u32>,
        prompt_tokens: u64,
    ) -> Result<(Ticket, Start), RankOutOfRange> {
        let rank = named_rank.unwrap_or_else(|| self.shortest_rank());
        let dp_size = self.ranks.len();
        let Some(queue) = self.ranks.get_mut(rank as usize) else {
            return Err(RankOutOfRange { rank, dp_size });
        };
        let ticket = Ticket { id: self.next_id, rank };
        self.next_id += 1;
        Ok((ticket, queue.enter(ticket, prompt_tokens, self.limits.max_running)))
    }

    /// Notes that the prompt of a running request has been computed.
    pub(super) fn prefilled(&mut self, ticket: Ticket, prefill: Prefill) {
        let Some(rank) = self.ranks.get_mut(ticket.rank as usize) else { return };
        let Some(sequence) = rank.running.get(&ticket.id) else { return };
        rank.prompt_tokens += sequence.num_tokens;
        rank.cached_tokens += prefill.cached_tokens;
        rank.prefill_busy += prefill.busy;
    }

    /// Notes one more output token of a running request.
    pub(super) fn generated(&mut self, ticket: Ticket) {
        let Some(rank) = self.ranks.get_mut(ticket.rank as usize) else { return };
        if let Some(sequence) = rank.running.get_mut(&ticket.id) {
            sequence.num_tokens += 1;
        }
    }

    /// Takes a request out, wherever it is, and returns the one that gets its slot.
    pub(super) fn finish(&mut self, ticket: Ticket, outcome: Outcome, now: Instant) -> Option<Ticket> {
        let rank = self.ranks.get_mut(ticket.rank as usize)?;
        rank.count(outcome);
        if outcome == Outcome::Aborted {
            self.recent_aborts.push_back(now);
            if self.recent_aborts.len() > MAX_RECENT_ABORTS {
                self.recent_aborts.pop_front();
            }
        }
        if rank.running.remove(&ticket.id).is_none() {
            rank.waiting.retain(|waiting| waiting.ticket != ticket);
            return None;
        }
        rank.promote()
    }

    /// Returns the true report of every rank.
    pub(super) fn loads(&self) -> Vec<Reported> {
        self.ranks.iter().map(|rank| rank.load(self.limits)).collect()
    }

    /// Returns what every rank holds and has finished.
    pub(super) fn rank_stats(&self) -> Vec<RankStats> {
        self.ranks.iter().map(Rank::stats).collect()
    }

    /// Returns when the last aborts happened, oldest first.
    pub(super) fn recent_aborts(&self) -> Vec<Instant> {
        self.recent_aborts.iter().copied().collect()
    }

    fn shortest_rank(&self) -> u32 {
        (0u32..).zip(&self.ranks).min_by_key(|(_, rank)| rank.depth()).map_or(0, |(index, _)| index)
    }
}

/// One rank: slots in use, the queue before them, and what has been finished.
#[derive(Debug, Default)]
struct Rank {
    running: HashMap<u64, Sequence>,
    waiting: VecDeque<Waiting>,
    completed: u64,
    aborted: u64,
    failed: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    prefill_busy: Duration,
}

impl Rank {
    fn depth(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    fn enter(&mut self, ticket: Ticket, prompt_tokens: u64, max_running: usize) -> Start {
        if self.running.len() < max_running {
            self.running.insert(ticket.id, Sequence { num_tokens: prompt_tokens });
            return Start::Now;
        }
        self.waiting.push_back(Waiting { ticket, prompt_tokens });
        Start::Queued
    }

    fn promote(&mut self) -> Option<Ticket> {
        let next = self.waiting.pop_front()?;
        self.running.insert(next.ticket.id, Sequence { num_tokens: next.prompt_tokens });
        Some(next.ticket)
    }

    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Completed => self.completed += 1,
            Outcome::Aborted => self.aborted += 1,
            Outcome::Failed => self.failed += 1,
        }
    }

    fn load(&self, limits: RankLimits) -> Reported {
        let used: u64 = self.running.values().map(|sequence| sequence.num_tokens).sum();
        let waiting: u64 = self.waiting.iter().map(|request| request.prompt_tokens).sum();
        Reported {
            num_running_reqs: self.running.len() as u64,
            num_waiting_reqs: self.waiting.len() as u64,
            num_used_tokens: used,
            max_total_num_tokens: limits.max_total_tokens,
            num_waiting_uncached_tokens: waiting,
            num_total_tokens: used + waiting,
            max_running_requests: limits.max_running as u64,
            total_prefill_uncached_tokens: self.prompt_tokens.saturating_sub(self.cached_tokens),
            total_prefill_busy_us: u64::try_from(self.prefill_busy.as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn stats(&self) -> RankStats {
        RankStats {
            running: self.running.len() as u64,
            waiting: self.waiting.len() as u64,
            completed: self.completed,
            aborted: self.aborted,
            failed: self.failed,
            num_prompt_tokens: self.prompt_tokens,
            num_cached_tokens: self.cached_tokens,
        }
    }
}

/// A request in a slot: its prompt and what was generated so far.
#[derive(Debug)]
struct Sequence {
    num_tokens: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    prompt_tokens: u64,
}

#[cfg(test)]
mod tests {
    use super::super::clock;
    use super::*;

    fn scheduler(dp_size: u32, max_running: usize) -> Scheduler {
        Scheduler::new(dp_size, RankLimits { max_running, max_total_tokens: 1000 })
    }

    fn placed_ranks(scheduler: &mut Scheduler, named_ranks: &[Option<u32>]) -> Vec<u32> {
        named_ranks.iter().map(|named| scheduler.place(*named, 1).unwrap().0.rank).collect()
    }

    #[test]
    fn a_request_goes_to_the_rank_with_the_fewest_and_the_lowest_among_equals() {
        let mut scheduler = scheduler(3, 1);
        assert_eq!(placed_ranks(&mut scheduler, &[None, None, None, None]), [0, 1, 2, 0]);
    }

    #[test]
    fn a_named_rank_is_used_even_when_it_is_the_longest() {
        let mut scheduler = scheduler(2, 1);
        assert_eq!(placed_ranks(&mut scheduler, &[Some(1), Some(1), None, None, None]), [1, 1, 0, 0, 0]);
    }

    #[test]
    fn a_named_rank_that_does_not_exist_is_refused_and_leaves_no_trace() {
        let mut scheduler = scheduler(2, 1);
        assert_eq!(scheduler.place(Some(2), 1), Err(RankOutOfRange { rank: 2, dp_size: 2 }));
        assert_eq!(scheduler.rank_stats(), vec![RankStats::default(); 2]);
    }

    #[test]
    fn a_free_slot_goes_to_the_request_that_waits_longest() {
        let mut scheduler = scheduler(1, 1);
        let (first, start) = scheduler.place(None, 1).unwrap();
        assert_eq!(start, Start::Now);
        let (second, start) = scheduler.place(None, 1).unwrap();
        assert_eq!(start, Start::Queued);
        let (third, _) = scheduler.place(None, 1).unwrap();

        assert_eq!(scheduler.finish(first, Outcome::Completed, clock::now()), Some(second));
        assert_eq!(scheduler.finish(second, Outcome::Completed, clock::now()), Some(third));
        assert_eq!(scheduler.finish(third, Outcome::Completed, clock::now()), None);
        assert_eq!(scheduler.rank_stats(), [RankStats { completed: 3, ..RankStats::default() }]);
    }

    #[test]
    fn a_waiting_request_that_is_aborted_frees_no_slot_and_is_never_promoted() {
        let mut scheduler = scheduler(1, 1);
        let (first, _) = scheduler.place(None, 1).unwrap();
        let (second, _) = scheduler.place(None, 1).unwrap();
        let now = clock::now();

        assert_eq!(scheduler.finish(second, Outcome::Aborted, now), None);
        assert_eq!(scheduler.finish(first, Outcome::Completed, now), None);
        assert_eq!(scheduler.rank_stats(), [RankStats { completed: 1, aborted: 1, ..RankStats::default() }]);
        assert_eq!(scheduler.recent_aborts(), [now]);
    }

    #[test]
    fn the_load_counts_prompts_as_waiting_then_as_used_and_grows_with_every_token() {
        let mut scheduler = scheduler(1, 1);
        let (first, _) = scheduler.place(None, 10).unwrap();
        let (_second, _) = scheduler.place(None, 7).unwrap();
        scheduler.prefilled(first, Prefill { cached_tokens: 4, busy: Duration::from_micros(250) });
        scheduler.generated(first);
        let expected = Reported {
            num_running_reqs: 1,
            num_waiting_reqs: 1,
            num_used_tokens: 11,
            max_total_num_tokens: 1000,
            num_waiting_uncached_tokens: 7,
            num_total_tokens: 18,
            max_running_requests: 1,
            total_prefill_uncached_tokens: 6,
            total_prefill_busy_us: 250,
        };
        assert_eq!(scheduler.loads(), [expected]);

        scheduler.finish(first, Outcome::Completed, clock::now());
        let load = scheduler.loads()[0];
        assert_eq!((load.num_used_tokens, load.num_waiting_uncached_tokens, load.num_total_tokens), (7, 0, 7));
        let stats = scheduler.rank_stats()[0];
        assert_eq!((stats.num_prompt_tokens, stats.num_cached_tokens), (10, 4));
    }

    #[test]
    fn only_the_last_aborts_are_remembered() {
        let mut scheduler = scheduler(1, 1);
        for _ in 0..=MAX_RECENT_ABORTS {
            let (ticket, _) = scheduler.place(None, 1).unwrap();
            scheduler.finish(ticket, Outcome::Aborted, clock::now());
        }
        assert_eq!(scheduler.recent_aborts().len(), MAX_RECENT_ABORTS);
    }
}
