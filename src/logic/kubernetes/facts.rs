//! What the Kubernetes API says of pods and EndpointSlices, as far as it matters here.

use std::net::IpAddr;
use std::sync::Arc;

/// What is listed and watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// `pods` of the core group.
    Pods,
    /// `endpointslices` of `discovery.k8s.io`.
    EndpointSlices,
}

impl Resource {
    /// Returns the name that rules of access use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::EndpointSlices => "endpointslices",
        }
    }

    /// Returns the API group that rules of access use; empty is the core group.
    pub fn group(self) -> &'static str {
        match self {
            Self::Pods => "",
            Self::EndpointSlices => "discovery.k8s.io",
        }
    }
}

/// Where an object is found. Another object may take its place; the uid tells them apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name in there.
    pub name: Arc<str>,
}

/// A pod or an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A pod.
    Pod(PodFacts),
    /// An EndpointSlice.
    Slice(SliceFacts),
}

impl Object {
    /// Returns where it is found.
    pub fn name(&self) -> &ObjectName {
        match self {
            Self::Pod(pod) => &pod.name,
            Self::Slice(slice) => &slice.name,
        }
    }

    /// Returns which one of that name it is.
    pub fn uid(&self) -> &Arc<str> {
        match self {
            Self::Pod(pod) => &pod.uid,
            Self::Slice(slice) => &slice.uid,
        }
    }

    /// Returns how much of the limit on what is kept it takes: one, or one per endpoint.
    pub fn size(&self) -> usize {
        match self {
            Self::Pod(_) => 1,
            Self::Slice(slice) => slice.endpoints.len().max(1),
        }
    }
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Where it is found.
    pub name: ObjectName,
    /// Which one of that name it is.
    pub uid: Arc<str>,
    /// When it was made, RFC 3339 in UTC; sorts as text.
    pub created: Arc<str>,
    /// Whether its phase is `Failed` or `Succeeded`: nothing of it runs any more.
    pub has_ended: bool,
    /// Whether it has a deletion timestamp.
    pub is_deleting: bool,
    /// Whether its phase is `Running`, its condition `Ready` is true, and so is the condition of each of its readiness gates.
    pub is_ready: bool,
    /// Its addresses, at most one per family. Empty before it has one, and again after an eviction.
    pub addresses: Vec<IpAddr>,
    /// Its containers.
    pub containers: Vec<ContainerFacts>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerFacts {
    /// The ports that it declares.
    pub ports: Vec<PortFacts>,
    /// How often it was started again in place.
    pub restarts: u32,
}

/// A declared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFacts {
    /// Its name, where it has one.
    pub name: Option<Arc<str>>,
    /// Its number.
    pub number: u16,
}

/// The kind of addresses in a slice; a slice has one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressType {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Host names or something newer; not used.
    Other,
}

/// An EndpointSlice: a part of the endpoints of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceFacts {
    /// Where it is found.
    pub name: ObjectName,
    /// Which one of that name it is.
    pub uid: Arc<str>,
    /// What its addresses are.
    pub address_type: AddressType,
    /// The ports of all its endpoints.
    pub ports: Vec<PortFacts>,
    /// Its endpoints.
    pub endpoints: Vec<SliceEndpoint>,
}

/// One endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// Its address. A slice may list several, which mean the same; the first counts.
    pub address: IpAddr,
    /// The uid of the pod behind it, where it is one.
    pub pod_uid: Option<Arc<str>>,
    /// Whether it may take new requests: ready and serving, where it says so, and not terminating.
    pub is_ready: bool,
}
