use super::decode_metrics;
use crate::logic::load::{LoadSource, RankLoad};
use crate::wire::golden;

fn recorded() -> Vec<u8> {
    let path = format!("{}/tests/golden/vllm-0.32.0-metrics.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("a recording")
}

fn reason(text: &str) -> &'static str {
    decode_metrics(text.as_bytes()).expect_err(text).reason()
}

/// The three gauges of one rank.
fn rank(engine: u32, running: &str, waiting: &str, kv: &str) -> String {
    let labels = format!("{{engine=\"{engine}\",model_name=\"m\"}}");
    format!(
        "vllm:num_requests_running{labels} {running}\nvllm:num_requests_waiting{labels} {waiting}\nvllm:kv_cache_usage_perc{labels} {kv}\n"
    )
}

#[test]
fn what_the_engines_own_encoder_wrote_is_read() {
    let load = |running, waiting, used| RankLoad {
        source: LoadSource::VllmMetrics,
        running,
        waiting,
        used_tokens: Some(used),
        capacity_tokens: Some(16_384),
        ..RankLoad::default()
    };
    assert_eq!(decode_metrics(&recorded()), Ok(vec![load(3, 2, 4_096), load(0, 0, 0)]));
}

#[test]
fn ranks_models_and_labels_are_told_apart() {
    let text = rank(1, "1.0", "0.0", "0") + &rank(0, "2", "1e1", "0.5");
    let loads = decode_metrics(text.as_bytes()).expect("loads");
    assert_eq!(loads.iter().map(|load| (load.running, load.waiting)).collect::<Vec<_>>(), [(2, 10), (1, 0)]);
    assert_eq!(loads[0].used_tokens, None, "a part of an unknown size is not a number of tokens");

    let odd = "vllm:num_requests_running{model_name=\"a}\\\"{engine=\\\"7\\\"\",engine=\"0\"} 4 1700000000000\n\
               vllm:num_requests_running{model_name=\"b\", engine=\"0\",} 1\n\
               vllm:num_requests_waiting 5\n  vllm:gpu_cache_usage_perc{} 1.0000001\r\n";
    let loads = decode_metrics(odd.as_bytes()).expect("loads");
    assert_eq!((loads.len(), loads[0].running, loads[0].waiting), (1, 5, 5));
}

#[test]
fn what_is_not_ours_is_passed_over_however_it_looks() {
    let text = format!(
        "# HELP x\nnonsense {{\nvllm:other{{a=\"\n{}vllm:num_requests_running_total NaN\nvllm:num_requests_waiting_by_reason{{reason=\"x\"}} NaN\n# EOF\n",
        rank(0, "1", "2", "0")
    );
    let loads = decode_metrics(text.as_bytes()).expect("loads");
    assert_eq!((loads[0].running, loads[0].waiting), (1, 2));
}

#[test]
fn a_value_that_is_missing_or_no_count_refuses_the_answer_and_is_never_zero() {
    for value in ["NaN", "+Inf", "-1", "1.5", "x", "1e30"] {
        assert_eq!(reason(&rank(0, value, "0", "0")), "not_a_count", "{value}");
        assert_eq!(reason(&rank(0, "0", value, "0")), "not_a_count", "{value}");
    }
    for value in ["NaN", "-0.5", "17"] {
        assert_eq!(reason(&rank(0, "0", "0", value)), "not_a_count", "{value}");
    }
    let whole = rank(0, "1", "1", "0");
    for left_out in 0..3 {
        let text: String =
            whole.lines().enumerate().filter(|(n, _)| *n != left_out).map(|(_, l)| format!("{l}\n")).collect();
        assert_eq!(reason(&text), "missing", "{text}");
        assert_eq!(reason(&(rank(1, "1", "1", "0") + &text)), "missing", "one rank of two: {text}");
    }
    assert_eq!(reason(""), "no_rank");
    assert_eq!(reason("vllm:cache_config_info{num_gpu_blocks=\"4\",block_size=\"16\"} 1\n"), "no_rank");
    assert_eq!(reason("vllm:num_requests_running{engine=\"0\" 1"), "malformed");
    assert_eq!(reason("vllm:num_requests_running"), "malformed");
    assert_eq!(reason(&rank(1, "1", "1", "0")), "ranks");
    assert_eq!(reason("vllm:num_requests_running{engine=\"first\"} 1\n"), "ranks");
    let many: String = (0..2_000).map(|engine| rank(engine, "1", "1", "0")).collect();
    assert_eq!(reason(&many), "ranks");
    assert_eq!(decode_metrics(&[0xff, 0xfe]).map_err(|error| error.reason()), Err("malformed"));
}

#[test]
fn a_size_of_the_cache_that_is_no_number_leaves_the_use_out() {
    for blocks in ["None", "0", "-1", "99999999999999999999"] {
        let text = format!(
            "vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\"}} 1\n{}",
            rank(0, "1", "0", "0.5")
        );
        let loads = decode_metrics(text.as_bytes()).expect("loads");
        assert_eq!((loads[0].used_tokens, loads[0].capacity_tokens), (None, None), "{blocks}");
    }
}

#[test]
fn no_bytes_make_it_panic() {
    golden::check_bytes(5_000, vec![recorded(), rank(0, "1", "2", "0.1").into_bytes()], |bytes| {
        let _ = decode_metrics(bytes);
    });
}
