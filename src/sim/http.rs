//! The routes of the engine.
//!
//! Headers are sent when the prompt has been computed, as SGLang does: until then a handler waits, in the queue or in
//! prefill. The server is told not to allow half-closed connections, since otherwise a client that leaves during that
//! time would be noticed only at the first write.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{Server, Service};
use actix_web::http::StatusCode;
use actix_web::http::header::{self, ContentType, HeaderName};
use actix_web::middleware::DefaultHeaders;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use serde_json::json;
use thiserror::Error;
use tokio::sync::mpsc;

use super::call::{BadCall, Call, CallKind, Delivery};
use super::clock;
use super::config::{BindScope, KvEvents, LoadPaths, SimPart};
use super::cut;
use super::error::SimError;
use super::fault::{ResponseMode, ServerInfoMode};
use super::generation::{Generation, Plan};
use super::kv_cache::Lease;
use super::load_answer;
use super::meeting;
use super::reply::{self, Reply};
use super::scheduler::{Prefill, RankOutOfRange};
use super::server_info;
use super::slot::Slot;
use super::state::EngineState;

const ENGINE_HEADER: HeaderName = HeaderName::from_static("x-sim-engine");
const RANK_HEADER: &str = "x-data-parallel-rank";

/// The largest request body; a router must be able to forward long contexts.
const MAX_BODY_BYTES: usize = 64 << 20;

/// What a prefill that never ends takes in addition; timers stop at some decades.
const FOREVER: Duration = Duration::MAX;

/// How long a polite stop waits for running requests.
const SHUTDOWN_TIMEOUT_SECONDS: u64 = 3;

thread_local! {
    /// Goes with the thread that serves an engine, after everything that ran on it: the server's own stop resolves
    /// earlier, while connections are still open.
    static SERVING: Cell<Option<mpsc::Sender<()>>> = const { Cell::new(None) };
}

/// A server that is bound and has to be polled.
pub(super) struct Serving {
    pub(super) address: SocketAddr,
    pub(super) server: Server,
    /// Yields `None` when the last connection is closed.
    pub(super) ended: mpsc::Receiver<()>,
}

/// Binds the port of the engine and serves it on one thread.
pub(super) fn serve(state: Arc<EngineState>) -> Result<Serving, SimError> {
    let port = state.config.port;
    let http_error = |source| SimError::Http { port, source };
    let host = match state.config.scope {
        BindScope::Loopback => Ipv4Addr::LOCALHOST,
        BindScope::AllInterfaces => Ipv4Addr::UNSPECIFIED,
    };
    let state = web::Data::from(state);
    let (serving, ended) = mpsc::channel(1);
    let server = HttpServer::new(move || {
        SERVING.set(Some(serving.clone()));
        let counter = state.clone();
        App::new()
            .wrap(DefaultHeaders::new().add((ENGINE_HEADER, state.name_header.clone())))
            .wrap_fn(move |request, service| {
                counter.count_request(request.path());
                service.call(request)
            })
            .app_data(state.clone())
            .app_data(web::PayloadConfig::new(MAX_BODY_BYTES))
            .configure(routes)
    })
    .workers(1)
    .h1_allow_half_closed(false)
    .tcp_nodelay(true)
    .disable_signals()
    .shutdown_timeout(SHUTDOWN_TIMEOUT_SECONDS)
    .bind((host, port))
    .map_err(http_error)?;
    let Some(address) = server.addrs().first().copied() else {
        return Err(http_error(io::ErrorKind::AddrNotAvailable.into()));
    };
    Ok(Serving { address, server: server.run(), ended })
}

fn routes(app: &mut web::ServiceConfig) {
    app.route("/health", web::get().to(HttpResponse::Ok))
        .route("/health_generate", web::get().to(HttpResponse::Ok))
        .route("/v1/models", web::get().to(models))
        .route("/server_info", web::get().to(describe))
        .route("/get_server_info", web::get().to(describe))
        .route("/flush_cache", web::get().to(flush_cache))
        .route("/flush_cache", web::post().to(flush_cache))
        .route("/v1/loads", web::get().to(loads))
        .route("/metrics", web::get().to(metrics))
        .route("/generate", web::post().to(infer))
        .route("/v1/{rest:.+}", web::post().to(infer))
        .default_service(web::to(not_found));
}

