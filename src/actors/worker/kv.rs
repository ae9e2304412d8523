//! What a worker knows of its engine's KV cache: the subscriptions, one stream state per rank, the index, and the replays.
//!
//! Events are read as they come, so their own batches bound the work of a turn. What the publisher drops because this process is
//! slow shows as a gap in its numbers, and is asked for again, or costs what is listed of that rank.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::{AsyncContext, Context, SpawnHandle};
use futures::{StreamExt, stream};
use rustc_hash::FxHashMap;

use crate::actors::worker::WorkerActor;
use crate::actors::worker::adapter::adapter_of;
use crate::actors::worker::feeds::{FeedItem, FeedKind, RankFeeds};
use crate::config::KvSettings;
use crate::feed::{FeedEvent, Frame, Payload, ReplaySpec, SubscribeError, replay};
use crate::logic::endpoint::{FeedPlan, WorkerFacts};
use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::kv_event::KvEvent;
use crate::logic::kv_stream::{KvAction, KvStream, StreamCounters, StreamTrust};
use crate::logic::policy::PrefixMatch;
use crate::logic::prefix_index::{Applied, PrefixIndex};
use crate::logic::prompt_keys::PromptKeys;
use crate::logic::rate_limit::RateLimit;
use crate::logic::snapshot::{KvRank, KvView};
use crate::logic::truth::{TruthCheck, Verdict};
use crate::logic::variant_board::{Post, VariantBoard};
use crate::messages::Outcome;
use crate::telemetry::Telemetry;
use crate::wire::kv_event::{TokenUse, decode_batch};
use crate::wire::message::split;
use crate::wire::replay::{Reply, read_reply, request};

/// Answers of one replay. An engine keeps 10,000 batches by default.
const MAX_REPLIES: usize = 100_000;
/// A subscription that failed is opened again after this, and ever later.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// After a replay that left a gap, everything is asked for once more after this.
const RELIST_AFTER: Duration = Duration::from_secs(5);
/// At most one log line per worker and interval about batches that cannot be used.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The cache of one worker; see the module's documentation.
#[derive(Debug)]
pub(super) struct KvCache {
    worker: WorkerId,
    settings: KvSettings,
    telemetry: Telemetry,
    board: VariantBoard,
    facts: Arc<WorkerFacts>,
    feeds: RankFeeds,
    replay_plan: Option<FeedPlan>,
    ranks: Vec<RankStream>,
    index: PrefixIndex,
    post: Option<Post>,
    truth: TruthCheck,
    /// Tokens that were listed for each request in flight, where there were any.
    expected: FxHashMap<DecisionId, u32>,
    num_replays: u64,
    frames: u64,
    bad_frames: u64,
    bad_events: u64,
    log: RateLimit,
    view: Option<Arc<KvView>>,
}

#[derive(Debug)]
struct RankStream {
    stream: KvStream<Payload>,
    replay: Option<RunningReplay>,
    /// When everything is asked for once more, after a replay that left a gap.
    relist_at: Option<Instant>,
}

#[derive(Debug)]
struct RunningReplay {
    handle: SpawnHandle,
    opening: u64,
}

impl KvCache {
    pub(super) fn new(worker: WorkerId, settings: KvSettings, telemetry: Telemetry, board: VariantBoard) -> Self {
        Self {
            worker,
            settings,
            telemetry,
            board,
            facts: Arc::default(),
            feeds: RankFeeds::new(FeedKind::Kv, None, REOPEN_AFTER),
            replay_plan: None,
            ranks: Vec::new(),
            index: PrefixIndex::new(settings.max_index_bytes, None),
            post: None,
            truth: TruthCheck::default(),
            expected: FxHashMap::default(),
            num_replays: 0,
            frames: 0,
            bad_frames: 0,
            bad_events: 0,
            log: RateLimit::new(LOG_INTERVAL),
            view: None,
        }
    }

