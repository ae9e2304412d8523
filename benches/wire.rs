//! Time to decode the frames that arrive most often.
//!
//! `cargo bench --bench wire`

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fathom_router::wire::kv_event::{TokenUse, decode_batch};
use fathom_router::wire::load_frame::decode_load;
use fathom_router::wire::message::split;
use fathom_router::wire::openai::peek_request;
use serde_json::{Value, json};

fn load(criterion: &mut Criterion) {
    let stat = encode(&json!(["LoadStat", 12, 3, 48_000, 100_000, 0, 777, 52_000, 64, 123_456_789, 987_654_321]));
    let snapshot = encode(&json!({
        "timestamp": 1_700_000_000.5, "dp_rank": 0, "num_running_reqs": 12, "num_waiting_reqs": 3,
        "num_waiting_uncached_tokens": 777, "num_used_tokens": 48_000, "num_total_tokens": 52_000,
        "max_total_num_tokens": 100_000, "max_running_requests": 64, "token_usage": 0.48,
        "queues": [3, 0, 0, 0],
    }));
    let mut group = criterion.benchmark_group("load");
    group.bench_function("stat", |bencher| bencher.iter(|| decode_load(black_box(&stat))));
    group.bench_function("snapshot", |bencher| bencher.iter(|| decode_load(black_box(&snapshot))));
    let parts: [&[u8]; 3] = [b"load", &7_u64.to_be_bytes(), &stat];
    group.bench_function("split", |bencher| bencher.iter(|| split(black_box(parts).into_iter()).is_ok()));
    group.finish();
}

fn kv_event(criterion: &mut Criterion) {
    let hashes: Vec<i64> = (1..=64_i64).map(|index| index.wrapping_mul(0x5851_f42d_4c95_7f2d)).collect();
    let tokens: Vec<u32> = (0..1_024).map(|index| index * 31 % 32_000).collect();
    let payload = encode(&json!([
        1_700_000_000.25,
        [{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": null, "token_ids": tokens,
          "block_size": 16, "lora_id": null, "medium": "GPU"}],
        0,
    ]));
    let mut group = criterion.benchmark_group("kv_event_64_hashes_1024_tokens");
    group.throughput(Throughput::Bytes(payload.len() as u64));
    for (name, tokens) in [("keep", TokenUse::Keep), ("skip", TokenUse::Skip)] {
        group.bench_function(name, |bencher| bencher.iter(|| decode_batch(black_box(&payload), tokens)));
    }
    group.finish();
}

fn request(criterion: &mut Criterion) {
    let content = "Count the words of this sentence. ".repeat(480);
    let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": content}]}).to_string();
    let mut group = criterion.benchmark_group("request");
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("peek_16_kib", |bencher| bencher.iter(|| peek_request(black_box(body.as_bytes()))));
    group.finish();
}

#[expect(clippy::expect_used, reason = "a JSON value of plain numbers and text always has a msgpack form")]
fn encode(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("encodes")
}

criterion_group!(benches, load, kv_event, request);
criterion_main!(benches);
