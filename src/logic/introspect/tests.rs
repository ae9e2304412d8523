use std::collections::BTreeSet;
use std::sync::Arc;

use super::{AskIntervals, EngineAnswer, Failure, facts, retry_after};
use crate::logic::endpoint::{Endpoint, Feed, FeedDescriptor, FeedRefusal, WorkerFacts};
use crate::logic::testing::{descriptor, millis, secs, url};

const PASSING: [Failure; 3] = [Failure::Unreachable, Failure::ServerError, Failure::BrokenBody];
const LASTING: [Failure; 4] = [Failure::NotFound, Failure::Unauthorized, Failure::Refused, Failure::Unreadable];

fn names(models: &[&str]) -> Vec<Arc<str>> {
    models.iter().map(|model| Arc::from(*model)).collect()
}

fn listed(ids: &[&str]) -> Vec<(Arc<str>, Arc<str>)> {
    ids.iter().map(|id| (Arc::from(*id), format!(r#"{{"id":"{id}"}}"#).into())).collect()
}

fn alias(name: &str) -> EngineAnswer {
    EngineAnswer {
        served_model_name: Some(name.into()),
        model_path: Some("/models/x".into()),
        ..EngineAnswer::default()
    }
}

fn endpoint() -> Endpoint {
    Endpoint::new(url("w:30000"))
}

fn models_of(endpoint: &Endpoint, answer: EngineAnswer) -> Option<Vec<Arc<str>>> {
    facts(endpoint, answer).map(|facts| facts.models.to_vec())
}

#[test]
fn only_a_failure_that_may_pass_is_retried_after_100_and_200_ms_and_no_more_than_three_times_in_all() {
    for failure in PASSING {
        let pauses = [1, 2, 3, 4].map(|attempt| retry_after(attempt, 3, failure));
        assert_eq!(pauses, [Some(millis(100)), Some(millis(200)), None, None], "{failure:?}");
    }
    for failure in LASTING {
        assert_eq!(retry_after(1, 3, failure), None, "{failure:?} will be the same a moment later");
    }
}

#[test]
fn pauses_double_and_never_overflow() {
    let rows = [(1, 2, Some(100)), (4, 10, Some(800)), (9, 10, Some(25_600)), (1, 1, None), (0, 0, None)];
    for (attempt, max_attempts, pause) in rows {
        assert_eq!(
            retry_after(attempt, max_attempts, Failure::Unreachable),
            pause.map(millis),
            "{attempt}/{max_attempts}"
        );
    }
    assert!(retry_after(u32::MAX - 1, u32::MAX, Failure::Unreachable).is_some());
}

/// Seen in sgl-project/sglang#27980 and sgl-project/sglang#37554.
#[test]
fn a_worker_that_gave_no_answer_is_asked_again_soon_however_often_it_failed() {
    let intervals = AskIntervals { pending: secs(2), unauthorized: secs(30), answered: secs(60) };
    for failure in PASSING.into_iter().chain([Failure::NotFound, Failure::Refused, Failure::Unreadable]) {
        assert_eq!(intervals.after(Err(failure)), secs(2), "{failure:?}");
    }
    assert_eq!(intervals.after(Ok(())), secs(60), "one that answered is asked slowly");
}

/// Seen in sgl-project/sglang#30046.
#[test]
fn a_worker_that_wants_another_key_is_asked_slowly_and_says_so() {
    let intervals = AskIntervals { pending: secs(2), unauthorized: secs(30), answered: secs(60) };
    assert_eq!(intervals.after(Err(Failure::Unauthorized)), secs(30));
    assert!(Failure::Unauthorized.text().contains("key"));
}

#[test]
fn each_failure_has_a_text_of_its_own() {
    let texts: BTreeSet<&str> = PASSING.iter().chain(&LASTING).map(|failure| failure.text()).collect();
    assert_eq!(texts.len(), 7);
}

/// Seen in sgl-project/sglang#12977.
#[test]
fn a_worker_serves_under_its_alias_and_the_path_is_used_only_without_one() {
    let path_only = EngineAnswer { model_path: Some("/models/x".into()), ..EngineAnswer::default() };
    let rows = [
        ("the alias, never the path beside it", alias("m-alias"), &["m-alias"][..]),
        ("the path where there is no alias", path_only.clone(), &["/models/x"]),
        ("an empty alias is none", alias(""), &["/models/x"]),
        ("a listed name is better than the path", EngineAnswer { models: listed(&["m"]), ..path_only }, &["m"]),
        ("empty ids name nothing", EngineAnswer { models: listed(&["", "m"]), ..alias("") }, &["m"]),
    ];
    for (sentence, answer, expected) in rows {
        assert_eq!(models_of(&endpoint(), answer), Some(names(expected)), "{sentence}");
    }
}

#[test]
fn lora_ids_come_from_the_model_list_after_the_alias_and_each_once() {
    let answer = EngineAnswer { models: listed(&["m", "lora-a", "lora-b", "lora-a"]), ..alias("m") };
    assert_eq!(models_of(&endpoint(), answer.clone()), Some(names(&["m", "lora-a", "lora-b"])));
    let facts = facts(&endpoint(), answer).unwrap();
    assert_eq!(facts.model_objects.len(), 4, "the objects are passed on as the engine sent them");
    assert_eq!(&*facts.model_objects[1], r#"{"id":"lora-a"}"#);
}

/// Seen in sgl-project/sglang#37554.
#[test]
fn a_worker_for_which_nobody_names_a_model_gets_no_placeholder() {
    let nameless =
        EngineAnswer { version: Some("0.5.12".into()), feeds: Some(Ok(descriptor())), ..EngineAnswer::default() };
    assert_eq!(facts(&endpoint(), nameless), None);
    let empty = EngineAnswer { model_path: Some("".into()), models: listed(&[""]), ..alias("") };
    assert_eq!(facts(&endpoint(), empty), None, "empty names name nothing");
}

#[test]
fn what_the_configuration_says_of_models_outranks_the_answer() {
    let mut configured = endpoint();
    configured.overrides.models = names(&["mine"]);
    let answer = EngineAnswer { models: listed(&["m", "lora"]), version: Some("0.5.12".into()), ..alias("m") };
    let facts = facts(&configured, answer).unwrap();
    assert_eq!(facts.models.to_vec(), names(&["mine"]));
    assert_eq!(facts.version.as_deref(), Some("0.5.12"), "what is not overridden is the engine's");
    assert_eq!(
        models_of(&configured, EngineAnswer::default()),
        Some(names(&["mine"])),
        "an engine that says nothing can be served"
    );
}

#[test]
fn what_the_configuration_says_of_feeds_outranks_the_answer() {
    let mut configured = endpoint();
    configured.overrides.feeds = Some(FeedDescriptor { load_endpoint_port_base: Some(7_000), ..descriptor() });
    let answers = [None, Some(Ok(descriptor())), Some(Err(FeedRefusal::Descriptor("dp_size is missing".to_owned())))];
    for feeds in answers {
        let facts = facts(&configured, EngineAnswer { feeds: feeds.clone(), ..alias("m") }).unwrap();
        assert_eq!(facts.load_feed.plan().map(|plan| plan.port_base), Some(7_000), "{feeds:?}");
    }
}

/// Seen in ai-dynamo/dynamo#13579.
#[test]
fn a_worker_whose_descriptor_is_refused_keeps_serving_without_feeds() {
    let unreadable = FeedRefusal::Descriptor("dp_size is \"4\", not an integer from 1 to 1024".to_owned());
    let overflow = FeedRefusal::PortsOverflow { port_base: 65_533, dp_size: 8 };
    let at_the_end = FeedDescriptor {
        dp_size: 8,
        endpoint_port_base: Some(65_533),
        load_endpoint_port_base: Some(65_533),
        ..descriptor()
    };
    for (feeds, refusal) in [(Err(unreadable.clone()), unreadable), (Ok(at_the_end), overflow)] {
        let facts = facts(&endpoint(), EngineAnswer { feeds: Some(feeds), ..alias("m") }).unwrap();
        assert_eq!(facts.models.to_vec(), names(&["m"]));
        assert_eq!(facts.load_feed, Feed::Refused(refusal.clone()));
        assert_eq!(facts.kv_feed, Feed::Refused(refusal));
    }
}

#[test]
fn an_engine_that_publishes_nothing_has_no_feeds() {
    let WorkerFacts { load_feed, kv_feed, .. } = facts(&endpoint(), alias("m")).unwrap();
    assert_eq!((load_feed, kv_feed), (Feed::NotAdvertised, Feed::NotAdvertised));
}
