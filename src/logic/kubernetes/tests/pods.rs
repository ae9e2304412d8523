//! Pods by selector.

use super::{by_url, listed, name, pod, port, rules, shown};
use crate::logic::kubernetes::{ContainerFacts, Object, PodFacts, PortRule, Rules, View};
use crate::logic::membership::{MemberChange, Membership};
use crate::logic::testing::start;

fn one(pod: PodFacts) -> Vec<String> {
    shown(&listed(rules(false), vec![Object::Pod(pod)]).wanted(start()))
}

fn pods(pods: Vec<PodFacts>) -> Vec<Object> {
    pods.into_iter().map(Object::Pod).collect()
}

#[test]
fn a_pod_is_served_suspended_or_gone_by_what_it_says() {
    let base = || pod("a", "10.0.0.5");
    let ready = "10.0.0.5:30000 uid-a";
    let suspended = "10.0.0.5:30000 uid-a suspended";
    let rows = [
        ("ready", base(), vec![ready]),
        ("being deleted, although ready", PodFacts { is_deleting: true, ..base() }, vec![suspended]),
        ("not ready, or a gate unmet", PodFacts { is_ready: false, ..base() }, vec![suspended]),
        ("ended", PodFacts { has_ended: true, ..base() }, vec![]),
        ("without an address", PodFacts { addresses: vec![], ..base() }, vec![]),
        ("IPv6 only", pod("a", "fd00::5"), vec!["[fd00::5]:30000 uid-a"]),
        ("both families, IPv6 first", pod("a", "fd00::5 10.0.0.5"), vec![ready]),
    ];
    for (sentence, pod, expected) in rows {
        assert_eq!(one(pod), expected, "{sentence}");
    }
}

/// Seen in vllm-project/production-stack#1008.
#[test]
fn an_evicted_pod_goes_with_the_change_that_blanks_its_address() {
    let mut view = listed(rules(false), pods(vec![pod("a", "10.0.0.5"), pod("b", "10.0.0.6")]));
    assert_eq!(view.wanted(start()).endpoints.len(), 2);
    view.put(0, Object::Pod(PodFacts { addresses: vec![], has_ended: true, ..pod("a", "10.0.0.5") }));
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.6:30000 uid-b"]);
}

/// Seen in sgl-project/sglang#30270.
#[test]
fn deletes_moves_and_lists_that_lack_a_pod_take_the_old_address_away_and_touch_nobody_else() {
    let start_view = || listed(rules(false), pods(vec![pod("a", "10.0.0.5"), pod("b", "10.0.0.6")]));
    let other = "10.0.0.6:30000 uid-b";

    let mut view = start_view();
    view.remove(0, &name("a"), "uid-a");
    assert_eq!(shown(&view.wanted(start())), [other], "a delete without a terminating update before it");

    let mut view = start_view();
    view.put(0, Object::Pod(pod("a", "10.0.0.9")));
    assert_eq!(shown(&view.wanted(start())), [other, "10.0.0.9:30000 uid-a"], "the pod has another address");

    let mut view = start_view();
    view.listed(0, pods(vec![pod("b", "10.0.0.6")]));
    assert_eq!(shown(&view.wanted(start())), [other], "the list lacks it");
}

#[test]
fn the_late_end_of_a_pod_does_not_end_its_successor_of_the_same_name() {
    let mut view = listed(rules(false), pods(vec![pod("a-0", "10.0.0.5")]));
    let successor = PodFacts { uid: "uid-new".into(), ..pod("a-0", "10.0.0.5") };
    view.put(0, Object::Pod(successor));
    view.remove(0, &name("a-0"), "uid-a-0");
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.5:30000 uid-new"]);
}

#[test]
fn an_address_that_another_pod_takes_over_is_another_worker() {
    let leaving = PodFacts { is_deleting: true, ..pod("old", "10.0.0.5") };
    let mut view = listed(rules(false), pods(vec![leaving.clone()]));
    let mut members = Membership::default();
    let source = "kubernetes".into();
    members.apply(&source, view.wanted(start()).endpoints);
    view.put(0, Object::Pod(pod("new", "10.0.0.5")));
    let wanted = view.wanted(start());
    assert_eq!((shown(&wanted), wanted.refusals.same_address), (vec!["10.0.0.5:30000 uid-new".to_owned()], 1));
    let changes = members.apply(&source, wanted.endpoints);
    assert!(matches!(changes[..], [MemberChange::Remove { .. }, MemberChange::Start { .. }]), "{changes:?}");
}

