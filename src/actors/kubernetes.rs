//! KubernetesDiscovery keeps the registry's set equal to what the Kubernetes API lists: the pods of a selector, or the endpoints of
//! a service. It owns what is known of them; each resource in each namespace is followed by a task of its own, which reports here.
//!
//! The router starts and stops it, on a thread of its own, because a list may take long to decode. Should it die, the workers stay
//! as they are, and the age of what is known goes on growing in the metrics.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle};

use crate::clock;
use crate::config::KubernetesSettings;
use crate::logic::endpoint::Endpoint;
use crate::logic::kubernetes::{Failure, Object, ObjectName, Resource, Rules, Verb, View, missing_right};
use crate::logic::rng::Rng;
use crate::messages::EndpointsChanged;
use crate::telemetry::{KubernetesLabels, Telemetry};

mod api;
mod follow;

pub use api::{KubernetesConnection, KubernetesError};
use follow::Follower;

/// How often the ages in the metrics are brought up to date.
const AGE_INTERVAL: Duration = Duration::from_secs(1);
/// Reports that may wait. A follower waits for room before it reads on.
const MAILBOX: usize = 64;

/// Keeps the registry up to date; see the module's documentation.
pub struct KubernetesDiscovery {
    connection: KubernetesConnection,
    settings: KubernetesSettings,
    registry: Recipient<EndpointsChanged>,
    telemetry: Telemetry,
    seed: u64,
    scopes: Vec<Scope>,
    view: View,
    announced: Option<Vec<Endpoint>>,
    /// Announces again when something is due although nothing has changed.
    due: Option<SpawnHandle>,
}

/// One resource in one namespace, or in all of them where that is empty.
#[derive(Debug, Clone)]
struct Scope {
    namespace: Arc<str>,
    resource: Resource,
    /// When it was last heard of. `None`: never.
    heard_at: Option<Instant>,
}

/// What a follower has learnt. Sent by the followers to the actor that started them.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Report {
    scope: usize,
    news: News,
}

#[derive(Debug)]
enum News {
    /// The full list.
    Listed { objects: Vec<Object>, num_unreadable: usize },
    /// An object is new or has changed.
    Put(Object),
    /// An object is gone.
    Removed { name: ObjectName, uid: Arc<str> },
    /// A watch was opened, which says nothing of the objects yet.
    Opened,
    /// The watch said that nothing has changed.
    Unchanged,
    /// A list or a watch failed.
    Failed { verb: Verb, failure: Failure, message: String },
}

impl fmt::Debug for KubernetesDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesDiscovery").field("scopes", &self.scopes).finish_non_exhaustive()
    }
}

impl KubernetesDiscovery {
    /// Returns a source that follows what the settings name. The pauses between attempts come from `seed`.
    pub fn new(
        connection: KubernetesConnection,
        settings: KubernetesSettings,
        registry: Recipient<EndpointsChanged>,
        telemetry: Telemetry,
        seed: u64,
    ) -> Self {
        let scopes = scopes(&settings, connection.default_namespace());
        let rules = Rules {
            by_slices: settings.service.is_some(),
            port: settings.port.clone(),
            max_endpoints: settings.max_endpoints,
        };
        let view = View::new(rules, scopes.len());
        Self { connection, settings, registry, telemetry, seed, scopes, view, announced: None, due: None }
    }

    fn follow(&self, number: usize, scope: &Scope, ctx: &mut Context<Self>) {
        let selector = match scope.resource {
            Resource::Pods => self.settings.selector.as_deref().unwrap_or_default().to_owned(),
            Resource::EndpointSlices => {
                format!("kubernetes.io/service-name={}", self.settings.service.as_deref().unwrap_or_default())
            }
        };
        let resource =
            api::ResourcePath { resource: scope.resource, namespace: Arc::clone(&scope.namespace), selector };
        let follower = Follower {
            connection: self.connection.clone(),
            path: resource,
            pace: self.settings.pace,
            max_objects: self.settings.max_endpoints,
            rng: Rng::from_seed(self.seed.wrapping_add(number as u64)),
            reports: follow::Reports { scope: number, to: ctx.address().recipient() },
        };
        ctx.spawn(actix::fut::wrap_future(follower.run()));
    }

    fn labels(scope: &Scope) -> KubernetesLabels {
        let namespace = if scope.namespace.is_empty() { "*" } else { &scope.namespace };
        KubernetesLabels { namespace: namespace.to_owned(), resource: scope.resource.name() }
    }

    fn heard(&mut self, number: usize) {
        if let Some(scope) = self.scopes.get_mut(number) {
            scope.heard_at = Some(clock::now());
            let labels = Self::labels(scope);
            self.telemetry.kubernetes.synced.get_or_create(&labels).set(1);
            self.telemetry.kubernetes.age_seconds.get_or_create(&labels).set(0.0);
        }
    }