async fn models(engine: web::Data<EngineState>) -> HttpResponse {
    HttpResponse::Ok().json(server_info::models(&engine.config, engine.created))
}

async fn loads(engine: web::Data<EngineState>) -> HttpResponse {
    match engine.config.load_paths {
        LoadPaths::SgLang => {
            HttpResponse::Ok().json(load_answer::v1_loads(&engine.pool.loads(), clock::wall_seconds()))
        }
        LoadPaths::Vllm | LoadPaths::Nowhere => not_found().await,
    }
}

async fn metrics(engine: web::Data<EngineState>) -> HttpResponse {
    match engine.config.load_paths {
        LoadPaths::Vllm => {
            let text = load_answer::vllm_metrics(&engine.pool.loads(), &engine.config.model, engine.config.page_size);
            HttpResponse::Ok().content_type(ContentType::plaintext()).body(text)
        }
        LoadPaths::SgLang | LoadPaths::Nowhere => not_found().await,
    }
}

async fn not_found() -> HttpResponse {
    HttpResponse::NotFound().json(json!({"detail": "Not Found"}))
}

async fn describe(engine: web::Data<EngineState>, request: HttpRequest) -> HttpResponse {
    let description = |kv_events| server_info::describe(&engine.config, engine.ports, kv_events);
    let truth = || description(engine.config.kv_events);
    match engine.server_info_mode() {
        ServerInfoMode::Normal => HttpResponse::Ok().json(truth()),
        ServerInfoMode::NotFound => not_found().await,
        ServerInfoMode::Unauthorized { bearer } if carries_bearer(&request, &bearer) => {
            HttpResponse::Ok().json(truth())
        }
        ServerInfoMode::Unauthorized { .. } => HttpResponse::Unauthorized().json(json!({"error": "Unauthorized"})),
        ServerInfoMode::Status(status) => HttpResponse::build(status_code(status)).finish(),
        ServerInfoMode::Hang => std::future::pending().await,
        ServerInfoMode::BrokenBody => cut::half_way(&truth().to_string().into()),
        ServerInfoMode::NotJson => HttpResponse::Ok().content_type(ContentType::html()).body("<html>warming up</html>"),
        ServerInfoMode::NoKvEvents => HttpResponse::Ok().json(description(KvEvents::Null)),
        ServerInfoMode::AbsentKvEvents => HttpResponse::Ok().json(description(KvEvents::Absent)),
        ServerInfoMode::Custom(body) => HttpResponse::Ok().json(body),
    }
}

async fn flush_cache(engine: web::Data<EngineState>) -> HttpResponse {
    if engine.kv.flush() {
        HttpResponse::Ok().body("Cache flushed.\n")
    } else {
        HttpResponse::BadRequest().body("The cache is in use by running requests and was not flushed.\n")
    }
}

async fn infer(engine: web::Data<EngineState>, request: HttpRequest, body: Bytes) -> HttpResponse {
    engine.keep_request(&request, &body);
    let mode = engine.response_mode();
    match mode {
        ResponseMode::Status(status, body) => {
            HttpResponse::build(status_code(status)).content_type(ContentType::json()).body(body)
        }
        ResponseMode::ResetBeforeHeaders => cut::before_headers(),
        ResponseMode::Normal => answer(&engine, &request, &body, Course::default()).await,
        ResponseMode::BreakAfterChunks(num_chunks) => {
            answer(&engine, &request, &body, Course { break_after: Some(num_chunks), ..Course::default() }).await
        }
        ResponseMode::FirstTokenDelay(delay) => {
            answer(&engine, &request, &body, Course { delay, ..Course::default() }).await
        }
        ResponseMode::HangBeforeHeaders => {
            answer(&engine, &request, &body, Course { delay: FOREVER, ..Course::default() }).await
        }
    }
}

