//! What is known of pods and slices, and the endpoints that follow from it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::logic::endpoint::{Endpoint, Readiness, WorkerUrl};
use crate::logic::kubernetes::facts::{
    AddressType, Object, ObjectName, PodFacts, PortFacts, SliceEndpoint, SliceFacts,
};

/// How long an endpoint that no slice lists any more is kept suspended. It may be on its way from one slice to another, which are
/// written one after the other.
const MOVE_TIME: Duration = Duration::from_millis(500);

/// Which port of a pod is the engine's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PortRule {
    /// The only one that is declared.
    #[default]
    Only,
    /// This one, declared or not.
    Number(u16),
    /// The one of that name: of a container, or of the service where slices say who serves.
    Named(Arc<str>),
}

/// What endpoints are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Whether slices say who serves; else pods do.
    pub by_slices: bool,
    /// Which port is the engine's.
    pub port: PortRule,
    /// The most endpoints, and the most pods or slice endpoints that are kept per scope.
    pub max_endpoints: usize,
}

/// Pods or slice endpoints that did not become workers, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusals {
    /// It is not clear which port is the engine's.
    pub no_port: usize,
    /// Another one has the same address and port.
    pub same_address: usize,
    /// There are too many; at least as many as this since the last list.
    pub over_limit: usize,
}

/// What should be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The full set, ordered by address.
    pub endpoints: Vec<Endpoint>,
    /// What is not in it although it could be.
    pub refusals: Refusals,
    /// When to ask again although nothing has changed.
    pub changes_at: Option<Instant>,
}

/// What is known, by scope: one resource in one namespace, or in all of them.
#[derive(Debug)]
pub struct View {
    rules: Rules,
    scopes: Vec<Scope>,
    /// What was wanted last, by the pod's uid or, where there is none, by address.
    last: BTreeMap<Arc<str>, Entry>,
}

#[derive(Debug, Default)]
struct Scope {
    objects: BTreeMap<ObjectName, Object>,
    size: usize,
    num_left_out: usize,
    has_answered: bool,
}

/// A pod as a worker.
#[derive(Debug, Clone)]
struct Entry {
    url: WorkerUrl,
    uid: Option<Arc<str>>,
    restarts: u32,
    is_ready: bool,
    created: Arc<str>,
    /// Since when no slice lists it.
    missing_since: Option<Instant>,
}

impl View {
    /// Returns a view in which nothing is known of so many scopes.
    pub fn new(rules: Rules, num_scopes: usize) -> Self {
        Self { rules, scopes: (0..num_scopes).map(|_| Scope::default()).collect(), last: BTreeMap::new() }
    }

    /// Takes the full list of a scope: whatever is not in it is gone.
    pub fn listed(&mut self, scope: usize, objects: Vec<Object>) {
        let max_size = self.rules.max_endpoints;
        let Some(known) = self.scopes.get_mut(scope) else { return };
        *known = Scope { has_answered: true, ..Scope::default() };
        for object in objects {
            let size = object.size();
            if !known.put(object, max_size) {
                known.num_left_out += size;
            }
        }
    }

    /// Notes that the scope could not be listed. What is known of it stays.
    pub fn failed(&mut self, scope: usize) {
        if let Some(known) = self.scopes.get_mut(scope) {
            known.has_answered = true;
        }
    }

    /// Takes an object that is new or has changed.
    pub fn put(&mut self, scope: usize, object: Object) {
        let max_size = self.rules.max_endpoints;
        let Some(known) = self.scopes.get_mut(scope) else { return };
        if !known.put(object, max_size) {
            // It may be told again and again until the next list counts it.
            known.num_left_out = known.num_left_out.max(1);
        }
    }

    /// Takes away an object that was deleted or left the selection. An older one of that name does not end its successor.
    pub fn remove(&mut self, scope: usize, name: &ObjectName, uid: &str) {
        let Some(known) = self.scopes.get_mut(scope) else { return };
        if known.objects.get(name).is_some_and(|object| &**object.uid() == uid) {
            known.take(name);
        }
    }

    /// Tells whether every scope was asked once, with whatever result. Before that a set would lack what is about to be known.
    pub fn has_answered(&self) -> bool {
        self.scopes.iter().all(|scope| scope.has_answered)
    }