    /// Takes what the engine says of itself, and opens the subscriptions when it has said so for the first time.
    pub(super) fn describe(&mut self, facts: &Arc<WorkerFacts>, now: Instant, ctx: &mut Context<WorkerActor>) {
        self.facts = Arc::clone(facts);
        self.post = None;
        let Some(plan) = facts.kv_feed.plan().filter(|_| self.ranks.is_empty()) else {
            self.post_variant();
            return;
        };
        self.replay_plan = facts.replay_feed.plan().cloned();
        self.index = PrefixIndex::new(self.settings.max_index_bytes, facts.block_size);
        let has_replay = self.replay_plan.is_some();
        let stream = || RankStream { stream: KvStream::new(has_replay), replay: None, relist_at: None };
        self.ranks = (0..plan.dp_size).map(|_| stream()).collect();
        self.feeds = RankFeeds::new(FeedKind::Kv, Some(plan.clone()), REOPEN_AFTER);
        self.feeds.open_all(now, ctx);
        self.post_variant();
    }

    /// Returns what is known, made anew only if something changed.
    pub(super) fn view(&mut self) -> Arc<KvView> {
        if let Some(view) = &self.view {
            return Arc::clone(view);
        }
        let rank = |(number, rank): (usize, &RankStream)| KvRank {
            trust: rank.stream.trust(),
            num_blocks: self.index.num_blocks(DpRank::new(number as u32)) as u64,
            counters: rank.stream.counters(),
        };
        let view = Arc::new(KvView {
            variant: self.index.variant().filter(|_| !self.ranks.is_empty()),
            is_hash_verified: self.index.is_hash_verified(),
            is_given_up: self.index.is_given_up(),
            ranks: self.ranks.iter().enumerate().map(rank).collect(),
            counts: self.index.counts(),
            frames: self.frames,
            bad_frames: self.bad_frames,
            bad_events: self.bad_events,
            truth: self.truth,
            open_sockets: self.feeds.num_open(),
        });
        self.view = Some(Arc::clone(&view));
        view
    }

    /// Returns the keys that each rank lists.
    pub(super) fn keys(&self) -> Vec<Vec<u64>> {
        self.all_ranks().map(|rank| self.index.keys(rank)).collect()
    }

    /// Returns how much of each prompt the engine holds.
    pub(super) fn matches(&mut self, prompts: &[Arc<PromptKeys>], now: Instant) -> Vec<PrefixMatch> {
        if self.ranks.is_empty() {
            return Vec::new();
        }
        prompts.iter().map(|prompt| self.match_prompt(prompt, now)).collect()
    }

    /// Returns what each of the first ranks holds of each prompt, prompt by prompt; nothing where ranks make no difference.
    pub(super) fn rank_blocks(&mut self, prompts: &[Arc<PromptKeys>], num_ranks: u32, now: Instant) -> Vec<u32> {
        if self.ranks.is_empty() || num_ranks == 0 {
            return Vec::new();
        }
        let facts = Arc::clone(&self.facts);
        let mut found = Vec::with_capacity(prompts.len() * num_ranks as usize);
        for prompt in prompts {
            let adapter = adapter_of(prompt, &facts, &self.index);
            self.index.match_ranks(prompt, adapter, num_ranks as usize, now, &mut found);
        }
        found
    }

    fn match_prompt(&mut self, prompt: &PromptKeys, now: Instant) -> PrefixMatch {
        let facts = Arc::clone(&self.facts);
        let adapter = adapter_of(prompt, &facts, &self.index);
        let mut found = self.index.match_prompt(prompt, adapter, now);
        let may_predict =
            |rank: &RankStream| rank.stream.trust().may_match() || rank.stream.trust() == StreamTrust::Cold;
        if !self.ranks.iter().any(may_predict) {
            // Of a stream that cannot be believed nothing will be confirmed either.
            found.predicted_blocks = 0;
        }
        found
    }

