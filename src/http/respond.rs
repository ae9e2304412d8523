//! Answers that the router gives itself. The only place that knows status codes.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{ContentType, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::config::InvalidWorker;
use crate::error::{ErrorSource, RouteError};
use crate::http::Edge;
use crate::logic::admin_set::ChangeRefusal;
use crate::telemetry::Telemetry;
use crate::wire::openai::error_body;

/// Header with the stable error code.
pub(super) const ERROR_CODE_HEADER: &str = "x-fathom-error-code";
/// Seconds after which a client may try again what failed for lack of room.
const RETRY_AFTER_SECS: &str = "1";

/// Returns the answer for the error, in the shape of OpenAI's errors.
pub(super) fn error(error: RouteError, telemetry: &Telemetry) -> HttpResponse {
    Telemetry::count(&telemetry.router_errors, error.code());
    tracing::debug!(code = error.code(), "answered with an error of the router");
    let kind = match error.source() {
        ErrorSource::Client => "invalid_request_error",
        ErrorSource::Engine | ErrorSource::Router => "server_error",
    };
    let status = status(error);
    let mut response = HttpResponse::build(status);
    response.insert_header(ContentType::json()).insert_header((ERROR_CODE_HEADER, error.code()));
    if status == StatusCode::UNAUTHORIZED {
        response.insert_header((WWW_AUTHENTICATE, "Bearer"));
    }
    if error.is_retryable() {
        response.insert_header((RETRY_AFTER, RETRY_AFTER_SECS));
    }
    if leaves_body_unread(error) {
        // The rest of the body may still be on its way: what follows on this connection cannot be told from it.
        response.force_close();
    }
    response.body(error_body(&error.to_string(), kind, error.code()))
}

/// Returns the status of the answer for the error.
pub(super) fn status(error: RouteError) -> StatusCode {
    match error {
        RouteError::InvalidBody
        | RouteError::TooManyPrompts
        | RouteError::BodyBroken
        | RouteError::InvalidPath
        | RouteError::InvalidHeader => StatusCode::BAD_REQUEST,
        RouteError::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        RouteError::InvalidApiKey | RouteError::InvalidAdminKey => StatusCode::UNAUTHORIZED,
        RouteError::AdminKeyRequired => StatusCode::FORBIDDEN,
        RouteError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        RouteError::UnknownModel | RouteError::UnknownWorker => StatusCode::NOT_FOUND,
        RouteError::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        RouteError::NoWorkerAvailable
        | RouteError::NoPrefillWorker
        | RouteError::NoDecodeWorker
        | RouteError::AllWorkersFailed
        | RouteError::WorkersFull
        | RouteError::Overloaded
        | RouteError::TooManyPages
        | RouteError::ShuttingDown
        | RouteError::SelectorUnavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn leaves_body_unread(error: RouteError) -> bool {
    matches!(
        error,
        RouteError::BodyTooLarge { .. }
            | RouteError::BodyBroken
            | RouteError::BodyTimeout
            | RouteError::InvalidHeader
            | RouteError::InvalidApiKey
            | RouteError::InvalidAdminKey
            | RouteError::AdminKeyRequired
            | RouteError::Overloaded
            | RouteError::ShuttingDown
    )
}

/// Why the operator's request is refused. The text names the key and the value.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminRefusal {
    /// For a reason that clients are told too.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The worker is described badly.
    #[error(transparent)]
    Worker(#[from] InvalidWorker),
    /// The change is against a rule.
    #[error(transparent)]
    Change(#[from] ChangeRefusal),
    /// A running worker cannot be changed in this way.
    #[error("{key}: {rule}")]
    Patch { key: String, rule: &'static str },
    /// The path has no such method.
    #[error("the path takes {allowed} only")]
    Method { allowed: &'static str },
}

impl AdminRefusal {
    fn code(&self) -> &'static str {
        match self {
            Self::Route(error) => error.code(),
            Self::Worker(_) => "worker_invalid",
            Self::Change(refusal) => refusal.code(),
            Self::Patch { .. } => "change_invalid",
            Self::Method { .. } => "method_not_allowed",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Route(error) => status(*error),
            Self::Worker(_) | Self::Patch { .. } | Self::Change(ChangeRefusal::Address { .. }) => {
                StatusCode::BAD_REQUEST
            }
            Self::Change(ChangeRefusal::UnknownWorker) => StatusCode::NOT_FOUND,
            Self::Change(ChangeRefusal::NotStored { .. }) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Change(_) => StatusCode::CONFLICT,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
        }
    }
}

/// Returns the answer for a refusal of the operator's request, in the shape of OpenAI's errors, and counts it.
pub(super) fn refusal(refusal: &AdminRefusal, telemetry: &Telemetry) -> HttpResponse {
    if let AdminRefusal::Route(route_error) = refusal {
        return error(*route_error, telemetry);
    }
    Telemetry::count(&telemetry.router_errors, refusal.code());
    tracing::warn!(code = refusal.code(), reason = %refusal, "change of the workers refused");
    refusal_uncounted(refusal)
}

/// Returns the same without a record.
pub(super) fn refusal_uncounted(refusal: &AdminRefusal) -> HttpResponse {
    let status = refusal.status();
    let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
    let mut response = HttpResponse::build(status);
    response.insert_header(ContentType::json()).insert_header((ERROR_CODE_HEADER, refusal.code()));
    response.body(error_body(&refusal.to_string(), kind, refusal.code()))
}

/// Returns a JSON answer of the router's own for the value.
pub(super) fn json_of(edge: &Edge, value: &impl serde::Serialize) -> HttpResponse {
    match serde_json::to_string(value) {
        Ok(body) => json(body),
        Err(_) => error(RouteError::SelectorUnavailable, &edge.ports.telemetry),
    }
}

/// Returns the answer as that to a request which made something.
pub(super) fn created(mut response: HttpResponse) -> HttpResponse {
    *response.status_mut() = StatusCode::CREATED;
    response
}

/// Returns a JSON answer of the router's own.
pub(super) fn json(body: String) -> HttpResponse {
    HttpResponse::Ok().insert_header(ContentType::json()).body(body)
}
