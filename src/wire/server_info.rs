//! What an engine says of itself at `/server_info`.
//!
//! The answer holds the engine's keys and passwords beside the few fields that are needed. Only those are parsed and kept; the
//! rest is skipped unread, and no error quotes the answer.
//!
//! A field of another type than expected counts as absent. The feed descriptor is stricter, since sockets follow from it: one
//! that lacks a required key, or holds a value that cannot be right, is refused as a whole with a reason that names the key and
//! the value. Then the worker serves without feeds; the answer itself is not an error.

use std::sync::Arc;

use serde::de::{IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use crate::logic::endpoint::{FeedDescriptor, FeedRefusal, MAX_DP_RANKS};
use crate::logic::ranks::OwnedRanks;
use crate::logic::role::{DEFAULT_BOOTSTRAP_PORT, Role};
use crate::wire::json::{NotAnObject, decode_object};
use crate::wire::lenient::{Accept, Scalar};

/// The longest host that a descriptor may name: a DNS name of 253 characters, or less with brackets.
const MAX_HOST_BYTES: usize = 255;

/// How much of a refused value a reason shows.
const MAX_SHOWN_CHARS: usize = 64;

/// What an engine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// The name that requests use for its model. Empty counts as missing.
    pub served_model_name: Option<Arc<str>>,
    /// Where it loaded the model from. A stand-in where there is no name; never shown beside one.
    pub model_path: Option<Arc<str>>,
    /// Its version.
    pub version: Option<Arc<str>>,
    /// Whether it speaks HTTP/2 in cleartext.
    pub enable_http2: bool,
    /// How many DP ranks its deployment has.
    pub dp_size: Option<u32>,
    /// The DP ranks whose publishers are on its node (`kv_event_sources`).
    pub owned_ranks: OwnedRanks,
    /// Its part in requests; `None` where it says none, or one that is not known.
    pub role: Option<Role>,
    /// Which feeds it advertises.
    pub feeds: Advertised,
}

/// What an engine says about its feeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advertised {
    /// It publishes none.
    Nothing,
    /// It publishes them there.
    Descriptor(FeedDescriptor),
    /// What it says cannot be right.
    Refused(FeedRefusal),
}

/// Says why an answer tells nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerInfoError {
    /// It is not one JSON object. Asking again will not help where it is complete.
    #[error("the answer is of no use: {0}")]
    NotJson(#[from] NotAnObject),
}

/// Decodes the body of an answer.
///
/// # Errors
/// Refuses a body that is not one JSON object. Single fields never are an error.
pub fn decode_server_info(body: &[u8]) -> Result<ServerInfo, ServerInfoError> {
    Ok(decode_object(body, InfoReader)?)
}

struct InfoReader;

impl<'de> Accept<'de> for InfoReader {
    type Value = Option<ServerInfo>;