    /// Notes that a request with this prompt is about to be sent to the engine.
    pub(super) fn reserved(&mut self, decision: DecisionId, prompt: &PromptKeys, rank: Option<DpRank>, now: Instant) {
        let Some(variant) = self.index.variant().filter(|_| !self.ranks.is_empty()) else { return };
        let matched_blocks = self.match_prompt(prompt, now).matched_blocks;
        if matched_blocks > 0 {
            self.expected.insert(decision, matched_blocks.saturating_mul(variant.block_size));
        }
        let facts = Arc::clone(&self.facts);
        let adapter = adapter_of(prompt, &facts, &self.index);
        self.index.predict(decision, prompt, adapter, rank, now, self.settings.prediction_lifetime);
    }

    /// Notes how a request ended, and how many of its tokens the engine found cached.
    pub(super) fn finished(
        &mut self,
        decision: DecisionId,
        outcome: Outcome,
        cached_tokens: Option<u32>,
        now: Instant,
        ctx: &mut Context<WorkerActor>,
    ) {
        if matches!(outcome, Outcome::Unreachable | Outcome::NotSent) {
            self.index.withdraw(decision);
        }
        let Some(expected) = self.expected.remove(&decision) else { return };
        let (Some(cached), Some(variant)) = (cached_tokens, self.index.variant()) else { return };
        self.view = None;
        if self.truth.compare(expected, cached, variant.block_size) == Verdict::Wrong {
            tracing::warn!(worker = %self.worker, "the engine keeps missing blocks that are listed as cached: the list is dropped");
            self.telemetry.kv_downgrades.inc();
            for rank in self.all_ranks() {
                let stream = &mut self.ranks[rank.index()].stream;
                let actions = stream.distrust();
                self.carry_out(rank, actions, now, ctx);
            }
        }
    }

    /// Takes an item of the KV event sockets or of a replay.
    pub(super) fn take(&mut self, item: FeedItem, now: Instant, ctx: &mut Context<WorkerActor>) {
        let rank = item.rank;
        let is_current = match item.kind {
            FeedKind::Replay => self.replay_of(rank).is_some_and(|replay| replay.opening == item.opening),
            FeedKind::Kv | FeedKind::Load => self.feeds.is_current(&item),
        };
        if !is_current {
            return;
        }
        let before = self.counters(rank);
        match (item.kind, item.event) {
            (FeedKind::Replay, Some(Ok(FeedEvent::Frame(frame)))) => self.take_reply(rank, frame, now, ctx),
            (FeedKind::Replay, _) => self.end_replay(rank, now, ctx),
            (_, Some(Ok(FeedEvent::Frame(frame)))) => self.take_live(rank, frame, now, ctx),
            (_, Some(Ok(FeedEvent::Connected))) => {
                // Not before: what is published between a replay and the connection would be missed without a sign.
                let actions = self.ranks[rank.index()].stream.opened();
                self.carry_out(rank, actions, now, ctx);
            }
            (_, Some(Ok(FeedEvent::ConnectionLost))) => {
                let actions = self.ranks[rank.index()].stream.reconnected();
                self.index.clear_predictions();
                self.carry_out(rank, actions, now, ctx);
            }
            (_, Some(Err(error))) => self.feed_failed(rank, &error, now, ctx),
            (_, None) => {}
        }
        let after = self.counters(rank);
        if after.unrepaired > before.unrepaired {
            // The publisher may have been busy, and may still have what is missing.
            let state = &mut self.ranks[rank.index()];
            state.relist_at = if state.relist_at.is_none() { Some(now + RELIST_AFTER) } else { None };
        }
        self.count_changes(before, after);
    }

    /// Asks once more for everything where a replay left a gap a while ago.
    pub(super) fn relist_due(&mut self, now: Instant, ctx: &mut Context<WorkerActor>) {
        for rank in self.all_ranks() {
            let state = &mut self.ranks[rank.index()];
            let is_due = state.relist_at.is_some_and(|at| at <= now);
            if is_due && state.stream.trust() == StreamTrust::Gapped {
                // It stays set: a second failure is the last word until the next gap.
                let actions = state.stream.relist();
                self.carry_out(rank, actions, now, ctx);
            } else if is_due && state.stream.trust() != StreamTrust::Rebuilding {
                state.relist_at = None;
            }
        }
    }

