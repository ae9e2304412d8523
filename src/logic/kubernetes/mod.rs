//! Engines in Kubernetes: what the API says of pods and EndpointSlices becomes endpoints.
//!
//! - A worker stands for a **pod**, by its uid, never for an address: the same address under another uid is another worker. A
//!   container that was started again in place has lost its cache and its feeds, so its restart count is part of the incarnation.
//! - **Suspended** is whoever may not take new requests but may still answer old ones: being deleted, not ready, a readiness gate
//!   unmet, terminating in its slice. **Gone** is whoever has ended, has no address, or is not listed any more.
//! - **One address per pod**: IPv4 where there is one. Of a service, the IPv6 slices count only where it has no IPv4 slice in that
//!   namespace: the slices of the two families change one after the other, and choosing pod by pod would move a worker to and fro.
//! - With a service and a selector both, the slices say who serves, and the pods say which container was restarted and who ends.
//!
//! [`View`] holds what is known; [`Session`] says when to list and when to watch.

mod facts;
mod session;
mod view;

pub use facts::{
    AddressType, ContainerFacts, Object, ObjectName, PodFacts, PortFacts, Resource, SliceEndpoint, SliceFacts,
};
pub use session::{Failure, Pace, Plan, Session, Step, Verb, WatchEnd, missing_right};
pub use view::{PortRule, Refusals, Rules, View, Wanted};

#[cfg(test)]
mod tests;