    fn scalar(self, _: Scalar<'de>) -> Option<ServerInfo> {
        None
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<ServerInfo>, A::Error> {
        let (mut served_model_name, mut model_path, mut version) = (None, None, None);
        let (mut http2, mut feeds) = (None, None);
        let (mut dp_size, mut sources, mut mode, mut bootstrap_port) = (None, None, None, None);
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            let slot = match key.as_text() {
                Some("served_model_name") => &mut served_model_name,
                Some("model_path") => &mut model_path,
                Some("version") => &mut version,
                Some("enable_http2") => &mut http2,
                Some("kv_events") => &mut feeds,
                Some("dp_size") => &mut dp_size,
                Some("kv_event_sources") => &mut sources,
                Some("disaggregation_mode") => &mut mode,
                Some("disaggregation_bootstrap_port") => &mut bootstrap_port,
                Some(_) | None => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *slot = Some(entries.next_value::<&'de RawValue>()?);
        }
        Ok(Some(ServerInfo {
            served_model_name: read_name(served_model_name),
            model_path: read_name(model_path),
            version: read_name(version),
            enable_http2: read(http2) == Some(Scalar::Bool(true)),
            dp_size: integer("dp_size", dp_size, DP_SIZES).ok().flatten(),
            owned_ranks: sources.map_or(OwnedRanks::Unsaid, read_owned_ranks),
            role: read_role(mode, bootstrap_port),
            feeds: feeds.map_or(Advertised::Nothing, read_feeds),
        }))
    }
}

/// Reads a value on its own, so that an odd one (a half surrogate, a number beyond doubles) spoils nothing but itself.
fn read(value: Option<&RawValue>) -> Option<Scalar<'_>> {
    serde_json::from_str(value?.get()).ok()
}

fn read_name(value: Option<&RawValue>) -> Option<Arc<str>> {
    read(value)?.as_text().filter(|text| !text.is_empty()).map(Arc::from)
}

/// A list that cannot be read whole owns nothing: no rank of it may be addressed.
fn read_owned_ranks(value: &RawValue) -> OwnedRanks {
    #[derive(serde::Deserialize)]
    struct Source {
        dp_rank: u32,
    }
    if read(Some(value)) == Some(Scalar::Nil) {
        return OwnedRanks::Unsaid;
    }
    let sources: Vec<Source> = serde_json::from_str(value.get()).unwrap_or_default();
    OwnedRanks::Numbers(sources.into_iter().take(MAX_DP_RANKS as usize + 1).map(|source| source.dp_rank).collect())
}

fn read_role(mode: Option<&RawValue>, bootstrap_port: Option<&RawValue>) -> Option<Role> {
    match read(mode)?.as_text()? {
        "null" => Some(Role::Regular),
        "prefill" => {
            let port: Option<u16> = integer("disaggregation_bootstrap_port", bootstrap_port, PORTS).ok().flatten();
            let bootstrap_port = port.filter(|port| *port != 0).unwrap_or(DEFAULT_BOOTSTRAP_PORT);
            Some(Role::Prefill { bootstrap_port })
        }
        "decode" => Some(Role::Decode),
        _ => None,
    }
}

fn read_feeds(value: &RawValue) -> Advertised {
    if read(Some(value)) == Some(Scalar::Nil) {
        return Advertised::Nothing;
    }
    let Ok(block) = decode_object(value.get().as_bytes(), BlockReader) else {
        return Advertised::Refused(refusal("kv_events", value, "an object"));
    };
    match block.descriptor() {
        Ok(Some(descriptor)) => Advertised::Descriptor(descriptor),
        Ok(None) => Advertised::Nothing,
        Err(refusal) => Advertised::Refused(refusal),
    }
}

/// The keys of a `kv_events` block that are used, as they came.
#[derive(Default)]
struct DescriptorBlock<'a> {
    publisher: Option<&'a RawValue>,
    endpoint_host: Option<&'a RawValue>,
    endpoint_port_base: Option<&'a RawValue>,
    topic: Option<&'a RawValue>,
    block_size: Option<&'a RawValue>,
    dp_size: Option<&'a RawValue>,
    load_endpoint_port_base: Option<&'a RawValue>,
    load_topic: Option<&'a RawValue>,
    replay_endpoint_port_base: Option<&'a RawValue>,
}

impl DescriptorBlock<'_> {
    /// Returns the descriptor; `None` where another publisher than ZMQ is configured, which nothing here can subscribe to.
    fn descriptor(&self) -> Result<Option<FeedDescriptor>, FeedRefusal> {
        if self.publisher.is_some() && read(self.publisher).as_ref().and_then(Scalar::as_text) != Some("zmq") {
            return Ok(None);
        }
        Ok(Some(FeedDescriptor {
            dp_size: integer("dp_size", self.dp_size, DP_SIZES).and_then(required("dp_size"))?,
            endpoint_host: self.host()?,
            endpoint_port_base: Some(
                integer("endpoint_port_base", self.endpoint_port_base, PORTS)
                    .and_then(required("endpoint_port_base"))?,
            ),
            topic: text("topic", self.topic)?.unwrap_or_default(),
            block_size: Some(integer("block_size", self.block_size, BLOCK_SIZES).and_then(required("block_size"))?),
            load_endpoint_port_base: integer("load_endpoint_port_base", self.load_endpoint_port_base, PORTS)?,
            load_topic: text("load_topic", self.load_topic)?,
            // Replay only fills gaps. Without it both feeds work, so a bad base takes nothing else down.
            replay_endpoint_port_base: integer("replay_endpoint_port_base", self.replay_endpoint_port_base, PORTS)
                .ok()
                .flatten(),
        }))
    }

    fn host(&self) -> Result<String, FeedRefusal> {
        let host = text("endpoint_host", self.endpoint_host).and_then(required("endpoint_host"))?;
        match self.endpoint_host {
            Some(value) if host.len() > MAX_HOST_BYTES => Err(refusal("endpoint_host", value, "a host name")),
            _ => Ok(host),
        }
    }
}

