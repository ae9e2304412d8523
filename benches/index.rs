//! The prefix index: what an event costs from its bytes to the list, what a prompt's match costs, and what a block takes.
//!
//! Figures depend on the machine; compare runs of the same one. Memory is printed once, before the timings.

#![allow(missing_docs, reason = "criterion's macros write undocumented functions")]
#![allow(clippy::print_stderr, reason = "memory is no timing: it is printed beside them")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fathom_router::clock;
use fathom_router::logic::block_hash::prompt_keys;
use fathom_router::logic::ids::{DecisionId, DpRank};
use fathom_router::logic::prefix_index::PrefixIndex;
use fathom_router::logic::prompt_keys::{HashMode, HashVariant, PromptKeys};
use fathom_router::wire::kv_event::{TokenUse, decode_batch};
use serde_json::json;

const BLOCK_SIZE: u32 = 16;
const BUDGET: usize = 1 << 30;
const MODES: [(&str, HashMode); 2] =
    [("engine_hash", HashMode::Engine { is_bigram: false }), ("rehash", HashMode::Rehash { is_bigram: false })];

/// Tokens of a prompt; equal numbers share nothing.
fn tokens(number: u32, num_blocks: u32) -> Vec<u32> {
    (0..num_blocks * BLOCK_SIZE).map(|token| (number.wrapping_mul(2_654_435_761) ^ token) % 150_000).collect()
}

fn keys(tokens: &[u32], mode: HashMode) -> Vec<u64> {
    prompt_keys(tokens, HashVariant { block_size: BLOCK_SIZE, mode }, None)
}

/// The frame of one event that stores a prompt's blocks. A foreign engine's ids are not those that can be computed.
fn stored(tokens: &[u32], is_foreign: bool) -> Vec<u8> {
    let ids = keys(tokens, HashMode::Engine { is_bigram: false });
    let ids: Vec<u64> = ids.into_iter().map(|id| if is_foreign { id.rotate_left(9) } else { id }).collect();
    let event = json!({"type": "BlockStored", "block_hashes": ids, "parent_block_hash": null, "token_ids": tokens,
        "block_size": BLOCK_SIZE, "lora_id": null, "medium": "GPU"});
    rmp_serde::to_vec(&json!([1.5, [event], 0])).unwrap_or_default()
}

fn apply(index: &mut PrefixIndex, rank: u32, frame: &[u8]) {
    let tokens = if index.wants_tokens() { TokenUse::Keep } else { TokenUse::Skip };
    let Ok(batch) = decode_batch(frame, tokens) else { return };
    for event in &batch.events {
        let _ = index.apply(DpRank::new(rank), event);
    }
}

/// An index that holds so many prompts of 64 blocks on each of four ranks.
fn filled(num_prompts: u32, is_foreign: bool) -> PrefixIndex {
    let mut index = PrefixIndex::new(BUDGET, Some(BLOCK_SIZE));
    for rank in 0..4 {
        index.believe(DpRank::new(rank), true);
    }
    for number in 0..num_prompts {
        apply(&mut index, number % 4, &stored(&tokens(number, 64), is_foreign));
    }
    index
}

fn print_memory() {
    for (name, mode) in MODES {
        let index = filled(4_000, matches!(mode, HashMode::Rehash { .. }));
        let num_blocks: usize = (0..4).map(|rank| index.num_blocks(DpRank::new(rank))).sum();
        let bytes = index.counts().bytes;
        eprintln!(
            "memory, {name}: {num_blocks} blocks, {bytes} bytes, {:.1} a block",
            bytes as f64 / num_blocks as f64
        );
    }
}

fn events(criterion: &mut Criterion) {
    print_memory();
    let mut group = criterion.benchmark_group("decode_and_apply_64_blocks");
    // Each iteration applies 64 events.
    group.throughput(Throughput::Elements(64));
    for (name, mode) in MODES {
        let is_foreign = matches!(mode, HashMode::Rehash { .. });
        let frames: Vec<Vec<u8>> = (0..4_096).map(|number| stored(&tokens(100_000 + number, 64), is_foreign)).collect();
        group.bench_function(name, |bencher| {
            let mut next = 0;
            bencher.iter_batched_ref(
                || filled(64, is_foreign),
                |index| {
                    for frame in &frames[next..next + 64] {
                        apply(index, 0, frame);
                    }
                    next = (next + 64) % frames.len();
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn matches(criterion: &mut Criterion) {
    let now = clock::now();
    let mode = HashMode::Engine { is_bigram: false };
    for num_workers in [8_u32, 64, 256] {
        let mut group = criterion.benchmark_group(format!("match_at_{num_workers}_workers"));
        for num_blocks in [64_u32, 512, 4_096] {
            let tokens = tokens(7, num_blocks);
            let keys: Arc<[u64]> = keys(&tokens, mode).into();
            let prompt =
                PromptKeys::new(tokens.len() as u32, vec![(HashVariant { block_size: BLOCK_SIZE, mode }, keys)]);
            // Worker n holds the first n-th part of the prompt, among 250 other prompts.
            let mut workers: Vec<PrefixIndex> = (0..num_workers)
                .map(|number| {
                    let mut index = filled(250, false);
                    let held = num_blocks * (number + 1) / num_workers;
                    apply(&mut index, number % 4, &stored(&tokens[..(held * BLOCK_SIZE) as usize], false));
                    index
                })
                .collect();
            group.bench_function(BenchmarkId::from_parameter(format!("{num_blocks}_blocks")), |bencher| {
                bencher.iter(|| {
                    for index in &mut workers {
                        black_box(index.match_prompt(&prompt, None, now));
                    }
                });
            });
        }
        group.finish();
    }
}

fn hashing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("keys_of_512_blocks");
    let tokens = tokens(7, 512);
    for (name, mode) in MODES {
        group.bench_function(name, |bencher| bencher.iter(|| keys(black_box(&tokens), mode)));
    }
    group.finish();
}

fn predictions(criterion: &mut Criterion) {
    let now = clock::now();
    let mode = HashMode::Engine { is_bigram: false };
    let tokens = tokens(7, 512);
    let keys: Arc<[u64]> = keys(&tokens, mode).into();
    let prompt = PromptKeys::new(tokens.len() as u32, vec![(HashVariant { block_size: BLOCK_SIZE, mode }, keys)]);
    criterion.bench_function("predict_and_withdraw_512_blocks", |bencher| {
        let mut index = filled(250, false);
        bencher.iter(|| {
            index.predict(DecisionId::new(1), &prompt, None, None, now, Duration::from_secs(10));
            index.withdraw(DecisionId::new(1));
        });
    });
}

criterion_group!(benches, events, matches, hashing, predictions);
criterion_main!(benches);
