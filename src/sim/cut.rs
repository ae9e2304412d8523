//! Answers that end before they are whole.
//!
//! actix-web closes the connection when a response body fails. What it had not written by then is lost; hence the
//! yield before a failure, which lets it write everything up to that point.

use actix_web::HttpResponse;
use actix_web::body::SizedStream;
use actix_web::http::header::ContentType;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use thiserror::Error;

/// The failure of a body that was told to fail.
#[derive(Debug, Error)]
#[error("the simulated engine was told to break this answer")]
pub(super) struct Cut;

impl Cut {
    /// Lets everything leave that was sent so far, and fails.
    pub(super) async fn after_flush<T>() -> Result<T, Self> {
        tokio::task::yield_now().await;
        Err(Self)
    }
}

/// Returns an answer of which not a byte leaves.
pub(super) fn before_headers() -> HttpResponse {
    HttpResponse::Ok().streaming(stream::iter([Err::<Bytes, _>(Cut)]))
}

/// Returns an answer that announces the length of `body` and ends after half of it.
pub(super) fn half_way(body: &Bytes) -> HttpResponse {
    let half = body.slice(..body.len() / 2);
    let pieces = stream::iter([Ok(half)]).chain(stream::once(Cut::after_flush()));
    HttpResponse::Ok().content_type(ContentType::json()).body(SizedStream::new(body.len() as u64, pieces))
}
