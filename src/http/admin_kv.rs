//! What is known of the workers' KV caches, for the operator.

use actix_web::{HttpResponse, web};
use serde::Serialize;

use crate::error::RouteError;
use crate::http::{Edge, admin, respond};
use crate::logic::snapshot::{KvRank, WorkerSnapshot};
use crate::messages::ShowBlocks;

/// The cache of one worker in the answer of `/workers`.
#[derive(Serialize)]
pub(super) struct KvAnswer {
    feed: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    feed_problem: Option<String>,
    replay: &'static str,
    hash_mode: Option<&'static str>,
    hash_verified: bool,
    given_up: bool,
    block_size: Option<u32>,
    blocks: u64,
    bytes: u64,
    evicted: u64,
    orphans: u64,
    lost: u64,
    skipped_events: u64,
    key_changes: u32,
    frames: u64,
    bad_frames: u64,
    bad_events: u64,
    open_sockets: u32,
    listed_tokens: u64,
    found_tokens: u64,
    found_ratio: Option<f64>,
    downgrades: u32,
    ranks: Vec<KvRankAnswer>,
}

#[derive(Serialize)]
struct KvRankAnswer {
    trust: &'static str,
    blocks: u64,
    missing: u64,
    restarts: u64,
    duplicates: u64,
    repaired: u64,
    unrepaired: u64,
}

impl KvAnswer {
    pub(super) fn of(worker: &WorkerSnapshot) -> Self {
        let (kv, facts) = (&worker.kv, &worker.facts);
        let (feed, feed_problem) = admin::feed_answer(&facts.kv_feed);
        Self {
            feed,
            feed_problem,
            replay: admin::feed_answer(&facts.replay_feed).0,
            hash_mode: kv.variant.map(|variant| variant.mode.name()),
            hash_verified: kv.is_hash_verified,
            given_up: kv.is_given_up,
            block_size: kv.variant.map(|variant| variant.block_size),
            blocks: kv.ranks.iter().map(|rank| rank.num_blocks).sum(),
            bytes: kv.counts.bytes,
            evicted: kv.counts.evicted,
            orphans: kv.counts.orphans,
            lost: kv.counts.lost,
            skipped_events: kv.counts.skipped_events,
            key_changes: kv.counts.key_changes,
            frames: kv.frames,
            bad_frames: kv.bad_frames,
            bad_events: kv.bad_events,
            open_sockets: kv.open_sockets,
            listed_tokens: kv.truth.expected_tokens,
            found_tokens: kv.truth.found_tokens,
            found_ratio: kv.truth.ratio(),
            downgrades: kv.truth.num_wrong,
            ranks: kv.ranks.iter().map(KvRankAnswer::of).collect(),
        }
    }
}

impl KvRankAnswer {
    fn of(rank: &KvRank) -> Self {
        Self {
            trust: rank.trust.name(),
            blocks: rank.num_blocks,
            missing: rank.counters.missing,
            restarts: rank.counters.restarts,
            duplicates: rank.counters.duplicates,
            repaired: rank.counters.repaired,
            unrepaired: rank.counters.unrepaired,
        }
    }
}

#[derive(Serialize)]
struct BlocksAnswer {
    hash_mode: Option<&'static str>,
    /// Keys as decimal texts of the signed numbers that SGLang publishes: JSON numbers lose digits above 2^53.
    ranks: Vec<Vec<String>>,
}

/// The keys of every block that one worker lists. For comparisons by hand: it copies all of them.
pub(super) async fn blocks(id: web::Path<String>, edge: web::Data<Edge>) -> HttpResponse {
    match try_blocks(&id, &edge).await {
        Ok(body) => respond::json(body),
        Err(error) => respond::error(error, &edge.ports.telemetry),
    }
}

async fn try_blocks(id: &str, edge: &Edge) -> Result<String, RouteError> {
    let members = admin::fleet(edge).await?;
    let member = members.iter().find(|member| member.id.to_string() == id).ok_or(RouteError::UnknownWorker)?;
    let keys = match &member.ports.show_blocks {
        Some(port) => port.send(ShowBlocks).await.map_err(|_| RouteError::UnknownWorker)?.by_rank,
        None => Vec::new(),
    };
    let ranks = keys.into_iter().map(|rank| rank.into_iter().map(|key| key.cast_signed().to_string()).collect());
    let hash_mode = member.snapshot.as_ref().and_then(|worker| worker.kv.variant).map(|variant| variant.mode.name());
    let answer = BlocksAnswer { hash_mode, ranks: ranks.collect() };
    serde_json::to_string(&answer).map_err(|_| RouteError::SelectorUnavailable)
}
