//! An actor-based router for fleets of LLM inference engines. It sends each request to the engine that will answer soonest, by the
//! queue depth and the KV cache contents that the engines themselves publish over ZMQ, and falls back to its own in-flight count,
//! never to an error, when that picture is missing, partial or old.
//!
//! # The problem
//! A router's own in-flight counter sees neither other routers' traffic nor direct clients, and it holds a streaming request long
//! after the engine's scheduler let go of it. SGLang engines can publish their real load, one socket per data-parallel (DP) rank.
//! This crate subscribes to it. Three rules keep the result honest:
//! - **Complete and fresh, or not at all.** A worker's report counts only when every advertised rank has a report younger than
//!   the freshness window ([`logic::load`]).
//! - **Unlike quantities are never compared.** The basis (engine depth, or in-flight) is settled for the whole decision before
//!   anyone is priced ([`logic::price`]).
//! - **Missing is never zero.** Zero is the most attractive load there is.
//!
//! The same holds for caches: each rank's blocks are listed from its engine's own events ([`logic::prefix_index`]), and count only
//! as far as its stream of events can be believed ([`logic::kv_stream`]).
//!
//! # Life of a request
//! 1. [`http`](router::RouterHandle::configure) reads the body, looks at `model`, makes the prompt into tokens and block keys where
//!    some worker's cache can be looked up with them ([`prompt`], [`logic::block_hash`]), and sends [`messages::SelectWorker`].
//! 2. [`actors::SelectorActor`] sends [`messages::Collect`] to **every** worker. The round serves all requests that were waiting
//!    when it began; each [`actors::WorkerActor`] puts a frozen [`logic::snapshot::WorkerSnapshot`] into its slot, and how much of
//!    each prompt it holds. A worker that does not answer within the round deadline is not a candidate.
//! 3. [`logic::decide::decide`], a pure function of (request, frozen round, policy, seed, time), picks a worker and up to three
//!    fallbacks. [`messages::Reserve`] reaches that worker before any later round can ask it.
//! 4. The proxy sends the client's bytes on. What is tried again on a fallback is in [`logic::retry`]; after the first byte nothing
//!    is. Chunks pass as they come.
//! 5. The reservation travels with the answer's body and ends with it, or with the client; its drop sends
//!    [`messages::RequestFinished`].
//!
//! # Embed
//! ```no_run
//! use actix_web::{App, HttpServer, web};
//! use fathom_router::{Endpoint, Router, RouterConfig, WorkerUrl};
//!
//! # #[actix::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = RouterConfig::default();
//! config.workers = vec![Endpoint::new(WorkerUrl::parse("http://10.0.0.1:30000")?)];
//! let router = Router::builder().config(config).start().await?;
//! let routes = router.configure();
//! HttpServer::new(move || App::new().service(web::scope("/llm").configure(routes.clone())))
//!     .h1_allow_half_closed(false) // a client that leaves ends the engine's work at once
//!     .tcp_nodelay(true) // the first chunk of a stream leaves at once
//!     .bind(("127.0.0.1", 8080))?
//!     .run()
//!     .await?;
//! router.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Extend
//! | what | how | example |
//! |---|---|---|
//! | settings | [`RouterConfig`], or the same keys in a file, in the environment, or as flags | `fathom --help` |
//! | a policy | implement [`Policy`], pass it to [`RouterBuilder::policy`](router::RouterBuilder::policy) | `custom_policy` |
//! | a selector | an actor for [`messages::SelectWorker`] behind [`SelectorPorts`](router::SelectorPorts) | `custom_selector` |
//! | a discovery source | an actor that sends [`messages::EndpointsChanged`] | `custom_discovery` |
//! | a worker | [`RouterBuilder::worker_factory`](router::RouterBuilder::worker_factory) | |
//! | an observer | an actor for [`messages::RouterEvent`] | `custom_discovery`, `quickstart` |
//!
//! # Run
//! The [`manual`] tells more of each: the [life of a request](manual::life_of_a_request), the [policies](manual::policies), what
//! happens where the picture fails ([degradations](manual::degradations)), how to [extend](manual::extending) and to
//! [operate](manual::operating) the router, and what the flags of sglang-router become
//! ([migrating](manual::migrating_from_sglang_router)).
//!
//! # Where to find what
//! | question | place |
//! |---|---|
//! | why was this worker chosen? | [`logic::decide`], then [`logic::policy`] |
//! | what does a frame do? | [`wire`], then [`logic::load`] |
//! | what does a KV event do? | [`wire::kv_event`], then [`logic::kv_stream`] and [`logic::prefix_index`] |
//! | why has a prompt no match? | `fathom_prompts_total`, then [`prompt`] and `/workers` |
//! | which DP rank? | [`logic::rank_choice`], [`logic::ranks`] |
//! | how do prefill and decode meet? | [`logic::role`], [`logic::rooms`], `http/pairs.rs` |
//! | who sends this message? | [`messages`] |
//! | when is a worker started or replaced? | [`logic::membership`], [`actors::RegistryActor`] |
//! | which status code? | `http/respond.rs` |
//! | what is the default? | [`config`] |
//! | how is it wired? | [`router`] |
//!
//! # What it is not
//! It starts no engines and moves no KV cache. `actix`, the actor crate, is in passive maintenance: it stays behind the messages of
//! this crate, and only [`messages`] and [`router`] show its types.

pub mod actors;
pub mod clock;
pub mod config;
pub mod error;
mod feed;
mod http;
pub mod logic;
pub mod manual;
pub mod messages;
pub mod process;
pub mod prompt;
pub mod router;
pub mod server;
#[cfg(feature = "sim")]
pub mod sim;
pub mod telemetry;
mod upstream;
pub mod wire;

pub use config::RouterConfig;
pub use error::{RouteError, StartError};
pub use logic::endpoint::{Endpoint, WorkerUrl};
pub use logic::policy::{Pick, Policy, View};
pub use logic::request::RequestFacts;
pub use logic::rng::Rng;
pub use logic::snapshot::WorkerSnapshot;
pub use router::{Router, RouterHandle};

/// Compiles the README's code.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
