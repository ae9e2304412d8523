//! What a simulated engine is told at start.

use std::time::Duration;

use actix_web::http::header::HeaderValue;

use super::error::SimError;
use super::load_frame::LoadForm;
use super::tokens::Tokenizer;

/// Describes a simulated engine. [`SimConfig::default`] is one rank on free loopback ports that publishes its load.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Goes into the header `x-sim-engine` of every answer, to tell engines apart.
    pub name: String,
    /// The served model name.
    pub model: String,
    /// The HTTP port; 0 = any free port. A fixed port lets an engine come back at the address of a stopped one.
    pub port: u16,
    /// The interfaces on which all sockets listen.
    pub scope: BindScope,
    /// The number of data-parallel ranks, each with a queue, slots and sockets of its own.
    pub dp_size: u32,
    /// The engine's own number of its first rank: other than 0 on a further node of a deployment.
    pub first_rank: u32,
    /// Whether `/server_info` lists the ranks of this node (`kv_event_sources`), and counts those of the whole deployment elsewhere.
    pub lists_ranks: bool,
    /// The part of a request that the engine does.
    pub part: SimPart,
    /// How long a prefill or decode engine waits for the other one before it fails the request.
    pub pair_patience: Duration,
    /// The tokens per page of the cache, which is also the advertised block size.
    pub page_size: u32,
    /// Whether the cache is keyed by overlapping pairs of tokens, as with draft models of the EAGLE family.
    pub bigram: bool,
    /// Whether prompts are looked up and kept in a prefix cache; without, every prompt token is computed.
    pub prefix_cache: bool,
    /// Whether answers say how many prompt tokens were cached. Without, OpenAI answers have `null` in place of the details
    /// and `/generate` has no such field.
    pub cache_report: bool,
    /// How texts become tokens. Prompts given as token ids are taken as they are.
    pub tokenizer: Tokenizer,
    /// The slots per rank: so many requests run at once, the others wait.
    pub max_running: usize,
    /// The KV capacity per rank, in tokens. It bounds the prefix cache; no request is refused for lack of space.
    pub max_total_tokens: u64,
    /// The longest answer in tokens; a request that asks for more gets this many.
    pub max_model_len: u64,
    /// The prefill time of one prompt token that is not cached.
    pub prefill_time_per_token: Duration,
    /// The time between two output tokens; zero = the whole answer at once.
    pub token_time: Duration,
    /// Where load is told when it is asked for.
    pub load_paths: LoadPaths,
    /// How load is published; `None` = an engine started without `--load-publish-endpoint`.
    pub load: Option<LoadPublishing>,
    /// What `/server_info` says about KV events. The load range is advertised inside of that object, as in SGLang.
    pub kv_events: KvEvents,
    /// Appears as `api_key` in `/server_info`, as real engines leak it. A marker to search logs for; never checked.
    pub api_key: Option<String>,
    /// Appears as `admin_api_key` in `/server_info`. A marker, never checked.
    pub admin_api_key: Option<String>,
}

impl SimConfig {
    /// Checks what the sockets and the queues rely on, and returns the name as the value of a header.
    pub(super) fn validate(&self) -> Result<HeaderValue, SimError> {
        let invalid = |field, value| Err(SimError::Config { field, value });
        if self.dp_size == 0 || self.dp_size > u32::from(u16::MAX) {
            return invalid("dp_size", self.dp_size.to_string());
        }
        if self.page_size == 0 {
            return invalid("page_size", self.page_size.to_string());
        }
        if self.max_running == 0 {
            return invalid("max_running", self.max_running.to_string());
        }
        let Ok(name) = HeaderValue::from_str(&self.name) else {
            return invalid("name", self.name.clone());
        };
        Ok(name)
    }
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            name: "sim".to_owned(),
            model: "tiny".to_owned(),
            port: 0,
            scope: BindScope::Loopback,
            dp_size: 1,
            first_rank: 0,
            lists_ranks: false,
            part: SimPart::Whole,
            pair_patience: Duration::from_secs(30),
            page_size: 16,
            bigram: false,
            prefix_cache: true,
            cache_report: true,
            tokenizer: Tokenizer::default(),
            max_running: 8,
            max_total_tokens: 100_000,
            max_model_len: 131_072,
            prefill_time_per_token: Duration::from_micros(20),
            token_time: Duration::from_millis(1),
            load_paths: LoadPaths::default(),
            load: Some(LoadPublishing::default()),
            kv_events: KvEvents::default(),
            api_key: None,
            admin_api_key: None,
        }
    }
}

