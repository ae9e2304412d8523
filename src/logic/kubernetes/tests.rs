//! What becomes of pods and slices, one change after the other.

mod pods;
mod session;
mod slices;

use std::collections::BTreeMap;

use crate::logic::endpoint::{Endpoint, Readiness};
use crate::logic::kubernetes::{
    ContainerFacts, Object, ObjectName, PodFacts, PortFacts, PortRule, Rules, View, Wanted,
};

pub(super) fn name(name: &str) -> ObjectName {
    ObjectName { namespace: "llm".into(), name: name.into() }
}

pub(super) fn port(name: Option<&str>, number: u16) -> PortFacts {
    PortFacts { name: name.map(Into::into), number }
}

/// A pod that runs and is ready, with one container that declares port 30000 as `http`.
pub(super) fn pod(pod: &str, address: &str) -> PodFacts {
    PodFacts {
        name: name(pod),
        uid: format!("uid-{pod}").into(),
        created: "2026-01-01T00:00:00Z".into(),
        has_ended: false,
        is_deleting: false,
        is_ready: true,
        addresses: address.split_whitespace().map(|address| address.parse().expect("an address")).collect(),
        containers: vec![ContainerFacts { ports: vec![port(Some("http"), 30_000)], restarts: 0 }],
    }
}

pub(super) fn rules(by_slices: bool) -> Rules {
    Rules { by_slices, port: PortRule::Only, max_endpoints: 100 }
}

/// A view of one scope that has just been listed.
pub(super) fn listed(rules: Rules, objects: Vec<Object>) -> View {
    let mut view = View::new(rules, 1);
    view.listed(0, objects);
    view
}

/// Address and port of each endpoint, with its incarnation and a mark where it is suspended.
pub(super) fn shown(wanted: &Wanted) -> Vec<String> {
    let show = |endpoint: &Endpoint| {
        let mark = if endpoint.readiness == Readiness::Suspended { " suspended" } else { "" };
        format!("{} {}{mark}", endpoint.url.authority(), endpoint.incarnation.as_deref().unwrap_or("-"))
    };
    wanted.endpoints.iter().map(show).collect()
}

pub(super) fn by_url(wanted: &Wanted) -> BTreeMap<String, Endpoint> {
    wanted.endpoints.iter().map(|endpoint| (endpoint.url.to_string(), endpoint.clone())).collect()
}
