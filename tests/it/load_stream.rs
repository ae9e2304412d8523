//! The streams of load reports themselves: order, restarts, bytes that are no report, silence.

use std::cell::RefCell;
use std::rc::Rc;

use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, FeedDescriptor, WorkerUrl};
use fathom_router::router::Router;
use fathom_router::sim::SimEngine;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{Publisher, RunningRouter, engine, eventually, fast_config, millis, msgpack, start_router, stat};

fn feeds(load_port: u16, kv_port: Option<u16>, dp_size: u32) -> FeedDescriptor {
    FeedDescriptor {
        dp_size,
        endpoint_host: "*".to_owned(),
        endpoint_port_base: kv_port,
        topic: String::new(),
        block_size: Some(16),
        load_endpoint_port_base: Some(load_port),
        load_topic: None,
        replay_endpoint_port_base: None,
    }
}

/// One worker whose HTTP side is the engine and whose feeds are somewhere else.
fn config_of(engine: &SimEngine, feeds: FeedDescriptor) -> RouterConfig {
    let mut endpoint = Endpoint::new(WorkerUrl::parse(&engine.url()).unwrap());
    endpoint.overrides.feeds = Some(feeds);
    let mut config = fast_config(&[]);
    config.workers = vec![endpoint];
    config
}

async fn router_of(config: RouterConfig) -> RunningRouter {
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;
    router
}

/// A router over an engine of one rank whose load feed is the publisher, and subscribed.
async fn fed_by_hand() -> (SimEngine, Publisher, RunningRouter) {
    let engine = engine("e").await;
    let publisher = Publisher::bind();
    let router = router_of(config_of(&engine, feeds(publisher.port(), None, 1))).await;
    publisher.wait_for_subscriber().await;
    (engine, publisher, router)
}

async fn wait_until_running(router: &RunningRouter, engine: &SimEngine, running: u64) {
    let sentence = format!("{running} requests are reported");
    router.wait_until_shown(&engine.url(), &sentence, |shown| shown["load"]["ranks"][0]["running"] == running).await;
}

async fn running_now(router: &RunningRouter, engine: &SimEngine) -> Value {
    router.shown(&engine.url()).await["load"]["ranks"][0]["running"].clone()
}

/// Seen in ai-dynamo/dynamo#13435.
#[actix::test]
async fn late_and_repeated_reports_change_nothing_and_a_restarted_publisher_is_believed() {
    let (engine, publisher, router) = fed_by_hand().await;

    let rows = [
        ("the first report is believed whatever its number", 1_000, 1, 1),
        ("an older one changes nothing", 999, 50, 1),
        ("the next one is believed", 1_001, 2, 2),
        ("its repetition changes nothing", 1_001, 60, 2),
        ("a gap means nothing in a stream that may lose messages", 1_050, 3, 3),
    ];
    for (index, (sentence, sequence, sent, expected)) in rows.into_iter().enumerate() {
        publisher.send(sequence, &stat(sent, 0));
        router.wait_until_metric_is("fathom_load_frames_total", (index + 1) as f64).await;
        assert_eq!(running_now(&router, &engine).await, expected, "{sentence}");
    }

    let port = publisher.port();
    drop(publisher);
    let publisher = Publisher::bind_at("127.0.0.1", port);
    publisher.wait_for_subscriber().await;
    publisher.send(0, &stat(7, 0));
    wait_until_running(&router, &engine, 7).await;
    publisher.send(1, &stat(8, 0));
    wait_until_running(&router, &engine, 8).await;
    router.stop_and_check().await;
}

/// A publisher may restart behind a connection that stays: the numbers alone tell.
#[actix::test]
async fn a_stream_that_starts_again_on_the_same_connection_is_believed() {
    let (engine, publisher, router) = fed_by_hand().await;
    for (sequence, running) in [(5, 1), (0, 2), (1, 3), (500, 4), (0, 5), (1, 6)] {
        publisher.send(sequence, &stat(running, 0));
        wait_until_running(&router, &engine, running).await;
    }
    router.stop_and_check().await;
}