/// The part of a request that an engine does (`--disaggregation-mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SimPart {
    /// All of it.
    #[default]
    Whole,
    /// The prompt. The engine meets decode engines at a port of its own, on 127.0.0.1.
    Prefill,
    /// The tokens, once the prefill engine of the request has its result ready.
    Decode,
}

/// Where the sockets of an engine listen. The descriptor says `*` in both cases, as engines do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BindScope {
    /// 127.0.0.1 only.
    #[default]
    Loopback,
    /// Every interface: HTTP over IPv4, ZMQ over IPv4 and IPv6.
    AllInterfaces,
}

/// Where an engine tells its load when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadPaths {
    /// At `/v1/loads`, as SGLang does.
    #[default]
    SgLang,
    /// At `/metrics`, as vLLM does.
    Vllm,
    /// Nowhere.
    Nowhere,
}

/// How an engine publishes its load.
#[derive(Debug, Clone)]
pub struct LoadPublishing {
    /// Rank r publishes on this port + r; `None` = any run of free ports.
    pub port_base: Option<u16>,
    /// The wire form.
    pub form: LoadForm,
    /// How long an unchanged report stays unsent. A changed one goes out at once, though never two within 5 ms.
    pub heartbeat: Duration,
}

impl Default for LoadPublishing {
    fn default() -> Self {
        Self { port_base: None, form: LoadForm::default(), heartbeat: Duration::from_secs(1) }
    }
}

/// What `/server_info` has under `kv_events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvEvents {
    /// A descriptor, and sockets that publish what changes in the cache.
    Published(KvPublishing),
    /// `null`: an engine started without `--kv-events-config`.
    Null,
    /// No such key: an engine older than the descriptor.
    Absent,
}

impl Default for KvEvents {
    fn default() -> Self {
        Self::Published(KvPublishing::default())
    }
}

/// How an engine publishes the events of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvPublishing {
    /// Rank r publishes on this port + r; `None` = any run of free ports.
    pub port_base: Option<u16>,
    /// How missed batches can be asked for; `None` = not at all, as without `replay_endpoint`.
    pub replay: Option<KvReplay>,
}

/// How an engine replays the last batches of its KV events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvReplay {
    /// Rank r answers on this port + r; `None` = any run of free ports.
    pub port_base: Option<u16>,
    /// How many batches are kept per rank; the oldest are forgotten first.
    pub buffer_steps: usize,
    /// How many messages wait for a slow reader before the rest of its replay is dropped, end included; 0 = any number.
    /// The default is that of ZMQ, which SGLang leaves as it is.
    pub send_high_water_mark: u16,
}

impl Default for KvReplay {
    fn default() -> Self {
        Self { port_base: None, buffer_steps: 10_000, send_high_water_mark: 1_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_cannot_run_is_refused_with_the_field_in_the_error() {
        let cases = [
            ("dp_size", SimConfig { dp_size: 0, ..SimConfig::default() }),
            ("page_size", SimConfig { page_size: 0, ..SimConfig::default() }),
            ("max_running", SimConfig { max_running: 0, ..SimConfig::default() }),
            ("name", SimConfig { name: "two\nlines".to_owned(), ..SimConfig::default() }),
        ];
        for (expected, config) in cases {
            let Err(SimError::Config { field, .. }) = config.validate() else { panic!("{expected} was accepted") };
            assert_eq!(field, expected);
        }
        assert!(SimConfig::default().validate().is_ok());
    }
}
