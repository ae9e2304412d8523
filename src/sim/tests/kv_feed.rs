//! What a subscriber of KV events sees: the same cache, batch by batch, with gaps that a replay fills.

use std::collections::BTreeSet;
use std::time::Duration;

use actix_web::rt::time::timeout;
use serde_json::json;

use super::{Caller, PATIENCE, Subscriber, body, start};
use crate::logic::block_hash::{Units, engine_keys};
use crate::logic::kv_event::{BlockKey, KvEvent, Medium, StoredBlocks, TokenIds};
use crate::logic::rng::Rng;
use crate::sim::{KvEvents, KvPublishing, KvReplay, SimConfig, SimEngine, SimError};
use crate::wire::kv_event::{TokenUse, decode_batch};
use crate::wire::message;
use crate::wire::replay::{self, Reply};

/// An engine with pages of four tokens and replays of so many batches.
fn replayed(buffer_steps: usize) -> SimConfig {
    let replay = Some(KvReplay { buffer_steps, ..KvReplay::default() });
    SimConfig {
        page_size: 4,
        token_time: Duration::ZERO,
        prefill_time_per_token: Duration::ZERO,
        kv_events: KvEvents::Published(KvPublishing { replay, ..KvPublishing::default() }),
        ..SimConfig::default()
    }
}

async fn generate(caller: &Caller, tokens: &[u32], num_tokens: usize, salt: Option<&str>) {
    let call = json!({"input_ids": tokens, "sampling_params": {"max_new_tokens": num_tokens}, "cache_salt": salt});
    let answer = body(caller.post("/generate", &call).await.unwrap()).await;
    assert_eq!(answer["meta_info"]["prompt_tokens"], tokens.len());
}

/// Returns the batches that a rank still has from a number on.
fn replay(engine: &SimEngine, rank: u16, from: u64) -> Vec<(u64, Vec<KvEvent>)> {
    let dealer = zmq::Context::new().socket(zmq::DEALER).unwrap();
    dealer.set_linger(0).unwrap();
    dealer.set_rcvhwm(0).unwrap();
    dealer.set_rcvtimeo(i32::try_from(PATIENCE.as_millis()).unwrap()).unwrap();
    dealer.connect(&format!("tcp://127.0.0.1:{}", engine.kv_replay_port_base().unwrap() + rank)).unwrap();
    // What is no request is ignored.
    dealer.send("nonsense", 0).unwrap();
    dealer.send_multipart(replay::request(from), 0).unwrap();
    let mut batches = Vec::new();
    loop {
        let frames = dealer.recv_multipart(0).unwrap();
        assert_eq!((frames.len(), frames[0].len(), frames[1].len()), (4, 0, 0));
        match replay::read_reply(frames.iter().map(Vec::as_slice)).unwrap() {
            Reply::Batch(batch) => batches.push((batch.sequence, events(batch.payload, u32::from(rank)))),
            Reply::End => return batches,
        }
    }
}

fn events(payload: &[u8], rank: u32) -> Vec<KvEvent> {
    let batch = decode_batch(payload, TokenUse::Keep).unwrap();
    assert!(batch.bad_events.is_empty() && batch.num_unknown_events == 0 && !batch.events.is_empty(), "{batch:?}");
    assert_eq!(batch.rank.map(crate::logic::ids::DpRank::number), Some(rank));
    batch.events
}

fn sequences(batches: &[(u64, Vec<KvEvent>)]) -> Vec<u64> {
    batches.iter().map(|(sequence, _)| *sequence).collect()
}

/// A cache rebuilt from events, in which nothing may surprise.
#[derive(Default)]
struct Mirror {
    blocks: BTreeSet<u64>,
    num_removed: usize,
    num_salted: usize,
}

impl Mirror {
    fn of(batches: &[(u64, Vec<KvEvent>)]) -> Self {
        let mut mirror = Self::default();
        batches.iter().flat_map(|(_, events)| events).for_each(|event| mirror.apply(event));
        mirror
    }

