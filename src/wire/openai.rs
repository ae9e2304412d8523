//! The few parts of the OpenAI interface that a router has to understand.
//!
//! A request is forwarded as it came; only `model` and `stream` are read from it. The models that engines list are passed on
//! with every field they have, since clients read limits and names from fields that no router knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::wire::json::{NotAnObject, decode_object};
use crate::wire::lenient::{Accept, Lenient, Scalar, skip_items};

/// The most models of one engine's list; LoRA adapters are models too. Further ones are dropped.
pub const MAX_MODELS_PER_WORKER: usize = 1_024;

/// What routing needs of a request's body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestPeek {
    /// The top-level `model`, where it is text.
    pub model: Option<String>,
    /// Whether the top-level `stream` is true.
    pub stream: bool,
    /// The DP rank that the top level names (`routed_dp_rank`, or `data_parallel_rank` as it was called before).
    pub dp_rank: Option<u32>,
}

/// Reads these few top-level fields of a request in one pass. A repeated key counts by its last value; a value of
/// another type counts as absent, and the engine will have its say about it.
///
/// # Errors
/// Refuses a body that is not one complete JSON object.
pub fn peek_request(body: &[u8]) -> Result<RequestPeek, NotAnObject> {
    decode_object(body, PeekReader)
}

/// One model of an engine's `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelObject {
    /// The name that requests use.
    pub id: Arc<str>,
    /// The object's own text, every field kept.
    pub json: Arc<str>,
    /// Whether it is a LoRA adapter: it names the model it belongs to as its `parent` (vLLM 0.32, SGLang 0.5.23).
    pub is_adapter: bool,
}

/// Says why an answer to `/v1/models` lists no models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelsError {
    /// It is not one JSON object.
    #[error("the model list is of no use: {0}")]
    NotJson(#[from] NotAnObject),
    /// It has no array `data`.
    #[error("the model list has no array \"data\"")]
    NoData,
}

/// Decodes an engine's answer to `/v1/models`. Entries that are not objects with an `id` are skipped, and whatever follows
/// the first [`MAX_MODELS_PER_WORKER`] entries is dropped.
///
/// # Errors
/// Refuses a body that is not one JSON object with an array `data`.
pub fn decode_models(body: &[u8]) -> Result<Vec<ModelObject>, ModelsError> {
    let entries = decode_object(body, ListReader)?.ok_or(ModelsError::NoData)?;
    let models = entries.into_iter().filter_map(|entry| {
        let head = ModelHead::read(entry.get())?;
        Some(ModelObject { id: head.id.into(), json: entry.get().into(), is_adapter: head.has_parent })
    });
    Ok(models.collect())
}

/// The answer to `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelList {
    /// The body.
    pub json: String,
    /// How many models have workers that state different values of `max_model_len`.
    pub conflicts: u32,
}