/// How a request that takes a slot is to fare.
#[derive(Debug, Clone, Copy, Default)]
struct Course {
    delay: Duration,
    break_after: Option<u64>,
}

async fn answer(engine: &EngineState, request: &HttpRequest, body: &Bytes, course: Course) -> HttpResponse {
    let (mut call, slot) = match admit(engine, request, body).await {
        Ok(admitted) => admitted,
        Err(refusal) => return refusal.response(),
    };
    let mut lease = engine.kv.lease(slot.rank(), std::mem::take(&mut call.prompt), call.cache_salt.take());
    let output_tokens = match share(engine, &call, &slot, &mut lease, course.delay).await {
        Ok(output_tokens) => output_tokens,
        Err(failure) => {
            slot.fail();
            return failure.response();
        }
    };
    let plan = Plan {
        output_tokens,
        token_time: engine.config.token_time,
        delivery: call.delivery,
        break_after: course.break_after,
    };
    let reply = reply_to(engine, request, call, &slot, &lease);
    let generation = Generation::new(lease, slot, reply, plan, clock::now());
    match plan.delivery {
        Delivery::Unary => in_one_piece(generation, course).await,
        Delivery::Stream | Delivery::StreamWithUsage => HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, "text/event-stream; charset=utf-8"))
            .streaming(generation.into_stream()),
    }
}

/// Does the engine's part of the prompt, and returns how many tokens it is to generate.
async fn share(
    engine: &EngineState,
    call: &Call,
    slot: &Slot,
    lease: &mut Lease,
    delay: Duration,
) -> Result<u64, PairFailure> {
    let part = engine.config.part;
    if part == SimPart::Whole || call.kind == CallKind::Echo || call.kind == CallKind::Embedding {
        prefill(engine, call, slot, lease, delay).await;
        return Ok(call.output_tokens);
    }
    let bootstrap = call.bootstrap.as_ref().ok_or(PairFailure::NoRoom)?;
    if part == SimPart::Decode {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        for room in &bootstrap.rooms {
            if !meeting::fetch(&bootstrap.host, bootstrap.port, *room, engine.config.pair_patience).await {
                return Err(PairFailure::NothingFetched);
            }
        }
        lease.prefilled();
        slot.prefilled(Prefill { cached_tokens: lease.cached_tokens(), busy: Duration::ZERO });
        return Ok(call.output_tokens);
    }
    if Some(bootstrap.port) != engine.ports.bootstrap {
        return Err(PairFailure::OtherPort);
    }
    let rooms = engine.rooms.enter(&bootstrap.rooms).ok_or(PairFailure::RoomTaken)?;
    prefill(engine, call, slot, lease, delay).await;
    if rooms.hand_over().await { Ok(call.output_tokens.min(1)) } else { Err(PairFailure::NobodyCame) }
}

/// Why a part of a request failed.
#[derive(Debug, Error)]
enum PairFailure {
    #[error("a request without a bootstrap room reached an engine that does a part of it")]
    NoRoom,
    #[error("the bootstrap port is another engine's")]
    OtherPort,
    #[error("the bootstrap room is taken")]
    RoomTaken,
    #[error("no decode engine came to fetch the result")]
    NobodyCame,
    #[error("the prefill engine had no result")]
    NothingFetched,
}

impl PairFailure {
    fn response(&self) -> HttpResponse {
        match self {
            Self::NoRoom | Self::OtherPort | Self::RoomTaken => {
                HttpResponse::BadRequest().json(reply::error(400, "BadRequestError", &self.to_string()))
            }
            Self::NobodyCame | Self::NothingFetched => {
                HttpResponse::InternalServerError().json(reply::error(500, "InternalServerError", &self.to_string()))
            }
        }
    }
}

async fn admit(engine: &EngineState, request: &HttpRequest, body: &Bytes) -> Result<(Call, Slot), Refusal> {
    let kind = CallKind::of_path(request.path());
    let call = Call::parse(kind, body, engine.config.max_model_len, &engine.config.tokenizer)?;
    let slot = engine.pool.admit(named_rank(engine, kind, request, &call)?, call.prompt_tokens).await?;
    Ok((call, slot))
}

