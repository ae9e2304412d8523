//! Lists and watch lines of the Kubernetes API, as far as discovery needs them: `v1` pods and `discovery.k8s.io/v1` EndpointSlices.
//! Whatever is not read here is skipped without being kept.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::logic::kubernetes::{
    AddressType, ContainerFacts, Object, ObjectName, PodFacts, PortFacts, Resource, SliceEndpoint, SliceFacts,
};

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// The version of the whole list, from which it can be watched.
    pub version: String,
    /// What asks for the next page; `None` on the last one.
    pub next: Option<String>,
    /// What is on it.
    pub objects: Vec<Object>,
    /// Objects on it that have no name or no uid, or fields of another type.
    pub num_unreadable: usize,
}

/// One line of a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchLine {
    /// An object is there, new or changed.
    Put {
        /// The version after it.
        version: String,
        /// The object.
        object: Object,
    },
    /// An object is gone, or does not match the selector any more.
    Removed {
        /// The version after it.
        version: String,
        /// Its name.
        name: ObjectName,
        /// Its uid.
        uid: Arc<str>,
    },
    /// Nothing has changed up to a version.
    Bookmark {
        /// The version.
        version: String,
    },
    /// The watch has failed.
    Error(ApiStatus),
}

/// A `Status` object: why something was refused.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ApiStatus {
    /// The HTTP status that it stands for; 0 where it says none.
    #[serde(default)]
    pub code: u16,
    /// What the API server says to people.
    #[serde(default)]
    pub message: String,
}

/// Reads a page of a list.
///
/// # Errors
/// Where it is not a list at all. A single object that cannot be read is counted instead.
pub fn page(bytes: &[u8], resource: Resource) -> Result<Page, serde_json::Error> {
    let list: RawList<'_> = serde_json::from_slice(bytes)?;
    let items = list.items.unwrap_or_default();
    let num_items = items.len();
    let objects: Vec<Object> = items.into_iter().filter_map(|item| object(item.get(), resource)).collect();
    Ok(Page {
        version: list.metadata.resource_version.unwrap_or_default(),
        next: list.metadata.next.filter(|token| !token.is_empty()),
        num_unreadable: num_items - objects.len(),
        objects,
    })
}

/// Reads a line of a watch. `None`: it cannot be read, and what it would have changed is unknown.
pub fn watch_line(bytes: &[u8], resource: Resource) -> Option<WatchLine> {
    let line: RawLine<'_> = serde_json::from_slice(bytes).ok()?;
    let text = line.object.get();
    if line.kind == "ERROR" {
        return Some(WatchLine::Error(serde_json::from_str(text).unwrap_or_default()));
    }
    let meta = serde_json::from_str::<RawObject>(text).ok()?.metadata;
    let version = meta.resource_version.clone().unwrap_or_default();
    match line.kind {
        "BOOKMARK" => Some(WatchLine::Bookmark { version }),
        "DELETED" => {
            let (name, uid) = meta.identity()?;
            Some(WatchLine::Removed { version, name, uid })
        }
        "ADDED" | "MODIFIED" => Some(WatchLine::Put { version, object: object(text, resource)? }),
        _ => None,
    }
}

/// Reads a `Status` object; empty where it is none.
pub fn status(bytes: &[u8]) -> ApiStatus {
    serde_json::from_slice(bytes).unwrap_or_default()
}

fn object(text: &str, resource: Resource) -> Option<Object> {
    match resource {
        Resource::Pods => serde_json::from_str::<RawPod>(text).ok()?.facts().map(Object::Pod),
        Resource::EndpointSlices => serde_json::from_str::<RawSlice>(text).ok()?.facts().map(Object::Slice),
    }
}

#[derive(Deserialize)]
struct RawList<'a> {
    metadata: RawListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct RawLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct RawObject {
    metadata: RawMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
}

impl RawMeta {
    fn identity(&self) -> Option<(ObjectName, Arc<str>)> {
        let namespace = self.namespace.clone().unwrap_or_default();
        Some((
            ObjectName { namespace: namespace.into(), name: self.name.as_deref()?.into() },
            self.uid.as_deref()?.into(),
        ))
    }
}

