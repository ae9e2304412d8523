//! Probes of the engines' health path: when each is sent, and what its answer means.
//!
//! Probes of different workers are spread over the interval by the workers' ids, so that a router with many workers does not
//! send all of them at once, and several routers that were started together do so no more than once. A planned time that was
//! missed is not made up for: the next one is the next of the same phase.

use std::time::{Duration, Instant};

use crate::logic::ids::WorkerId;
use crate::logic::rng::Rng;

/// What one probe came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// It answered, with any status below 500 but 404 and 405.
    Healthy,
    /// It has no such path (404, 405): it cannot be probed, which says nothing of it.
    NoPath,
    /// It answered with a server error, or broke the answer off.
    Failed,
    /// It did not answer in time.
    Slow,
    /// The connection was refused, or could not be made for another reason than time.
    Refused,
}

impl ProbeResult {
    /// Every result, for counters that show zeros too.
    pub const ALL: [Self; 5] = [Self::Healthy, Self::NoPath, Self::Failed, Self::Slow, Self::Refused];

    /// Returns what a status means.
    pub fn of_status(status: u16) -> Self {
        match status {
            404 | 405 => Self::NoPath,
            500.. => Self::Failed,
            _ => Self::Healthy,
        }
    }

    /// Returns the name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::NoPath => "no_path",
            Self::Failed => "failed",
            Self::Slow => "slow",
            Self::Refused => "refused",
        }
    }
}

/// When one worker is probed.
#[derive(Debug, Clone, Copy)]
pub struct ProbeClock {
    interval: Duration,
    next: Option<Instant>,
}

impl ProbeClock {
    /// Returns the times of a worker that is started now; none where the interval is zero. The first is within one interval.
    pub fn new(worker: WorkerId, interval: Duration, now: Instant) -> Self {
        // A thousandth of an interval is fine enough to spread a fleet.
        let thousandths = Rng::from_seed(worker.number()).below(1_000) as u32;
        Self { interval, next: (interval > Duration::ZERO).then(|| now + interval * thousandths / 1_000) }
    }

    /// Tells whether a probe is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Notes that one is sent now.
    pub fn sent(&mut self, now: Instant) {
        let Some(planned) = self.next else { return };
        let num_missed = now.saturating_duration_since(planned).as_nanos() / self.interval.as_nanos().max(1);
        let num_intervals = u32::try_from(num_missed).unwrap_or(u32::MAX).saturating_add(1);
        self.next = Some(planned + self.interval.saturating_mul(num_intervals));
    }

    /// Sends no more.
    pub fn stop(&mut self) {
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ProbeClock, ProbeResult};
    use crate::logic::ids::WorkerId;
    use crate::logic::testing::{millis, secs, start};

    #[test]
    fn a_status_is_healthy_unless_it_is_a_server_error_or_there_is_no_path() {
        let rows = [
            (200, ProbeResult::Healthy),
            (204, ProbeResult::Healthy),
            (302, ProbeResult::Healthy),
            (401, ProbeResult::Healthy),
            (429, ProbeResult::Healthy),
            (404, ProbeResult::NoPath),
            (405, ProbeResult::NoPath),
            (500, ProbeResult::Failed),
            (503, ProbeResult::Failed),
        ];
        for (status, expected) in rows {
            assert_eq!(ProbeResult::of_status(status), expected, "{status}");
        }
    }

    #[test]
    fn the_probes_of_a_fleet_are_spread_over_the_interval() {
        let (t0, interval) = (start(), secs(10));
        let fleet: Vec<_> = (0..100).map(|number| ProbeClock::new(WorkerId::new(number), interval, t0)).collect();
        for second in 0..10 {
            let is_within = |clock: &&ProbeClock| {
                clock.is_due(t0 + secs(second) + millis(999))
                    && (second == 0 || !clock.is_due(t0 + secs(second - 1) + millis(999)))
            };
            let count = fleet.iter().filter(is_within).count();
            assert!((1..=25).contains(&count), "{count} in second {second}");
        }
    }

    #[test]
    fn a_probe_keeps_its_phase_and_a_missed_one_is_not_made_up_for() {
        let t0 = start();
        let mut clock = ProbeClock { interval: secs(10), next: Some(t0) };
        assert!(clock.is_due(t0));
        clock.sent(t0 + millis(40));
        assert!(!clock.is_due(t0 + millis(9_999)) && clock.is_due(t0 + secs(10)), "the delay does not add up");
        clock.sent(t0 + secs(47));
        assert!(!clock.is_due(t0 + secs(49)) && clock.is_due(t0 + secs(50)));
        clock.stop();
        clock.sent(t0 + secs(50));
        assert!(!clock.is_due(t0 + secs(1_000)));
    }

    #[test]
    fn an_interval_of_zero_probes_nobody() {
        let clock = ProbeClock::new(WorkerId::new(1), Duration::ZERO, start());
        assert!(!clock.is_due(start() + secs(1_000_000)));
    }
}
