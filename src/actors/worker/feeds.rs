//! The open subscriptions of one feed, one per DP rank. A worker keeps one of these per kind of feed: KV events and load share
//! `(url, rank)`, so a common map would let one take the other's place.

use std::task::Poll;
use std::time::{Duration, Instant};

use actix::prelude::{AsyncContext, Context, SpawnHandle};
use futures::{Stream, StreamExt};
use rustc_hash::FxHashMap;

use crate::actors::worker::WorkerActor;
use crate::feed::{FeedEvent, SubscribeError, SubscriptionSpec, subscribe};
use crate::logic::endpoint::FeedPlan;
use crate::logic::ids::DpRank;

/// Bytes of KV events of one rank that are read before others have their turn.
const MAX_BYTES_PER_TURN: usize = 64 * 1024;
/// A publisher that stays silent is tried again ever more slowly, up to this interval.
const MAX_REOPEN_INTERVAL: Duration = Duration::from_secs(30);

/// What a socket brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedKind {
    /// Load reports.
    Load,
    /// KV events.
    Kv,
    /// KV events that were missed.
    Replay,
}

impl FeedKind {
    /// Messages waiting for a slow router, beyond which the publisher drops. A load report replaces the one before, so few are
    /// enough; a KV event that is dropped costs a replay, or what is known of the rank.
    fn receive_limit(self) -> i32 {
        match self {
            Self::Load => 256,
            Self::Kv | Self::Replay => 2_000,
        }
    }

    /// Bytes of the largest message taken. The largest load report seen has 400; a KV event of 65,536 blocks has some 600,000
    /// beside its tokens.
    pub(super) fn max_message_bytes(self) -> i64 {
        match self {
            Self::Load => 64 * 1024,
            Self::Kv | Self::Replay => 4 * 1024 * 1024,
        }
    }

    /// Whether silence is a sign of trouble. An engine without traffic has no KV events.
    fn is_periodic(self) -> bool {
        self == Self::Load
    }
}

/// One event of one socket.
#[derive(Debug)]
pub(crate) struct FeedItem {
    /// Of which kind.
    pub(crate) kind: FeedKind,
    /// Whose.
    pub(crate) rank: DpRank,
    /// Which opening of that rank's socket; items of an earlier one are void.
    pub(super) opening: u64,
    /// What came; `None` at the end of a replay.
    pub(crate) event: Option<Result<FeedEvent, SubscribeError>>,
}

/// The subscriptions of one feed.
#[derive(Debug)]
pub(super) struct RankFeeds {
    kind: FeedKind,
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
    /// Returns the feeds of the plan, none open yet. A rank that has failed, or is silent where that is a sign of trouble, is
    /// opened again after `reopen_after`.
    pub(super) fn new(kind: FeedKind, plan: Option<FeedPlan>, reopen_after: Duration) -> Self {
        Self { kind, plan, first_reopen_after: reopen_after, ranks: FxHashMap::default(), num_openings: 0 }
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
            receive_limit: self.kind.receive_limit(),
            max_message_bytes: self.kind.max_message_bytes(),
            // A restarted publisher of load shows in its numbers, and silence in its age; one of KV events may go on with numbers
            // that happen to fit.
            tells_connection: self.kind == FeedKind::Kv,
        };
        let kind = self.kind;
        let events = paced(subscribe(spec), MAX_BYTES_PER_TURN);
        let stream = ctx.add_stream(events.map(move |event| FeedItem { kind, rank, opening, event: Some(event) }));
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
        let is_overdue = |feed: &RankFeed| {
            let may_be_overdue = self.kind.is_periodic() || feed.stream.is_none();
            may_be_overdue && now.saturating_duration_since(feed.heard_at) >= feed.reopen_after
        };
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

/// Lets others have their turn after so many bytes: an actor takes up to sixteen items of each stream before it looks at anything
/// else, and large ones would hold up the decisions of the whole fleet.
fn paced(
    events: impl Stream<Item = Result<FeedEvent, SubscribeError>> + 'static,
    max_bytes: usize,
) -> impl Stream<Item = Result<FeedEvent, SubscribeError>> + 'static {
    let mut events = Box::pin(events);
    let mut num_bytes = 0;
    futures::stream::poll_fn(move |context| {
        if num_bytes > max_bytes {
            num_bytes = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = events.poll_next_unpin(context);
        match &next {
            Poll::Ready(Some(Ok(FeedEvent::Frame(frame)))) => {
                num_bytes += frame.parts().map(<[u8]>::len).sum::<usize>()
            }
            Poll::Ready(_) => {}
            Poll::Pending => num_bytes = 0,
        }
        next
    })
}
