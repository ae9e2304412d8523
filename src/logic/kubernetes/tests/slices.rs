//! Slices of a service, alone and beside pods.

use std::time::Duration;

use super::{listed, name, pod, port, rules, shown};
use crate::logic::kubernetes::{AddressType, ContainerFacts, Object, PodFacts, SliceEndpoint, SliceFacts, View};
use crate::logic::testing::start;

/// Endpoints are written as `address pod` or `address pod suspended`; pod `-` is none.
fn slice(slice: &str, endpoints: &[&str]) -> Object {
    let endpoint = |text: &&str| {
        let mut words = text.split(' ');
        let address = words.next().unwrap_or_default().parse().expect("an address");
        let pod = words.next().filter(|pod| *pod != "-");
        SliceEndpoint { address, pod_uid: pod.map(|pod| format!("uid-{pod}").into()), is_ready: words.next().is_none() }
    };
    let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
    let is_v6 = slice.contains("v6");
    Object::Slice(SliceFacts {
        name: name(slice),
        uid: format!("uid-{slice}").into(),
        address_type: if is_v6 { AddressType::V6 } else { AddressType::V4 },
        ports: vec![port(Some("http"), 30_000)],
        endpoints,
    })
}

#[test]
fn the_slices_of_a_service_are_one_set_in_which_each_endpoint_counts_once() {
    let mut view = listed(rules(true), vec![slice("s1", &["10.0.0.5 a", "10.0.0.6 b"]), slice("s2", &["10.0.0.6 b"])]);
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.5:30000 uid-a", "10.0.0.6:30000 uid-b"]);
}

#[test]
fn slices_that_are_split_and_merged_move_nobody() {
    let mut view = listed(rules(true), vec![slice("s1", &["10.0.0.5 a", "10.0.0.6 b"])]);
    let before = view.wanted(start()).endpoints;
    // The new slice comes first.
    view.put(0, slice("s2", &["10.0.0.6 b"]));
    assert_eq!(view.wanted(start()).endpoints, before);
    view.put(0, slice("s1", &["10.0.0.5 a"]));
    assert_eq!(view.wanted(start()).endpoints, before);
    // The old slice goes first.
    view.remove(0, &name("s2"), "uid-s2");
    let between = view.wanted(start());
    assert_eq!(shown(&between), ["10.0.0.5:30000 uid-a", "10.0.0.6:30000 uid-b suspended"]);
    view.put(0, slice("s1", &["10.0.0.5 a", "10.0.0.6 b"]));
    let after = view.wanted(start() + Duration::from_millis(100));
    assert_eq!((after.endpoints, after.changes_at), (before, None));
}

#[test]
fn an_endpoint_that_no_slice_lists_is_suspended_at_once_and_gone_after_half_a_second() {
    let now = start();
    let mut view = listed(rules(true), vec![slice("s1", &["10.0.0.5 a", "10.0.0.6 b"])]);
    view.wanted(now);
    view.put(0, slice("s1", &["10.0.0.6 b"]));
    let wanted = view.wanted(now);
    let gone_at = now + Duration::from_millis(500);
    assert_eq!((shown(&wanted).len(), wanted.changes_at), (2, Some(gone_at)));
    view.wanted(gone_at - Duration::from_millis(1));
    assert_eq!(shown(&view.wanted(gone_at)), ["10.0.0.6:30000 uid-b"]);
    // Another pod at its address does not wait.
    view.put(0, slice("s1", &["10.0.0.6 c"]));
    assert_eq!(shown(&view.wanted(gone_at)), ["10.0.0.6:30000 uid-c"]);
}

#[test]
fn of_two_slices_that_disagree_the_more_careful_one_counts() {
    let mut view = listed(rules(true), vec![slice("s1", &["10.0.0.5 a"]), slice("s2", &["10.0.0.5 a suspended"])]);
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.5:30000 uid-a suspended"]);
}

#[test]
fn of_a_service_in_two_families_ipv4_counts_whatever_comes_first() {
    let mut view = listed(rules(true), vec![slice("v4", &[]), slice("v6", &["fd00::5 a"])]);
    assert!(shown(&view.wanted(start())).is_empty(), "the IPv4 slice will name it");
    view.put(0, slice("v4", &["10.0.0.5 a"]));
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.5:30000 uid-a"]);
    let mut view = listed(rules(true), vec![slice("v6", &["fd00::5 a"])]);
    assert_eq!(shown(&view.wanted(start())), ["[fd00::5]:30000 uid-a"], "a service of IPv6 alone");
}

#[test]
fn an_endpoint_without_a_pod_is_known_by_its_address() {
    let mut view = listed(rules(true), vec![slice("s1", &["10.0.0.5 -"])]);
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.5:30000 -"]);
}

#[test]
fn pods_beside_a_service_tell_of_restarts_and_ends_and_add_nobody() {
    let mut view = View::new(rules(true), 2);
    view.listed(0, vec![slice("s1", &["10.0.0.5 a", "10.0.0.6 b", "10.0.0.7 c"])]);
    let restarted = vec![ContainerFacts { ports: vec![port(None, 30_000)], restarts: 2 }];
    view.listed(
        1,
        vec![
            Object::Pod(PodFacts { containers: restarted, ..pod("a", "10.0.0.5") }),
            Object::Pod(PodFacts { is_deleting: true, ..pod("b", "10.0.0.6") }),
            Object::Pod(PodFacts { has_ended: true, ..pod("c", "10.0.0.7") }),
            Object::Pod(pod("d", "10.0.0.8")),
        ],
    );
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.5:30000 uid-a#2", "10.0.0.6:30000 uid-b suspended"]);
}

#[test]
fn a_pod_that_becomes_known_after_its_slice_is_the_same_worker() {
    let mut view = View::new(rules(true), 2);
    view.listed(0, vec![slice("s1", &["10.0.0.5 a"])]);
    view.listed(1, vec![]);
    let before = view.wanted(start()).endpoints;
    view.put(1, Object::Pod(pod("a", "10.0.0.5")));
    assert_eq!(view.wanted(start()).endpoints, before);
}
