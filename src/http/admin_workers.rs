//! Adding, suspending, draining and removing workers while the router runs. The rules are in `logic::admin_set`; the actor behind
//! the port carries them out.
//!
//! Behind the operator's key like `/workers` itself. A worker is named by its id or by its address in any spelling.

use std::time::Duration;

use actix_web::http::Method;
use actix_web::http::header::{ALLOW, CONTENT_LENGTH};
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::clock;
use crate::config::{process_environment, read_worker};
use crate::error::RouteError;
use crate::http::admin::{WorkerAnswer, fleet, worker_answer};
use crate::http::respond::{self, AdminRefusal};
use crate::http::{Edge, body};
use crate::logic::admin_set::{ChangeRefusal, WorkerChange, WorkerName};
use crate::logic::endpoint::Readiness;
use crate::messages::{ChangeWorkers, FleetMember, WorkersAfter};

/// Bytes of the largest object read; a worker with hundreds of model names fits.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// How long a change may take. It waits for the workers' snapshots and for the disk.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct ChangeAnswer<'a> {
    /// The worker after the change; null where there is none any more.
    worker: Option<WorkerAnswer>,
    url: &'a str,
    /// Requests of this router that still run there.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u32>,
}

/// Returns the resource at the path with its methods; any other method is told which there are.
pub(super) fn resource(path: &'static str) -> actix_web::Resource {
    web::resource(path).default_service(web::to(not_allowed))
}

/// Serves the worker: one, or its readiness, or its end.
pub(super) async fn worker(
    edge: web::Data<Edge>,
    request: HttpRequest,
    name: web::Path<String>,
    payload: web::Payload,
) -> HttpResponse {
    let result = match *request.method() {
        Method::GET => one(&edge, &name).await,
        Method::PATCH => patched(&edge, &request, &name, payload).await,
        Method::DELETE => removed(&edge, &name).await,
        _ => return not_allowed(request).await,
    };
    result.unwrap_or_else(|refusal| respond::refusal(&refusal, &edge.ports.telemetry))
}

/// Adds a worker.
pub(super) async fn add(edge: web::Data<Edge>, request: HttpRequest, payload: web::Payload) -> HttpResponse {
    let added = added(&edge, &request, payload).await;
    added.unwrap_or_else(|refusal| respond::refusal(&refusal, &edge.ports.telemetry))
}

/// Gives a worker no new requests, or gives it some again.
pub(super) async fn drain(edge: web::Data<Edge>, request: HttpRequest, name: web::Path<String>) -> HttpResponse {
    let readiness = match *request.method() {
        Method::POST => Readiness::Suspended,
        Method::DELETE => Readiness::Ready,
        _ => return not_allowed(request).await,
    };
    let drained = suspended(&edge, &name, readiness).await;
    drained.unwrap_or_else(|refusal| respond::refusal(&refusal, &edge.ports.telemetry))
}

async fn not_allowed(request: HttpRequest) -> HttpResponse {
    let path = request.match_pattern().unwrap_or_default();
    let allowed = match path.rsplit('/').next() {
        Some("workers") => "GET, HEAD, POST",
        Some("drain") => "POST, DELETE",
        _ => "GET, PATCH, DELETE",
    };
    let mut response = respond::refusal_uncounted(&AdminRefusal::Method { allowed });
    if let Ok(value) = allowed.parse() {
        response.headers_mut().insert(ALLOW, value);
    }
    response
}

async fn one(edge: &Edge, name: &str) -> Result<HttpResponse, AdminRefusal> {
    let name = parse(name)?;
    let mut members = fleet(edge).await?.into_iter();
    let is_meant = |member: &FleetMember| match &name {
        WorkerName::Id(id) => member.id == *id,
        WorkerName::Url(url) => member.url == *url,
    };
    let member = members.find(is_meant).ok_or(ChangeRefusal::UnknownWorker)?;
    Ok(respond::json_of(edge, &worker_answer(&member, edge.ports.freshness, clock::now())))
}

async fn added(edge: &Edge, request: &HttpRequest, payload: web::Payload) -> Result<HttpResponse, AdminRefusal> {
    let body = read(edge, request, payload).await?;
    let worker = read_worker(&body, &process_environment)?;
    let after = change(edge, WorkerChange::Add(worker)).await?;
    let response = answer(edge, &after, None);
    Ok(if after.is_new { respond::created(response) } else { response })
}

async fn patched(
    edge: &Edge,
    request: &HttpRequest,
    name: &str,
    payload: web::Payload,
) -> Result<HttpResponse, AdminRefusal> {
    let body = read(edge, request, payload).await?;
    let object: Map<String, Value> = serde_json::from_slice(&body).map_err(|_| RouteError::InvalidBody)?;
    if let Some(key) = object.keys().find(|key| *key != "readiness") {
        let key: String = key.chars().take(64).flat_map(char::escape_debug).collect();
        return Err(AdminRefusal::Patch { key, rule: "cannot be changed: remove the worker and add it anew" });
    }
    let readiness = match object.get("readiness").and_then(Value::as_str) {
        Some("ready") => Readiness::Ready,
        Some("suspended") => Readiness::Suspended,
        _ => return Err(AdminRefusal::Patch { key: "readiness".to_owned(), rule: "must be ready or suspended" }),
    };
    suspended(edge, name, readiness).await
}

async fn suspended(edge: &Edge, name: &str, readiness: Readiness) -> Result<HttpResponse, AdminRefusal> {
    let after = change(edge, WorkerChange::SetReadiness(parse(name)?, readiness)).await?;
    let snapshot = after.member.as_ref().and_then(|member| member.snapshot.as_ref());
    let left = snapshot.map(|snapshot| snapshot.in_flight);
    Ok(answer(edge, &after, left))
}

async fn removed(edge: &Edge, name: &str) -> Result<HttpResponse, AdminRefusal> {
    let after = change(edge, WorkerChange::Remove(parse(name)?)).await?;
    Ok(answer(edge, &after, None))
}

async fn change(edge: &Edge, change: WorkerChange) -> Result<WorkersAfter, AdminRefusal> {
    let changed = edge.ports.change_workers.send(ChangeWorkers(change));
    match tokio::time::timeout(CHANGE_TIMEOUT, changed).await {
        Ok(Ok(changed)) => Ok(changed?),
        Ok(Err(_)) | Err(_) => Err(RouteError::SelectorUnavailable.into()),
    }
}

fn answer(edge: &Edge, after: &WorkersAfter, left: Option<u32>) -> HttpResponse {
    let now = clock::now();
    let worker = after.member.as_ref().map(|member| worker_answer(member, edge.ports.freshness, now));
    respond::json_of(edge, &ChangeAnswer { worker, url: after.url.as_str(), left })
}

fn parse(name: &str) -> Result<WorkerName, AdminRefusal> {
    WorkerName::parse(name).ok_or(AdminRefusal::Change(ChangeRefusal::UnknownWorker))
}

async fn read(edge: &Edge, request: &HttpRequest, mut payload: web::Payload) -> Result<web::Bytes, RouteError> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    body::read(&mut payload, announced, MAX_BODY_BYTES, edge.ports.settings.client_timeout).await
}