    /// Opens those subscriptions again that have failed.
    pub(super) fn reopen_failed(&mut self, now: Instant, ctx: &mut Context<WorkerActor>) -> u64 {
        let overdue = self.feeds.overdue(now);
        for rank in &overdue {
            self.feeds.reopen(*rank, now, ctx);
            self.view = None;
        }
        overdue.len() as u64
    }

    fn take_live(&mut self, rank: DpRank, frame: Frame, now: Instant, ctx: &mut Context<WorkerActor>) {
        self.feeds.heard(rank, now);
        let sequence = match split(frame.parts()) {
            Ok(message) => message.sequence,
            Err(error) => {
                self.refuse(rank, error.reason(), now);
                return;
            }
        };
        let payload = frame.into_payload();
        let num_bytes = payload.len();
        let actions = self.ranks[rank.index()].stream.live(sequence, payload, num_bytes);
        self.carry_out(rank, actions, now, ctx);
    }

    fn take_reply(&mut self, rank: DpRank, frame: Frame, now: Instant, ctx: &mut Context<WorkerActor>) {
        match read_reply(frame.parts()) {
            Ok(Reply::Batch(message)) => {
                let sequence = message.sequence;
                let actions = self.ranks[rank.index()].stream.replayed(sequence, frame.into_payload());
                self.carry_out(rank, actions, now, ctx);
            }
            Ok(Reply::End) => self.end_replay(rank, now, ctx),
            Err(error) => {
                self.refuse(rank, error.reason(), now);
                self.end_replay(rank, now, ctx);
            }
        }
    }

    fn end_replay(&mut self, rank: DpRank, now: Instant, ctx: &mut Context<WorkerActor>) {
        let actions = self.ranks[rank.index()].stream.replay_ended();
        self.carry_out(rank, actions, now, ctx);
    }

    fn feed_failed(&mut self, rank: DpRank, error: &SubscribeError, now: Instant, ctx: &mut Context<WorkerActor>) {
        tracing::warn!(worker = %self.worker, %rank, %error, "KV event feed failed, it will be opened again");
        self.feeds.failed(rank, now);
        let actions = self.ranks[rank.index()].stream.reconnected();
        self.carry_out(rank, actions, now, ctx);
    }