/// Renders the union of the workers' model objects, each worker's as a slice of JSON texts, sorted by id.
///
/// Where several workers list an id, one object is taken whole: the one with the smallest `max_model_len`, so that a prompt
/// which the list allows fits wherever it goes. An object without a positive integer there loses against one that has it;
/// among equals the first is taken. Texts that are not objects with an `id` are left out.
pub fn render_models<'a>(workers: impl Iterator<Item = &'a [Arc<str>]>) -> ModelList {
    let mut models: BTreeMap<String, Candidate<'a>> = BTreeMap::new();
    for json in workers.flatten() {
        let Some(head) = ModelHead::read(json) else {
            continue;
        };
        let challenger = Candidate { json, limit: head.limit, is_disputed: false };
        models.entry(head.id).and_modify(|candidate| candidate.meet(&challenger)).or_insert(challenger);
    }
    let conflicts = models.values().filter(|candidate| candidate.is_disputed).count() as u32;
    let objects: Vec<&str> = models.values().map(|candidate| candidate.json).collect();
    ModelList { json: format!(r#"{{"object":"list","data":[{}]}}"#, objects.join(",")), conflicts }
}

/// Tells whether a part of an event stream ends with the event that ends the stream, as OpenAI and the engines write it. One that is
/// split over two parts is not seen.
pub fn is_last_event(part: &[u8]) -> bool {
    part.ends_with(b"data: [DONE]\n\n") || part.ends_with(b"data: [DONE]\r\n\r\n")
}

/// Returns the body of an error in the form that OpenAI's clients read.
pub fn error_body(message: &str, kind: &str, code: &str) -> String {
    let [message, kind, code] = [message, kind, code].map(Value::from);
    format!(r#"{{"error":{{"message":{message},"type":{kind},"param":null,"code":{code}}}}}"#)
}

/// The object that stands for a model so far.
struct Candidate<'a> {
    json: &'a str,
    limit: Option<u64>,
    is_disputed: bool,
}

impl<'a> Candidate<'a> {
    fn meet(&mut self, challenger: &Self) {
        match (self.limit, challenger.limit) {
            (Some(own), Some(other)) if own != other => {
                self.is_disputed = true;
                if other < own {
                    self.replace(challenger.json, challenger.limit);
                }
            }
            (None, Some(_)) => self.replace(challenger.json, challenger.limit),
            (Some(_) | None, Some(_) | None) => {}
        }
    }

    fn replace(&mut self, json: &'a str, limit: Option<u64>) {
        self.json = json;
        self.limit = limit;
    }
}

/// What has to be known of a model object.
struct ModelHead {
    id: String,
    limit: Option<u64>,
    has_parent: bool,
}

impl ModelHead {
    fn read(json: &str) -> Option<Self> {
        decode_object(json.as_bytes(), HeadReader).ok().flatten()
    }
}

struct PeekReader;

impl<'de> Accept<'de> for PeekReader {
    type Value = Option<RequestPeek>;

    fn scalar(self, _: Scalar<'de>) -> Option<RequestPeek> {
        None
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<RequestPeek>, A::Error> {
        let (mut model, mut stream) = (Scalar::Nil, Scalar::Nil);
        let (mut rank, mut old_rank) = (Scalar::Nil, Scalar::Nil);
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            match key.as_text() {
                Some("model") => model = entries.next_value()?,
                Some("stream") => stream = entries.next_value()?,
                Some("routed_dp_rank") => rank = entries.next_value()?,
                Some("data_parallel_rank") => old_rank = entries.next_value()?,
                Some(_) | None => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        let dp_rank = rank.as_unsigned().or(old_rank.as_unsigned()).and_then(|rank| u32::try_from(rank).ok());
        let model = model.as_text().map(str::to_owned);
        Ok(Some(RequestPeek { model, stream: stream == Scalar::Bool(true), dp_rank }))
    }
}

/// Reads the entries of `data`; the inner `None` where there is no such array.
struct ListReader;

impl<'de> Accept<'de> for ListReader {
    type Value = Option<Option<Vec<&'de RawValue>>>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        None
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut data = None;
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            if key.as_text() == Some("data") {
                data = entries.next_value_seed(Lenient(DataReader))?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Some(data))
    }
}

struct DataReader;

impl<'de> Accept<'de> for DataReader {
    type Value = Option<Vec<&'de RawValue>>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        None
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while entries.len() < MAX_MODELS_PER_WORKER
            && let Some(entry) = items.next_element()?
        {
            entries.push(entry);
        }
        skip_items(&mut items)?;
        Ok(Some(entries))
    }
}

/// Reads a model object; the inner `None` where it has no id.
struct HeadReader;

impl<'de> Accept<'de> for HeadReader {
    type Value = Option<Option<ModelHead>>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        None
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let (mut id, mut limit, mut parent) = (Scalar::Nil, Scalar::Nil, Scalar::Nil);
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            match key.as_text() {
                Some("id") => id = entries.next_value()?,
                Some("max_model_len") => limit = entries.next_value()?,
                Some("parent") => parent = entries.next_value()?,
                Some(_) | None => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        let limit = limit.as_unsigned().filter(|limit| *limit > 0);
        let has_parent = parent.as_text().is_some_and(|parent| !parent.is_empty());
        Ok(Some(id.as_text().filter(|id| !id.is_empty()).map(|id| ModelHead { id: id.to_owned(), limit, has_parent })))
    }
}

#[cfg(test)]
mod tests;
