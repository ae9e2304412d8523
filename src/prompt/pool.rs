//! Threads of their own for work that would hold up the runtime's.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Stack of a thread: templates nest macros and values.
const STACK_BYTES: usize = 16 << 20;

/// A piece of work. What it panics with ends the work, not the thread.
pub(super) type Task = Box<dyn FnOnce() + Send>;

/// A fixed number of threads behind a bounded queue. They end when the pool is dropped.
pub(super) struct Pool {
    queue: Arc<Queue>,
}

struct Queue {
    max_waiting: usize,
    state: Mutex<State>,
    is_ready: Condvar,
}

#[derive(Default)]
struct State {
    /// Taken before the others; given at start, so there are few.
    first: VecDeque<Task>,
    waiting: VecDeque<Task>,
    is_closed: bool,
}

impl Pool {
    /// Starts the threads and gives them their first tasks, one for each model. Fewer threads than asked for are enough.
    ///
    /// # Errors
    /// Not one thread could be started.
    pub(super) fn start(num_threads: usize, max_waiting: usize, first: VecDeque<Task>) -> Result<Self, io::Error> {
        let state = Mutex::new(State { first, ..State::default() });
        let queue = Arc::new(Queue { max_waiting, state, is_ready: Condvar::new() });
        for index in 0..num_threads.max(1) {
            let of_thread = Arc::clone(&queue);
            let builder = thread::Builder::new().name(format!("prompt-{index}")).stack_size(STACK_BYTES);
            if let Err(error) = builder.spawn(move || of_thread.work()) {
                if index == 0 {
                    return Err(error);
                }
                tracing::warn!(%error, started = index, wanted = num_threads, "fewer prompt threads than configured");
                break;
            }
        }
        Ok(Self { queue })
    }

    /// Hands over a task. Returns whether there was room for it.
    pub(super) fn submit(&self, task: Task) -> bool {
        let mut state = self.queue.state();
        if state.waiting.len() >= self.queue.max_waiting {
            return false;
        }
        state.waiting.push_back(task);
        drop(state);
        self.queue.is_ready.notify_one();
        true
    }
}

#[cfg(test)]
impl Pool {
    /// Returns the number of tasks that wait.
    pub(super) fn num_waiting(&self) -> usize {
        self.queue.state().waiting.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.is_closed = true;
        state.first.clear();
        state.waiting.clear();
        drop(state);
        self.queue.is_ready.notify_all();
    }
}

impl Queue {
    fn work(&self) {
        while let Some(task) = self.next() {
            // The panic hook has told of it; whoever waits sees that no answer comes.
            let _ = catch_unwind(AssertUnwindSafe(task));
        }
    }

    /// Waits for a task; `None` when the pool is gone.
    fn next(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let task = state.first.pop_front();
            if let Some(task) = task.or_else(|| state.waiting.pop_front()) {
                return Some(task);
            }
            state = self.is_ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
