//! When an engine is asked what it serves, and what follows from the answer.
//!
//! An engine's health path answers long before its info path does, so a worker that could not say what it serves is asked again
//! until it does; nothing is made up in between. Others list their model while they still load it, and answer 503 to everything
//! else: a newcomer whose health path says so is asked again, too. Once it has answered it is asked at a slow pace, to notice that another engine
//! now lives at its address.

use std::sync::Arc;
use std::time::Duration;

use crate::logic::endpoint::{
    Endpoint, Feed, FeedDescriptor, FeedRefusal, WorkerFacts, kv_feed, load_feed, replay_feed,
};
use crate::logic::ranks::{OwnedRanks, RankRange, ranks_of};
use crate::logic::role::Role;

/// Why one request to an engine gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It could not be reached, or not in time.
    Unreachable,
    /// It answered with a server error.
    ServerError,
    /// The body broke off.
    BrokenBody,
    /// It does not have this path.
    NotFound,
    /// It answers, but its health path says that it cannot serve yet.
    NotReady,
    /// It wants a key.
    Unauthorized,
    /// It answered with another status.
    Refused,
    /// It sent a complete body that is not what was asked for.
    Unreadable,
}

impl Failure {
    /// Tells whether the same request may succeed a moment later.
    pub fn is_passing(self) -> bool {
        match self {
            Self::Unreachable | Self::ServerError | Self::BrokenBody => true,
            Self::NotReady | Self::NotFound | Self::Unauthorized | Self::Refused | Self::Unreadable => false,
        }
    }

    /// Returns the text shown to the operator.
    pub fn text(self) -> &'static str {
        match self {
            Self::Unreachable => "the engine could not be reached in time",
            Self::ServerError => "the engine answered with a server error",
            Self::BrokenBody => "the engine's answer broke off",
            Self::NotFound => "the engine has neither /server_info nor /v1/models",
            Self::NotReady => "the engine's health path says that it is not ready",
            Self::Unauthorized => "the engine wants a key that it was not given",
            Self::Refused => "the engine refused to answer",
            Self::Unreadable => "the engine's answer cannot be read",
        }
    }
}

/// Returns the pause before the next attempt, after `attempt` attempts (counted from one) of which the last failed; `None` where
/// there is none.
pub fn retry_after(attempt: u32, max_attempts: u32, failure: Failure) -> Option<Duration> {
    let again = attempt < max_attempts && failure.is_passing();
    again.then(|| Duration::from_millis(100) * 2_u32.saturating_pow(attempt.saturating_sub(1)))
}

/// When to ask again.
#[derive(Debug, Clone, Copy)]
pub struct AskIntervals {
    /// After a failure, while the worker has not said what it serves or cannot be reached.
    pub pending: Duration,
    /// After the engine asked for a key.
    pub unauthorized: Duration,
    /// After an answer.
    pub answered: Duration,
}

impl AskIntervals {
    /// Returns the pause after an attempt that ended in `result`.
    pub fn after(&self, result: Result<(), Failure>) -> Duration {
        match result {
            Ok(()) => self.answered,
            Err(Failure::Unauthorized) => self.unauthorized,
            Err(_) => self.pending,
        }
    }
}

/// What an engine said of itself, in the terms of this module.
#[derive(Debug, Clone, Default)]
pub struct EngineAnswer {
    /// The name under which it serves its model.
    pub served_model_name: Option<Arc<str>>,
    /// The path of its weights; a name of last resort.
    pub model_path: Option<Arc<str>>,
    /// Its version text.
    pub version: Option<Arc<str>>,
    /// Whether it says that it speaks HTTP/2 in cleartext.
    pub speaks_http2: bool,
    /// The ranks that it lists as its own.
    pub owned_ranks: OwnedRanks,
    /// How many ranks it counts where it describes no feeds.
    pub dp_size: Option<u32>,
    /// Its part in requests, where it says one.
    pub role: Option<Role>,
    /// Its feeds; `None` where it publishes nothing.
    pub feeds: Option<Result<FeedDescriptor, FeedRefusal>>,
    /// Ids and JSON texts of its `/v1/models` objects.
    pub models: Vec<(Arc<str>, Arc<str>)>,
    /// Those of them that are LoRA adapters.
    pub adapters: Vec<Arc<str>>,
}

/// Combines the configuration with the engine's answer. Returns `None` where neither names a model: such a worker stays out of
/// every pool.
pub fn facts(endpoint: &Endpoint, answer: EngineAnswer) -> Option<WorkerFacts> {
    let overrides = &endpoint.overrides;
    let models = if overrides.models.is_empty() { answered_models(&answer) } else { overrides.models.clone() };
    if models.is_empty() {
        return None;
    }
    let (feeds, ranks) = feeds_and_ranks(endpoint, &answer);
    let mut facts = WorkerFacts {
        models: models.into(),
        model_objects: answer.models.into_iter().map(|(_, json)| json).collect(),
        adapters: answer.adapters.into(),
        version: answer.version,
        speaks_http2: answer.speaks_http2,
        ranks,
        role: overrides.role.or(answer.role).unwrap_or_default(),
        ..WorkerFacts::default()
    };
    match feeds {
        None => {}
        Some(Ok(descriptor)) => {
            facts.load_feed = load_feed(&endpoint.url, &descriptor);
            facts.kv_feed = kv_feed(&endpoint.url, &descriptor);
            facts.replay_feed = replay_feed(&endpoint.url, &descriptor);
            facts.block_size = descriptor.block_size;
        }
        Some(Err(refusal)) => {
            facts.load_feed = Feed::Refused(refusal.clone());
            facts.kv_feed = Feed::Refused(refusal);
        }
    }
    Some(facts)
}

/// An engine that lists the publishers of its node has feeds and ranks of its own only; the rest of what its descriptor counts is on
/// other nodes. Where the configuration describes the feeds, they are the worker's own already.
fn feeds_and_ranks(
    endpoint: &Endpoint,
    answer: &EngineAnswer,
) -> (Option<Result<FeedDescriptor, FeedRefusal>>, Option<RankRange>) {
    let overrides = &endpoint.overrides;
    let feeds = overrides.feeds.clone().map(Ok).or_else(|| answer.feeds.clone());
    let counted = match &feeds {
        Some(Ok(descriptor)) => Some(descriptor.dp_size),
        Some(Err(_)) => None,
        None => answer.dp_size,
    };
    let ranks = ranks_of(overrides.ranks, &answer.owned_ranks, counted);
    let listed = ranks_of(None, &answer.owned_ranks, None);
    let feeds = match (feeds, listed) {
        (Some(Ok(descriptor)), Some(listed)) if overrides.feeds.is_none() => Some(match listed.narrow(&descriptor) {
            Some(narrowed) => Ok(narrowed),
            None => Err(FeedRefusal::Descriptor(format!("no port can be that of rank {}", listed.first()))),
        }),
        (feeds, _) => feeds,
    };
    (feeds, ranks)
}

/// The alias first, then what the model list adds (LoRA adapters); the path of the weights only where there is no name at all.
/// An empty name is none.
fn answered_models(answer: &EngineAnswer) -> Vec<Arc<str>> {
    let mut models: Vec<Arc<str>> = Vec::new();
    let listed = answer.models.iter().map(|(id, _)| id);
    for name in answer.served_model_name.iter().chain(listed) {
        if !name.is_empty() && !models.contains(name) {
            models.push(Arc::clone(name));
        }
    }
    if models.is_empty() {
        models.extend(answer.model_path.clone().filter(|path| !path.is_empty()));
    }
    models
}

#[cfg(test)]
mod tests;
