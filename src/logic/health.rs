//! Whether a worker takes traffic, in states named by that effect.
//!
//! A worker is `Pending` until the engine has said what it serves. It then is `Serving`, until it is drained or suspended, or
//! ejected:
//!
//! | what ejects a serving worker | cause |
//! |---|---|
//! | `eject_after_unreachable` requests in a row could not reach it | `unreachable` |
//! | of at least `min_requests` ended within the window, `failure_ratio` or more failed | `failure_rate` |
//! | `probe_failures` probes in a row failed, and nothing came from it meanwhile; where connections are refused, at any rate | `probes` |
//!
//! An ejected worker stays out for its cool-down, then is on `Probation`: it takes one request at a time, the trial. Enough
//! successes in a row, of trials or of probes between them, make it serve again, as a newcomer; one failure ejects it again, for
//! twice as long (`trial_failed`). The cool-down ends early where the health path failed while the worker was out, and now
//! answers: that is an engine that was started again. It does not where the health path answered all the while, because then it
//! says nothing about the requests that failed.
//!
//! What was sent before the last ejection says nothing any more when it ends. Back pressure (429, 503) and clients that leave
//! are no failures; they give the trial back.

use std::time::{Duration, Instant};

use crate::logic::ids::DecisionId;
use crate::logic::probe::ProbeResult;

mod rules;
mod state;
mod window;

pub use rules::HealthRules;
pub use state::{Cause, StateChange, WorkerState};
use window::FailureWindow;
pub use window::WindowCounts;

/// What the end of a request says of its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// The engine answered, and the answer came to its end.
    Proven,
    /// It reached the engine and failed there.
    Failed,
    /// It could not reach the engine.
    Unreachable,
    /// The engine has no room now, and wants to be left alone for so long. That is back pressure and no fault.
    Overloaded(Option<Duration>),
    /// Nothing: the client left, or it was never sent.
    Nothing,
}

/// What an operator, and a decision, may know of a worker's health beside its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HealthView {
    /// Whether it is on probation and a trial is free.
    pub may_be_tried: bool,
    /// Requests that ended within the window.
    pub window: WindowCounts,
    /// When its cool-down ends; only of an ejected worker.
    pub out_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Good,
    Out {
        until: Instant,
        /// Whether a probe has failed since the worker was ejected, or did eject it.
        was_silent: bool,
    },
    Probation {
        successes: u32,
        trial: Option<DecisionId>,
    },
}

/// The health of one worker. It changes only through the methods below, each of which returns the change it made.
#[derive(Debug, Clone)]
pub struct Health {
    rules: HealthRules,
    is_known: bool,
    is_suspended: bool,
    is_draining: bool,
    standing: Standing,
    ejected_at: Option<Instant>,
    num_ejections_in_a_row: u32,
    consecutive_unreachable: u32,
    window: FailureWindow,
    failed_probes: u32,
    healthy_probes: u32,
    serving_since: Option<Instant>,
    left_alone_until: Option<Instant>,
}

/// How long an engine that has no room is left alone where it does not say how long, and at most.
const LEFT_ALONE: Duration = Duration::from_secs(1);
const MAX_LEFT_ALONE: Duration = Duration::from_secs(30);

impl Health {
    /// Returns the health of a worker that was not asked yet.
    pub fn new(rules: HealthRules) -> Self {
        Self {
            rules,
            is_known: false,
            is_suspended: false,
            is_draining: false,
            standing: Standing::Good,
            ejected_at: None,
            num_ejections_in_a_row: 0,
            consecutive_unreachable: 0,
            window: FailureWindow::new(rules.window),
            failed_probes: 0,
            healthy_probes: 0,
            serving_since: None,
            left_alone_until: None,
        }
    }