#[derive(Deserialize)]
struct RawPod {
    metadata: RawMeta,
    #[serde(default)]
    spec: RawPodSpec,
    #[serde(default)]
    status: RawPodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPodSpec {
    containers: Option<Vec<RawContainer>>,
    readiness_gates: Option<Vec<RawGate>>,
}

#[derive(Deserialize)]
struct RawContainer {
    name: String,
    ports: Option<Vec<RawContainerPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainerPort {
    name: Option<String>,
    container_port: u16,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawGate {
    condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<RawIp>>,
    conditions: Option<Vec<RawCondition>>,
    container_statuses: Option<Vec<RawContainerStatus>>,
}

#[derive(Deserialize)]
struct RawIp {
    ip: Option<String>,
}

#[derive(Deserialize)]
struct RawCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainerStatus {
    name: String,
    #[serde(default)]
    restart_count: u32,
}

impl RawPod {
    fn facts(self) -> Option<PodFacts> {
        let (name, uid) = self.metadata.identity()?;
        let phase = self.status.phase.as_deref().unwrap_or_default();
        Some(PodFacts {
            name,
            uid,
            has_ended: matches!(phase, "Failed" | "Succeeded"),
            is_deleting: self.metadata.deletion_timestamp.is_some(),
            is_ready: phase == "Running" && self.is_ready(),
            addresses: self.status.addresses(),
            containers: self.containers(),
            created: self.metadata.creation_timestamp.unwrap_or_default().into(),
        })
    }

    fn is_ready(&self) -> bool {
        let gates = self.spec.readiness_gates.iter().flatten().map(|gate| gate.condition_type.as_str());
        std::iter::once("Ready").chain(gates).all(|kind| self.status.is_true(kind))
    }

    fn containers(&self) -> Vec<ContainerFacts> {
        let statuses = || self.status.container_statuses.iter().flatten();
        let restarts =
            |name: &str| statuses().find(|status| status.name == name).map_or(0, |status| status.restart_count);
        let port = |port: &RawContainerPort| PortFacts {
            name: port.name.as_deref().map(Arc::from),
            number: port.container_port,
        };
        let container = |container: &RawContainer| ContainerFacts {
            ports: container.ports.iter().flatten().map(port).collect(),
            restarts: restarts(&container.name),
        };
        self.spec.containers.iter().flatten().map(container).collect()
    }
}

impl RawPodStatus {
    fn is_true(&self, kind: &str) -> bool {
        self.conditions.iter().flatten().any(|condition| condition.kind == kind && condition.status == "True")
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let all = self.pod_ips.iter().flatten().filter_map(|ip| ip.ip.as_deref());
        let mut addresses: Vec<IpAddr> = all.filter_map(|text| text.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(self.pod_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok()));
        }
        addresses.truncate(2);
        addresses
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSlice {
    metadata: RawMeta,
    address_type: Option<String>,
    endpoints: Option<Vec<RawEndpoint>>,
    ports: Option<Vec<RawSlicePort>>,
}

#[derive(Deserialize)]
struct RawSlicePort {
    name: Option<String>,
    port: Option<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEndpoint {
    addresses: Option<Vec<String>>,
    #[serde(default)]
    conditions: RawEndpointConditions,
    target_ref: Option<RawTarget>,
}

#[derive(Default, Deserialize)]
struct RawEndpointConditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct RawTarget {
    kind: Option<String>,
    uid: Option<String>,
}

impl RawSlice {
    fn facts(self) -> Option<SliceFacts> {
        let (name, uid) = self.metadata.identity()?;
        let address_type = match self.address_type.as_deref() {
            Some("IPv4") => AddressType::V4,
            Some("IPv6") => AddressType::V6,
            _ => AddressType::Other,
        };
        let port = |port: RawSlicePort| Some(PortFacts { name: port.name.map(Arc::from), number: port.port? });
        Some(SliceFacts {
            name,
            uid,
            address_type,
            ports: self.ports.into_iter().flatten().filter_map(port).collect(),
            endpoints: self.endpoints.into_iter().flatten().filter_map(RawEndpoint::facts).collect(),
        })
    }
}

impl RawEndpoint {
    fn facts(self) -> Option<SliceEndpoint> {
        let address = self.addresses?.first()?.parse().ok()?;
        // What is left out: `ready` means yes, `serving` the same as `ready`, `terminating` no.
        let is_ready = self.conditions.ready.unwrap_or(true)
            && self.conditions.serving.unwrap_or(true)
            && !self.conditions.terminating.unwrap_or(false);
        let pod = self.target_ref.filter(|target| target.kind.as_deref() == Some("Pod"));
        Some(SliceEndpoint { address, pod_uid: pod.and_then(|target| target.uid).map(Arc::from), is_ready })
    }
}

#[cfg(test)]
mod tests;
