//! Requests that a prefill and a decode engine share: both told the same, ended together, never counted twice or for ever.

use std::time::Duration;

use fathom_router::config::{PolicyKind, RouterConfig};
use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::logic::role::Role;
use fathom_router::messages::Outcome;
use fathom_router::sim::{LoadPublishing, Reported, ResponseMode, SimConfig, SimEngine, SimPart};
use serde_json::{Value, json};

use crate::support::{
    Client, RawClient, RawEngine, RawRequest, RunningRouter, assert_all_succeeded, chat_body, eventually, fast_config,
    names_of, post,
};

const PATH: &str = "/v1/chat/completions";

fn part(name: &str, part: SimPart) -> SimConfig {
    SimConfig { name: name.to_owned(), part, ..SimConfig::default() }
}

async fn start(config: SimConfig) -> SimEngine {
    SimEngine::start(config).await.expect("an engine")
}

async fn pair() -> (SimEngine, SimEngine) {
    (start(part("p", SimPart::Prefill)).await, start(part("d", SimPart::Decode)).await)
}

/// What the engine was told last.
fn told(engine: &SimEngine) -> Value {
    let last = engine.stats().recent.last().cloned().expect("a request");
    serde_json::from_slice(&last.body).unwrap()
}

async fn wait_until_engines_are_idle(engines: &[&SimEngine]) {
    eventually("the engines are idle", || async {
        engines.iter().all(|engine| engine.stats().running + engine.stats().waiting == 0).then_some(())
    })
    .await;
}