/// Parts of one message; the sequence number is that of a message which would be believed.
fn message(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    parts.iter().map(|part| part.to_vec()).collect()
}

fn bad_messages(sequence: u64) -> Vec<(&'static str, &'static str, Vec<Vec<u8>>)> {
    let number = sequence.to_be_bytes();
    let good = stat(0, 0);
    let with = |payload: &[u8]| message(&[b"load", &number, payload]);
    let stat_of = |first: &dyn erased::Item| with(&first.in_a_stat());
    vec![
        ("one part", "parts", message(&[&good])),
        ("two parts", "parts", message(&[b"load", &good])),
        ("four parts", "parts", message(&[b"", b"load", &number, &good])),
        ("a short sequence number", "sequence_width", message(&[b"load", &number[..4], &good])),
        ("the end marker of a replay", "end_marker", message(&[b"", &[0xff; 8], b""])),
        ("no payload", "empty_payload", with(b"")),
        ("a byte that starts nothing", "malformed", with(&[0xc1])),
        ("half a report", "malformed", with(&good[..good.len() - 2])),
        ("an array of four thousand million", "malformed", with(&[0xdd, 0xff, 0xff, 0xff, 0xff])),
        ("a report and more", "trailing_bytes", with(&[good.as_slice(), &[0xc0]].concat())),
        ("a number", "shape", with(&msgpack(&7))),
        ("a text", "shape", with(&msgpack(&"LoadStat"))),
        ("another tag", "tag", with(&msgpack(&("KVEventBatch", 0, 0, 0, 0, 0)))),
        ("a batch of cache events", "tag", with(&msgpack(&(1.5, Vec::<u8>::new(), 0)))),
        ("a map of something else", "foreign_map", with(&msgpack(&json!({"ts": 1.5, "events": []})))),
        ("too few counts", "too_few_counts", with(&msgpack(&("LoadStat", 0, 0, 0)))),
        ("some of the later counts", "partial_counts", with(&msgpack(&("LoadStat", 0, 0, 0, 0, 0, 1, 2)))),
        ("minus one request", "negative", stat_of(&-1)),
        ("a fraction", "not_an_integer", stat_of(&0.5)),
        ("not a number", "not_an_integer", stat_of(&f64::NAN)),
        ("nothing", "not_an_integer", stat_of(&())),
        ("a boolean", "not_an_integer", stat_of(&false)),
        ("a text for a number", "not_an_integer", stat_of(&"0")),
        ("more than fits 63 bits", "too_large", stat_of(&(1_u64 << 63))),
        ("more requests than there are", "too_large", stat_of(&1_000_000_000)),
    ]
}

mod erased {
    use crate::support::msgpack;

    /// A value that can stand where a report has its number of running requests.
    pub(super) trait Item {
        fn in_a_stat(&self) -> Vec<u8>;
    }

    impl<T: serde::Serialize> Item for T {
        fn in_a_stat(&self) -> Vec<u8> {
            msgpack(&("LoadStat", self, 0, 0, 0, 0))
        }
    }
}

/// Seen in ROCm/ATOM#2203 and sgl-project/sglang#32070.
#[actix::test]
async fn a_message_that_is_no_report_is_counted_by_its_reason_and_changes_nothing() {
    let (engine, publisher, router) = fed_by_hand().await;
    publisher.send(0, &stat(1, 0));
    wait_until_running(&router, &engine, 1).await;

    let num_bad = bad_messages(0).len();
    let mut counted = std::collections::BTreeMap::new();
    for index in 0..num_bad {
        let good = index as u64 + 1;
        let (sentence, reason, parts) = bad_messages(good).swap_remove(index);
        publisher.send_parts(parts);
        let count = counted.entry(reason).or_insert(0.0);
        *count += 1.0;
        let series = format!("fathom_bad_load_frames_total{{kind=\"{reason}\"}}");
        router.wait_for_metric(&series, *count).await;

        let load = router.shown(&engine.url()).await["load"].clone();
        assert_eq!(
            (&load["trust"], &load["depth"]),
            (&json!("trusted"), &json!(good)),
            "{sentence}: the last good one stands"
        );
        // The same sequence number again: what was refused has not used it up.
        publisher.send(good, &stat(good + 1, 0));
        wait_until_running(&router, &engine, good + 1).await;
    }

    let load = router.shown(&engine.url()).await["load"].clone();
    assert_eq!((&load["bad_frames"], &load["frames"]), (&json!(num_bad), &json!(num_bad + 1)));
    assert_eq!(
        (&load["open_sockets"], &load["reopened"]),
        (&json!(1), &json!(0)),
        "the subscription has survived it all"
    );
    let metrics = router.metrics().await;
    let counted_there = metrics.lines().filter(|line| line.starts_with("fathom_bad_load_frames_total"));
    let total: f64 = counted_there.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert_eq!(total, num_bad as f64, "each was counted under one reason");
    router.stop_and_check().await;
}

