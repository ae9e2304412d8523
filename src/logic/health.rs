//! Whether a worker takes traffic, in states named by that effect.
//!
//! A worker is `Pending` until the engine has said what it serves. It then is `Serving`, until it is drained or suspended, or
//! ejected because it could not be reached several times in a row. An ejected worker returns when the engine answers again.

use std::time::{Duration, Instant};

/// Whether a worker takes traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerState {
    /// Takes none: the engine has not yet said what it serves.
    Pending,
    /// Takes new requests.
    Serving,
    /// Takes none for now: the platform says that it is not ready.
    Suspended,
    /// Takes none while others serve: it could not be reached.
    Ejected,
    /// Takes no new requests; running ones go on.
    Draining,
}

impl WorkerState {
    /// Every state, for gauges that show zeros too.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Serving, Self::Suspended, Self::Ejected, Self::Draining];

    /// Returns the name used in metrics, logs and the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Serving => "serving",
            Self::Suspended => "suspended",
            Self::Ejected => "ejected",
            Self::Draining => "draining",
        }
    }
}

/// A change of state, for the one log line it causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    /// The state left.
    pub from: WorkerState,
    /// The state entered.
    pub to: WorkerState,
}

/// The health of one worker. It changes only through the methods below, each of which returns the change it made.
#[derive(Debug, Clone)]
pub struct Health {
    known: bool,
    suspended: bool,
    draining: bool,
    ejected: bool,
    consecutive_unreachable: u32,
    eject_after_unreachable: u32,
    serving_since: Option<Instant>,
    left_alone_until: Option<Instant>,
}

/// How long an engine that has no room is left alone where it does not say how long, and at most.
const LEFT_ALONE: Duration = Duration::from_secs(1);
const MAX_LEFT_ALONE: Duration = Duration::from_secs(30);

impl Health {
    /// Returns the health of a worker that was not asked yet. It is ejected after `eject_after_unreachable` requests in a row
    /// that could not reach it; zero reads as one.
    pub fn new(eject_after_unreachable: u32) -> Self {
        Self {
            known: false,
            suspended: false,
            draining: false,
            ejected: false,
            consecutive_unreachable: 0,
            eject_after_unreachable: eject_after_unreachable.max(1),
            serving_since: None,
            left_alone_until: None,
        }
    }

    /// Returns the state that follows from everything known.
    pub fn state(&self) -> WorkerState {
        if self.draining {
            WorkerState::Draining
        } else if self.suspended {
            WorkerState::Suspended
        } else if !self.known {
            WorkerState::Pending
        } else if self.ejected {
            WorkerState::Ejected
        } else {
            WorkerState::Serving
        }
    }

    /// Returns since when the worker has been serving without a break; `None` while it does not.
    pub fn serving_since(&self) -> Option<Instant> {
        self.serving_since
    }

    /// Returns until when the engine wants to be left alone, if it does. Others are preferred until then.
    pub fn left_alone_until(&self) -> Option<Instant> {
        self.left_alone_until
    }

    /// Notes that the engine answered that it has no room now. That is back pressure and no fault.
    pub fn overloaded(&mut self, retry_after: Option<Duration>, now: Instant) {
        self.left_alone_until = Some(now + retry_after.unwrap_or(LEFT_ALONE).min(MAX_LEFT_ALONE));
    }

    /// Notes that a request reached the engine and failed there, which neither proves nor disproves that it can be reached.
    pub fn failed(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, |_| {})
    }

    /// Notes that the engine said what it serves.
    pub fn engine_answered(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, |health| {
            health.known = true;
            health.ejected = false;
            health.consecutive_unreachable = 0;
        })
    }

    /// Notes that the platform suspended the worker.
    pub fn suspend(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, |health| health.suspended = true)
    }

    /// Notes that the platform says that the worker is ready again.
    pub fn resume(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, |health| health.suspended = false)
    }

    /// Notes that the worker is to take no new requests, for good.
    pub fn drain(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, |health| health.draining = true)
    }

    /// Notes that a request reached the engine, whatever it answered.
    pub fn reached(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, |health| {
            health.consecutive_unreachable = 0;
            health.ejected = false;
            health.left_alone_until = None;
        })
    }

    /// Notes that a request could not reach the engine.
    pub fn unreachable(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, |health| {
            health.consecutive_unreachable = health.consecutive_unreachable.saturating_add(1);
            if health.consecutive_unreachable >= health.eject_after_unreachable {
                health.ejected = true;
            }
        })
    }

    fn change(&mut self, now: Instant, transition: impl FnOnce(&mut Self)) -> Option<StateChange> {
        let from = self.state();
        transition(self);
        let to = self.state();
        if from == to {
            return None;
        }
        self.serving_since = (to == WorkerState::Serving).then_some(now);
        Some(StateChange { from, to })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{Health, StateChange, WorkerState};
    use crate::logic::testing::start;

    type Step = fn(&mut Health, Instant) -> Option<StateChange>;

    #[test]
    fn each_history_ends_in_the_state_that_the_table_says() {
        let answer: Step = Health::engine_answered;
        let suspend: Step = Health::suspend;
        let resume: Step = Health::resume;
        let drain: Step = Health::drain;
        let reached: Step = Health::reached;
        let missed: Step = Health::unreachable;
        let rows: &[(&str, &[Step], WorkerState)] = &[
            ("a worker that was not asked is pending", &[], WorkerState::Pending),
            ("a worker that answered serves", &[answer], WorkerState::Serving),
            ("one failure ejects nobody", &[answer, missed], WorkerState::Serving),
            ("three failures in a row eject", &[answer, missed, missed, missed], WorkerState::Ejected),
            ("a success between failures keeps it", &[answer, missed, missed, reached, missed], WorkerState::Serving),
            (
                "an ejected worker returns when asked with success",
                &[answer, missed, missed, missed, answer],
                WorkerState::Serving,
            ),
            (
                "an ejected worker that served as last resort returns",
                &[answer, missed, missed, missed, reached],
                WorkerState::Serving,
            ),
            ("a readiness blip suspends", &[answer, suspend], WorkerState::Suspended),
            ("and ends", &[answer, suspend, resume], WorkerState::Serving),
            ("suspending does not make a worker known", &[suspend, resume], WorkerState::Pending),
            ("draining is for good", &[answer, drain, resume, answer], WorkerState::Draining),
            ("failures of a pending worker do not show", &[missed, missed, missed], WorkerState::Pending),
        ];
        for (sentence, steps, expected) in rows {
            let mut health = Health::new(3);
            for step in *steps {
                step(&mut health, start());
            }
            assert_eq!(health.state(), *expected, "{sentence}");
        }
    }

    #[test]
    fn a_change_is_reported_once() {
        let mut health = Health::new(1);
        assert!(health.engine_answered(start()).is_some());
        assert_eq!(health.engine_answered(start()), None);
        assert!(health.unreachable(start()).is_some());
        assert_eq!(health.unreachable(start()), None);
        assert_eq!(health.serving_since(), None, "an ejected worker is not serving");
    }
}
