use std::collections::BTreeSet;

use super::{Endpoint, Feed, FeedDescriptor, FeedPlan, FeedRefusal, MAX_DP_RANKS, Secret, WorkerFacts, WorkerUrl};
use super::{kv_feed, load_feed};
use crate::logic::ids::DpRank;
use crate::logic::testing::{descriptor, url};

/// Seen in smg-project/smg#2521.
#[test]
fn every_way_to_write_an_address_has_one_canonical_form() {
    let rows: &[(&str, &[&str])] = &[
        (
            "http://w:30000",
            &[
                "w:30000",
                "http://w:30000",
                "http://w:30000/",
                "w:30000/",
                " w:30000\n",
                "HTTP://W:30000",
                "http://w:030000",
            ],
        ),
        ("http://w:80", &["w", "http://w", "http://w/", "w:80", "http://w:"]),
        ("http://10.0.0.5:30000", &["10.0.0.5:30000", "http://10.0.0.5:30000/"]),
        ("http://[::1]:30000", &["[::1]:30000", "http://[::1]:30000/", "http://[0:0:0:0:0:0:0:1]:30000"]),
        ("http://[2001:db8::a]:65535", &["[2001:DB8::A]:65535", "http://[2001:db8:0::a]:65535"]),
        ("http://pod-0.engines.svc.cluster.local:1", &["pod-0.engines.svc.cluster.local:1"]),
    ];
    for (canonical, spellings) in rows {
        for text in *spellings {
            let parsed = url(text);
            assert_eq!(parsed.as_str(), *canonical, "{text:?}");
            assert_eq!(parsed, url(canonical), "{text:?}");
            assert_eq!(parsed.to_string(), format!("{parsed:?}"), "{text:?}");
        }
    }
}

/// Seen in smg-project/smg#2521.
#[test]
fn whatever_is_not_the_plain_address_of_a_worker_is_refused() {
    let rows = [
        ("", "host"),
        ("http://", "host"),
        ("http:///", "host"),
        (":30000", "host"),
        ("::1", "host"),
        ("w:65536", "host"),
        ("w:-1", "host"),
        ("w:http", "host"),
        ("two words", "host"),
        ("w:0", "port 0"),
        ("30000", "number"),
        ("https://w:30000", "only http://"),
        ("tcp://w:30000", "only http://"),
        ("ipc:///run/engine", "only http://"),
        ("http://w:30000@3", "credentials"),
        ("w:30000@3", "credentials"),
        ("http://[::1]:30000@3", "credentials"),
        ("http://user@w:30000", "credentials"),
        ("http://w:30000/v1", "path"),
        ("w:30000/v1/", "path"),
        ("http:/w:30000", "path"),
        ("http://w:30000?x=1", "path"),
        ("http://w:30000?", "path"),
        ("http://w:30000#0", "path"),
    ];
    for (text, reason) in rows {
        let refusal = WorkerUrl::parse(text).expect_err(text).to_string();
        assert!(refusal.starts_with(&format!("{text:?} is not the address of a worker: ")), "{refusal}");
        assert!(refusal.contains(reason), "{refusal}");
    }
}

/// Seen in smg-project/smg#2521.
#[test]
fn an_address_is_not_the_one_that_it_begins_with() {
    let different = ["http://w:3000", "http://w:30000", "http://w:30001", "http://w2:30000", "http://[::1]:30000"];
    let distinct: BTreeSet<WorkerUrl> = different.iter().map(|text| url(text)).collect();
    assert_eq!(distinct.len(), different.len());
}

/// Seen in zeromq/pyzmq#989.
#[test]
fn host_and_authority_keep_the_brackets_of_ipv6() {
    let rows = [
        ("w:30000", "w", "w:30000", false),
        ("[::1]:30000", "[::1]", "[::1]:30000", true),
        ("[2001:db8::a]", "[2001:db8::a]", "[2001:db8::a]:80", false),
        ("127.0.0.1:1", "127.0.0.1", "127.0.0.1:1", true),
        ("127.9.9.9:1", "127.9.9.9", "127.9.9.9:1", true),
        ("localhost:1", "localhost", "localhost:1", true),
        ("localhost.example.com:1", "localhost.example.com", "localhost.example.com:1", false),
    ];
    for (text, host, authority, is_loopback) in rows {
        let parsed = url(text);
        assert_eq!((parsed.host(), parsed.authority(), parsed.is_loopback()), (host, authority, is_loopback), "{text}");
    }
}

