//! The DnsDiscovery actor serves every address that the configured names stand for, and looks them up again and again.
//!
//! What an answer changes is decided in `logic::dns_set`. A name is looked up by one question at a time, and the next one is due an
//! interval after the answer, however long that took; names do not wait for each other.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::{Actor, ActorFutureExt, AsyncContext, Context, Recipient, WrapFuture};

use crate::logic::dns_set::{Answered, DnsName, DnsSet, next_pause};
use crate::logic::endpoint::Endpoint;
use crate::logic::rng::Rng;
use crate::messages::EndpointsChanged;
use crate::telemetry::Telemetry;

/// The name under which this source sends its sets.
const SOURCE: &str = "dns";

/// What a look-up comes to.
pub type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
/// Looks names up, off the actors' thread.
pub type Resolver = Arc<dyn Fn(&DnsName) -> Lookup + Send + Sync>;

/// Asks the name service of the operating system.
pub fn system_resolver() -> Resolver {
    Arc::new(|name: &DnsName| {
        let (host, port) = (name.host().to_owned(), name.port());
        Box::pin(async move {
            let answer = tokio::net::lookup_host((host, port)).await?;
            Ok(answer.map(|address| address.ip()).collect())
        })
    })
}

/// Serves what names stand for; see the module's documentation.
pub struct DnsDiscovery {
    sets: Vec<DnsSet>,
    interval: Duration,
    resolver: Resolver,
    rng: Rng,
    registry: Recipient<EndpointsChanged>,
    telemetry: Telemetry,
}

impl std::fmt::Debug for DnsDiscovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DnsDiscovery").field("sets", &self.sets).finish_non_exhaustive()
    }
}

impl DnsDiscovery {
    /// Returns the source of these names. `rng` spreads the look-ups.
    pub fn new(
        names: Vec<DnsName>,
        interval: Duration,
        resolver: Resolver,
        rng: Rng,
        registry: Recipient<EndpointsChanged>,
        telemetry: Telemetry,
    ) -> Self {
        let sets = names.into_iter().map(DnsSet::new).collect();
        Self { sets, interval, resolver, rng, registry, telemetry }
    }

    fn look_up(&mut self, index: usize, ctx: &mut Context<Self>) {
        let Some(set) = self.sets.get(index) else { return };
        let looked_up = (self.resolver)(set.name());
        let taken = looked_up.into_actor(self).map(move |answer, source, ctx| {
            source.take(index, answer, ctx);
            let pause = next_pause(source.interval, &mut source.rng);
            ctx.run_later(pause, move |source, ctx| source.look_up(index, ctx));
        });
        ctx.spawn(taken);
    }

    fn take(&mut self, index: usize, answer: io::Result<Vec<IpAddr>>, ctx: &mut Context<Self>) {
        let Some(set) = self.sets.get_mut(index) else { return };
        let kind = match answer {
            Ok(addresses) => match set.answered(addresses) {
                Answered::Changed => {
                    tracing::info!(name = %set.name(), num_workers = set.endpoints().count(), "a name stands for other workers");
                    self.tell(ctx);
                    "dns_changed"
                }
                Answered::Same => "dns_same",
                Answered::Empty => {
                    tracing::warn!(name = %set.name(), "the name service has no usable address for the name");
                    "dns_empty"
                }
            },
            Err(error) => {
                tracing::warn!(name = %set.name(), %error, "a name was not found, its workers stay as they were");
                "dns_failed"
            }
        };
        Telemetry::count(&self.telemetry.discovery_updates, kind);
    }

    fn tell(&self, ctx: &mut Context<Self>) {
        let endpoints: Vec<Endpoint> = self.sets.iter().flat_map(DnsSet::endpoints).collect();
        let set = EndpointsChanged { source: Arc::from(SOURCE), endpoints };
        let registry = self.registry.clone();
        let told = async move {
            if registry.send(set).await.is_err() {
                tracing::error!("the registry is gone, the workers of dns_names are not served");
            }
        };
        ctx.wait(told.into_actor(self));
    }
}

impl Actor for DnsDiscovery {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        for index in 0..self.sets.len() {
            self.look_up(index, ctx);
        }
    }
}