#[actix::test]
async fn the_tokens_come_from_the_decode_engine_and_both_are_told_where_to_meet() {
    let (prefill, decode) = pair().await;
    let router = RunningRouter::over(&[&prefill, &decode]).await;
    let client = Client::new();
    let mut rooms = Vec::new();
    for (path, body) in [
        (PATH, r#"{ "model":"tiny", "messages":[{"role":"user","content":"hello"}], "max_tokens":5 }"#),
        (PATH, r#"{"model":"tiny","messages":[],"max_tokens":5,"stream":true}"#),
        ("/v1/completions", r#"{"model":"tiny","prompt":"hello","max_tokens":5}"#),
        ("/generate", r#"{"text":"hello","sampling_params":{"max_new_tokens":5}}"#),
    ] {
        let answer = client.post(&format!("{}{path}", router.url), body).await;
        assert_eq!((answer.status, answer.header("x-sim-engine")), (200, "d"), "{path}");
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(text.contains("t4"), "{path}: {text}");
        let (at_prefill, at_decode) = (told(&prefill), told(&decode));
        assert_eq!(at_prefill, at_decode);
        assert_eq!(at_prefill["bootstrap_host"], "127.0.0.1");
        rooms.push(at_prefill["bootstrap_room"].as_i64().expect("63 bits"));
        let sent = decode.stats().recent.last().cloned().unwrap().body;
        assert!(sent.starts_with(&body.as_bytes()[..body.len() - 1]), "{path}: the rest is as it came");
    }
    rooms.sort_unstable();
    rooms.dedup();
    assert_eq!(rooms.len(), 4);
    router.wait_until_idle().await;
    router.wait_until_ended(Outcome::Completed, 8).await;
    assert_eq!((prefill.stats().completed, decode.stats().completed), (4, 4));
    router.stop().await;
}

#[actix::test]
async fn a_batch_has_a_room_for_each_prompt_and_a_client_has_no_say_in_it() {
    let (prefill, decode) = pair().await;
    let router = RunningRouter::over(&[&prefill, &decode]).await;
    let url = format!("{}/generate", router.url);
    let body = json!({"text": ["a", "b", "c"], "bootstrap_room": 7, "bootstrap_host": "elsewhere"}).to_string();
    assert_eq!(Client::new().post(&url, body).await.status, 200);
    let told = told(&decode);
    let rooms: Vec<i64> = told["bootstrap_room"].as_array().unwrap().iter().filter_map(Value::as_i64).collect();
    assert_eq!((rooms.len(), rooms[1] - rooms[0], rooms[2] - rooms[0]), (3, 1, 2));
    assert_eq!(told["bootstrap_host"], json!(["127.0.0.1", "127.0.0.1", "127.0.0.1"]));
    assert_eq!(told["bootstrap_port"].as_array().map(Vec::len), Some(3));

    let many = json!({"text": vec!["a"; 5_000]}).to_string();
    let refused = Client::new().post(&url, many).await;
    assert_eq!((refused.status, refused.header("x-fathom-error-code")), (400, "too_many_prompts"));
    router.wait_until_idle().await;
    router.stop().await;
}

#[actix::test]
async fn an_engine_that_fails_before_the_first_byte_costs_another_pair_and_a_new_room() {
    for (bad_part, mode) in [
        (SimPart::Prefill, ResponseMode::ResetBeforeHeaders),
        (SimPart::Prefill, ResponseMode::Status(500, "{}".to_owned())),
        (SimPart::Prefill, ResponseMode::Status(503, "{}".to_owned())),
        (SimPart::Decode, ResponseMode::ResetBeforeHeaders),
        (SimPart::Decode, ResponseMode::Status(500, "{}".to_owned())),
    ] {
        let (prefill, decode) = pair().await;
        let bad = start(part("bad", bad_part)).await;
        bad.set_response_mode(mode.clone());
        let mut config = fast_config(&[prefill.url(), decode.url(), bad.url()]);
        config.policy = PolicyKind::RoundRobin;
        let router = RunningRouter::with(config).await;
        let answers = router.chat_times(4).await;
        assert_all_succeeded(&answers);
        assert_eq!(names_of(&answers), [("d".to_owned(), 4)].into(), "{mode:?}");
        assert!(bad.stats().num_requests(PATH) > 0, "{mode:?}: its turn came");
        let good = if bad_part == SimPart::Prefill { &decode } else { &prefill };
        let mut rooms: Vec<i64> = good.stats().recent.iter().map(room_of).collect();
        let num_attempts = rooms.len();
        rooms.sort_unstable();
        rooms.dedup();
        assert_eq!(rooms.len(), num_attempts, "{mode:?}: each attempt has a room of its own");
        wait_until_engines_are_idle(&[&prefill, &decode]).await;
        router.wait_until_idle().await;
        router.stop().await;
    }
}

fn room_of(request: &fathom_router::sim::RecordedRequest) -> i64 {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    body["bootstrap_room"].as_i64().expect("a room")
}

#[actix::test]
async fn what_an_engine_says_of_the_request_itself_is_passed_on() {
    let (prefill, decode) = pair().await;
    let router = RunningRouter::over(&[&prefill, &decode]).await;
    for engine in [&prefill, &decode] {
        engine.set_response_mode(ResponseMode::Status(422, r#"{"error":"the engine's own words"}"#.to_owned()));
        let other = if std::ptr::eq(engine, &prefill) { &decode } else { &prefill };
        other.set_response_mode(ResponseMode::HangBeforeHeaders);
        let answer = router.chat().await;
        assert_eq!((answer.status, &answer.json()["error"]), (422, &json!("the engine's own words")));
        router.wait_until_idle().await;
        wait_until_engines_are_idle(&[&prefill, &decode]).await;
        prefill.set_response_mode(ResponseMode::Normal);
        decode.set_response_mode(ResponseMode::Normal);
    }
    assert_eq!(router.num_ended(Outcome::PeerFailed), 2);
    router.stop().await;
}

/// A pair of raw engines, told apart by the configuration.
async fn raw_pair() -> (RawEngine, RawEngine, RunningRouter) {
    let (prefill, decode) = (RawEngine::start().await, RawEngine::start().await);
    let mut config = fast_config(&[prefill.url(), decode.url()]);
    config.workers[0].overrides.role = Some(Role::Prefill { bootstrap_port: 9_000 });
    config.workers[1].overrides.role = Some(Role::Decode);
    let router = RunningRouter::with(config).await;
    (prefill, decode, router)
}

/// Opens a stream through the pair and returns it with both legs, the decode leg's first chunk sent.
async fn streaming(
    prefill: &mut RawEngine,
    decode: &mut RawEngine,
    router: &RunningRouter,
) -> (RawClient, RawRequest, RawRequest) {
    let mut client = RawClient::connect(&router.url).await;
    client.write(post(PATH, r#"{"stream":true}"#)).await;
    let (at_prefill, mut at_decode) = (prefill.next_request().await, decode.next_request().await);
    at_decode.start_stream().await;
    at_decode.write_chunk("data: 1\n\n").await;
    client.read_through("data: 1\n\n").await;
    (client, at_prefill, at_decode)
}

#[actix::test]
async fn a_prefill_engine_that_dies_after_the_first_byte_ends_the_answer_and_nothing_is_tried_again() {
    let (mut prefill, mut decode, router) = raw_pair().await;
    let (client, at_prefill, at_decode) = streaming(&mut prefill, &mut decode, &router).await;
    at_prefill.reset();
    at_decode.peer_is_gone().await;
    let rest = client.read_to_end().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the client must not take it for the end of the answer");
    router.wait_until_idle().await;
    router.wait_until_ended(Outcome::PeerFailed, 1).await;
    router.wait_until_ended(Outcome::Unreachable, 1).await;
    assert!(!prefill.has_request() && !decode.has_request());
    router.stop().await;
}

#[actix::test]
async fn a_decode_engine_that_dies_after_the_first_byte_ends_the_prefill_too() {
    let (mut prefill, mut decode, router) = raw_pair().await;
    let (client, at_prefill, at_decode) = streaming(&mut prefill, &mut decode, &router).await;
    at_decode.reset();
    at_prefill.peer_is_gone().await;
    assert!(!client.read_to_end().await.ends_with(b"0\r\n\r\n"));
    router.wait_until_idle().await;
    router.wait_until_ended(Outcome::BrokeOff, 1).await;
    router.wait_until_ended(Outcome::PeerFailed, 1).await;
    assert!(!prefill.has_request() && !decode.has_request());
    router.stop().await;
}

/// Seen in BerriAI/litellm#31499.
#[actix::test]
async fn a_client_that_leaves_ends_both_legs_at_any_stage() {
    let (mut prefill, mut decode, router) = raw_pair().await;
    for _ in 0..5 {
        let mut silent = RawClient::connect(&router.url).await;
        silent.write(post(PATH, "{}")).await;
        let (at_prefill, at_decode) = (prefill.next_request().await, decode.next_request().await);
        silent.leave();
        at_prefill.peer_is_gone().await;
        at_decode.peer_is_gone().await;

        let (client, at_prefill, at_decode) = streaming(&mut prefill, &mut decode, &router).await;
        client.reset();
        at_prefill.peer_is_gone().await;
        at_decode.peer_is_gone().await;
    }
    router.wait_until_idle().await;
    router.wait_until_ended(Outcome::ClientGone, 20).await;
    router.wait_until_open(0).await;
    router.stop().await;
}

#[actix::test]
async fn a_client_that_leaves_with_the_last_event_had_its_answer_and_the_prefill_ends_by_itself() {
    let (mut prefill, mut decode, router) = raw_pair().await;
    let (mut client, at_prefill, mut at_decode) = streaming(&mut prefill, &mut decode, &router).await;
    at_decode.write_chunk("data: [DONE]\n\n").await;
    client.read_through("data: [DONE]\n\n").await;
    client.leave();
    at_decode.peer_is_gone().await;
    router.wait_until_ended(Outcome::Completed, 1).await;
    at_prefill.answer("HTTP/1.1 200 OK", "{}").await;
    router.wait_until_ended(Outcome::Completed, 2).await;
    assert_eq!(router.num_ended(Outcome::ClientGone), 0);
    router.stop().await;
}

#[actix::test]
async fn engines_of_a_client_that_left_are_idle_again() {
    let slow = SimConfig { token_time: Duration::from_millis(50), ..part("d", SimPart::Decode) };
    let (prefill, decode) = (start(part("p", SimPart::Prefill)).await, start(slow).await);
    let router = RunningRouter::over(&[&prefill, &decode]).await;
    let url = format!("{}{PATH}", router.url);
    for mode in [ResponseMode::Normal, ResponseMode::HangBeforeHeaders] {
        prefill.set_response_mode(mode);
        let open = |_| {
            let url = url.clone();
            actix::spawn(async move {
                let _unread = Client::new().open(&url, chat_body(100_000, true)).await;
                std::future::pending::<()>().await
            })
        };
        let clients: Vec<_> = (0..6).map(open).collect();
        eventually("the decode engine has them all", || async { (decode.stats().running == 6).then_some(()) }).await;
        clients.iter().for_each(|client| client.abort());
        wait_until_engines_are_idle(&[&prefill, &decode]).await;
        router.wait_until_idle().await;
    }
    router.stop().await;
}

#[actix::test]
async fn pools_of_unequal_size_are_each_used_by_their_own_policy() {
    let prefill = start(part("p", SimPart::Prefill)).await;
    let mut decodes = Vec::new();
    for name in ["d0", "d1", "d2"] {
        decodes.push(start(part(name, SimPart::Decode)).await);
    }
    decodes[1].set_reported_load(0, Some(Reported { num_running_reqs: 40, ..Reported::default() })).unwrap();
    let urls: Vec<String> = decodes.iter().chain([&prefill]).map(SimEngine::url).collect();
    let config = |prefill_policy, decode_policy| {
        let mut config: RouterConfig = fast_config(&urls);
        (config.prefill_policy, config.decode_policy) = (prefill_policy, decode_policy);
        config
    };
    let router = RunningRouter::with(config(None, Some(PolicyKind::RoundRobin))).await;
    let names = names_of(&router.chat_times(12).await);
    assert_eq!(names.values().copied().collect::<Vec<_>>(), [4, 4, 4]);
    router.wait_until_idle().await;
    router.stop().await;

    let router = RunningRouter::with(config(Some(PolicyKind::RoundRobin), Some(PolicyKind::LeastLoad))).await;
    router.wait_until_trusted(4).await;
    let answers = router.chat_times(12).await;
    assert_all_succeeded(&answers);
    let names = names_of(&answers);
    assert_eq!((names.get("d1"), names.values().sum::<usize>()), (None, 12), "{names:?}");
    router.wait_until_idle().await;
    assert_eq!(prefill.stats().completed, 24);
    router.stop().await;
}

#[actix::test]
async fn a_pair_that_lacks_a_part_is_refused_by_the_name_of_what_is_missing() {
    let (prefill, decode) = pair().await;
    let client = Client::new();
    for (engine, code) in [(&prefill, "no_decode_worker"), (&decode, "no_prefill_worker")] {
        let router = RunningRouter::over(&[engine]).await;
        let answer = router.chat().await;
        assert_eq!((answer.status, answer.header("x-fathom-error-code")), (503, code));
        assert_eq!(client.get(&format!("{}/readyz", router.url)).await.status, 503, "half a pair is not ready");
        assert_eq!(router.chat_with("another").await.status, 404, "a model that nobody serves is still unknown");
        let embedding = client.post(&format!("{}/v1/embeddings", router.url), r#"{"model":"tiny","input":"a"}"#).await;
        assert_eq!((embedding.status, embedding.header("x-fathom-error-code")), (503, "no_worker_available"));
        router.stop().await;
    }
    let router = RunningRouter::over(&[&prefill, &decode]).await;
    assert_eq!(client.get(&format!("{}/readyz", router.url)).await.status, 200);
    assert_eq!(router.shown(&prefill.url()).await["role"], "prefill");
    router.stop().await;
}

#[actix::test]
async fn a_regular_worker_goes_before_a_pair_and_is_never_a_part_of_one() {
    let (prefill, decode) = pair().await;
    let regular = start(part("r", SimPart::Whole)).await;
    let router = RunningRouter::over(&[&prefill, &decode, &regular]).await;
    assert_eq!(names_of(&router.chat_times(10).await), [("r".to_owned(), 10)].into());
    regular.set_response_mode(ResponseMode::ResetBeforeHeaders);
    assert_eq!(router.chat().await.header("x-sim-engine"), "d", "where it fails, a pair takes over");
    router.wait_until_idle().await;
    router.stop().await;
}

#[actix::test]
async fn a_prefill_worker_that_is_removed_meanwhile_ends_its_request_first() {
    let (mut prefill, mut decode) = (RawEngine::start().await, RawEngine::start().await);
    let mut config = fast_config(&[decode.url()]);
    config.workers[0].overrides.role = Some(Role::Decode);
    let router = RunningRouter::with(config).await;
    let mut endpoint = Endpoint::new(WorkerUrl::parse(&prefill.url()).unwrap());
    endpoint.overrides.role = Some(Role::Prefill { bootstrap_port: 9_000 });
    router.wants("pool", vec![endpoint]).await;
    router.wait_until_serving(2).await;
    let (mut client, at_prefill, mut at_decode) = streaming(&mut prefill, &mut decode, &router).await;
    router.wants("pool", Vec::new()).await;
    eventually("one worker is left", || async { (router.members().await.len() == 1).then_some(()) }).await;
    at_prefill.answer("HTTP/1.1 200 OK", "{}").await;
    at_decode.write_chunk("data: 2\n\n").await;
    at_decode.end_stream().await;
    client.read_through("data: 2\n\n").await;
    client.read_through("0\r\n\r\n").await;
    router.wait_until_idle().await;
    router.stop().await;
}

#[actix::test]
async fn the_rank_of_a_prefill_engine_is_named_by_its_room_and_that_of_a_decode_engine_by_the_header() {
    let load = LoadPublishing { heartbeat: Duration::from_millis(100), ..LoadPublishing::default() };
    let ranked = |name, the_part| SimConfig { dp_size: 4, load: Some(load.clone()), ..part(name, the_part) };
    let (prefill, decode) = (start(ranked("p", SimPart::Prefill)).await, start(ranked("d", SimPart::Decode)).await);
    for (engine, idle) in [(&prefill, 2), (&decode, 1)] {
        for rank in (0..4).filter(|rank| *rank != idle) {
            engine.set_reported_load(rank, Some(Reported { num_running_reqs: 9, ..Reported::default() })).unwrap();
        }
    }
    let router = RunningRouter::over(&[&prefill, &decode]).await;
    router.wait_until_trusted(2).await;
    for engine in [&prefill, &decode] {
        let is_shown = |shown: &Value| shown["load"]["depth"] == 27;
        router.wait_until_shown(&engine.url(), "its ranks have reported", is_shown).await;
    }
    assert_all_succeeded(&router.chat_times(10).await);
    // The prefill engine's own answer may end a moment after the decode engine's.
    router.wait_until_idle().await;
    let completed = |engine: &SimEngine| engine.stats().ranks.iter().map(|rank| rank.completed).collect::<Vec<_>>();
    assert_eq!((completed(&prefill), completed(&decode)), (vec![0, 0, 10, 0], vec![0, 10, 0, 0]));
    router.stop().await;
}
