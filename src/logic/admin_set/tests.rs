use std::sync::Arc;

use super::{AdminSet, AdminWorker, Change, ChangeRefusal, KnownWorker, MAX_ADMIN_WORKERS, WorkerChange, WorkerName};
use crate::logic::endpoint::{Endpoint, Readiness, Secret};
use crate::logic::ids::WorkerId;
use crate::logic::testing::url;

fn worker(address: &str) -> AdminWorker {
    AdminWorker { endpoint: Endpoint::new(url(address)), record: Arc::from(address) }
}

fn known(number: u64, address: &str, sources: &[&str]) -> KnownWorker {
    let sources = sources.iter().map(|source| Arc::from(*source)).collect();
    KnownWorker { id: WorkerId::new(number), url: url(address), sources }
}

fn name(text: &str) -> WorkerName {
    WorkerName::parse(text).expect("an id or an address")
}

fn remove(set: &mut AdminSet, text: &str, fleet: &[KnownWorker]) -> Result<Change, ChangeRefusal> {
    set.apply(WorkerChange::Remove(name(text)), fleet)
}

#[test]
fn a_worker_is_added_once_and_refused_with_other_settings() {
    let mut set = AdminSet::default();
    let added = |is_set_changed| Ok(Change { url: url("w:1"), is_set_changed, readiness: None });
    assert_eq!(set.apply(WorkerChange::Add(worker("w:1")), &[]), added(true));
    for spelling in ["w:1", "http://w:1", "http://W:1/"] {
        assert_eq!(set.apply(WorkerChange::Add(worker(spelling)), &[]), added(false), "{spelling}");
    }
    let mut other = worker("w:1");
    other.endpoint.overrides.api_key = Some(Secret::new("sk"));
    assert_eq!(set.apply(WorkerChange::Add(other), &[]), Err(ChangeRefusal::Differs { url: url("w:1") }));
    assert_eq!(set.workers(), [worker("w:1")]);
}

/// Seen in volcano-sh/kthena#1725.
#[test]
fn a_metadata_address_is_not_added() {
    let mut set = AdminSet::default();
    for address in ["169.254.169.254:80", "[fe80::1]:30000", "[::ffff:169.254.1.1]:30000"] {
        let refused = set.apply(WorkerChange::Add(worker(address)), &[]).expect_err(address);
        assert_eq!(refused.code(), "address_refused", "{refused}");
        assert!(refused.to_string().starts_with("url = http://"), "{refused}");
    }
    assert_eq!(set.workers(), []);
}

/// Seen in smg-project/smg#2521.
#[test]
fn a_worker_is_removed_by_every_spelling_of_its_address_and_no_other_goes_with_it() {
    let fleet = [known(1, "w:30000", &["admin"]), known(2, "w:3000", &["admin"])];
    for spelling in ["http://w:30000", "w:30000", "http://w:30000/", "HTTP://W:30000", "w1"] {
        let mut set = AdminSet::new(vec![worker("w:30000"), worker("w:3000")]);
        assert!(remove(&mut set, spelling, &fleet).is_ok(), "{spelling}");
        assert_eq!(set.workers(), [worker("w:3000")], "{spelling}");
        assert_eq!(remove(&mut set, spelling, &fleet[1..]), Err(ChangeRefusal::UnknownWorker), "{spelling}");
    }
    let mut set = AdminSet::new(vec![worker("w:30000"), worker("w:3000")]);
    assert!(remove(&mut set, "http://w:3000", &fleet).is_ok());
    assert_eq!(set.workers(), [worker("w:30000")]);
    assert_eq!(WorkerName::parse("http://w:30000@3"), None, "a rank is no worker");
    assert_eq!(WorkerName::parse("http://w:1/x"), None);
}

#[test]
fn what_another_source_named_is_not_removed_and_the_refusal_says_who_did() {
    let fleet = [known(1, "w:1", &["dns", "static"]), known(2, "w:2", &["admin", "static"])];
    let mut set = AdminSet::new(vec![worker("w:2")]);
    let refused = remove(&mut set, "w:1", &fleet).expect_err("not added");
    assert_eq!(refused.to_string(), "http://w:1 is named by dns, static: remove it there");
    assert!(remove(&mut set, "w:2", &fleet).is_ok(), "this source's claim goes; the other's stays where it is");
    let refused = remove(&mut set, "w:2", &fleet).expect_err("not added any more");
    assert_eq!(refused.code(), "worker_named_elsewhere");
}

#[test]
fn any_worker_can_be_suspended_and_one_that_was_added_remembers_it() {
    let fleet = [known(1, "w:1", &["static"]), known(2, "w:2", &["admin"])];
    let mut set = AdminSet::new(vec![worker("w:2")]);
    for (text, address, readiness, is_set_changed) in [
        ("w1", "w:1", Readiness::Suspended, false),
        ("w2", "w:2", Readiness::Suspended, true),
        ("w:2", "w:2", Readiness::Suspended, false),
        ("http://w:2/", "w:2", Readiness::Ready, true),
    ] {
        let changed = set.apply(WorkerChange::SetReadiness(name(text), readiness), &fleet);
        assert_eq!(changed, Ok(Change { url: url(address), is_set_changed, readiness: Some(readiness) }), "{text}");
    }
    for text in ["w3", "w:3"] {
        let refused = set.apply(WorkerChange::SetReadiness(name(text), Readiness::Suspended), &fleet);
        assert_eq!(refused, Err(ChangeRefusal::UnknownWorker), "{text}");
    }
}

#[test]
fn the_set_has_a_limit() {
    let mut set = AdminSet::default();
    for number in 0..MAX_ADMIN_WORKERS {
        assert!(set.apply(WorkerChange::Add(worker(&format!("w{number}:1"))), &[]).is_ok());
    }
    assert_eq!(set.apply(WorkerChange::Add(worker("last:1")), &[]), Err(ChangeRefusal::TooMany));
    assert!(set.apply(WorkerChange::Add(worker("w7:1")), &[]).is_ok(), "a known one is known");
}
