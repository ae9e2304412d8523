//! The simplest discovery source: a list that never changes. Others are written like it: an actor that is given the registry's
//! recipient and sends full sets.

use std::sync::Arc;

use actix::prelude::{Actor, AsyncContext, Context, Recipient};

use crate::logic::endpoint::Endpoint;
use crate::messages::EndpointsChanged;

mod admin;
mod dns;
mod file;

pub use admin::{AdminDiscovery, AdminPorts};
pub use dns::{DnsDiscovery, Lookup, Resolver, system_resolver};
pub use file::{FileDiscovery, FirstLook};

/// Sends the configured endpoints once.
#[derive(Debug)]
pub struct StaticDiscovery {
    endpoints: Vec<Endpoint>,
    registry: Recipient<EndpointsChanged>,
}

impl StaticDiscovery {
    /// Returns the source of these endpoints.
    pub fn new(endpoints: Vec<Endpoint>, registry: Recipient<EndpointsChanged>) -> Self {
        Self { endpoints, registry }
    }

    /// Returns the set that takes the place of the one before.
    pub fn set(endpoints: Vec<Endpoint>) -> EndpointsChanged {
        EndpointsChanged { source: Arc::from("static"), endpoints }
    }
}

impl Actor for StaticDiscovery {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let set = Self::set(std::mem::take(&mut self.endpoints));
        let registry = self.registry.clone();
        ctx.wait(actix::fut::wrap_future(async move {
            if registry.send(set).await.is_err() {
                tracing::error!("the registry is gone, the configured workers are not served");
            }
        }));
    }
}