    fn carry_out(
        &mut self,
        rank: DpRank,
        actions: Vec<KvAction<Payload>>,
        now: Instant,
        ctx: &mut Context<WorkerActor>,
    ) {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            match action {
                KvAction::ClearRank => self.index.clear_rank(rank),
                KvAction::Apply(payload) => {
                    // What follows from a batch comes before the batch after it.
                    for action in self.apply(rank, &payload, now, ctx).into_iter().rev() {
                        queue.push_front(action);
                    }
                }
                KvAction::Replay { from } => self.start_replay(rank, from, ctx),
            }
        }
        let trust = self.ranks[rank.index()].stream.trust();
        if trust != StreamTrust::Rebuilding {
            self.cancel_replay(rank, ctx);
        }
        self.index.believe(rank, trust.may_match());
        self.view = None;
    }

    fn apply(
        &mut self,
        rank: DpRank,
        payload: &[u8],
        now: Instant,
        ctx: &mut Context<WorkerActor>,
    ) -> Vec<KvAction<Payload>> {
        let tokens = if self.index.wants_tokens() { TokenUse::Keep } else { TokenUse::Skip };
        let batch = match decode_batch(payload, tokens) {
            Ok(batch) => batch,
            Err(error) => {
                self.refuse(rank, error.reason(), now);
                return self.ranks[rank.index()].stream.read(false);
            }
        };
        self.frames += 1;
        self.telemetry.kv_frames.inc();
        let stream = &mut self.ranks[rank.index()].stream;
        let actions = stream.read(true);
        for (reason, count) in batch.bad_events.iter() {
            // A removal may be among them.
            stream.doubted();
            self.bad_events += u64::from(count);
            Telemetry::count_many(&self.telemetry.bad_kv_events, reason.reason(), count);
        }
        let mut have_keys_changed = false;
        for event in &batch.events {
            have_keys_changed |= self.index.apply(rank, event) == Applied::KeysChanged;
            if *event == KvEvent::Cleared {
                self.ranks[rank.index()].stream.cleared();
            }
        }
        if have_keys_changed {
            self.list_anew(now, ctx);
        }
        self.post_variant();
        actions
    }

    /// What was listed was listed under other keys, and is forgotten: it is asked for again where that is possible.
    fn list_anew(&mut self, now: Instant, ctx: &mut Context<WorkerActor>) {
        tracing::info!(worker = %self.worker, mode = self.index.variant().map_or("given_up", |v| v.mode.name()),
            block_size = self.index.variant().map(|v| v.block_size), "the worker's blocks are keyed in another way now");
        self.telemetry.kv_key_changes.inc();
        for rank in self.all_ranks() {
            let stream = &mut self.ranks[rank.index()].stream;
            if self.replay_plan.is_some() {
                let actions = stream.relist();
                self.carry_out(rank, actions, now, ctx);
            } else {
                stream.doubted();
            }
        }
    }

    fn start_replay(&mut self, rank: DpRank, from: u64, ctx: &mut Context<WorkerActor>) {
        self.cancel_replay(rank, ctx);
        let Some(plan) = &self.replay_plan else { return };
        self.num_replays += 1;
        let opening = self.num_replays;
        let spec = ReplaySpec {
            host: Arc::clone(&plan.host),
            port: plan.port(rank),
            request: request(from),
            timeout: self.settings.replay_timeout,
            max_replies: MAX_REPLIES,
            max_message_bytes: FeedKind::Replay.max_message_bytes(),
        };
        let item = move |event| FeedItem { kind: FeedKind::Replay, rank, opening, event };
        let answers = replay(spec).map(move |event| item(Some(event)));
        let handle = ctx.add_stream(answers.chain(stream::once(std::future::ready(item(None)))));
        self.ranks[rank.index()].replay = Some(RunningReplay { handle, opening });
    }

    fn cancel_replay(&mut self, rank: DpRank, ctx: &mut Context<WorkerActor>) {
        if let Some(replay) = self.ranks[rank.index()].replay.take() {
            ctx.cancel_future(replay.handle);
        }
    }

    fn replay_of(&self, rank: DpRank) -> Option<&RunningReplay> {
        self.ranks.get(rank.index())?.replay.as_ref()
    }

    fn all_ranks(&self) -> impl Iterator<Item = DpRank> + use<> {
        (0..self.ranks.len() as u32).map(DpRank::new)
    }

    /// Requests of the worker's models are keyed from now on as its blocks are.
    fn post_variant(&mut self) {
        let variant = self.index.variant().filter(|_| !self.ranks.is_empty());
        if self.post.as_ref().map(Post::variant) != variant {
            self.post = variant.map(|variant| self.board.post(self.worker, variant, Arc::clone(&self.facts.models)));
        }
    }

    fn refuse(&mut self, rank: DpRank, reason: &'static str, now: Instant) {
        self.bad_frames += 1;
        self.view = None;
        Telemetry::count(&self.telemetry.bad_kv_frames, reason);
        if let Some(held_back) = self.log.admit(now) {
            tracing::warn!(worker = %self.worker, %rank, reason, held_back, "KV event batch refused");
        }
    }

    fn counters(&self, rank: DpRank) -> StreamCounters {
        self.ranks.get(rank.index()).map(|rank| rank.stream.counters()).unwrap_or_default()
    }

    fn count_changes(&self, before: StreamCounters, after: StreamCounters) {
        self.telemetry.kv_missing_batches.inc_by(after.missing - before.missing);
        self.telemetry.kv_restarts.inc_by(after.restarts - before.restarts);
        let (repaired, unrepaired) = (after.repaired - before.repaired, after.unrepaired - before.unrepaired);
        Telemetry::count_many(&self.telemetry.kv_replays, "repaired", repaired as u32);
        Telemetry::count_many(&self.telemetry.kv_replays, "unrepaired", unrepaired as u32);
    }
}