/// Seen in spring-cloud/spring-cloud-kubernetes#1369.
#[test]
fn a_container_that_was_started_again_in_place_is_another_worker_and_a_sidecar_is_not() {
    let of = |engine, sidecar| {
        let containers = vec![
            ContainerFacts { ports: vec![], restarts: sidecar },
            ContainerFacts { ports: vec![port(Some("http"), 30_000)], restarts: engine },
        ];
        one(PodFacts { containers, ..pod("a", "10.0.0.5") })
    };
    assert_eq!(of(0, 0), ["10.0.0.5:30000 uid-a"]);
    assert_eq!(of(1, 0), ["10.0.0.5:30000 uid-a#1"]);
    assert_eq!(of(1, 4), ["10.0.0.5:30000 uid-a#1"]);
}

#[test]
fn a_readiness_blip_changes_the_readiness_and_nothing_else() {
    let mut view = listed(rules(false), pods(vec![pod("a", "10.0.0.5")]));
    let before = view.wanted(start());
    view.put(0, Object::Pod(PodFacts { is_ready: false, ..pod("a", "10.0.0.5") }));
    let blip = view.wanted(start());
    assert!(before.endpoints[0].is_same_worker(&blip.endpoints[0]));
    assert_ne!(before.endpoints[0].readiness, blip.endpoints[0].readiness);
}

#[test]
fn the_port_is_found_by_its_rule_or_the_pod_is_refused() {
    let two = || {
        let ports = vec![port(Some("http"), 30_000), port(Some("metrics"), 9_000)];
        PodFacts { containers: vec![ContainerFacts { ports, restarts: 0 }], ..pod("a", "10.0.0.5") }
    };
    let none = || PodFacts { containers: vec![], ..pod("a", "10.0.0.5") };
    let rows = [
        (PortRule::Only, two(), None),
        (PortRule::Only, none(), None),
        (PortRule::Only, pod("a", "10.0.0.5"), Some(30_000)),
        (PortRule::Named("metrics".into()), two(), Some(9_000)),
        (PortRule::Named("grpc".into()), two(), None),
        (PortRule::Number(8_000), none(), Some(8_000)),
    ];
    for (rule, pod, expected) in rows {
        let mut view = listed(Rules { port: rule.clone(), ..rules(false) }, vec![Object::Pod(pod)]);
        let wanted = view.wanted(start());
        let urls: Vec<_> = by_url(&wanted).into_keys().collect();
        let expected: Vec<_> = expected.map(|port| format!("http://10.0.0.5:{port}")).into_iter().collect();
        assert_eq!(urls, expected, "{rule:?}");
        assert_eq!(wanted.refusals.no_port, 1 - expected.len(), "{rule:?}");
    }
}

#[test]
fn beyond_the_limit_who_was_there_before_stays_and_the_rest_is_counted() {
    let mut view = View::new(Rules { max_endpoints: 2, ..rules(false) }, 2);
    view.listed(0, pods(vec![pod("x", "10.0.0.1"), pod("y", "10.0.0.2")]));
    assert_eq!(view.wanted(start()).refusals.over_limit, 0);
    view.listed(1, pods(vec![pod("a", "10.0.0.3")]));
    let wanted = view.wanted(start());
    assert_eq!(shown(&wanted), ["10.0.0.1:30000 uid-x", "10.0.0.2:30000 uid-y"]);
    assert_eq!(wanted.refusals.over_limit, 1);
    for number in 0..50 {
        view.put(0, Object::Pod(pod(&format!("n{number}"), "10.0.1.1")));
    }
    assert_eq!(shown(&view.wanted(start())).len(), 2, "what a scope keeps is bounded too");
}

#[test]
fn nothing_is_wanted_before_every_scope_was_asked() {
    let mut view = View::new(rules(false), 2);
    view.listed(0, pods(vec![pod("a", "10.0.0.5")]));
    assert!(!view.has_answered());
    view.failed(1);
    assert!(view.has_answered());
    view.failed(0);
    assert_eq!(shown(&view.wanted(start())), ["10.0.0.5:30000 uid-a"], "a failed list takes nothing away");
}
