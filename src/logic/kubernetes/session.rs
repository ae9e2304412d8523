//! When to list and when to watch.
//!
//! A full list comes first, and again every period, because a watch may fall silent without ending. In between the watch goes on
//! from the version that was heard last. A watch that ends is opened again at once; one that ends soon after it began, or fails,
//! waits longer each time. An expired version calls for a list. Who may not watch is asked for the list more often; who may not
//! list either is asked once per period.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::logic::kubernetes::facts::Resource;
use crate::logic::rng::Rng;

/// A watch that lasted this long was a good one, whatever ended it.
const GOOD_WATCH: Duration = Duration::from_secs(1);
/// The pause after the second failure in a row; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// What the doubling comes to.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How often things are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// From one full list to the next.
    pub relist: Duration,
    /// The same, where watching is forbidden.
    pub poll: Duration,
}

/// A verb of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `list`.
    List,
    /// `watch`.
    Watch,
}

impl Verb {
    /// Both.
    pub const ALL: [Self; 2] = [Self::List, Self::Watch];

    /// Returns the name that rules of access use.
    pub fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
        }
    }
}

/// Why the API did not give what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// 403: a right is missing.
    Forbidden,
    /// 404: the API server does not know the resource.
    NotFound,
    /// 401: the token is not accepted, or not any more.
    Unauthorized,
    /// 410: the version is too old.
    Expired,
    /// Any other status.
    Refused,
    /// No connection, or one that broke, or no answer in time.
    Unreachable,
    /// An answer that is not what the API specifies, or too long.
    Unreadable,
}

impl Failure {
    /// Every failure, for counters that show zeros too.
    pub const ALL: [Self; 7] = [
        Self::Forbidden,
        Self::NotFound,
        Self::Unauthorized,
        Self::Expired,
        Self::Refused,
        Self::Unreachable,
        Self::Unreadable,
    ];

    /// Returns what a status that is no success says.
    pub fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            410 => Self::Expired,
            _ => Self::Refused,
        }
    }

    /// Returns the name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Unauthorized => "unauthorized",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Unreadable => "unreadable",
        }
    }
}

/// How a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// It was left because the next list is due.
    Left,
    /// The server ended it.
    Closed,
    /// It failed.
    Failed(Failure),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Get the full list.
    List,
    /// Watch from that version, at most until then.
    Watch {
        /// The version heard last.
        version: Arc<str>,
        /// When to leave it.
        until: Instant,
    },
}

/// What to do next, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// When; may have passed.
    pub at: Instant,
    /// What.
    pub step: Step,
}

/// The course of one resource in one namespace.
#[derive(Debug, Clone)]
pub struct Session {
    pace: Pace,
    rng: Rng,
    /// `None`: only a list can help.
    version: Option<Arc<str>>,
    list_at: Instant,
    watch_at: Instant,
    /// While watching is not even tried.
    polls_until: Option<Instant>,
    list_failures: u32,
    watch_failures: u32,
}

impl Session {
    /// Returns a session whose first step, now, is a list.
    pub fn new(pace: Pace, rng: Rng, now: Instant) -> Self {
        Self {
            pace,
            rng,
            version: None,
            list_at: now,
            watch_at: now,
            polls_until: None,
            list_failures: 0,
            watch_failures: 0,
        }
    }

    /// Returns what to do next.
    pub fn plan(&self) -> Plan {
        match &self.version {
            Some(version) if self.polls_until.is_none() && self.watch_at < self.list_at => {
                let step = Step::Watch { version: Arc::clone(version), until: self.list_at };
                Plan { at: self.watch_at, step }
            }
            _ => Plan { at: self.list_at, step: Step::List },
        }
    }

    /// Tells whether lists have to do, because watching is forbidden.
    pub fn is_polling(&self) -> bool {
        self.polls_until.is_some()
    }

    /// Notes a full list. An empty version cannot be watched from.
    pub fn listed(&mut self, version: &str, now: Instant) {
        self.list_failures = 0;
        self.version = Some(version).filter(|version| !version.is_empty()).map(Arc::from);
        self.polls_until = self.polls_until.filter(|until| now < *until);
        let period = if self.is_polling() { self.pace.poll } else { self.pace.relist };
        self.list_at = now + self.spread(period);
        self.watch_at = self.watch_at.max(now);
    }

    /// Notes that there was no list. What was known before stays, and may still be watched.
    pub fn list_failed(&mut self, failure: Failure, now: Instant) {
        self.list_failures = self.list_failures.saturating_add(1);
        self.list_at = now
            + match failure {
                Failure::Forbidden | Failure::NotFound => self.spread(self.pace.relist),
                Failure::Unauthorized
                | Failure::Expired
                | Failure::Refused
                | Failure::Unreachable
                | Failure::Unreadable => {
                    // The first failure waits too: unlike a watch, a list does not end as a matter of course.
                    self.pause(self.list_failures.saturating_add(1))
                }
            };
    }

    /// Notes a version that the watch has told.
    pub fn heard(&mut self, version: &str) {
        if !version.is_empty() {
            self.version = Some(version.into());
        }
    }

    /// Notes the end of a watch that was asked for at `opened`.
    pub fn watch_ended(&mut self, end: WatchEnd, opened: Instant, now: Instant) {
        let was_good = now.saturating_duration_since(opened) >= GOOD_WATCH;
        self.watch_failures = match end {
            WatchEnd::Left => 0,
            WatchEnd::Closed | WatchEnd::Failed(_) if was_good => 1,
            WatchEnd::Closed | WatchEnd::Failed(_) => self.watch_failures.saturating_add(1),
        };
        let pause = self.pause(self.watch_failures);
        self.watch_at = now + pause;
        match end {
            WatchEnd::Left | WatchEnd::Closed => {}
            WatchEnd::Failed(Failure::Forbidden | Failure::NotFound) => {
                self.polls_until = Some(now + self.pace.relist);
                self.list_at = self.list_at.min(now + self.spread(self.pace.poll));
            }
            WatchEnd::Failed(Failure::Expired | Failure::Unreadable) => {
                self.version = None;
                self.list_at = self.list_at.min(now + pause);
            }
            WatchEnd::Failed(Failure::Unauthorized | Failure::Refused | Failure::Unreachable) => {}
        }
    }

    /// Nothing after the first failure; then twice as long each time, less up to a half by chance.
    fn pause(&mut self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(2) else { return Duration::ZERO };
        let longest = FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE);
        longest - self.part_of(longest / 2)
    }

    /// Up to a tenth less, so that the routers of one cluster do not ask together.
    fn spread(&mut self, period: Duration) -> Duration {
        period - self.part_of(period / 10)
    }

    fn part_of(&mut self, most: Duration) -> Duration {
        let micros = usize::try_from(most.as_micros()).unwrap_or(usize::MAX);
        Duration::from_micros(self.rng.below(micros) as u64)
    }
}

/// Says which right is missing, for a person who can grant it. An empty namespace means all of them.
pub fn missing_right(verb: Verb, resource: Resource, namespace: &str) -> String {
    let (verb, name) = (verb.name(), resource.name());
    let group = match resource.group() {
        "" => String::new(),
        group => format!(" of the API group {group}"),
    };
    match namespace {
        "" => format!("the service account may not {verb} {name}{group} in all namespaces; grant it by a ClusterRole"),
        namespace => format!(
            "the service account may not {verb} {name}{group} in namespace {namespace}; grant it by a Role there"
        ),
    }
}
