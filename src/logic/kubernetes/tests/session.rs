//! When to list and when to watch.

use std::time::{Duration, Instant};

use crate::logic::kubernetes::{Failure, Pace, Resource, Session, Step, Verb, WatchEnd, missing_right};
use crate::logic::rng::Rng;
use crate::logic::testing::start;

const PACE: Pace = Pace { relist: Duration::from_secs(60), poll: Duration::from_secs(5) };

fn session(now: Instant) -> Session {
    Session::new(PACE, Rng::from_seed(7), now)
}

fn is_list(session: &Session) -> bool {
    session.plan().step == Step::List
}

fn pause(session: &Session, now: Instant) -> Duration {
    session.plan().at.saturating_duration_since(now)
}

#[test]
fn a_list_comes_first_then_a_watch_from_its_version_until_the_next_list() {
    let now = start();
    let mut session = session(now);
    assert!(is_list(&session));
    session.listed("17", now);
    let Step::Watch { version, until } = session.plan().step else { panic!("{:?}", session.plan()) };
    assert_eq!(&*version, "17");
    let period = until - now;
    assert!(period > Duration::from_secs(53) && period <= PACE.relist, "{period:?}");
    session.heard("18");
    session.watch_ended(WatchEnd::Left, now, until);
    assert!(is_list(&session));
    assert_eq!(session.plan().at, until);
}

/// Seen in sgl-project/sglang#32322.
#[test]
fn a_watch_that_the_server_closes_is_opened_again_at_once_from_where_it_was() {
    let mut now = start();
    let mut session = session(now);
    session.listed("1", now);
    for version in ["2", "3", "4"] {
        session.heard(version);
        let opened = now;
        now += Duration::from_secs(5);
        session.watch_ended(WatchEnd::Closed, opened, now);
        assert_eq!(pause(&session, now), Duration::ZERO);
        assert!(matches!(session.plan().step, Step::Watch { version: from, .. } if &*from == version));
    }
}

#[test]
fn a_watch_that_ends_as_soon_as_it_begins_waits_longer_each_time_up_to_a_limit() {
    for end in [WatchEnd::Closed, WatchEnd::Failed(Failure::Unreachable)] {
        let now = start();
        let mut session = session(now);
        session.listed("1", now);
        let pauses: Vec<Duration> = (0..12)
            .map(|_| {
                session.watch_ended(end, now, now);
                pause(&session, now)
            })
            .collect();
        assert_eq!(pauses[0], Duration::ZERO, "the first time at once");
        assert!(pauses[1] >= Duration::from_millis(100) && pauses[1] <= Duration::from_millis(200), "{pauses:?}");
        let longest = Duration::from_secs(10);
        assert!(pauses[11] >= longest / 2 && pauses[11] <= longest, "{pauses:?}");
        let mut other = Session::new(PACE, Rng::from_seed(8), now);
        other.listed("1", now);
        (0..12).for_each(|_| other.watch_ended(end, now, now));
        assert_ne!(other.plan().at, session.plan().at, "two routers do not come together");
    }
}

#[test]
fn an_expired_version_or_a_broken_line_calls_for_a_list_at_once() {
    for failure in [Failure::Expired, Failure::Unreadable] {
        let now = start();
        let mut session = session(now);
        session.listed("1", now);
        session.watch_ended(WatchEnd::Failed(failure), now, now);
        assert!(is_list(&session) && pause(&session, now).is_zero(), "{failure:?}");
        session.listed("2", now);
        session.watch_ended(WatchEnd::Failed(failure), now, now);
        assert!(is_list(&session) && !pause(&session, now).is_zero(), "{failure:?}: not in a tight loop");
    }
}

/// Seen in kubernetes/kops#3463.
#[test]
fn who_may_not_watch_is_listed_often_and_tries_to_watch_again_later() {
    let now = start();
    let mut session = session(now);
    session.listed("1", now);
    session.watch_ended(WatchEnd::Failed(Failure::Forbidden), now, now);
    assert!(session.is_polling() && is_list(&session));
    assert!(pause(&session, now) <= PACE.poll);
    let soon = now + PACE.poll;
    session.listed("2", soon);
    assert!(is_list(&session) && pause(&session, soon) <= PACE.poll);
    let later = now + PACE.relist;
    session.listed("3", later);
    assert!(matches!(session.plan().step, Step::Watch { .. }), "the right may have been granted");
}

/// Seen in kubernetes/kops#3463.
#[test]
fn who_may_not_list_is_asked_once_per_period() {
    let now = start();
    let mut session = session(now);
    for _ in 0..5 {
        session.list_failed(Failure::Forbidden, now);
        let pause = pause(&session, now);
        assert!(is_list(&session) && pause > Duration::from_secs(53) && pause <= PACE.relist, "{pause:?}");
    }
}

#[test]
fn a_failed_list_is_tried_again_soon_and_the_watch_goes_on_meanwhile() {
    let now = start();
    let mut session = session(now);
    session.list_failed(Failure::Refused, now);
    let first = pause(&session, now);
    assert!(is_list(&session) && first >= Duration::from_millis(100) && first <= Duration::from_millis(200));
    session.listed("1", now);
    session.list_failed(Failure::Unreachable, now);
    assert!(matches!(session.plan().step, Step::Watch { .. }), "what is known may still change");
}

#[test]
fn a_missing_right_is_named_with_verb_resource_and_namespace() {
    assert_eq!(
        missing_right(Verb::Watch, Resource::EndpointSlices, "llm"),
        "the service account may not watch endpointslices of the API group discovery.k8s.io in namespace llm; grant it by a \
         Role there"
    );
    assert_eq!(
        missing_right(Verb::List, Resource::Pods, ""),
        "the service account may not list pods in all namespaces; grant it by a ClusterRole"
    );
}
