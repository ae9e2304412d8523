//! Asks one engine what it serves and where it publishes. The rules are in `logic::introspect`; this carries them out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::config::IntrospectionSettings;
use crate::logic::endpoint::{Endpoint, WorkerFacts};
use crate::logic::introspect::{EngineAnswer, Failure, facts, retry_after};
use crate::upstream::{EngineClient, UpstreamError};
use crate::wire::openai::{ModelObject, decode_models};
use crate::wire::server_info::{Advertised, decode_server_info};

/// Bytes of the largest answer read. A real `/server_info` has under 20 KiB.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Asks the engine, with the retries of the settings. Where `health_path` is given, an engine that answers 503 there is not ready.
pub(super) async fn introspect(
    client: &EngineClient,
    endpoint: &Endpoint,
    settings: &IntrospectionSettings,
    health_path: Option<&str>,
) -> Result<WorkerFacts, Failure> {
    let engine = Engine { client, endpoint, settings };
    let mut answer = if endpoint.overrides.feeds.is_some() && !endpoint.overrides.models.is_empty() {
        EngineAnswer::default()
    } else {
        engine.server_info().await?
    };
    match engine.models().await {
        Ok(models) => {
            answer.adapters = models.iter().filter(|m| m.is_adapter).map(|m| Arc::clone(&m.id)).collect();
            answer.models = models.into_iter().map(|model| (model.id, model.json)).collect();
        }
        // An engine without the list can still be served under the names known otherwise; one that is not there cannot.
        Err(failure @ (Failure::NotFound | Failure::Refused | Failure::Unreadable)) => {
            if answer.served_model_name.is_none() && answer.model_path.is_none() && endpoint.overrides.models.is_empty()
            {
                return Err(failure);
            }
        }
        Err(failure) => return Err(failure),
    }
    let facts = facts(endpoint, answer).ok_or(Failure::NotFound)?;
    match health_path {
        Some(path) if engine.says_not_ready(path).await => Err(Failure::NotReady),
        Some(_) | None => Ok(facts),
    }
}

struct Engine<'a> {
    client: &'a EngineClient,
    endpoint: &'a Endpoint,
    settings: &'a IntrospectionSettings,
}

impl Engine<'_> {
    async fn server_info(&self) -> Result<EngineAnswer, Failure> {
        let body = match self.fetch("/server_info").await {
            Err(Failure::NotFound) => self.fetch("/get_server_info").await,
            other => other,
        };
        let info = match body {
            Ok(body) => decode_server_info(&body).map_err(|_| Failure::Unreadable)?,
            // Not every engine has it; such a one is asked for its models only.
            Err(Failure::NotFound) => return Ok(EngineAnswer::default()),
            Err(failure) => return Err(failure),
        };
        let feeds = match info.feeds {
            Advertised::Nothing => None,
            Advertised::Descriptor(descriptor) => Some(Ok(descriptor)),
            Advertised::Refused(refusal) => Some(Err(refusal)),
        };
        Ok(EngineAnswer {
            served_model_name: info.served_model_name,
            model_path: info.model_path,
            version: info.version,
            speaks_http2: info.enable_http2,
            owned_ranks: info.owned_ranks,
            dp_size: info.dp_size,
            role: info.role,
            feeds,
            ..EngineAnswer::default()
        })
    }

    async fn models(&self) -> Result<Vec<ModelObject>, Failure> {
        let body = self.fetch("/v1/models").await?;
        decode_models(&body).map_err(|_| Failure::Unreadable)
    }

    /// Asked once: an engine that does not say so clearly, because it is busy or has no such path, is taken for ready.
    async fn says_not_ready(&self, path: &str) -> bool {
        let url = format!("{}{path}", self.endpoint.url);
        let api_key = self.endpoint.overrides.api_key.as_ref().map(|key| key.reveal());
        let fetched = self.client.fetch(&url, api_key, self.settings.attempt_timeout, MAX_ANSWER_BYTES).await;
        matches!(fetched, Err(UpstreamError::Status(status)) if status.as_u16() == 503)
    }

    async fn fetch(&self, path: &str) -> Result<Bytes, Failure> {
        let url = format!("{}{path}", self.endpoint.url);
        let api_key = self.endpoint.overrides.api_key.as_ref().map(|key| key.reveal());
        let mut attempt = 1;
        loop {
            let fetched = self.client.fetch(&url, api_key, self.settings.attempt_timeout, MAX_ANSWER_BYTES).await;
            let failure = match fetched {
                Ok(body) => return Ok(body),
                Err(error) => failure_of(&error),
            };
            let pause: Duration = retry_after(attempt, self.settings.attempts, failure).ok_or(failure)?;
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }
}

fn failure_of(error: &UpstreamError) -> Failure {
    match error {
        UpstreamError::Connect(_) | UpstreamError::Local(_) | UpstreamError::Request(_) | UpstreamError::Timeout(_) => {
            Failure::Unreachable
        }
        UpstreamError::Body(_) => Failure::BrokenBody,
        UpstreamError::Invalid(_) => Failure::Refused,
        UpstreamError::Status(status) => match status.as_u16() {
            401 | 403 => Failure::Unauthorized,
            404 | 405 => Failure::NotFound,
            500..=599 => Failure::ServerError,
            _ => Failure::Refused,
        },
    }
}