    /// Returns the state that follows from everything known.
    pub fn state(&self) -> WorkerState {
        if self.is_draining {
            return WorkerState::Draining;
        }
        if self.is_suspended {
            return WorkerState::Suspended;
        }
        match self.standing {
            _ if !self.is_known => WorkerState::Pending,
            Standing::Good => WorkerState::Serving,
            Standing::Out { .. } => WorkerState::Ejected,
            Standing::Probation { .. } => WorkerState::Probation,
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

    /// Returns until when the worker is out, whether or not that shows in its state.
    pub fn out_until(&self) -> Option<Instant> {
        match self.standing {
            Standing::Out { until, .. } => Some(until),
            Standing::Good | Standing::Probation { .. } => None,
        }
    }

    /// Returns what may be known beside the state.
    pub fn view(&self, now: Instant) -> HealthView {
        HealthView {
            may_be_tried: matches!(self.standing, Standing::Probation { trial: None, .. }),
            window: self.window.counts(now),
            out_until: self.out_until(),
        }
    }

    /// Notes that the engine said what it serves.
    pub fn engine_answered(&mut self, now: Instant) -> Option<StateChange> {
        if !self.is_known {
            return self.change(now, Cause::EngineAnswered, |health| health.is_known = true);
        }
        self.succeed_between_trials(now)
    }

    /// Notes that the platform suspended the worker.
    pub fn suspend(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, Cause::NotReady, |health| health.is_suspended = true)
    }

    /// Notes that the platform says that the worker is ready again.
    pub fn resume(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, Cause::Ready, |health| health.is_suspended = false)
    }

    /// Notes that the worker is to take no new requests, for good.
    pub fn drain(&mut self, now: Instant) -> Option<StateChange> {
        self.change(now, Cause::Drained, |health| health.is_draining = true)
    }

    /// Notes that a request will be sent: on probation, it is the trial until it ends.
    pub fn reserved(&mut self, request: DecisionId) {
        if let Standing::Probation { trial: trial @ None, .. } = &mut self.standing {
            *trial = Some(request);
        }
    }

    /// Notes how a request ended that was reserved at `sent_at`.
    pub fn ended(
        &mut self,
        request: DecisionId,
        end: RequestEnd,
        sent_at: Instant,
        now: Instant,
    ) -> Option<StateChange> {
        self.give_back(request);
        if self.ejected_at.is_some_and(|ejected_at| sent_at < ejected_at) {
            return None;
        }
        match end {
            RequestEnd::Nothing => None,
            RequestEnd::Overloaded(retry_after) => {
                self.left_alone_until = Some(now + retry_after.unwrap_or(LEFT_ALONE).min(MAX_LEFT_ALONE));
                None
            }
            RequestEnd::Proven => {
                self.left_alone_until = None;
                self.consecutive_unreachable = 0;
                self.request_succeeded(now)
            }
            RequestEnd::Failed => self.request_failed(Cause::FailureRate, now),
            RequestEnd::Unreachable => {
                self.consecutive_unreachable = self.consecutive_unreachable.saturating_add(1);
                self.request_failed(Cause::Unreachable, now)
            }
        }
    }

    /// Notes what a probe of the health path came to; `was_heard` tells whether something of a good answer came from the worker
    /// since the probe before it ended.
    pub fn probed(&mut self, result: ProbeResult, was_heard: bool, now: Instant) -> Option<StateChange> {
        if result == ProbeResult::NoPath {
            return None;
        }
        if result == ProbeResult::Healthy {
            self.failed_probes = 0;
            self.healthy_probes = self.healthy_probes.saturating_add(1);
            return self.probe_succeeded(now);
        }
        self.healthy_probes = 0;
        if was_heard && result != ProbeResult::Refused {
            // A busy engine answers its health path late; its work proves it alive.
            self.failed_probes = 0;
            return None;
        }
        self.failed_probes = self.failed_probes.saturating_add(1);
        match &mut self.standing {
            Standing::Good if self.failed_probes >= self.rules.probe_failures => self.eject(Cause::Probes, now),
            Standing::Good => None,
            Standing::Out { was_silent, .. } => {
                *was_silent = true;
                None
            }
            Standing::Probation { .. } => self.eject(Cause::Probes, now),
        }
    }

    /// Notes that time has passed: a worker whose cool-down is over is on probation.
    pub fn time_passed(&mut self, now: Instant) -> Option<StateChange> {
        match self.standing {
            Standing::Out { until, .. } if until <= now => self.begin_probation(Cause::CooledDown, now),
            Standing::Good | Standing::Out { .. } | Standing::Probation { .. } => None,
        }
    }

