//! The HTTP edge: the route table, and what its handlers share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use actix::prelude::Recipient;
use actix_web::guard;
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};

use crate::config::HttpSettings;
use crate::logic::retry::RetryBudget;
use crate::logic::rooms::OpenRooms;
use crate::logic::variant_board::VariantBoard;
use crate::messages::{ChangeWorkers, SelectWorker, ShowFleet};
use crate::prompt::{PromptKind, Prompts};
use crate::telemetry::Telemetry;
use crate::upstream::EngineClient;

mod access;
mod admin;
mod admin_kv;
mod admin_ranks;
mod admin_workers;
mod body;
mod dashboard;
mod dashboard_frame;
mod departure;
mod fleet_metrics;
mod handlers;
mod headers;
mod in_flight;
mod pairs;
mod prompt;
mod proxy;
mod ranks;
mod record;
mod respond;

pub(crate) use access::Access;
pub(crate) use dashboard::Board;
pub(crate) use in_flight::Gate;
pub(crate) use record::Tracer;

/// Paths that are forwarded with a JSON body, which must name the model where the interface has one, and whose prompts they take.
const JSON_PATHS: [(&str, Option<PromptKind>); 12] = [
    ("/v1/chat/completions", Some(PromptKind::Chat)),
    ("/v1/completions", Some(PromptKind::Completion)),
    ("/generate", Some(PromptKind::Generate)),
    ("/v1/responses", None),
    ("/v1/messages", None),
    ("/v1/embeddings", None),
    ("/v1/rerank", None),
    ("/v1/score", None),
    ("/rerank", None),
    ("/score", None),
    ("/classify", None),
    ("/encode", None),
];
/// Everything else below `/v1` is passed through, tracked like the rest.
const OTHER_PATHS: &str = "/v1/{path:.*}";

/// What the edge needs of the rest of the router. Shared by all HTTP threads.
#[derive(Debug, Clone)]
pub(crate) struct EdgePorts {
    pub(crate) selector: Recipient<SelectWorker>,
    pub(crate) fleet: Recipient<ShowFleet>,
    pub(crate) change_workers: Recipient<ChangeWorkers>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) telemetry: Telemetry,
    /// Where spans go; `None` where nobody collects them.
    pub(crate) tracer: Option<Tracer>,
    pub(crate) settings: HttpSettings,
    pub(crate) access: Access,
    pub(crate) freshness: std::time::Duration,
    pub(crate) stream_idle_timeout: std::time::Duration,
    /// Whether whoever selects looks at prompts.
    pub(crate) wants_prompts: Arc<AtomicBool>,
    pub(crate) prompts: Prompts,
    pub(crate) variants: VariantBoard,
    pub(crate) retry_budget: Arc<RetryBudget>,
    /// The rooms in which pairs of engines meet.
    pub(crate) rooms: OpenRooms,
    /// Name of the policy that decides.
    pub(crate) policy: Arc<Mutex<&'static str>>,
    /// What open pages of the operator share.
    pub(crate) board: Arc<Board>,
}

/// What the handlers of one HTTP thread share.
#[derive(Debug)]
struct Edge {
    ports: EdgePorts,
    client: EngineClient,
}

/// Adds what tells how the router fares, at whatever scope `services` stands for.
pub(crate) fn add_metrics_routes(services: &mut ServiceConfig, ports: EdgePorts, client: EngineClient) {
    services.app_data(web::Data::new(Edge { ports, client }));
    services
        .route("/healthz", web::get().to(admin::healthz))
        .route("/readyz", web::get().to(admin::readyz))
        // What engines call their own, and load balancers in front of them ask for.
        .route("/health", web::get().to(admin::readyz));
    let metrics = web::resource("/metrics").guard(guard::Get()).wrap(from_fn(access::admin_only));
    services.service(metrics.route(web::get().to(admin::metrics)));
}

/// Adds the router's routes, at whatever scope `services` stands for. Called once on each HTTP thread.
pub(crate) fn add_routes(services: &mut ServiceConfig, ports: EdgePorts, client: EngineClient) {
    add_metrics_routes(services, ports, client);
    let page = web::resource("/dashboard").guard(guard::Get()).wrap(from_fn(access::page_only));
    services.service(page.route(web::get().to(dashboard::page)));
    let admin_routes = [
        ("/dashboard/events", web::get().to(dashboard::events)),
        ("/workers/{id}/kv_blocks", web::get().to(admin_kv::blocks)),
    ];
    for (path, route) in admin_routes {
        services.service(web::resource(path).guard(guard::Get()).wrap(from_fn(access::admin_only)).route(route));
    }
    add_worker_routes(services);
    let models = web::resource("/v1/models").guard(guard::Get()).wrap(from_fn(access::clients_only));
    services.service(models.route(web::get().to(admin::models)));
    for (path, prompt) in JSON_PATHS {
        let route = handlers::EngineRoute::json(path, prompt);
        let resource = web::resource(path).app_data(route).wrap(from_fn(access::clients_only));
        services.service(resource.route(web::post().to(handlers::forward)));
    }
    let others = web::resource(OTHER_PATHS).app_data(handlers::EngineRoute::any(OTHER_PATHS));
    services.service(others.wrap(from_fn(access::clients_only)).route(web::route().to(handlers::forward)));
}

fn add_worker_routes(services: &mut ServiceConfig) {
    let all = admin_workers::resource("/workers").wrap(from_fn(access::admin_only));
    let all = all.route(web::get().to(admin::workers)).route(web::head().to(admin::workers));
    services.service(all.route(web::post().to(admin_workers::add)));
    // Addresses have slashes, so whatever stands between is the name.
    let drain = admin_workers::resource("/workers/{name:.+}/drain").wrap(from_fn(access::admin_only));
    services.service(drain.route(web::route().to(admin_workers::drain)));
    let one = admin_workers::resource("/workers/{name:.+}").wrap(from_fn(access::admin_only));
    services.service(one.route(web::route().to(admin_workers::worker)));
}
