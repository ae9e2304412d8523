//! When a worker is ejected, and how it returns: the numbers.

use std::time::Duration;

/// When a worker is ejected, and how it returns. The ranges are those that a configuration accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct HealthRules {
    /// Requests in a row that cannot reach a worker before it is ejected: 1 to 1000. Default: 3.
    pub eject_after_unreachable: u32,
    /// Part of the requests ended within the window that must have failed before a worker is ejected: 0 (off) to 1.
    /// Default: 0.5.
    pub failure_ratio: f64,
    /// Requests that must have ended within the window before their failures count: 1 to 1000000. Default: 10.
    pub min_requests: u32,
    /// How long the end of a request counts: 10 ms to an hour. Default: 30 s.
    pub window: Duration,
    /// How long a worker stays out after its first ejection; each further one in a row doubles it. 1 ms to a day. Default: 5 s.
    pub cooldown: Duration,
    /// The most that the doubling comes to, and how long a worker must serve before the next ejection counts as the first again:
    /// 1 ms to a day. Default: 60 s.
    pub max_cooldown: Duration,
    /// Successes that a worker on probation needs to serve again: 1 to 1000. Default: 3.
    pub probation_successes: u32,
    /// Failed probes in a row, without a sign of life between them, before a worker is ejected: 1 to 1000. Default: 3.
    pub probe_failures: u32,
    /// Healthy probes in a row that end the cool-down of a worker whose probes failed while it was out: 1 to 1000. Default: 2.
    pub probe_successes: u32,
}

impl Default for HealthRules {
    fn default() -> Self {
        Self {
            eject_after_unreachable: 3,
            failure_ratio: 0.5,
            min_requests: 10,
            window: Duration::from_secs(30),
            cooldown: Duration::from_secs(5),
            max_cooldown: Duration::from_secs(60),
            probation_successes: 3,
            probe_failures: 3,
            probe_successes: 2,
        }
    }
}

impl HealthRules {
    /// Returns how long a worker stays out after `num_before` ejections in a row before this one.
    pub(super) fn cooldown_after(&self, num_before: u32) -> Duration {
        let doubled = self.cooldown.saturating_mul(2_u32.saturating_pow(num_before));
        doubled.min(self.max_cooldown.max(self.cooldown))
    }
}

#[cfg(test)]
mod tests {
    use super::HealthRules;
    use crate::logic::testing::secs;

    #[test]
    fn the_cool_down_doubles_up_to_the_most_and_never_overflows() {
        let rules = HealthRules::default();
        for (num_before, expected) in [(0, 5), (1, 10), (2, 20), (3, 40), (4, 60), (5, 60), (u32::MAX, 60)] {
            assert_eq!(rules.cooldown_after(num_before), secs(expected), "{num_before}");
        }
        let short = HealthRules { max_cooldown: secs(1), ..rules };
        assert_eq!(short.cooldown_after(9), secs(5), "a most below the first does not shorten it");
    }
}