fn with_host(host: &str) -> FeedDescriptor {
    FeedDescriptor { endpoint_host: host.to_owned(), ..descriptor() }
}

fn planned(host: &str, port_base: u16, topic: &str) -> Feed {
    Feed::Planned(FeedPlan { host: host.into(), port_base, dp_size: 4, topic: topic.into() })
}

/// Seen in ai-dynamo/dynamo#13579.
#[test]
fn wildcards_and_loopback_of_a_remote_worker_become_the_workers_own_host() {
    let hosts = ["*", "0.0.0.0", "::", "[::]", "", "localhost", "LOCALHOST", "127.0.0.1", "::1", "[::1]"];
    for worker in [url("10.0.0.5:30000"), url("engine-3:30000"), url("[2001:db8::a]:30000"), url("[::1]:30000")] {
        for host in hosts {
            let expected = planned(worker.host(), 5_557, "kv");
            assert_eq!(kv_feed(&worker, &with_host(host)), expected, "{host:?} advertised by {worker}");
        }
    }
}

#[test]
fn the_workers_own_host_is_accepted_in_any_case_and_with_or_without_brackets() {
    let rows = [
        ("engine-3:30000", "Engine-3"),
        ("10.0.0.5:30000", "10.0.0.5"),
        ("[2001:db8::a]:30000", "2001:db8::a"),
        ("[2001:db8::a]:30000", "[2001:DB8::A]"),
    ];
    for (worker, host) in rows {
        let worker = url(worker);
        assert_eq!(kv_feed(&worker, &with_host(host)), planned(worker.host(), 5_557, "kv"), "{host}");
    }
}

/// Seen in volcano-sh/kthena#1725.
#[test]
fn a_worker_cannot_make_the_router_dial_a_foreign_host() {
    let foreign = [
        "169.254.169.254",
        "10.0.0.6",
        "engine-31",
        "engine-3.evil.example",
        "localhost.evil.example",
        "inproc://engine-3",
        "ipc:///run/engine-3",
        "/run/engine-3",
        "engine-3/path",
        "engine-3:22",
        " engine-3",
        "[]",
    ];
    for host in foreign {
        let refused = Feed::Refused(FeedRefusal::ForeignHost { host: host.to_owned() });
        assert_eq!(kv_feed(&url("engine-3:30000"), &with_host(host)), refused);
    }
}

#[test]
fn the_load_feed_is_always_paired_with_the_workers_own_host() {
    for host in ["*", "127.0.0.1", "10.0.0.6", "169.254.169.254"] {
        let feed = load_feed(&url("[2001:db8::a]:30000"), &with_host(host));
        assert_eq!(feed, planned("[2001:db8::a]", 5_657, ""), "KV events on {host}");
    }
    let with_topic = FeedDescriptor { load_topic: Some("load".to_owned()), ..descriptor() };
    assert_eq!(load_feed(&url("w:1"), &with_topic), planned("w", 5_657, "load"));
}

