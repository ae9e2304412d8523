//! The actors: thin shells around `logic`. They carry data there, and act on the answer.

mod discovery;
mod gather;
mod introspection;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod load_polling;
mod observers;
mod registry;
mod selector;
#[cfg(feature = "otel")]
mod span_export;
mod worker;

pub use discovery::{
    AdminDiscovery, AdminPorts, DnsDiscovery, FileDiscovery, FirstLook, Lookup, Resolver, StaticDiscovery,
    system_resolver,
};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{KubernetesConnection, KubernetesDiscovery, KubernetesError};
pub use load_polling::LoadPolling;
pub use observers::Observers;
pub(crate) use registry::SetSelector;
pub use registry::{RegistryActor, RegistrySettings, WorkerFactory};
pub use selector::{SelectorActor, SelectorSettings};
#[cfg(feature = "otel")]
pub use span_export::SpanExport;
pub use worker::{WorkerActor, WorkerContext, WorkerSettings};