/// Seen in smg-project/smg#2131.
#[actix::test]
async fn a_report_without_a_capacity_says_nothing_of_it_and_one_above_it_is_cut_to_it() {
    let (engine, publisher, router) = fed_by_hand().await;
    let rows = [
        ("more tokens than fit", ("LoadStat", 1, 0, 5_000, 1_000, 0), json!(1_000), json!(1_000)),
        ("no capacity", ("LoadStat", 2, 0, 5_000, 0, 0), json!(5_000), Value::Null),
    ];
    for (sequence, (sentence, report, used, capacity)) in rows.into_iter().enumerate() {
        publisher.send(sequence as u64, &msgpack(&report));
        wait_until_running(&router, &engine, sequence as u64 + 1).await;
        let rank = router.shown(&engine.url()).await["load"]["ranks"][0].clone();
        assert_eq!((&rank["used_tokens"], &rank["capacity_tokens"]), (&used, &capacity), "{sentence}");
    }
    publisher.send(2, &msgpack(&("LoadStat", 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, "from the future", json!({"more": []}))));
    wait_until_running(&router, &engine, 3).await;
    assert_eq!(router.shown(&engine.url()).await["load"]["bad_frames"], 0);
    router.stop_and_check().await;
}

#[actix::test]
async fn a_message_larger_than_any_report_is_not_taken_and_the_feed_goes_on() {
    let (engine, publisher, router) = fed_by_hand().await;
    publisher.send(0, &stat(1, 0));
    wait_until_running(&router, &engine, 1).await;

    publisher.send(1, &msgpack(&("LoadStat", 99, 0, 0, 0, 0, 1, 2, 3, 4, 5, "x".repeat(200_000))));
    // The connection ends with it, and the next one subscribes anew.
    publisher.wait_for_subscriber().await;
    publisher.send(2, &stat(2, 0));
    wait_until_running(&router, &engine, 2).await;
    router.stop_and_check().await;
}

#[actix::test]
async fn cache_events_and_load_share_ranks_but_not_sockets() {
    let engine = engine("e").await;
    let load = Publisher::bind();
    let cache_events = Publisher::bind();
    let router = router_of(config_of(&engine, feeds(load.port(), Some(cache_events.port()), 1))).await;
    load.wait_for_subscriber().await;
    load.send(0, &stat(3, 0));
    wait_until_running(&router, &engine, 3).await;

    let worker = router.worker(&engine.url()).await.expect("a worker");
    let ports = [&worker.facts.load_feed, &worker.facts.kv_feed].map(|feed| feed.plan().map(|plan| plan.port_base));
    assert_eq!(ports, [Some(load.port()), Some(cache_events.port())], "both were advertised");
    // What the one socket says must never count as what the other one says, whoever listens there.
    cache_events.send(1, &stat(77, 0));
    load.send(1, &stat(4, 0));
    wait_until_running(&router, &engine, 4).await;
    let shown = router.shown(&engine.url()).await["load"].clone();
    assert_eq!((&shown["frames"], &shown["bad_frames"], &shown["depth"]), (&json!(2), &json!(0), &json!(4)));
    router.stop_and_check().await;
}

/// Carries connections from one port to another, until it is told to carry nothing any more over those that are open.
struct Relay {
    port: u16,
    open: Rc<RefCell<Vec<JoinHandle<()>>>>,
    frozen: Rc<RefCell<Vec<TcpStream>>>,
    accepting: JoinHandle<()>,
}