    /// Returns what should be served now.
    pub fn wanted(&mut self, now: Instant) -> Wanted {
        let mut refusals =
            Refusals { over_limit: self.scopes.iter().map(|scope| scope.num_left_out).sum(), ..Refusals::default() };
        let mut entries = if self.rules.by_slices {
            let (entries, ended) = self.entries_of_slices(&mut refusals);
            self.with_movers(entries, &ended, now)
        } else {
            self.entries_of_pods(&mut refusals)
        };
        refusals.same_address += keep_one_per_address(&mut entries);
        self.keep_within_limit(&mut entries, &mut refusals);
        let changes_at = entries.values().filter_map(|entry| entry.missing_since).min().map(|since| since + MOVE_TIME);
        let mut endpoints: Vec<Endpoint> = entries.values().map(Entry::endpoint).collect();
        endpoints.sort_by(|left, right| left.url.cmp(&right.url));
        self.last = entries;
        Wanted { endpoints, refusals, changes_at }
    }

    fn pods(&self) -> impl Iterator<Item = &PodFacts> {
        self.scopes.iter().flat_map(|scope| scope.objects.values()).filter_map(|object| match object {
            Object::Pod(pod) => Some(pod),
            Object::Slice(_) => None,
        })
    }

    fn slices(&self) -> impl Iterator<Item = &SliceFacts> {
        self.scopes.iter().flat_map(|scope| scope.objects.values()).filter_map(|object| match object {
            Object::Slice(slice) => Some(slice),
            Object::Pod(_) => None,
        })
    }

    fn entries_of_pods(&self, refusals: &mut Refusals) -> BTreeMap<Arc<str>, Entry> {
        let mut entries = BTreeMap::new();
        for pod in self.pods().filter(|pod| !pod.has_ended) {
            let Some(address) = preferred(&pod.addresses) else { continue };
            let port = self.rules.port.among(pod.containers.iter().flat_map(|container| &container.ports));
            let Some(url) = port.and_then(|port| url_of(address, port)) else {
                refusals.no_port += 1;
                continue;
            };
            let entry = Entry {
                url,
                uid: Some(Arc::clone(&pod.uid)),
                restarts: self.restarts(pod),
                is_ready: pod.is_ready && !pod.is_deleting,
                created: Arc::clone(&pod.created),
                missing_since: None,
            };
            entries.insert(Arc::clone(&pod.uid), entry);
        }
        entries
    }

    /// Returns the entries, and the uids of pods that are known to have ended.
    fn entries_of_slices(&self, refusals: &mut Refusals) -> (BTreeMap<Arc<str>, Entry>, BTreeSet<Arc<str>>) {
        let pods: BTreeMap<&str, &PodFacts> = self.pods().map(|pod| (&*pod.uid, pod)).collect();
        let namespaces_with_v4: BTreeSet<&str> = self
            .slices()
            .filter(|slice| slice.address_type == AddressType::V4)
            .map(|slice| &*slice.name.namespace)
            .collect();
        let counts = |slice: &&SliceFacts| match slice.address_type {
            AddressType::V4 => true,
            AddressType::V6 => !namespaces_with_v4.contains(&*slice.name.namespace),
            AddressType::Other => false,
        };
        let mut entries: BTreeMap<Arc<str>, Entry> = BTreeMap::new();
        for slice in self.slices().filter(counts) {
            let port = self.rules.port.among(slice.ports.iter());
            for listed in &slice.endpoints {
                let Some(url) = port.and_then(|port| url_of(listed.address, port)) else {
                    refusals.no_port += 1;
                    continue;
                };
                let pod = listed.pod_uid.as_deref().and_then(|uid| pods.get(uid).copied());
                if pod.is_some_and(|pod| pod.has_ended) {
                    continue;
                }
                let entry = self.entry_of(listed, url, pod);
                let key = entry.uid.clone().unwrap_or_else(|| entry.url.as_str().into());
                // Listed in two slices, of which one is behind: no new requests until they agree.
                let known = entries.entry(key).or_insert_with(|| entry.clone());
                known.is_ready &= entry.is_ready;
            }
        }
        let ended = pods.values().filter(|pod| pod.has_ended).map(|pod| Arc::clone(&pod.uid)).collect();
        (entries, ended)
    }

    fn entry_of(&self, listed: &SliceEndpoint, url: WorkerUrl, pod: Option<&PodFacts>) -> Entry {
        Entry {
            url,
            uid: listed.pod_uid.clone(),
            restarts: pod.map_or(0, |pod| self.restarts(pod)),
            is_ready: listed.is_ready && pod.is_none_or(|pod| pod.is_ready && !pod.is_deleting),
            created: pod.map_or_else(|| Arc::from(""), |pod| Arc::clone(&pod.created)),
            missing_since: None,
        }
    }

