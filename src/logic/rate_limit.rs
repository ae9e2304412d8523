//! A limit on repeated log lines: the first is let through, then at most one per interval, which says how many were held back.

use std::time::{Duration, Instant};

/// Lets one event per interval through.
#[derive(Debug, Clone)]
pub struct RateLimit {
    interval: Duration,
    last: Option<Instant>,
    num_held_back: u64,
}

impl RateLimit {
    /// Returns a limit of one event per interval.
    pub const fn new(interval: Duration) -> Self {
        Self { interval, last: None, num_held_back: 0 }
    }

    /// Returns how many events were held back since the last one, if this one may pass.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval) {
            self.num_held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.num_held_back))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::RateLimit;
    use crate::logic::testing::start;

    #[test]
    fn a_flood_leaves_one_line_per_interval_with_the_number_held_back() {
        let start = start();
        let mut limit = RateLimit::new(Duration::from_secs(10));
        assert_eq!(limit.admit(start), Some(0));
        for second in 1..10 {
            assert_eq!(limit.admit(start + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.admit(start + Duration::from_secs(10)), Some(9));
    }
}
