//! OTLP: spans as the protobuf messages that OpenTelemetry collectors take over HTTP.

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as WireSpan, SpanFlags, Status};
use prost::Message;

use crate::logic::span::{AttributeValue, Span};

/// The type of the bodies.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// What the router is called as a service.
const SERVICE_NAME: &str = "fathom";

/// Encodes a batch as the body of a request to `/v1/traces`.
pub fn encode_spans(batch: &[Span]) -> Vec<u8> {
    let service = [("service.name", SERVICE_NAME), ("service.version", env!("CARGO_PKG_VERSION"))];
    let resource = Resource {
        attributes: service.map(|(key, value)| key_value(key, &value.into())).to_vec(),
        ..Resource::default()
    };
    let scope = InstrumentationScope { name: env!("CARGO_CRATE_NAME").to_owned(), ..InstrumentationScope::default() };
    let spans = batch.iter().map(wire_span).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

/// Returns how many spans of a batch the collector says that it did not take. An answer that cannot be read says nothing.
pub fn num_rejected(answer: &[u8]) -> u64 {
    let answer = ExportTraceServiceResponse::decode(answer).unwrap_or_default();
    answer.partial_success.map_or(0, |part| part.rejected_spans.try_into().unwrap_or_default())
}

fn wire_span(span: &Span) -> WireSpan {
    let status = Status { code: StatusCode::Error.into(), message: String::new() };
    WireSpan {
        trace_id: span.context.trace.to_bytes().to_vec(),
        span_id: span.context.span.to_bytes().to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.to_bytes().to_vec()),
        // The caller is another process wherever there is one.
        flags: u32::from(span.context.flags()) | parent_flags(span),
        name: span.name.clone(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: span.started_at_nanos,
        end_time_unix_nano: span.ended_at_nanos,
        attributes: span.attributes.iter().map(|(key, value)| key_value(key, value)).collect(),
        status: span.is_failure.then_some(status),
        ..WireSpan::default()
    }
}

fn parent_flags(span: &Span) -> u32 {
    let is_remote = if span.parent.is_some() { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
    SpanFlags::ContextHasIsRemoteMask as u32 | is_remote
}

fn key_value(key: &str, value: &AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => Value::StringValue(text.clone().into_owned()),
        AttributeValue::Integer(number) => Value::IntValue(*number),
        AttributeValue::Number(number) => Value::DoubleValue(*number),
        AttributeValue::Switch(is_so) => Value::BoolValue(*is_so),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::{ExportTraceServiceRequest, Message, SpanKind, StatusCode, Value, encode_spans, num_rejected};
    use crate::logic::span::Span;
    use crate::logic::trace_context::TraceContext;

    fn context(span: &str) -> TraceContext {
        let text = format!("00-0af7651916cd43dd8448eb211c80319c-{span}-01");
        TraceContext::parse(text.as_bytes()).expect("a valid header")
    }

    #[test]
    fn a_span_is_written_with_its_ids_times_and_attributes() {
        let span = Span {
            context: context("b7ad6b7169203331"),
            parent: Some(context("00f067aa0ba902b7").span),
            name: "POST /v1/chat/completions".to_owned(),
            started_at_nanos: 1,
            ended_at_nanos: 2,
            is_failure: true,
            attributes: vec![("a", "x".into()), ("b", 7_u32.into()), ("c", 0.5.into()), ("d", true.into())],
        };
        let root = Span { parent: None, is_failure: false, ..span.clone() };
        let message = ExportTraceServiceRequest::decode(&*encode_spans(&[span, root])).expect("its own message");
        let spans = &message.resource_spans[0].scope_spans[0].spans;
        let (child, root) = (&spans[0], &spans[1]);
        assert_eq!(
            (child.trace_id[0], child.trace_id.len(), child.span_id[0], child.span_id.len()),
            (0x0a, 16, 0xb7, 8)
        );
        assert_eq!(child.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        assert!(root.parent_span_id.is_empty());
        assert_eq!((child.flags, root.flags), (0x301, 0x101));
        assert_eq!((child.start_time_unix_nano, child.end_time_unix_nano), (1, 2));
        assert_eq!(child.kind(), SpanKind::Server);
        assert_eq!(child.status.as_ref().map(|status| status.code()), Some(StatusCode::Error));
        assert_eq!(root.status, None);
        let values: Vec<Value> =
            child.attributes.iter().filter_map(|attribute| attribute.value.clone()?.value).collect();
        let expected =
            [Value::StringValue("x".to_owned()), Value::IntValue(7), Value::DoubleValue(0.5), Value::BoolValue(true)];
        assert_eq!(values, expected);
    }

    #[test]
    fn an_answer_that_cannot_be_read_rejects_nothing() {
        // Field 1, a message with field 1 = 3.
        assert_eq!(num_rejected(&[0x0a, 0x02, 0x08, 0x03]), 3);
        for answer in [&b""[..], b"{}", b"\x0a\xff", &[0x0a, 0x02, 0x08]] {
            assert_eq!(num_rejected(answer), 0, "{answer:?}");
        }
    }
}
