use std::sync::Arc;

use super::{MemberChange, Membership};
use crate::logic::endpoint::{Endpoint, Readiness, Secret};
use crate::logic::ids::WorkerId;
use crate::logic::testing::url;

fn endpoint(address: &str) -> Endpoint {
    Endpoint::new(url(address))
}

fn suspended(address: &str) -> Endpoint {
    Endpoint { readiness: Readiness::Suspended, ..endpoint(address) }
}

fn incarnation(address: &str, uid: &str) -> Endpoint {
    Endpoint { incarnation: Some(Arc::from(uid)), ..endpoint(address) }
}

fn id(number: u64) -> WorkerId {
    WorkerId::new(number)
}

fn start(number: u64, endpoint: Endpoint) -> MemberChange {
    MemberChange::Start { id: id(number), endpoint }
}

fn remove(number: u64) -> MemberChange {
    MemberChange::Remove { id: id(number) }
}

fn suspend(number: u64) -> MemberChange {
    MemberChange::Suspend { id: id(number) }
}

fn resume(number: u64) -> MemberChange {
    MemberChange::Resume { id: id(number) }
}

/// A membership and the names of its sources.
#[derive(Default)]
struct Members(Membership);

impl Members {
    fn apply(&mut self, source: &str, endpoints: &[Endpoint]) -> Vec<MemberChange> {
        self.0.apply(&Arc::from(source), endpoints.to_vec())
    }

    fn replace(&mut self, number: u64) -> Vec<MemberChange> {
        self.0.replace(id(number))
    }
}

#[test]
fn a_full_set_starts_what_is_new_removes_what_is_gone_and_keeps_the_rest() {
    let mut members = Members::default();
    let changes = members.apply("static", &[endpoint("a:1"), endpoint("b:1")]);
    assert_eq!(changes, [start(1, endpoint("a:1")), start(2, endpoint("b:1"))]);
    assert_eq!(members.apply("static", &[endpoint("b:1"), endpoint("a:1")]), [], "the order of a set means nothing");
    let changes = members.apply("static", &[endpoint("b:1"), endpoint("c:1")]);
    assert_eq!(changes, [remove(1), start(3, endpoint("c:1"))]);
    assert_eq!(members.0.endpoint(id(2)), Some(&endpoint("b:1")));
    assert_eq!(members.0.endpoint(id(1)), None);
}

/// Seen in sgl-project/sglang#38523.
#[test]
fn the_same_address_from_several_sources_is_one_worker() {
    let mut members = Members::default();
    assert_eq!(members.apply("static", &[endpoint("a:1"), endpoint("b:1")]).len(), 2);
    assert_eq!(members.apply("admin", &[endpoint("http://a:1/")]), []);
    assert_eq!(members.apply("kubernetes", &[endpoint("A:1")]), []);
}

/// Seen in sgl-project/sglang#38523.
#[test]
fn an_address_named_twice_in_one_list_is_one_worker_by_its_last_entry() {
    let mut members = Members::default();
    let changes = members.apply("static", &[suspended("a:1"), endpoint("http://a:1"), endpoint("a:1/")]);
    assert_eq!(changes, [start(1, endpoint("a:1"))]);
    assert_eq!(members.apply("static", &[endpoint("a:1"), suspended("a:1")]), [suspend(1)]);
}

#[test]
fn the_removal_by_one_source_keeps_what_another_wants() {
    let mut members = Members::default();
    members.apply("static", &[endpoint("a:1"), endpoint("b:1")]);
    members.apply("admin", &[endpoint("a:1")]);
    assert_eq!(members.apply("static", &[]), [remove(2)], "only what nobody else wants goes");
    assert_eq!(members.apply("admin", &[]), [remove(1)]);
}

/// Seen in smg-project/smg#2521.
#[test]
fn a_removal_takes_the_very_address_and_no_other_that_begins_like_it() {
    for spelling in ["http://w:3000", "w:3000", "http://w:3000/", " W:3000"] {
        let mut members = Members::default();
        members.apply("static", &[endpoint(spelling), endpoint("w:30000"), endpoint("w:30001")]);
        let rest = [endpoint("http://w:30000/"), endpoint("w:30001")];
        assert_eq!(members.apply("static", &rest), [remove(1)], "{spelling:?}");
    }
}

