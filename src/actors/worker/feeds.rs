//! The open subscriptions of one feed, one per DP rank. A worker keeps one of these per kind of feed: KV events and load share
//! `(url, rank)`, so a common map would let one take the other's place.

use std::time::{Duration, Instant};

use actix::prelude::{AsyncContext, Context, SpawnHandle};
use futures::StreamExt;
use rustc_hash::FxHashMap;

use crate::actors::worker::WorkerActor;
use crate::feed::{FeedEvent, SubscribeError, SubscriptionSpec, subscribe};
use crate::logic::endpoint::FeedPlan;
use crate::logic::ids::DpRank;

/// Load frames waiting for a slow router beyond which the publisher drops. Each replaces the one before, so few are enough.
const RECEIVE_LIMIT: i32 = 256;
/// Bytes of the largest load frame taken. The largest seen has 400.
const MAX_MESSAGE_BYTES: i64 = 64 * 1024;
/// A publisher that stays silent is tried again ever more slowly, up to this interval.
const MAX_REOPEN_INTERVAL: Duration = Duration::from_secs(30);

/// One event of one subscription.
#[derive(Debug)]
pub(crate) struct FeedItem {
    /// Whose.
    pub(crate) rank: DpRank,
    /// Which opening of that rank's socket; items of an earlier one are void.
    opening: u64,
    /// What came.
    pub(crate) event: Result<FeedEvent, SubscribeError>,
}

/// The subscriptions of one feed.
#[derive(Debug, Default)]
pub(super) struct RankFeeds {
    plan: Option<FeedPlan>,
    first_reopen_after: Duration,
    ranks: FxHashMap<DpRank, RankFeed>,
    num_openings: u64,
}

#[derive(Debug)]
struct RankFeed {
    stream: Option<SpawnHandle>,
    opening: u64,
    /// When the last frame came, or the socket was opened.
    heard_at: Instant,
    reopen_after: Duration,
}

impl RankFeeds {
    /// Returns the feeds of the plan, none open yet. A rank that is silent for `reopen_after` is opened again.
    pub(super) fn new(plan: FeedPlan, reopen_after: Duration) -> Self {
        Self { plan: Some(plan), first_reopen_after: reopen_after, ranks: FxHashMap::default(), num_openings: 0 }
    }

    /// Opens every rank's socket.
    pub(super) fn open_all(&mut self, now: Instant, ctx: &mut Context<WorkerActor>) {
        let num_ranks = self.plan.as_ref().map_or(0, |plan| plan.dp_size);
        for rank in (0..num_ranks).map(DpRank::new) {
            self.open(rank, self.first_reopen_after, now, ctx);
        }
    }

    /// Closes the rank's socket and opens a new one; the next silence may last twice as long.
    pub(super) fn reopen(&mut self, rank: DpRank, now: Instant, ctx: &mut Context<WorkerActor>) {
        let Some(feed) = self.ranks.remove(&rank) else { return };
        if let Some(stream) = feed.stream {
            ctx.cancel_future(stream);
        }
        let longest = MAX_REOPEN_INTERVAL.max(self.first_reopen_after);
        self.open(rank, (feed.reopen_after * 2).min(longest), now, ctx);
    }

    fn open(&mut self, rank: DpRank, reopen_after: Duration, now: Instant, ctx: &mut Context<WorkerActor>) {
        let Some(plan) = &self.plan else { return };
        self.num_openings += 1;
        let opening = self.num_openings;
        let spec = SubscriptionSpec {
            host: plan.host.clone(),
            port: plan.port(rank),
            topic: plan.topic.clone(),
            receive_limit: RECEIVE_LIMIT,
            max_message_bytes: MAX_MESSAGE_BYTES,
            // A restarted publisher of load shows in its numbers, and silence in its age.
            tells_losses: false,
        };
        let stream = ctx.add_stream(subscribe(spec).map(move |event| FeedItem { rank, opening, event }));
        self.ranks.insert(rank, RankFeed { stream: Some(stream), opening, heard_at: now, reopen_after });
    }

    /// Notes that the rank sent something.
    pub(super) fn heard(&mut self, rank: DpRank, now: Instant) {
        if let Some(feed) = self.ranks.get_mut(&rank) {
            feed.heard_at = now;
            feed.reopen_after = self.first_reopen_after;
        }
    }

    /// Notes that the rank's stream has ended. It is opened again when its silence is overdue.
    pub(super) fn failed(&mut self, rank: DpRank, now: Instant) {
        if let Some(feed) = self.ranks.get_mut(&rank) {
            feed.stream = None;
            feed.heard_at = now;
        }
    }

    /// Returns the ranks that have been silent for too long.
    pub(super) fn overdue(&self, now: Instant) -> Vec<DpRank> {
        let is_overdue = |feed: &RankFeed| now.saturating_duration_since(feed.heard_at) >= feed.reopen_after;
        self.ranks.iter().filter(|(_, feed)| is_overdue(feed)).map(|(rank, _)| *rank).collect()
    }

    /// Tells whether the item comes from the socket that is open now.
    pub(super) fn is_current(&self, item: &FeedItem) -> bool {
        self.ranks.get(&item.rank).is_some_and(|feed| feed.opening == item.opening)
    }

    /// Returns the number of open sockets.
    pub(super) fn num_open(&self) -> u32 {
        self.ranks.values().filter(|feed| feed.stream.is_some()).count() as u32
    }
}
