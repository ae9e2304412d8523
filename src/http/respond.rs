//! Answers that the router gives itself. The only place that knows status codes.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{ContentType, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::error::{ErrorSource, RouteError};
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
        RouteError::InvalidBody | RouteError::BodyBroken | RouteError::InvalidPath | RouteError::InvalidHeader => {
            StatusCode::BAD_REQUEST
        }
        RouteError::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        RouteError::InvalidApiKey | RouteError::InvalidAdminKey => StatusCode::UNAUTHORIZED,
        RouteError::AdminKeyRequired => StatusCode::FORBIDDEN,
        RouteError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        RouteError::UnknownModel | RouteError::UnknownWorker => StatusCode::NOT_FOUND,
        RouteError::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        RouteError::NoWorkerAvailable
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

/// Returns a JSON answer of the router's own.
pub(super) fn json(body: String) -> HttpResponse {
    HttpResponse::Ok().insert_header(ContentType::json()).body(body)
}