#[test]
fn a_readiness_blip_suspends_and_resumes_without_a_removal() {
    let mut members = Members::default();
    members.apply("kubernetes", &[endpoint("a:1")]);
    assert_eq!(members.apply("kubernetes", &[suspended("a:1")]), [suspend(1)]);
    assert_eq!(members.apply("kubernetes", &[suspended("a:1")]), [], "a change is told once");
    assert_eq!(members.0.endpoint(id(1)).map(|endpoint| endpoint.readiness), Some(Readiness::Suspended));
    assert_eq!(members.apply("kubernetes", &[endpoint("a:1")]), [resume(1)]);
}

#[test]
fn a_worker_that_is_not_ready_when_it_comes_is_started_suspended() {
    let mut members = Members::default();
    let changes = members.apply("kubernetes", &[suspended("a:1")]);
    assert_eq!(changes, [start(1, suspended("a:1")), suspend(1)]);
    assert_eq!(members.replace(1), [remove(1), start(2, suspended("a:1")), suspend(2)], "so is its replacement");
}

/// Seen in spring-cloud/spring-cloud-kubernetes#1369.
#[test]
fn a_new_incarnation_removes_the_old_worker_before_it_starts() {
    let mut members = Members::default();
    members.apply("kubernetes", &[incarnation("a:1", "uid-1"), endpoint("b:1")]);
    let changes = members.apply("kubernetes", &[incarnation("a:1", "uid-2"), endpoint("b:1")]);
    assert_eq!(changes, [remove(1), start(3, incarnation("a:1", "uid-2"))]);
    assert_eq!(members.apply("kubernetes", &[incarnation("a:1", "uid-2"), endpoint("b:1")]), []);
}

#[test]
fn every_removal_comes_before_the_first_start() {
    let mut members = Members::default();
    members.apply("kubernetes", &[incarnation("a:1", "uid-1"), incarnation("c:1", "uid-1")]);
    let next = [incarnation("a:1", "uid-2"), endpoint("b:1"), incarnation("c:1", "uid-2")];
    let changes = members.apply("kubernetes", &next);
    let num_removals = changes.iter().take_while(|change| matches!(change, MemberChange::Remove { .. })).count();
    assert_eq!((num_removals, changes.len()), (2, 5), "{changes:?}");
}

#[test]
fn another_override_replaces_the_worker() {
    let with_models = |models: &[&str]| {
        let mut endpoint = endpoint("a:1");
        endpoint.overrides.models = models.iter().map(|model| Arc::from(*model)).collect();
        endpoint
    };
    let with_key = |key: &str| {
        let mut endpoint = with_models(&["m"]);
        endpoint.overrides.api_key = Some(Secret::new(key));
        endpoint
    };
    let mut members = Members::default();
    let steps = [endpoint("a:1"), with_models(&["m"]), with_models(&["m", "n"]), with_key("one"), with_key("two")];
    members.apply("static", &steps[..1]);
    for (number, step) in (1..).zip(&steps[1..]) {
        let changes = members.apply("static", std::slice::from_ref(step));
        assert_eq!(changes, [remove(number), start(number + 1, step.clone())], "step {number}");
    }
}

/// Seen in BerriAI/litellm#40401.
#[test]
fn a_worker_that_is_removed_and_added_again_gets_a_new_id() {
    let mut members = Members::default();
    for number in 1..=3 {
        assert_eq!(members.apply("static", &[endpoint("a:1")]), [start(number, endpoint("a:1"))]);
        assert_eq!(members.apply("static", &[]), [remove(number)]);
    }
}

#[test]
fn a_replaced_worker_keeps_its_endpoint_under_a_new_id() {
    let mut members = Members::default();
    members.apply("static", &[endpoint("a:1"), incarnation("b:1", "uid-1")]);
    assert_eq!(members.replace(2), [remove(2), start(3, incarnation("b:1", "uid-1"))]);
    assert_eq!(
        members.apply("static", &[endpoint("a:1"), incarnation("b:1", "uid-1")]),
        [],
        "the sources see no change"
    );
}