    /// Adds those that were wanted until now and that no slice lists, for as long as they may be moving.
    fn with_movers(
        &self,
        mut entries: BTreeMap<Arc<str>, Entry>,
        ended: &BTreeSet<Arc<str>>,
        now: Instant,
    ) -> BTreeMap<Arc<str>, Entry> {
        let taken: BTreeSet<WorkerUrl> = entries.values().map(|entry| entry.url.clone()).collect();
        for (key, entry) in &self.last {
            let since = entry.missing_since.unwrap_or(now);
            let is_moving = now < since + MOVE_TIME && !ended.contains(key) && !taken.contains(&entry.url);
            if is_moving && !entries.contains_key(key) {
                let mover = Entry { is_ready: false, missing_since: Some(since), ..entry.clone() };
                entries.insert(Arc::clone(key), mover);
            }
        }
        entries
    }

    /// Restarts of the container that declares the engine's port; of all of them where none does.
    fn restarts(&self, pod: &PodFacts) -> u32 {
        let engine = pod.containers.iter().find(|container| self.rules.port.is_declared(&container.ports));
        match engine {
            Some(container) => container.restarts,
            None => pod.containers.iter().fold(0, |sum, container| sum.saturating_add(container.restarts)),
        }
    }

    /// Who was there before stays.
    fn keep_within_limit(&self, entries: &mut BTreeMap<Arc<str>, Entry>, refusals: &mut Refusals) {
        let excess = entries.len().saturating_sub(self.rules.max_endpoints);
        if excess == 0 {
            return;
        }
        refusals.over_limit += excess;
        let (known, new): (Vec<_>, Vec<_>) = entries.keys().cloned().partition(|key| self.last.contains_key(key));
        for key in new.iter().rev().chain(known.iter().rev()).take(excess) {
            entries.remove(key);
        }
    }
}

impl Scope {
    /// Tells whether there was room for it.
    fn put(&mut self, object: Object, max_size: usize) -> bool {
        self.take(object.name());
        let has_room = self.size + object.size() <= max_size;
        if has_room {
            self.size += object.size();
            self.objects.insert(object.name().clone(), object);
        }
        has_room
    }

    fn take(&mut self, name: &ObjectName) {
        if let Some(object) = self.objects.remove(name) {
            self.size -= object.size();
        }
    }
}

impl Entry {
    fn endpoint(&self) -> Endpoint {
        let incarnation = self.uid.as_ref().map(|uid| match self.restarts {
            // The slice alone says no more than this, and the pod may be known only later.
            0 => Arc::clone(uid),
            restarts => format!("{uid}#{restarts}").into(),
        });
        let readiness = if self.is_ready { Readiness::Ready } else { Readiness::Suspended };
        Endpoint { incarnation, readiness, ..Endpoint::new(self.url.clone()) }
    }
}

impl PortRule {
    fn among<'a>(&self, ports: impl Iterator<Item = &'a PortFacts>) -> Option<u16> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Named(name) => {
                ports.into_iter().find(|port| port.name.as_ref() == Some(name)).map(|port| port.number)
            }
            Self::Only => {
                let numbers: BTreeSet<u16> = ports.map(|port| port.number).collect();
                numbers.first().copied().filter(|_| numbers.len() == 1)
            }
        }
    }

    fn is_declared(&self, ports: &[PortFacts]) -> bool {
        match self {
            Self::Number(number) => ports.iter().any(|port| port.number == *number),
            Self::Named(name) => ports.iter().any(|port| port.name.as_ref() == Some(name)),
            Self::Only => !ports.is_empty(),
        }
    }
}

/// IPv4 where there is one.
fn preferred(addresses: &[IpAddr]) -> Option<IpAddr> {
    addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
}

fn url_of(address: IpAddr, port: u16) -> Option<WorkerUrl> {
    WorkerUrl::parse(&std::net::SocketAddr::new(address, port).to_string()).ok()
}

/// Of several at one address and port, keeps who is ready, then who came last. Returns how many are left out.
fn keep_one_per_address(entries: &mut BTreeMap<Arc<str>, Entry>) -> usize {
    let num_before = entries.len();
    let mut best: BTreeMap<WorkerUrl, Arc<str>> = BTreeMap::new();
    for (key, entry) in entries.iter() {
        let rank = |key: &Arc<str>| entries.get(key).map(|entry| (entry.is_ready, Arc::clone(&entry.created)));
        let holder = best.entry(entry.url.clone()).or_insert_with(|| Arc::clone(key));
        if rank(key) > rank(holder) {
            *holder = Arc::clone(key);
        }
    }
    entries.retain(|key, entry| best.get(&entry.url) == Some(key));
    num_before - entries.len()
}