    fn failed(&mut self, number: usize, verb: Verb, failure: Failure, message: &str) {
        let Some(scope) = self.scopes.get(number) else { return };
        Telemetry::count(&self.telemetry.kubernetes.failures, failure.name());
        let (namespace, resource, verb_name) = (&*scope.namespace, scope.resource.name(), verb.name());
        if failure == Failure::Forbidden {
            self.telemetry.kubernetes.missing_rights(&Self::labels(scope), verb.name()).set(1);
            tracing::error!(
                namespace,
                resource,
                verb = verb_name,
                message,
                "{}",
                missing_right(verb, scope.resource, namespace)
            );
        } else if failure != Failure::Expired {
            tracing::warn!(
                namespace,
                resource,
                verb = verb_name,
                failure = failure.name(),
                message,
                "the Kubernetes API failed"
            );
        }
        self.view.failed(number);
    }

    fn granted(&self, number: usize, verb: Verb) {
        if let Some(scope) = self.scopes.get(number) {
            self.telemetry.kubernetes.missing_rights(&Self::labels(scope), verb.name()).set(0);
        }
    }

    fn announce(&mut self, ctx: &mut Context<Self>) {
        if !self.view.has_answered() || self.scopes.iter().all(|scope| scope.heard_at.is_none()) {
            return;
        }
        let now = clock::now();
        let wanted = self.view.wanted(now);
        if let Some(due) = self.due.take() {
            ctx.cancel_future(due);
        }
        if let Some(at) = wanted.changes_at {
            self.due = Some(ctx.run_later(at.saturating_duration_since(now), |source, ctx| source.announce(ctx)));
        }
        let refusals = wanted.refusals;
        for (kind, count) in [
            ("no_port", refusals.no_port),
            ("same_address", refusals.same_address),
            ("over_limit", refusals.over_limit),
        ] {
            let gauge = self.telemetry.kubernetes.unused_of(kind);
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            if gauge.set(count) != count && count > 0 {
                tracing::warn!(kind, count, "pods are not served");
            }
        }
        if self.announced.as_ref() == Some(&wanted.endpoints) {
            return;
        }
        tracing::info!(num_endpoints = wanted.endpoints.len(), "endpoints from Kubernetes");
        self.announced = Some(wanted.endpoints.clone());
        let sent =
            self.registry.send(EndpointsChanged { source: Arc::from("kubernetes"), endpoints: wanted.endpoints });
        // Waited for, so that sets arrive in the order in which they were made.
        ctx.wait(actix::fut::wrap_future(sent).map(|sent, _source: &mut Self, _ctx| {
            if sent.is_err() {
                tracing::debug!("the registry is gone");
            }
        }));
    }

    fn update_ages(&mut self, _ctx: &mut Context<Self>) {
        let now = clock::now();
        for scope in &self.scopes {
            let Some(heard_at) = scope.heard_at else { continue };
            let age = now.saturating_duration_since(heard_at);
            let labels = Self::labels(scope);
            self.telemetry.kubernetes.age_seconds.get_or_create(&labels).set(age.as_secs_f64());
            self.telemetry
                .kubernetes
                .synced
                .get_or_create(&labels)
                .set(i64::from(age <= self.settings.pace.relist * 2));
        }
    }
}

fn scopes(settings: &KubernetesSettings, default_namespace: &str) -> Vec<Scope> {
    let mut namespaces: Vec<Arc<str>> = settings.namespaces.clone();
    if namespaces.is_empty() {
        namespaces.push(default_namespace.into());
    }
    if namespaces.iter().any(|namespace| &**namespace == "*") {
        namespaces = vec![Arc::from("")];
    }
    namespaces.sort_unstable();
    namespaces.dedup();
    let slices = settings.service.is_some().then_some(Resource::EndpointSlices);
    let pods = settings.selector.is_some().then_some(Resource::Pods);
    let resources: Vec<Resource> = slices.into_iter().chain(pods).collect();
    let scope = |namespace: &Arc<str>, resource| Scope { namespace: Arc::clone(namespace), resource, heard_at: None };
    namespaces.iter().flat_map(|namespace| resources.iter().map(move |resource| scope(namespace, *resource))).collect()
}

impl Actor for KubernetesDiscovery {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(AGE_INTERVAL, Self::update_ages);
        for (number, scope) in self.scopes.iter().enumerate() {
            self.telemetry.kubernetes.synced.get_or_create(&Self::labels(scope)).set(0);
            self.follow(number, scope, ctx);
        }
    }
}

impl Handler<Report> for KubernetesDiscovery {
    type Result = ();

    fn handle(&mut self, Report { scope, news }: Report, ctx: &mut Self::Context) {
        match news {
            News::Listed { objects, num_unreadable } => {
                if num_unreadable > 0 {
                    tracing::warn!(num_unreadable, "objects of the Kubernetes API that cannot be read");
                }
                self.telemetry.kubernetes.lists.inc();
                self.view.listed(scope, objects);
                self.heard(scope);
                self.granted(scope, Verb::List);
            }
            News::Put(object) => {
                self.view.put(scope, object);
                self.heard(scope);
            }
            News::Removed { name, uid } => {
                self.view.remove(scope, &name, &uid);
                self.heard(scope);
            }
            News::Opened => self.granted(scope, Verb::Watch),
            News::Unchanged => self.heard(scope),
            News::Failed { verb, failure, message } => self.failed(scope, verb, failure, &message),
        }
        self.announce(ctx);
    }
}
