//! Which workers should run: full sets of endpoints in, the changes they call for out.
//!
//! Several discovery sources may name the same address; it is wanted as long as one of them does, and served once. An entry whose
//! incarnation or overrides differ from the running worker's means another worker: the old one goes, with all it knew, before the
//! new one starts. A change of readiness alone keeps the worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::logic::endpoint::{Endpoint, Readiness, WorkerUrl};
use crate::logic::ids::WorkerId;

/// One step towards the wanted set. Steps are to be taken in order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, and each is taken apart at once")]
pub enum MemberChange {
    /// Start a worker for the endpoint.
    Start {
        /// Its id, never used before.
        id: WorkerId,
        /// What to start.
        endpoint: Endpoint,
    },
    /// Drain and stop the worker; nothing of it stays.
    Remove {
        /// Which.
        id: WorkerId,
    },
    /// Give the worker no new requests; keep what it knows.
    Suspend {
        /// Which.
        id: WorkerId,
    },
    /// Give it requests again.
    Resume {
        /// Which.
        id: WorkerId,
    },
}

/// The wanted endpoints by source, and the workers that run for them. Bounded by what the sources name.
#[derive(Debug, Default)]
pub struct Membership {
    sources: BTreeMap<Arc<str>, Vec<Endpoint>>,
    running: BTreeMap<WorkerUrl, Member>,
    last_id: u64,
}

#[derive(Debug, Clone)]
struct Member {
    id: WorkerId,
    endpoint: Endpoint,
}

impl Membership {
    /// Takes the full set of one source and returns what changes. An address named twice counts once, by its last entry.
    pub fn apply(&mut self, source: &Arc<str>, endpoints: Vec<Endpoint>) -> Vec<MemberChange> {
        self.sources.insert(Arc::clone(source), endpoints);
        let wanted = self.wanted();
        let mut changes = Vec::new();
        self.running.retain(|url, member| {
            let stays = wanted.get(url).is_some_and(|endpoint| endpoint.is_same_worker(&member.endpoint));
            if !stays {
                changes.push(MemberChange::Remove { id: member.id });
            }
            stays
        });
        for (url, endpoint) in wanted {
            match self.running.get_mut(&url) {
                Some(member) => changes.extend(readiness_change(member, endpoint.readiness)),
                None => changes.extend(self.start(endpoint)),
            }
        }
        changes
    }

    /// Replaces a worker that died or whose engine became another one, under a new id. Returns nothing where it is not running
    /// any more.
    pub fn replace(&mut self, id: WorkerId) -> Vec<MemberChange> {
        let Some(endpoint) = self.endpoint(id).cloned() else {
            return Vec::new();
        };
        self.running.remove(&endpoint.url);
        let mut changes = vec![MemberChange::Remove { id }];
        changes.extend(self.start(endpoint));
        changes
    }

    /// Wants nothing any more.
    pub fn clear(&mut self) -> Vec<MemberChange> {
        self.sources.clear();
        std::mem::take(&mut self.running).into_values().map(|member| MemberChange::Remove { id: member.id }).collect()
    }

    /// Returns the endpoint of a running worker.
    pub fn endpoint(&self, id: WorkerId) -> Option<&Endpoint> {
        self.running.values().find(|member| member.id == id).map(|member| &member.endpoint)
    }

    fn wanted(&self) -> BTreeMap<WorkerUrl, Endpoint> {
        let all = self.sources.values().flatten();
        let mut wanted: BTreeMap<WorkerUrl, Endpoint> = BTreeMap::new();
        for endpoint in all {
            wanted.insert(endpoint.url.clone(), endpoint.clone());
        }
        wanted
    }

    fn start(&mut self, endpoint: Endpoint) -> Vec<MemberChange> {
        self.last_id += 1;
        let id = WorkerId::new(self.last_id);
        self.running.insert(endpoint.url.clone(), Member { id, endpoint: endpoint.clone() });
        let suspend = (endpoint.readiness == Readiness::Suspended).then_some(MemberChange::Suspend { id });
        std::iter::once(MemberChange::Start { id, endpoint }).chain(suspend).collect()
    }
}

fn readiness_change(member: &mut Member, readiness: Readiness) -> Option<MemberChange> {
    let id = member.id;
    if std::mem::replace(&mut member.endpoint.readiness, readiness) == readiness {
        return None;
    }
    Some(match readiness {
        Readiness::Ready => MemberChange::Resume { id },
        Readiness::Suspended => MemberChange::Suspend { id },
    })
}

#[cfg(test)]
mod tests;
