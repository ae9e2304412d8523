//! How many of the requests of the last seconds failed, in a fixed amount of memory.
//!
//! The window is cut into ten slices. A request counts in the slice in which it ended, and is forgotten with that slice: so it
//! counts for nine to ten tenths of the window, and a worker with a million requests costs no more than one with ten.

use std::time::{Duration, Instant};

const NUM_SLICES: usize = 10;

/// Requests that ended within the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCounts {
    /// All that say something of the worker.
    pub ended: u32,
    /// Those of them that failed.
    pub failed: u32,
}

/// A sliding window over the ends of requests.
#[derive(Debug, Clone)]
pub(super) struct FailureWindow {
    slice: Duration,
    slices: [WindowCounts; NUM_SLICES],
    /// The slice that is being filled, and when it began; `None` before the first request.
    current: Option<(usize, Instant)>,
}

impl FailureWindow {
    /// Returns an empty window of that length; one shorter than ten milliseconds reads as ten.
    pub(super) fn new(length: Duration) -> Self {
        let slice = (length / NUM_SLICES as u32).max(Duration::from_millis(1));
        Self { slice, slices: [WindowCounts::default(); NUM_SLICES], current: None }
    }

    pub(super) fn record(&mut self, has_failed: bool, now: Instant) {
        let index = self.advance(now);
        let slice = &mut self.slices[index];
        slice.ended = slice.ended.saturating_add(1);
        slice.failed = slice.failed.saturating_add(u32::from(has_failed));
    }

    pub(super) fn clear(&mut self) {
        self.slices = [WindowCounts::default(); NUM_SLICES];
        self.current = None;
    }

    /// Returns what ended within the window before `now`.
    pub(super) fn counts(&self, now: Instant) -> WindowCounts {
        let Some((index, began)) = self.current else { return WindowCounts::default() };
        let num_passed = self.num_passed(began, now);
        // The slice that is being filled is the youngest; the one after it in the ring is the oldest.
        let is_inside = |age: &usize| age + num_passed < NUM_SLICES;
        let of_age = |age: usize| self.slices[(index + NUM_SLICES - age) % NUM_SLICES];
        (0..NUM_SLICES).filter(is_inside).map(of_age).fold(WindowCounts::default(), |sum, slice| WindowCounts {
            ended: sum.ended.saturating_add(slice.ended),
            failed: sum.failed.saturating_add(slice.failed),
        })
    }

    /// Empties the slices that have passed and returns the one to fill.
    fn advance(&mut self, now: Instant) -> usize {
        let (index, began) = self.current.unwrap_or((0, now));
        let num_passed = self.num_passed(began, now);
        for step in 1..=num_passed.min(NUM_SLICES) {
            self.slices[(index + step) % NUM_SLICES] = WindowCounts::default();
        }
        let next = (index + num_passed) % NUM_SLICES;
        let began = if num_passed > NUM_SLICES { now } else { began + self.slice * num_passed as u32 };
        self.current = Some((next, began));
        next
    }

    fn num_passed(&self, began: Instant, now: Instant) -> usize {
        let passed = now.saturating_duration_since(began).as_nanos() / self.slice.as_nanos();
        usize::try_from(passed).unwrap_or(usize::MAX).min(NUM_SLICES + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::{FailureWindow, WindowCounts};
    use crate::logic::testing::{millis, secs, start};

    fn counts(ended: u32, failed: u32) -> WindowCounts {
        WindowCounts { ended, failed }
    }

    #[test]
    fn a_request_is_forgotten_when_the_window_has_passed() {
        let t0 = start();
        let mut window = FailureWindow::new(secs(30));
        assert_eq!(window.counts(t0), counts(0, 0));
        window.record(true, t0);
        window.record(false, t0 + secs(2));
        window.record(true, t0 + secs(20));
        assert_eq!(window.counts(t0 + millis(29_999)), counts(3, 2));
        assert_eq!(window.counts(t0 + secs(30)), counts(1, 1), "the first slice has passed");
        assert_eq!(window.counts(t0 + secs(48)), counts(0, 0));
    }

    #[test]
    fn a_slice_is_emptied_before_it_is_filled_again() {
        let t0 = start();
        let mut window = FailureWindow::new(secs(10));
        for second in 0..1_000 {
            window.record(second % 2 == 0, t0 + secs(second));
            let expected = u32::try_from(second + 1).unwrap().min(10);
            assert_eq!(window.counts(t0 + secs(second)).ended, expected, "second {second}");
        }
        window.record(false, t0 + secs(1_000_000));
        assert_eq!(window.counts(t0 + secs(1_000_000)), counts(1, 0), "a long pause leaves nothing behind");
    }

    #[test]
    fn a_cleared_window_is_empty_and_takes_on_again() {
        let t0 = start();
        let mut window = FailureWindow::new(secs(10));
        window.record(true, t0);
        window.clear();
        assert_eq!(window.counts(t0), counts(0, 0));
        window.record(true, t0 + secs(3));
        assert_eq!(window.counts(t0 + secs(3)), counts(1, 1));
    }
}