    fn apply(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Cleared => self.blocks.clear(),
            KvEvent::Removed(removed) => {
                assert_eq!(removed.medium, Some(Medium::Gpu));
                self.num_removed += removed.hashes.len();
                assert!(removed.hashes.iter().all(|hash| self.blocks.remove(&word(hash))), "each was there");
            }
            KvEvent::Stored(stored) => self.store(stored),
        }
    }

    fn store(&mut self, stored: &StoredBlocks) {
        let hashes: Vec<u64> = stored.hashes.iter().map(word).collect();
        assert_eq!((stored.medium, stored.block_size), (Some(Medium::Gpu), 4));
        assert_eq!(stored.token_ids.len(), hashes.len() * 4);
        self.num_salted += usize::from(stored.cache_salt.is_some());
        match stored.parent {
            Some(parent) => assert!(self.blocks.contains(&word(&parent)), "the parent is known"),
            None => assert_eq!(engine_keys(units(&stored.token_ids), 4, stored.cache_salt.as_deref()), hashes),
        }
        assert!(hashes.iter().all(|hash| self.blocks.insert(*hash)), "each is new");
    }
}

fn word(key: &BlockKey) -> u64 {
    let BlockKey::Word(word) = key else { panic!("{key:?} from an engine that publishes numbers") };
    *word
}

fn units(tokens: &TokenIds) -> Units<'_> {
    match tokens {
        TokenIds::Flat(tokens) => Units::Tokens(tokens),
        TokenIds::Pairs(pairs) => Units::Pairs(pairs),
        skipped => panic!("{skipped:?} although tokens are kept"),
    }
}

#[actix_web::test]
async fn a_cache_rebuilt_from_events_is_the_cache_of_the_rank() {
    for bigram in [false, true] {
        let engine = start(SimConfig { dp_size: 2, max_total_tokens: 64, bigram, ..replayed(10_000) }).await;
        let caller = Caller::new(&engine);
        let mut rng = Rng::from_seed(5);
        for _ in 0..120 {
            let tokens: Vec<u32> = (0..rng.below(40)).map(|at| (rng.below(2) * (at / 8)) as u32).collect();
            let salt = (rng.below(4) == 0).then_some("tenant-a");
            generate(&caller, &tokens, rng.below(12), salt).await;
        }
        let batches = replay(&engine, 0, 0);
        assert_eq!(sequences(&batches), (0..engine.num_kv_batches(0).unwrap()).collect::<Vec<_>>());
        assert_eq!(batches[0].1, [KvEvent::Cleared]);
        let mirror = Mirror::of(&batches);
        assert_eq!(Some(&mirror.blocks), engine.cached_blocks(0).as_ref());
        assert_eq!(mirror.blocks.len(), 16, "the cache is full");
        assert!(mirror.num_removed > 50 && mirror.num_salted > 10, "the test tests something");
        assert!(engine.stats().num_cached_tokens > 100);
        assert_eq!(sequences(&replay(&engine, 1, 0)), [0], "the other rank was idle");
        engine.stop().await;
    }
}