impl Relay {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let relay_port = listener.local_addr().unwrap().port();
        let open: Rc<RefCell<Vec<JoinHandle<()>>>> = Rc::default();
        let frozen: Rc<RefCell<Vec<TcpStream>>> = Rc::default();
        let (opened, kept) = (Rc::clone(&open), Rc::clone(&frozen));
        let accepting = actix::spawn(async move {
            while let Ok((inbound, _)) = listener.accept().await {
                let kept = Rc::clone(&kept);
                opened.borrow_mut().push(actix::spawn(carry(inbound, port, kept)));
            }
        });
        Self { port: relay_port, open, frozen, accepting }
    }

    /// The path between the two breaks without a word: neither side is told that the connection has ended.
    fn break_silently(&self) {
        for carried in self.open.borrow_mut().drain(..) {
            carried.abort();
        }
    }

    fn num_broken(&self) -> usize {
        self.frozen.borrow().len()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        self.break_silently();
    }
}

/// Keeps the router's side open when it is aborted.
struct KeepOpen {
    inbound: Option<TcpStream>,
    kept: Rc<RefCell<Vec<TcpStream>>>,
}

impl Drop for KeepOpen {
    fn drop(&mut self) {
        self.kept.borrow_mut().extend(self.inbound.take());
    }
}

async fn carry(inbound: TcpStream, port: u16, kept: Rc<RefCell<Vec<TcpStream>>>) {
    let mut keep = KeepOpen { inbound: Some(inbound), kept };
    let Ok(mut outbound) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    if let Some(inbound) = &mut keep.inbound {
        drop(copy_bidirectional(inbound, &mut outbound).await);
    }
}

/// Seen in zeromq/libzmq#1245.
#[actix::test]
async fn a_feed_that_has_gone_silent_is_opened_again_and_its_publisher_is_heard() {
    let engine = engine("e").await;
    let publisher = Publisher::bind();
    let relay = Relay::to(publisher.port()).await;
    let mut config = config_of(&engine, feeds(relay.port, None, 1));
    config.load.freshness = millis(400);
    let router = router_of(config).await;
    eventually("the first reports arrive", || async {
        publisher.send(0, &stat(1, 0));
        (running_now(&router, &engine).await == 1).then_some(())
    })
    .await;

    relay.break_silently();
    let is_stale = |shown: &Value| shown["load"]["trust"] == "stale";
    router.wait_until_shown(&engine.url(), "its load is stale", is_stale).await;
    router.wait_for_metric("fathom_feed_reopens_total", 1.0).await;
    // The publisher starts again with a number that the old connection would have taken for a repetition.
    eventually("the publisher is heard over a new connection", || async {
        publisher.send(0, &stat(2, 0));
        (running_now(&router, &engine).await == 2).then_some(())
    })
    .await;
    let load = router.shown(&engine.url()).await["load"].clone();
    assert!(load["reopened"].as_u64() >= Some(1) && load["open_sockets"] == 1, "{load}");
    assert!(relay.num_broken() > 0, "the broken connection was held open all the while");
    router.stop_and_check().await;
}

#[actix::test]
async fn an_engine_that_publishes_again_on_its_port_after_a_silence_is_heard() {
    let engine = engine("e").await;
    let publisher = Publisher::bind();
    let port = publisher.port();
    let mut config = config_of(&engine, feeds(port, None, 1));
    config.load.freshness = millis(300);
    let router = router_of(config).await;
    publisher.wait_for_subscriber().await;
    publisher.send(41, &stat(1, 0));
    wait_until_running(&router, &engine, 1).await;

    drop(publisher);
    router.wait_for_metric("fathom_feed_reopens_total", 2.0).await;
    let publisher = Publisher::bind_at("127.0.0.1", port);
    publisher.wait_for_subscriber().await;
    eventually("the publisher is heard again", || async {
        publisher.send(0, &stat(9, 0));
        (running_now(&router, &engine).await == 9).then_some(())
    })
    .await;
    router.stop_and_check().await;
}
