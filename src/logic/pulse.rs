//! Whether something of a good answer has come from a worker since somebody last looked. The threads that pass answers on beat
//! it with each chunk; the worker looks when a probe ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A sign of life. Cheap to clone; clones are one.
#[derive(Debug, Clone, Default)]
pub struct Pulse {
    was_heard: Arc<AtomicBool>,
}

impl Pulse {
    /// Notes that something came.
    pub fn beat(&self) {
        // Writing only where it changes keeps the line shared between the threads of a busy worker.
        if !self.was_heard.load(Ordering::Relaxed) {
            self.was_heard.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether something came since the last call.
    pub fn take(&self) -> bool {
        self.was_heard.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::Pulse;

    #[test]
    fn a_beat_is_heard_once() {
        let pulse = Pulse::default();
        assert!(!pulse.take());
        pulse.beat();
        pulse.clone().beat();
        assert!(pulse.take());
        assert!(!pulse.take());
    }
}
