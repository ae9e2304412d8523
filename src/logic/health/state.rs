//! The states of a worker, and why one becomes another.

/// Whether a worker takes traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerState {
    /// Takes none: the engine has not yet said what it serves.
    Pending,
    /// Takes new requests.
    Serving,
    /// Takes one request at a time, to show whether it serves well again.
    Probation,
    /// Takes none for now: the platform says that it is not ready.
    Suspended,
    /// Takes none while others serve: it could not be reached, or failed too often.
    Ejected,
    /// Takes no new requests; running ones go on.
    Draining,
}

impl WorkerState {
    /// Every state, for gauges that show zeros too.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Serving, Self::Probation, Self::Suspended, Self::Ejected, Self::Draining];

    /// Returns the name used in metrics, logs and the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Serving => "serving",
            Self::Probation => "probation",
            Self::Suspended => "suspended",
            Self::Ejected => "ejected",
            Self::Draining => "draining",
        }
    }
}

/// Why a worker changed its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The engine said what it serves.
    EngineAnswered,
    /// The platform says that it is not ready.
    NotReady,
    /// The platform says that it is ready again.
    Ready,
    /// It is to take no new requests.
    Drained,
    /// Several requests in a row could not reach it.
    Unreachable,
    /// Too many of its requests failed.
    FailureRate,
    /// Its health path failed, and nothing else came from it.
    Probes,
    /// A request failed while it was on probation.
    TrialFailed,
    /// It was out for as long as it had to be.
    CooledDown,
    /// Its health path failed while it was out, and answers again.
    ProbesHealthy,
    /// It did well.
    Proven,
}

impl Cause {
    /// The causes of ejections, for counters that show zeros too.
    pub const OF_EJECTIONS: [Self; 4] = [Self::Unreachable, Self::FailureRate, Self::Probes, Self::TrialFailed];

    /// Returns the name used in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::EngineAnswered => "engine_answered",
            Self::NotReady => "not_ready",
            Self::Ready => "ready",
            Self::Drained => "drained",
            Self::Unreachable => "unreachable",
            Self::FailureRate => "failure_rate",
            Self::Probes => "probes",
            Self::TrialFailed => "trial_failed",
            Self::CooledDown => "cooled_down",
            Self::ProbesHealthy => "probes_healthy",
            Self::Proven => "proven",
        }
    }

    /// Tells whether it is the worker's own fault.
    pub fn is_ejection(self) -> bool {
        Self::OF_EJECTIONS.contains(&self)
    }
}

/// A change of state, for the one log line it causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    /// The state left.
    pub from: WorkerState,
    /// The state entered.
    pub to: WorkerState,
    /// Why.
    pub cause: Cause,
}