/// What a number of a descriptor may be, and how a refusal puts it.
struct Range {
    lowest: u64,
    highest: u64,
    name: &'static str,
}

// Port 0 is left to the resolution of the feeds, which has a refusal of its own for it.
const PORTS: Range = Range { lowest: 0, highest: u16::MAX as u64, name: "a port" };
const DP_SIZES: Range = Range { lowest: 1, highest: MAX_DP_RANKS as u64, name: "an integer from 1 to 1024" };
const BLOCK_SIZES: Range = Range { lowest: 1, highest: u32::MAX as u64, name: "a positive 32-bit integer" };

/// Reads an optional integer within the range. Null counts as absent.
fn integer<N: TryFrom<u64>>(
    key: &'static str,
    value: Option<&RawValue>,
    range: Range,
) -> Result<Option<N>, FeedRefusal> {
    let Some(value) = value else {
        return Ok(None);
    };
    let number = match read(Some(value)) {
        Some(Scalar::Nil) => return Ok(None),
        Some(Scalar::Unsigned(number)) if (range.lowest..=range.highest).contains(&number) => N::try_from(number).ok(),
        _ => None,
    };
    number.map(Some).ok_or_else(|| refusal(key, value, range.name))
}

/// Reads an optional text. Null counts as absent.
fn text(key: &'static str, value: Option<&RawValue>) -> Result<Option<String>, FeedRefusal> {
    let Some(value) = value else {
        return Ok(None);
    };
    match read(Some(value)) {
        Some(Scalar::Nil) => Ok(None),
        Some(Scalar::Text(text)) => Ok(Some(text.into_owned())),
        _ => Err(refusal(key, value, "text")),
    }
}

fn required<T>(key: &'static str) -> impl FnOnce(Option<T>) -> Result<T, FeedRefusal> {
    move |value| value.ok_or_else(|| FeedRefusal::Descriptor(format!("{key} is missing")))
}

/// The value is text that the engine chose and that ends in a log: it is cut, and nothing in it can start a line or hide.
fn refusal(key: &'static str, value: &RawValue, expected: &'static str) -> FeedRefusal {
    let mut shown = String::new();
    let mut chars = value.get().chars();
    for char in chars.by_ref().take(MAX_SHOWN_CHARS) {
        match char {
            '"' | '\'' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    if chars.next().is_some() {
        shown.push_str("...");
    }
    FeedRefusal::Descriptor(format!("{key} is {shown}, not {expected}"))
}

struct BlockReader;

impl<'de> Accept<'de> for BlockReader {
    type Value = Option<DescriptorBlock<'de>>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        None
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut block = DescriptorBlock::default();
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            let slot = match key.as_text() {
                Some("publisher") => &mut block.publisher,
                Some("endpoint_host") => &mut block.endpoint_host,
                Some("endpoint_port_base") => &mut block.endpoint_port_base,
                Some("topic") => &mut block.topic,
                Some("block_size") => &mut block.block_size,
                Some("dp_size") => &mut block.dp_size,
                Some("load_endpoint_port_base") => &mut block.load_endpoint_port_base,
                Some("load_topic") => &mut block.load_topic,
                Some("replay_endpoint_port_base") => &mut block.replay_endpoint_port_base,
                Some(_) | None => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *slot = Some(entries.next_value()?);
        }
        Ok(Some(block))
    }
}

#[cfg(test)]
mod tests;