/// Takes the time of the tokens that are not cached.
async fn prefill(engine: &EngineState, call: &Call, slot: &Slot, lease: &mut Lease, delay: Duration) {
    let cached_tokens = lease.cached_tokens();
    let uncached_tokens = u32::try_from(call.prompt_tokens.saturating_sub(cached_tokens)).unwrap_or(u32::MAX);
    let busy = engine.config.prefill_time_per_token.saturating_mul(uncached_tokens);
    let pause = busy.saturating_add(delay);
    // A timer takes up to a millisecond even for nothing.
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    lease.prefilled();
    slot.prefilled(Prefill { cached_tokens, busy });
}

fn reply_to(engine: &EngineState, request: &HttpRequest, call: Call, slot: &Slot, lease: &Lease) -> Reply {
    Reply {
        kind: call.kind,
        id: format!("{}-{}", engine.config.name, slot.id()),
        path: request.path().to_owned(),
        model: call.model.unwrap_or_else(|| engine.config.model.clone()),
        created: engine.created,
        prompt_tokens: call.prompt_tokens,
        cached_tokens: engine.config.cache_report.then(|| lease.cached_tokens()),
        num_inputs: call.num_inputs,
    }
}

async fn in_one_piece(generation: Generation, course: Course) -> HttpResponse {
    let (body, slot) = generation.into_unary().await;
    if course.break_after.is_some() {
        slot.fail();
        return cut::half_way(&body);
    }
    slot.complete();
    HttpResponse::Ok().content_type(ContentType::json()).body(body)
}

/// The OpenAI routes read the header, and the body where there is none; `/generate` reads the body only, as in SGLang.
fn named_rank(
    engine: &EngineState,
    kind: CallKind,
    request: &HttpRequest,
    call: &Call,
) -> Result<Option<u32>, Refusal> {
    let header = request.headers().get(RANK_HEADER).filter(|_| kind != CallKind::Generate);
    let number = match header.map(|value| (value, value.to_str().ok().and_then(|text| text.parse().ok()))) {
        Some((_, Some(number))) => Some(number),
        Some((value, None)) => return Err(Refusal::RankNotANumber(value.as_bytes().escape_ascii().to_string())),
        None => call.named_rank,
    };
    let Some(number) = number else { return Ok(rank_of_room(engine, call)) };
    let (first, count) = (engine.config.first_rank, engine.config.dp_size);
    match number.checked_sub(first).filter(|rank| *rank < count) {
        Some(rank) => Ok(Some(rank)),
        None => Err(Refusal::ForeignRank { number, first, last: first + count - 1 }),
    }
}

/// A prefill engine gives a request to the rank that is the remainder of its room (`follow_bootstrap_room`).
fn rank_of_room(engine: &EngineState, call: &Call) -> Option<u32> {
    let room = call.bootstrap.as_ref()?.rooms.first()?;
    let rank = room % u64::from(engine.config.dp_size);
    (engine.config.part == SimPart::Prefill).then(|| u32::try_from(rank).unwrap_or_default())
}

fn carries_bearer(request: &HttpRequest, bearer: &str) -> bool {
    let expected = format!("Bearer {bearer}");
    request.headers().get(header::AUTHORIZATION).is_some_and(|value| value.as_bytes() == expected.as_bytes())
}

fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Why a request is answered with 400.
#[derive(Debug, Error)]
enum Refusal {
    #[error(transparent)]
    Body(#[from] BadCall),
    #[error("{RANK_HEADER} is not a number: {0}")]
    RankNotANumber(String),
    #[error("data_parallel_rank {number} is out of range [{first}, {last}]")]
    ForeignRank { number: u32, first: u32, last: u32 },
    #[error(transparent)]
    Rank(#[from] RankOutOfRange),
}

impl Refusal {
    fn response(&self) -> HttpResponse {
        HttpResponse::BadRequest().json(reply::error(400, "BadRequestError", &self.to_string()))
    }
}