/// Seen in ai-dynamo/dynamo#13579.
#[test]
fn ports_and_rank_counts_that_cannot_be_refuse_the_feed_as_a_whole() {
    let overflow = |port_base, dp_size| Some(FeedRefusal::PortsOverflow { port_base, dp_size });
    let rank_count = |dp_size| Some(FeedRefusal::RankCount { dp_size });
    let rows = [
        ("eight ranks from 65533", 65_533, 8, overflow(65_533, 8)),
        ("three ranks from 65533 end at 65535", 65_533, 3, None),
        ("four do not", 65_533, 4, overflow(65_533, 4)),
        ("one rank on the last port", 65_535, 1, None),
        ("no ranks", 5_557, 0, rank_count(0)),
        ("a hundred thousand ranks", 5_557, 100_000, rank_count(100_000)),
        ("a count that would overflow the sum", 65_535, u32::MAX, rank_count(u32::MAX)),
        ("the most ranks", 5_557, MAX_DP_RANKS, None),
        ("one more than that", 5_557, MAX_DP_RANKS + 1, rank_count(MAX_DP_RANKS + 1)),
        ("port 0", 0, 4, Some(FeedRefusal::PortZero)),
    ];
    for (sentence, port_base, dp_size, refusal) in rows {
        let bases = Some(port_base);
        let advertised =
            FeedDescriptor { dp_size, endpoint_port_base: bases, load_endpoint_port_base: bases, ..descriptor() };
        for feed in [kv_feed(&url("w:30000"), &advertised), load_feed(&url("w:30000"), &advertised)] {
            match &refusal {
                Some(refusal) => assert_eq!(feed, Feed::Refused(refusal.clone()), "{sentence}"),
                None => assert_eq!(feed.plan().map(|plan| plan.dp_size), Some(dp_size), "{sentence}: {feed:?}"),
            }
        }
    }
}

#[test]
fn one_feed_that_is_refused_does_not_take_the_other_down() {
    let advertised = FeedDescriptor { load_endpoint_port_base: Some(65_534), ..descriptor() };
    assert_eq!(load_feed(&url("w:1"), &advertised).plan(), None);
    assert_eq!(kv_feed(&url("w:1"), &advertised), planned("w", 5_557, "kv"));
}

#[test]
fn a_feed_without_a_port_is_not_advertised_whatever_else_is_wrong() {
    let advertised = FeedDescriptor {
        dp_size: 0,
        endpoint_host: "169.254.169.254".to_owned(),
        endpoint_port_base: None,
        load_endpoint_port_base: None,
        ..descriptor()
    };
    assert_eq!(kv_feed(&url("w:1"), &advertised), Feed::NotAdvertised);
    assert_eq!(load_feed(&url("w:1"), &advertised), Feed::NotAdvertised);
}

#[test]
fn each_rank_has_the_port_of_the_base_plus_its_number() {
    let plan = FeedPlan { host: "w".into(), port_base: 65_532, dp_size: 4, topic: "".into() };
    let ports: Vec<u16> = [0, 3, 4, 65_536].map(|number| plan.port(DpRank::new(number))).to_vec();
    assert_eq!(
        ports,
        [65_532, 65_535, 65_535, 65_535],
        "a rank that the plan does not have never wraps to another's port"
    );
}

/// Seen in sgl-project/sglang#30166.
#[test]
fn a_key_is_never_shown() {
    let mut endpoint = Endpoint::new(url("w:1"));
    endpoint.overrides.api_key = Some(Secret::new("marker-7f3a"));
    assert!(!format!("{endpoint:?} {endpoint:#?}").contains("marker-7f3a"));
    assert_eq!(endpoint.overrides.api_key.as_ref().map(Secret::reveal), Some("marker-7f3a"));
}

#[test]
fn another_answer_is_the_same_engine_only_with_the_same_models_sockets_and_version() {
    let facts = WorkerFacts {
        models: ["m".into()].into(),
        load_feed: planned("w", 5_657, ""),
        kv_feed: planned("w", 5_557, ""),
        version: Some("0.5.12".into()),
        ..WorkerFacts::default()
    };
    let rows = [
        ("the same answer", facts.clone(), true),
        ("other fields of the model list", WorkerFacts { model_objects: ["{}".into()].into(), ..facts.clone() }, true),
        ("another model", WorkerFacts { models: ["n".into()].into(), ..facts.clone() }, false),
        ("load on another port", WorkerFacts { load_feed: planned("w", 5_658, ""), ..facts.clone() }, false),
        ("no KV events any more", WorkerFacts { kv_feed: Feed::NotAdvertised, ..facts.clone() }, false),
        ("another version", WorkerFacts { version: None, ..facts.clone() }, false),
    ];
    for (sentence, answer, expected) in rows {
        assert_eq!(facts.is_same_engine(&answer), expected, "{sentence}");
    }
}