#[actix_web::test]
async fn the_prompt_is_stored_when_it_is_computed_and_the_output_when_the_request_ends() {
    let engine = start(replayed(10)).await;
    let caller = Caller::new(&engine);
    generate(&caller, &[10, 11, 12, 13, 14], 8, Some("s")).await;
    let batches = replay(&engine, 0, 1);
    let keys = engine_keys(Units::Tokens(&[10, 11, 12, 13, 14, 0, 1, 2, 3, 4, 5, 6]), 4, Some("s"));
    let expected = [
        (keys[..1].to_vec(), None, vec![10, 11, 12, 13]),
        (keys[1..].to_vec(), Some(keys[0]), vec![14, 0, 1, 2, 3, 4, 5, 6]),
    ];
    for ((sequence, events), (keys, parent, tokens)) in batches.iter().zip(expected) {
        let [KvEvent::Stored(stored)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(stored.hashes, keys.into_iter().map(BlockKey::Word).collect::<Vec<_>>(), "batch {sequence}");
        assert_eq!(stored.parent, parent.map(BlockKey::Word));
        assert_eq!(stored.token_ids, TokenIds::Flat(tokens));
    }
    assert_eq!(sequences(&batches), [1, 2]);
}

#[actix_web::test]
async fn lost_batches_are_missing_on_the_wire_and_there_in_a_replay_as_long_as_they_are_kept() {
    let engine = start(replayed(3)).await;
    let caller = Caller::new(&engine);
    let mut subscriber = Subscriber::to_port(engine.kv_port_base().unwrap());
    let first = loop {
        assert!(engine.flush_cache());
        if let Ok(frames) = timeout(Duration::from_millis(20), subscriber.next()).await {
            break frames;
        }
    };
    assert_eq!((first.len(), first[0].as_slice()), (3, &b""[..]));

    engine.drop_next_kv_batches(0, 2).unwrap();
    let next = engine.num_kv_batches(0).unwrap();
    for prompt in 0..4 {
        generate(&caller, &[prompt; 4], 0, None).await;
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&(next + 3)) {
        let frames = subscriber.next().await;
        seen.push(message::split(frames.iter().map(Vec::as_slice)).unwrap().sequence);
    }
    seen.retain(|sequence| *sequence >= next);
    assert_eq!(seen, [next + 2, next + 3]);

    assert_eq!(sequences(&replay(&engine, 0, next)), [next + 1, next + 2, next + 3], "the oldest is forgotten");
    assert_eq!(sequences(&replay(&engine, 0, next + 3)), [next + 3]);
    assert_eq!(sequences(&replay(&engine, 0, next + 4)), [0_u64; 0]);
    assert!(matches!(engine.drop_next_kv_batches(1, 1), Err(SimError::NoSocket { rank: 1 })));
}

#[actix_web::test]
async fn a_long_replay_is_whole_where_nothing_limits_it() {
    let replay_config = KvReplay { send_high_water_mark: 0, buffer_steps: 4_000, port_base: None };
    let publishing = KvPublishing { replay: Some(replay_config), port_base: None };
    let engine = start(SimConfig { kv_events: KvEvents::Published(publishing), ..replayed(0) }).await;
    for _ in 0..5_000 {
        assert!(engine.flush_cache());
    }
    assert_eq!(sequences(&replay(&engine, 0, 0)), (1_001..5_001).collect::<Vec<_>>());
}

#[actix_web::test]
async fn an_engine_that_comes_back_has_an_empty_cache_and_counts_from_zero() {
    let mut engine = start(replayed(10)).await;
    let replay_ports = KvReplay { port_base: engine.kv_replay_port_base(), ..KvReplay::default() };
    let publishing = KvPublishing { port_base: engine.kv_port_base(), replay: Some(replay_ports) };
    let again = SimConfig { port: engine.port(), kv_events: KvEvents::Published(publishing), ..replayed(10) };
    for round in 0..4 {
        let info = body(Caller::new(&engine).get("/server_info").await.unwrap()).await;
        assert_eq!(info["kv_events"]["replay_endpoint_port_base"], json!(engine.kv_replay_port_base()));
        generate(&Caller::new(&engine), &[round; 8], 0, None).await;
        let batches = replay(&engine, 0, 0);
        assert_eq!(sequences(&batches), [0, 1]);
        assert_eq!(batches[0].1, [KvEvent::Cleared]);
        assert_eq!(engine.cached_blocks(0).unwrap().len(), 2);
        if round % 2 == 0 {
            engine.kill().await
        } else {
            engine.stop().await
        }
        engine = start(again.clone()).await;
        assert!(engine.cached_blocks(0).unwrap().is_empty());
    }
}

#[actix_web::test]
async fn an_engine_without_events_or_replays_caches_all_the_same() {
    let engine = start(SimConfig { kv_events: KvEvents::Null, ..replayed(1) }).await;
    let caller = Caller::new(&engine);
    generate(&caller, &[1; 9], 0, None).await;
    assert_eq!(engine.cached_blocks(0).unwrap().len(), 2);
    assert_eq!((engine.num_kv_batches(0), engine.kv_replay_port_base()), (None, None));
    assert!(engine.drop_next_kv_batches(0, 1).is_err());
    assert_eq!(start(SimConfig::default()).await.kv_replay_port_base(), None);
}
