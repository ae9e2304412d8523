//! Which workers should run: full sets of endpoints in, the changes they call for out.
//!
//! Several discovery sources may name the same address; it is wanted as long as one of them does, and served once. An entry whose
//! incarnation or overrides differ from the running worker's means another worker: the old one goes, with all it knew, before the
//! new one starts. A change of readiness alone keeps the worker.
//!
//! Where the entries of several sources differ, a source that says something outranks one that says nothing: any of them suspends
//! the worker, and of several incarnations or overrides those of the source whose name sorts last count. The operator may hold a
//! worker of whatever source, which suspends it too, until no source names it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::logic::endpoint::{Endpoint, EndpointOverrides, Readiness, WorkerUrl};
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
    held: BTreeSet<WorkerUrl>,
    last_id: u64,
}

#[derive(Debug, Clone)]
struct Member {
    id: WorkerId,
    endpoint: Endpoint,
    sources: Vec<Arc<str>>,
}

/// What all sources together say of one address.
#[derive(Debug)]
struct Wanted {
    endpoint: Endpoint,
    sources: Vec<Arc<str>>,
}

impl Membership {
    /// Takes the full set of one source and returns what changes. An address named twice counts once, by its last entry.
    pub fn apply(&mut self, source: &Arc<str>, endpoints: Vec<Endpoint>) -> Vec<MemberChange> {
        self.sources.insert(Arc::clone(source), endpoints);
        self.reconcile()
    }

    /// Suspends the worker at the address whatever its sources say, or lets them decide again. An address that nobody names
    /// cannot be held.
    pub fn hold(&mut self, url: &WorkerUrl, readiness: Readiness) -> Vec<MemberChange> {
        match readiness {
            Readiness::Suspended => self.held.insert(url.clone()),
            Readiness::Ready => self.held.remove(url),
        };
        self.reconcile()
    }

    /// Returns the sources that name a running worker's address, in order.
    pub fn sources_of(&self, url: &WorkerUrl) -> &[Arc<str>] {
        self.running.get(url).map_or(&[], |member| &member.sources)
    }

    fn reconcile(&mut self) -> Vec<MemberChange> {
        let mut wanted = self.wanted();
        self.held.retain(|url| wanted.contains_key(url));
        for url in &self.held {
            if let Some(wanted) = wanted.get_mut(url) {
                wanted.endpoint.readiness = Readiness::Suspended;
            }
        }
        let mut changes = Vec::new();
        self.running.retain(|url, member| {
            let stays = wanted.get(url).is_some_and(|wanted| wanted.endpoint.is_same_worker(&member.endpoint));
            if !stays {
                changes.push(MemberChange::Remove { id: member.id });
            }
            stays
        });
        for (url, wanted) in wanted {
            match self.running.get_mut(&url) {
                Some(member) => {
                    member.sources = wanted.sources;
                    changes.extend(readiness_change(member, wanted.endpoint.readiness));
                }
                None => changes.extend(self.start(wanted)),
            }
        }
        changes
    }

    /// Replaces a worker that died or whose engine became another one, under a new id. Returns nothing where it is not running
    /// any more.
    pub fn replace(&mut self, id: WorkerId) -> Vec<MemberChange> {
        let Some(url) = self.endpoint(id).map(|endpoint| endpoint.url.clone()) else {
            return Vec::new();
        };
        let mut changes = vec![MemberChange::Remove { id }];
        if let Some(Member { endpoint, sources, .. }) = self.running.remove(&url) {
            changes.extend(self.start(Wanted { endpoint, sources }));
        }
        changes
    }

    /// Wants nothing any more.
    pub fn clear(&mut self) -> Vec<MemberChange> {
        self.sources.clear();
        self.held.clear();
        std::mem::take(&mut self.running).into_values().map(|member| MemberChange::Remove { id: member.id }).collect()
    }

    /// Returns the endpoint of a running worker.
    pub fn endpoint(&self, id: WorkerId) -> Option<&Endpoint> {
        self.running.values().find(|member| member.id == id).map(|member| &member.endpoint)
    }

    fn wanted(&self) -> BTreeMap<WorkerUrl, Wanted> {
        let mut wanted: BTreeMap<WorkerUrl, Wanted> = BTreeMap::new();
        for (source, endpoints) in &self.sources {
            let by_last_entry: BTreeMap<_, _> = endpoints.iter().map(|endpoint| (&endpoint.url, endpoint)).collect();
            for (url, endpoint) in by_last_entry {
                let entry = wanted.entry(url.clone());
                let entry = entry.and_modify(|earlier| merge(&mut earlier.endpoint, endpoint));
                let first = || Wanted { endpoint: endpoint.clone(), sources: Vec::new() };
                entry.or_insert_with(first).sources.push(Arc::clone(source));
            }
        }
        wanted
    }

    fn start(&mut self, Wanted { endpoint, sources }: Wanted) -> Vec<MemberChange> {
        self.last_id += 1;
        let id = WorkerId::new(self.last_id);
        self.running.insert(endpoint.url.clone(), Member { id, endpoint: endpoint.clone(), sources });
        let suspend = (endpoint.readiness == Readiness::Suspended).then_some(MemberChange::Suspend { id });
        std::iter::once(MemberChange::Start { id, endpoint }).chain(suspend).collect()
    }
}

fn merge(earlier: &mut Endpoint, later: &Endpoint) {
    if later.readiness == Readiness::Suspended {
        earlier.readiness = Readiness::Suspended;
    }
    if later.incarnation.is_some() {
        earlier.incarnation = later.incarnation.clone();
    }
    if later.overrides != EndpointOverrides::default() {
        earlier.overrides = later.overrides.clone();
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
