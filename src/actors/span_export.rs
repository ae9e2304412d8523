//! The SpanExport actor hands the spans of ended requests to an OpenTelemetry collector: OTLP, protobuf over HTTP.
//!
//! The router starts it on a thread of its own where `otlp_endpoint` is set. It owns the spans that wait and the one batch that is
//! under way; what becomes of them is decided in `logic::span_queue`. Nobody waits for it but the router when it stops, for a while.
//! When it dies, spans are dropped and counted, and requests are served as before.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::{Actor, ActorFutureExt, AsyncContext, Context, Handler, ResponseFuture, WrapFuture};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use tokio::sync::oneshot;

use crate::config::UpstreamSettings;
use crate::logic::span::Span;
use crate::logic::span_queue::{Delivery, Ended, MAX_SPANS, SpanQueue};
use crate::messages::{FlushSpans, SpanEnded};
use crate::telemetry::Telemetry;
use crate::upstream::{EngineClient, Protocol, UpstreamError};
use crate::wire::otlp;

/// How long a span waits for others, at most. It is also the pause before a batch that could not be delivered is sent again.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a collector may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What is read of an answer, which counts what was rejected and may say why.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Hands spans to a collector; see the module's documentation.
#[derive(Debug)]
pub struct SpanExport {
    traces_url: Arc<str>,
    client: EngineClient,
    queue: SpanQueue,
    telemetry: Telemetry,
    /// Who waits until nothing is left.
    flushed: Option<oneshot::Sender<()>>,
    is_reached: bool,
}

impl SpanExport {
    /// Returns the actor that posts to this address. Must be called on the thread that will run it.
    pub(crate) fn new(traces_url: String, telemetry: Telemetry) -> Self {
        let settings = UpstreamSettings {
            response_header_timeout: ANSWER_TIMEOUT,
            max_idle_per_worker: 1,
            ..UpstreamSettings::default()
        };
        Self {
            traces_url: traces_url.into(),
            client: EngineClient::new(&settings),
            queue: SpanQueue::default(),
            telemetry,
            flushed: None,
            is_reached: true,
        }
    }

    /// Sends what waits, unless a batch is under way.
    fn export(&mut self, ctx: &mut Context<Self>) {
        let Some(batch) = self.queue.take() else {
            if !self.queue.is_under_way() {
                self.flushed = None;
            }
            return;
        };
        let (client, url) = (self.client.clone(), Arc::clone(&self.traces_url));
        let delivered = async move {
            let delivered = tokio::time::timeout(ANSWER_TIMEOUT, deliver(&client, &url, &batch)).await;
            (batch, delivered.unwrap_or(Err(UpstreamError::Timeout(ANSWER_TIMEOUT))))
        };
        ctx.spawn(
            delivered.into_actor(self).map(|(batch, delivered), export, ctx| export.settle(batch, delivered, ctx)),
        );
    }

    fn settle(&mut self, batch: Vec<Span>, delivered: Result<Delivery, UpstreamError>, ctx: &mut Context<Self>) {
        let delivery = delivery_of(&delivered);
        self.note_reached(&delivered);
        let ended = self.queue.settle(batch, delivery);
        self.count(ended);
        if delivery != Delivery::Later {
            if self.flushed.is_some() || self.queue.holds_a_batch() {
                self.export(ctx);
            }
        } else if self.flushed.take().is_some() {
            let given_up = self.queue.give_up();
            self.count(given_up);
        }
    }

    fn count(&self, ended: Ended) {
        for (kind, count) in [("exported", ended.exported), ("rejected", ended.rejected), ("failed", ended.failed)] {
            self.telemetry.spans_ended(kind, count);
        }
    }

    /// Says once that the collector does not take spans, and once that it does again.
    fn note_reached(&mut self, delivered: &Result<Delivery, UpstreamError>) {
        let is_reached = delivered.is_ok();
        if self.is_reached == is_reached {
            return;
        }
        self.is_reached = is_reached;
        match delivered {
            Ok(_) => tracing::info!(url = &*self.traces_url, "the collector takes spans again"),
            Err(error) => tracing::warn!(url = &*self.traces_url, %error, "the collector takes no spans"),
        }
    }
}

async fn deliver(client: &EngineClient, url: &str, batch: &[Span]) -> Result<Delivery, UpstreamError> {
    let body = Full::new(Bytes::from(otlp::encode_spans(batch)));
    let request = Request::post(url).header(CONTENT_TYPE, otlp::CONTENT_TYPE).body(body);
    let response = client.send(request.map_err(UpstreamError::Invalid)?, Protocol::Http1).await?;
    let status = response.status();
    let answer = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    if !status.is_success() {
        return Err(UpstreamError::Status(status));
    }
    // Whoever has said that it took them, took them.
    let num_rejected = answer.map_or(0, |answer| otlp::num_rejected(&answer.to_bytes()));
    Ok(Delivery::Taken { num_rejected })
}

fn delivery_of(delivered: &Result<Delivery, UpstreamError>) -> Delivery {
    match delivered {
        Ok(delivery) => *delivery,
        Err(UpstreamError::Status(status)) => Delivery::of_refusal(status.as_u16()),
        Err(UpstreamError::Invalid(_)) => Delivery::Refused,
        Err(_) => Delivery::Later,
    }
}

impl Actor for SpanExport {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAX_SPANS);
        ctx.run_interval(EXPORT_INTERVAL, Self::export);
    }
}

impl Handler<SpanEnded> for SpanExport {
    type Result = ();

    fn handle(&mut self, SpanEnded(span): SpanEnded, ctx: &mut Self::Context) {
        if !self.queue.admit(*span) {
            self.telemetry.spans_ended("dropped", 1);
        } else if self.is_reached && self.queue.holds_a_batch() {
            self.export(ctx);
        }
    }
}

impl Handler<FlushSpans> for SpanExport {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _msg: FlushSpans, ctx: &mut Self::Context) -> Self::Result {
        let (flushed, has_flushed) = oneshot::channel();
        self.flushed = Some(flushed);
        self.export(ctx);
        // The sender is dropped when nothing is left, or when this actor ends.
        Box::pin(async move { drop(has_flushed.await) })
    }
}