    fn give_back(&mut self, request: DecisionId) {
        if let Standing::Probation { trial, .. } = &mut self.standing
            && *trial == Some(request)
        {
            *trial = None;
        }
    }

    fn request_succeeded(&mut self, now: Instant) -> Option<StateChange> {
        match self.standing {
            Standing::Good => {
                self.window.record(false, now);
                None
            }
            // It was asked as a last resort, and did well.
            Standing::Out { .. } => {
                let change = self.begin_probation(Cause::Proven, now);
                self.succeed(now).map(|last| StateChange { from: WorkerState::Ejected, ..last }).or(change)
            }
            Standing::Probation { .. } => self.succeed(now),
        }
    }

    fn request_failed(&mut self, cause: Cause, now: Instant) -> Option<StateChange> {
        match self.standing {
            Standing::Good => {
                self.window.record(true, now);
                let is_out_of_reach = self.consecutive_unreachable >= self.rules.eject_after_unreachable.max(1);
                if cause == Cause::Unreachable && is_out_of_reach {
                    return self.eject(Cause::Unreachable, now);
                }
                if self.fails_too_often(now) { self.eject(Cause::FailureRate, now) } else { None }
            }
            Standing::Out { .. } => None,
            Standing::Probation { .. } => self.eject(Cause::TrialFailed, now),
        }
    }

    fn fails_too_often(&self, now: Instant) -> bool {
        let counts = self.window.counts(now);
        self.rules.failure_ratio > 0.0
            && counts.ended >= self.rules.min_requests
            && f64::from(counts.failed) >= self.rules.failure_ratio * f64::from(counts.ended)
    }

    fn probe_succeeded(&mut self, now: Instant) -> Option<StateChange> {
        match self.standing {
            Standing::Out { was_silent: true, .. } if self.healthy_probes >= self.rules.probe_successes => {
                self.begin_probation(Cause::ProbesHealthy, now)
            }
            Standing::Good | Standing::Out { .. } => None,
            Standing::Probation { .. } => self.succeed_between_trials(now),
        }
    }

    /// While a trial is under way, its end is what counts.
    fn succeed_between_trials(&mut self, now: Instant) -> Option<StateChange> {
        match self.standing {
            Standing::Probation { trial: None, .. } => self.succeed(now),
            Standing::Good | Standing::Out { .. } | Standing::Probation { .. } => None,
        }
    }

    fn succeed(&mut self, now: Instant) -> Option<StateChange> {
        let Standing::Probation { successes, .. } = &mut self.standing else { return None };
        *successes += 1;
        if *successes < self.rules.probation_successes {
            return None;
        }
        self.change(now, Cause::Proven, |health| health.standing = Standing::Good)
    }

    fn begin_probation(&mut self, cause: Cause, now: Instant) -> Option<StateChange> {
        self.change(now, cause, |health| health.standing = Standing::Probation { successes: 0, trial: None })
    }

    fn eject(&mut self, cause: Cause, now: Instant) -> Option<StateChange> {
        if !self.is_known {
            return None;
        }
        let served_for = self.serving_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if served_for >= self.rules.max_cooldown {
            self.num_ejections_in_a_row = 0;
        }
        let cooldown = self.rules.cooldown_after(self.num_ejections_in_a_row);
        self.num_ejections_in_a_row = self.num_ejections_in_a_row.saturating_add(1);
        self.ejected_at = Some(now);
        self.consecutive_unreachable = 0;
        self.failed_probes = 0;
        self.healthy_probes = 0;
        self.window.clear();
        self.change(now, cause, |health| {
            health.standing = Standing::Out { until: now + cooldown, was_silent: cause == Cause::Probes };
        })
    }

    fn change(&mut self, now: Instant, cause: Cause, transition: impl FnOnce(&mut Self)) -> Option<StateChange> {
        let from = self.state();
        transition(self);
        let to = self.state();
        if from == to {
            return None;
        }
        self.serving_since = (to == WorkerState::Serving).then_some(now);
        Some(StateChange { from, to, cause })
    }
}

#[cfg(test)]
mod tests;