#[test]
fn an_id_that_is_unknown_or_gone_is_not_replaced() {
    let mut members = Members::default();
    assert_eq!(members.replace(1), []);
    members.apply("static", &[endpoint("a:1")]);
    assert_eq!(members.replace(1).len(), 2);
    assert_eq!(members.replace(1), [], "a second report of the same death starts no second worker");
    members.apply("static", &[]);
    assert_eq!(members.replace(2), [], "a worker that nobody wants is not brought back");
}

#[test]
fn clearing_removes_every_worker_and_forgets_what_the_sources_wanted() {
    let mut members = Members::default();
    members.apply("static", &[endpoint("a:1"), endpoint("b:1")]);
    assert_eq!(members.0.clear(), [remove(1), remove(2)]);
    assert_eq!(members.apply("admin", &[endpoint("c:1")]), [start(3, endpoint("c:1"))], "ids go on");
}

#[test]
fn a_source_that_says_something_of_a_worker_outranks_one_that_says_nothing() {
    let mut members = Members::default();
    let mut keyed = endpoint("a:1");
    keyed.overrides.api_key = Some(Secret::new("sk"));
    members.apply("admin", std::slice::from_ref(&keyed));
    assert_eq!(members.apply("static", &[endpoint("a:1")]), [], "a plain address takes no setting away");
    let both = Endpoint { incarnation: Some(Arc::from("uid-1")), ..keyed.clone() };
    assert_eq!(members.apply("kubernetes", &[incarnation("a:1", "uid-1")]), [remove(1), start(2, both)]);
    assert_eq!(members.apply("file", &[suspended("a:1")]), [suspend(2)], "one that suspends it is enough");
    assert_eq!(members.apply("static", &[]), [], "the others have not changed");
    assert_eq!(members.apply("file", &[]), [resume(2)]);
}

/// Seen in sgl-project/sglang#38523.
#[test]
fn a_worker_shows_the_sources_that_name_it_and_stays_until_the_last_one_drops_it() {
    let mut members = Members::default();
    for source in ["static", "admin", "dns"] {
        members.apply(source, &[endpoint("a:1"), endpoint("a:1/")]);
    }
    let sources =
        |members: &Members| members.0.sources_of(&url("a:1")).iter().map(|s| s.to_string()).collect::<Vec<_>>();
    assert_eq!(sources(&members), ["admin", "dns", "static"]);
    assert_eq!(members.apply("static", &[]), []);
    assert_eq!(members.apply("admin", &[endpoint("b:1")]), [start(2, endpoint("b:1"))]);
    assert_eq!(sources(&members), ["dns"]);
    assert_eq!(members.apply("dns", &[]), [remove(1)]);
    assert!(sources(&members).is_empty());
}

#[test]
fn a_worker_that_is_held_stays_suspended_until_it_is_let_go_or_nobody_names_it() {
    let mut members = Members::default();
    members.apply("kubernetes", &[endpoint("a:1")]);
    assert_eq!(members.0.hold(&url("a:1"), Readiness::Suspended), [suspend(1)]);
    assert_eq!(members.0.hold(&url("a:1"), Readiness::Suspended), []);
    assert_eq!(members.apply("kubernetes", &[suspended("a:1")]), []);
    assert_eq!(members.apply("kubernetes", &[endpoint("a:1")]), [], "its source does not end the hold");
    assert_eq!(members.replace(1), [remove(1), start(2, suspended("a:1")), suspend(2)], "nor does its death");
    assert_eq!(members.0.hold(&url("a:1"), Readiness::Ready), [resume(2)]);

    assert_eq!(members.0.hold(&url("a:1"), Readiness::Suspended), [suspend(2)]);
    assert_eq!(members.apply("kubernetes", &[]), [remove(2)]);
    assert_eq!(members.apply("kubernetes", &[endpoint("a:1")]), [start(3, endpoint("a:1"))], "it starts clean");
    assert_eq!(members.0.hold(&url("b:1"), Readiness::Suspended), [], "nobody names it");
    assert_eq!(members.apply("static", &[endpoint("b:1")]), [start(4, endpoint("b:1"))]);
}
