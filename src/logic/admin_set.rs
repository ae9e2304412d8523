//! The workers that the operator added while the router ran, and what may be done to a worker on the operator's word.
//!
//! The rules:
//! - An address that is added again with the same settings changes nothing; with other settings it is refused, because they would
//!   make another worker of it. It is to be removed first.
//! - Whatever its source, a worker can be given no new requests and be given some again. That ends when no source names it.
//! - Only what was added this way can be removed this way. A worker that another source names as well stays for that source.
//! - A text that is the id of a worker (`w3`) means that worker; any other means an address.

use std::sync::Arc;

use crate::logic::address_guard::objection;
use crate::logic::endpoint::{Endpoint, Readiness, WorkerUrl};
use crate::logic::ids::WorkerId;

/// The name under which this source sends its sets.
pub const ADMIN_SOURCE: &str = "admin";

/// Workers that may be added; more is a loop in a script.
pub const MAX_ADMIN_WORKERS: usize = 4_096;

/// One worker that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminWorker {
    /// Where it is, and its settings.
    pub endpoint: Endpoint,
    /// What is stored of it, as the text that adds it again. Holds no key.
    pub record: Arc<str>,
}

/// Which worker is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerName {
    /// The one with this id.
    Id(WorkerId),
    /// The one at this address.
    Url(WorkerUrl),
}

impl WorkerName {
    /// Reads an id or an address; `None` where the text is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_prefix('w').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        match number.and_then(|digits| digits.parse().ok()) {
            Some(number) => Some(Self::Id(WorkerId::new(number))),
            None => WorkerUrl::parse(text).ok().map(Self::Url),
        }
    }
}

/// What the operator wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerChange {
    /// This worker is to be served.
    Add(AdminWorker),
    /// The worker is to get no new requests, or to get them again.
    SetReadiness(WorkerName, Readiness),
    /// What was added is not wanted any more.
    Remove(WorkerName),
}

/// A worker of the fleet, as far as a change depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownWorker {
    /// Its id.
    pub id: WorkerId,
    /// Its address.
    pub url: WorkerUrl,
    /// Who names it.
    pub sources: Vec<Arc<str>>,
}

/// Why a change is refused. The text is for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeRefusal {
    /// No worker is meant by the text.
    #[error("there is no such worker")]
    UnknownWorker,
    /// The worker was not added by the operator.
    #[error("{url} is named by {sources}: remove it there")]
    NamedElsewhere {
        /// Its address.
        url: WorkerUrl,
        /// Who names it, separated by commas.
        sources: String,
    },
    /// The worker is known with other settings.
    #[error("url = {url:?}: this worker was added with other settings: remove it first")]
    Differs {
        /// Its address.
        url: WorkerUrl,
    },
    /// Nothing should connect there.
    #[error("url = {url:?}: {reason}")]
    Address {
        /// The address.
        url: WorkerUrl,
        /// What speaks against it.
        reason: &'static str,
    },
    /// There are as many as there may be.
    #[error("{MAX_ADMIN_WORKERS} workers were added, which is the limit")]
    TooMany,
    /// The change could not be stored, and was not made.
    #[error("the change could not be written to admin_workers_file and was not made: {reason}")]
    NotStored {
        /// What the operating system said.
        reason: String,
    },
}

impl ChangeRefusal {
    /// Returns the stable code sent to the operator.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownWorker => "worker_not_found",
            Self::NamedElsewhere { .. } => "worker_named_elsewhere",
            Self::Differs { .. } => "worker_differs",
            Self::Address { .. } => "address_refused",
            Self::TooMany => "too_many_workers",
            Self::NotStored { .. } => "change_not_stored",
        }
    }
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The address that it is about.
    pub url: WorkerUrl,
    /// Whether the set of this source is another one now.
    pub is_set_changed: bool,
    /// What the worker is to be told in whatever set it is; `None` where nothing.
    pub readiness: Option<Readiness>,
}

/// The workers that were added, at most [`MAX_ADMIN_WORKERS`], in order of addition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdminSet {
    workers: Vec<AdminWorker>,
}

impl AdminSet {
    /// Returns the set of these workers.
    pub fn new(workers: Vec<AdminWorker>) -> Self {
        Self { workers }
    }

    /// Returns the workers.
    pub fn workers(&self) -> &[AdminWorker] {
        &self.workers
    }

    /// Makes the change, or says why not. `fleet` is what is served now, whoever named it.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn apply(&mut self, change: WorkerChange, fleet: &[KnownWorker]) -> Result<Change, ChangeRefusal> {
        match change {
            WorkerChange::Add(worker) => self.add(worker),
            WorkerChange::SetReadiness(name, readiness) => self.set_readiness(&name, readiness, fleet),
            WorkerChange::Remove(name) => self.remove(&name, fleet),
        }
    }

    fn add(&mut self, worker: AdminWorker) -> Result<Change, ChangeRefusal> {
        let url = worker.endpoint.url.clone();
        if let Some(reason) = objection(&url) {
            return Err(ChangeRefusal::Address { url, reason });
        }
        let known = self.workers.iter().find(|known| known.endpoint.url == url);
        let is_set_changed = match known {
            Some(known) if known.endpoint.is_same_worker(&worker.endpoint) => false,
            Some(_) => return Err(ChangeRefusal::Differs { url }),
            None if self.workers.len() >= MAX_ADMIN_WORKERS => return Err(ChangeRefusal::TooMany),
            None => true,
        };
        if is_set_changed {
            self.workers.push(worker);
        }
        Ok(Change { url, is_set_changed, readiness: None })
    }

    fn set_readiness(
        &mut self,
        name: &WorkerName,
        readiness: Readiness,
        fleet: &[KnownWorker],
    ) -> Result<Change, ChangeRefusal> {
        let url = find(name, fleet).ok_or(ChangeRefusal::UnknownWorker)?.url.clone();
        let mut is_set_changed = false;
        for worker in self.workers.iter_mut().filter(|worker| worker.endpoint.url == url) {
            is_set_changed = std::mem::replace(&mut worker.endpoint.readiness, readiness) != readiness;
        }
        Ok(Change { url, is_set_changed, readiness: Some(readiness) })
    }

    fn remove(&mut self, name: &WorkerName, fleet: &[KnownWorker]) -> Result<Change, ChangeRefusal> {
        let known = find(name, fleet);
        let url = match (known, name) {
            (Some(known), _) => known.url.clone(),
            (None, WorkerName::Url(url)) => url.clone(),
            (None, WorkerName::Id(_)) => return Err(ChangeRefusal::UnknownWorker),
        };
        let num_before = self.workers.len();
        self.workers.retain(|worker| worker.endpoint.url != url);
        if self.workers.len() < num_before {
            return Ok(Change { url, is_set_changed: true, readiness: None });
        }
        match known {
            Some(known) => Err(ChangeRefusal::NamedElsewhere { url, sources: known.sources.join(", ") }),
            None => Err(ChangeRefusal::UnknownWorker),
        }
    }
}

fn find<'a>(name: &WorkerName, fleet: &'a [KnownWorker]) -> Option<&'a KnownWorker> {
    fleet.iter().find(|known| match name {
        WorkerName::Id(id) => known.id == *id,
        WorkerName::Url(url) => known.url == *url,
    })
}

#[cfg(test)]
mod tests;
