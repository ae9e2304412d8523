//! What an engine tells of its load when it is asked, in the forms of SGLang's `/v1/loads` and of vLLM's `/metrics`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::load_frame::Reported;

/// Returns the body of `/v1/loads`. Unlike the published map it leaves no zero out.
pub(super) fn v1_loads(loads: &[Reported], wall_seconds: f64) -> Value {
    let rank = |(rank, load): (usize, &Reported)| {
        json!({
            "timestamp": wall_seconds,
            "dp_rank": rank,
            "num_running_reqs": load.num_running_reqs,
            "num_waiting_reqs": load.num_waiting_reqs,
            "num_waiting_uncached_tokens": load.num_waiting_uncached_tokens,
            "num_used_tokens": load.num_used_tokens,
            "num_total_tokens": load.num_total_tokens,
            "max_total_num_tokens": load.max_total_num_tokens,
            "max_running_requests": load.max_running_requests,
            "total_prefill_uncached_tokens": load.total_prefill_uncached_tokens,
            "total_prefill_busy_us": load.total_prefill_busy_us,
        })
    };
    let loads: Vec<Value> = loads.iter().enumerate().map(rank).collect();
    json!({"version": "0.5.23", "loads": loads})
}

/// Returns the body of `/metrics`, as far as it tells of load.
pub(super) fn vllm_metrics(loads: &[Reported], model: &str, block_size: u32) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, value: &dyn Fn(&Reported) -> f64| {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "# TYPE vllm:{name} gauge");
        for (rank, load) in loads.iter().enumerate() {
            let _ = writeln!(text, "vllm:{name}{{engine=\"{rank}\",model_name={model:?}}} {:?}", value(load));
        }
    };
    gauge("num_requests_running", &|load| load.num_running_reqs as f64);
    gauge("num_requests_waiting", &|load| load.num_waiting_reqs as f64);
    gauge("kv_cache_usage_perc", &|load| load.num_used_tokens as f64 / load.max_total_num_tokens.max(1) as f64);
    for (rank, load) in loads.iter().enumerate() {
        let blocks = load.max_total_num_tokens / u64::from(block_size.max(1));
        let labels = format!("block_size=\"{block_size}\",engine=\"{rank}\",num_gpu_blocks=\"{blocks}\"");
        let _ = writeln!(text, "vllm:cache_config_info{{{labels}}} 1.0");
    }
    text
}
