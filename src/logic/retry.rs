//! What follows from the end of one attempt: whether another worker is tried.
//!
//! | what happened, before the first byte of an answer | next |
//! |---|---|
//! | the connection could not be made | the next fallback, each in turn |
//! | the connection ended | one other worker: the engine may have begun to work |
//! | the engine answered 500, 502 or 504 | the next fallback, within the budget; else its answer is passed on |
//! | the engine answered 429 or 503 | the same; it is back pressure, not a fault |
//! | any other answer | it is passed on |
//! | no answer in time | nothing: the work may still be going on |
//!
//! Nothing is ever tried again after the first byte. The budget keeps retries from multiplying an outage: they are a share of recent
//! requests, and a small reserve for quiet times.

use std::sync::atomic::{AtomicI64, Ordering};

/// What an engine's status says of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusMeaning {
    /// An answer to the client, whatever it says.
    Answer,
    /// The engine, or something in front of it, failed.
    ServerError,
    /// The engine has no room now.
    Overloaded,
}

/// Returns what a status says. 501 and 505 are about the request and would be the same anywhere.
pub fn meaning_of(status: u16) -> StatusMeaning {
    match status {
        500 | 502 | 504 => StatusMeaning::ServerError,
        429 | 503 => StatusMeaning::Overloaded,
        _ => StatusMeaning::Answer,
    }
}

/// Retries that each request pays for, in thousandths.
const SHARE_PER_REQUEST: i64 = 200;
/// What a retry costs.
const COST: i64 = 1_000;
/// The most that is saved: retries for five hundred requests.
const MAX_SAVED: i64 = 100 * COST;
/// What a router starts with, so that its first requests may be retried.
const RESERVE: i64 = 10 * COST;

/// How many retries are left: one for each five requests, and at most a hundred saved. Shared by all threads.
#[derive(Debug)]
pub struct RetryBudget {
    saved: AtomicI64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { saved: AtomicI64::new(RESERVE) }
    }
}

impl RetryBudget {
    /// Notes a request, which pays for a part of a retry.
    pub fn pay(&self) {
        // The limit may be passed by a few when threads meet, which harms nothing.
        if self.saved.load(Ordering::Relaxed) < MAX_SAVED {
            self.saved.fetch_add(SHARE_PER_REQUEST, Ordering::Relaxed);
        }
    }

    /// Takes a retry, if one is left.
    pub fn take(&self) -> bool {
        let taken = self.saved.fetch_sub(COST, Ordering::Relaxed) >= COST;
        if !taken {
            self.saved.fetch_add(COST, Ordering::Relaxed);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::{RetryBudget, StatusMeaning, meaning_of};

    #[test]
    fn a_status_is_an_answer_unless_it_is_about_the_engine() {
        let rows = [
            (200, StatusMeaning::Answer),
            (400, StatusMeaning::Answer),
            (401, StatusMeaning::Answer),
            (404, StatusMeaning::Answer),
            (408, StatusMeaning::Answer),
            (429, StatusMeaning::Overloaded),
            (500, StatusMeaning::ServerError),
            (501, StatusMeaning::Answer),
            (502, StatusMeaning::ServerError),
            (503, StatusMeaning::Overloaded),
            (504, StatusMeaning::ServerError),
        ];
        for (status, expected) in rows {
            assert_eq!(meaning_of(status), expected, "{status}");
        }
    }

    /// Seen in linkedin/rest.li#484.
    #[test]
    fn retries_are_a_fifth_of_the_requests_and_a_small_reserve() {
        let budget = RetryBudget::default();
        let retried = (0..10_000).filter(|_| {
            budget.pay();
            budget.take()
        });
        assert_eq!(retried.count(), 2_000 + 10);
    }

    #[test]
    fn quiet_times_save_no_more_than_a_hundred_retries() {
        let budget = RetryBudget::default();
        (0..100_000).for_each(|_| budget.pay());
        assert_eq!((0..1_000).filter(|_| budget.take()).count(), 100);
    }
}
