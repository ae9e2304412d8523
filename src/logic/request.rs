//! What a decision knows of a request.

use std::sync::Arc;

use crate::logic::ids::WorkerId;
use crate::logic::prompt_keys::PromptKeys;

/// The facts of one request. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct RequestFacts {
    /// The model that it names; `None` where the interface has none, or where the client left it out.
    pub model: Option<Arc<str>>,
    /// Its prompt as block keys; `None` where the prompt is not known as tokens.
    pub prompt: Option<Arc<PromptKeys>>,
    /// Who goes first where requests wait for room: the higher the sooner. Zero where the client says nothing.
    pub priority: i32,
    /// Whether a prefill and a decode engine may share it.
    pub may_be_shared: bool,
    /// Whether its interface lets it name a DP rank.
    pub takes_rank: bool,
    /// The DP rank that the client named, by the engine's own number, where the client may.
    pub wanted_rank: Option<u32>,
    /// Workers that must not be chosen again: those that have already failed this request.
    pub excluded: Vec<WorkerId>,
}
