//! What the selector obeys, and how that is changed while it runs.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::{Handler, Message};

use crate::actors::selector::SelectorActor;
use crate::config::QueueSettings;
use crate::logic::admission::Caps;
use crate::logic::policy::Policy;
use crate::logic::price::PriceRules;
use crate::logic::rank_choice::RankRules;

/// What the selector needs to know.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct SelectorSettings {
    /// How loads are made.
    pub price: PriceRules,
    /// Who picks.
    pub policy: Arc<dyn Policy>,
    /// Who picks the prefill worker of a pair.
    pub prefill_policy: Arc<dyn Policy>,
    /// Who picks its decode worker.
    pub decode_policy: Arc<dyn Policy>,
    /// Limits beyond which a worker takes no more.
    pub caps: Caps,
    /// How a rank of the worker is chosen.
    pub ranks: RankRules,
    /// Requests that may wait where every worker is full, and how long.
    pub queue: QueueSettings,
    /// How long a round waits for an answer.
    pub round_deadline: Duration,
    /// Seed of all random numbers of this selector. A later one than the first changes nothing.
    pub seed: u64,
}

impl SelectorSettings {
    /// Tells whether a policy looks at prompts.
    pub fn wants_prompts(&self) -> bool {
        [&self.policy, &self.prefill_policy, &self.decode_policy].iter().any(|policy| policy.wants_prompts())
    }
}

/// The next decision is made by the new settings; requests that wait keep their deadlines.
impl Handler<SelectorSettings> for SelectorActor {
    type Result = ();

    fn handle(&mut self, settings: SelectorSettings, _ctx: &mut Self::Context) {
        self.parked.set_max_waiting(settings.queue.max_waiting);
        self.settings = settings;
    }
}
