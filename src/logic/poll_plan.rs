//! How the load of an engine that publishes none is asked for: which of two paths it has, and when it is asked next.
//!
//! `/v1/loads` is tried first. An engine that does not have it, or answers something else there, is asked at `/metrics` at once; one
//! that has neither, or wants another key, is left alone for [`REST`] and then tried from the start. At most one question is open.

use std::time::{Duration, Instant};

/// How long an engine that has neither path is left alone.
pub const REST: Duration = Duration::from_secs(30);

/// Where an engine tells its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadPath {
    /// SGLang's.
    V1Loads,
    /// vLLM's.
    VllmMetrics,
}

impl LoadPath {
    /// Returns the path.
    pub fn path(self) -> &'static str {
        match self {
            Self::V1Loads => "/v1/loads?include=core",
            Self::VllmMetrics => "/metrics",
        }
    }
}

/// What a question came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// It was answered with a load.
    Told,
    /// The engine does not have the path, or it is something else there.
    NoLoadThere,
    /// The engine wants another key.
    Unauthorized,
    /// The engine could not be reached, was too slow, or is in trouble.
    Failed,
}

impl Polled {
    /// Returns the name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::NoLoadThere => "no_load_there",
            Self::Unauthorized => "unauthorized",
            Self::Failed => "failed",
        }
    }
}

/// The questions to one engine.
#[derive(Debug, Clone, Copy)]
pub struct PollPlan {
    path: LoadPath,
    is_open: bool,
    ask_at: Instant,
}

impl PollPlan {
    /// Returns a plan whose first question is due now.
    pub fn new(now: Instant) -> Self {
        Self { path: LoadPath::V1Loads, is_open: false, ask_at: now }
    }

    /// Returns where to ask now, where a question is due; it is open then.
    pub fn ask(&mut self, now: Instant) -> Option<LoadPath> {
        if self.is_open || self.ask_at > now {
            return None;
        }
        self.is_open = true;
        Some(self.path)
    }

    /// Tells whether a question is open.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes what the open question came to. The next one is due `interval` after `asked_at`, or later.
    pub fn ended(&mut self, polled: Polled, asked_at: Instant, interval: Duration, now: Instant) {
        self.is_open = false;
        self.ask_at = match (polled, self.path) {
            (Polled::Told | Polled::Failed, _) => asked_at + interval,
            (Polled::NoLoadThere, LoadPath::V1Loads) => {
                self.path = LoadPath::VllmMetrics;
                now
            }
            (Polled::NoLoadThere, LoadPath::VllmMetrics) => {
                self.path = LoadPath::V1Loads;
                now + REST
            }
            (Polled::Unauthorized, _) => now + REST,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LoadPath, PollPlan, Polled, REST};
    use crate::logic::testing::start;

    const INTERVAL: Duration = Duration::from_secs(1);

    #[test]
    fn one_question_is_open_at_a_time_and_the_next_is_due_an_interval_after_it_was_asked() {
        let t0 = start();
        let mut plan = PollPlan::new(t0);
        assert_eq!(plan.ask(t0), Some(LoadPath::V1Loads));
        assert_eq!(plan.ask(t0 + 10 * INTERVAL), None, "the first is still open");
        let late = t0 + INTERVAL / 2;
        plan.ended(Polled::Told, t0, INTERVAL, late);
        assert_eq!(plan.ask(late), None);
        assert_eq!(plan.ask(t0 + INTERVAL), Some(LoadPath::V1Loads));
        plan.ended(Polled::Failed, t0 + INTERVAL, INTERVAL, t0 + 5 * INTERVAL);
        assert_eq!(plan.ask(t0 + 5 * INTERVAL), Some(LoadPath::V1Loads), "a failure changes no path");
    }

    #[test]
    fn an_engine_without_one_path_is_asked_at_the_other_and_one_without_both_is_left_alone() {
        let t0 = start();
        let mut plan = PollPlan::new(t0);
        assert_eq!(plan.ask(t0), Some(LoadPath::V1Loads));
        plan.ended(Polled::NoLoadThere, t0, INTERVAL, t0);
        assert_eq!(plan.ask(t0), Some(LoadPath::VllmMetrics));
        plan.ended(Polled::NoLoadThere, t0, INTERVAL, t0);
        assert_eq!(plan.ask(t0 + REST - INTERVAL), None);
        assert_eq!(plan.ask(t0 + REST), Some(LoadPath::V1Loads), "it may have been restarted as another engine");
        plan.ended(Polled::Unauthorized, t0 + REST, INTERVAL, t0 + REST);
        assert_eq!(plan.ask(t0 + REST + INTERVAL), None);
        assert!(!plan.is_open());
    }
}
