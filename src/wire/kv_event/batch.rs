//! A batch of events, and the frame around it.

use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::logic::ids::DpRank;
use crate::logic::kv_event::KvEvent;
use crate::wire::kv_event::event::{BadEvent, EventReader, Outcome};
use crate::wire::kv_event::tokens::TokenUse;
use crate::wire::lenient::{Accept, Lenient, Scalar, skip_items};
use crate::wire::msgpack::{self, MsgpackFault};

/// The events of one message, in their order, which matters: one batch may store and remove the same block.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KvBatch {
    /// When the engine made it, in seconds of its own clock. Informational.
    pub timestamp: Option<f64>,
    /// The rank that the engine says it is. Informational: the socket says whose batch it is.
    pub rank: Option<DpRank>,
    /// The events that could be read.
    pub events: Vec<KvEvent>,
    /// Those that could not.
    pub bad_events: BadEvents,
    /// How many events were of types that are not known here.
    pub num_unknown_events: u32,
}

/// How many events of a batch could not be read, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BadEvents {
    counts: [u32; BadEvent::ALL.len()],
}

impl BadEvents {
    /// Tells whether every event could be read.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns how many could not be read for this reason.
    pub fn count(&self, reason: BadEvent) -> u32 {
        self.counts[reason as usize]
    }

    /// Returns the reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (BadEvent, u32)> + '_ {
        BadEvent::ALL.into_iter().map(|reason| (reason, self.count(reason))).filter(|(_, count)| *count > 0)
    }

    fn add(&mut self, reason: BadEvent) {
        let count = &mut self.counts[reason as usize];
        *count = count.saturating_add(1);
    }
}

/// Says why a payload is not a batch of events.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvFrameError {
    /// It is not one msgpack value.
    #[error(transparent)]
    Msgpack(#[from] MsgpackFault),
    /// It is neither a map nor an array.
    #[error("the payload is neither a map nor an array")]
    Shape,
    /// It has no list of events: something else was sent on this socket.
    #[error("the batch has no list of events")]
    NoEvents,
}

impl KvFrameError {
    /// Every reason, for counters that show zeros too.
    pub const REASONS: [&'static str; 4] = ["malformed", "trailing_bytes", "shape", "no_events"];

    /// Returns the reason as a metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Msgpack(fault) => fault.reason(),
            Self::Shape => "shape",
            Self::NoEvents => "no_events",
        }
    }
}

/// Decodes the payload of a KV event message: an array of timestamp, events and rank, or a map with those keys. Whatever
/// else is in it is ignored, and so are a timestamp and a rank that cannot be read.
///
/// # Errors
/// Refuses a payload that is not one msgpack value or has no list of events. Events that cannot be read are no error; they
/// are counted in the batch.
pub fn decode_batch(payload: &[u8], tokens: TokenUse) -> Result<KvBatch, KvFrameError> {
    msgpack::decode(payload, BatchReader(tokens))?
}

struct BatchReader(TokenUse);

impl<'de> Accept<'de> for BatchReader {
    type Value = Result<KvBatch, KvFrameError>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        Err(KvFrameError::Shape)
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let timestamp = items.next_element::<Scalar<'de>>()?.unwrap_or_default();
        let events = items.next_element_seed(Lenient(EventsReader(self.0)))?.flatten();
        let rank = items.next_element::<Scalar<'de>>()?.unwrap_or_default();
        skip_items(&mut items)?;
        Ok(assemble(&timestamp, events, &rank))
    }

    fn map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let (mut timestamp, mut events, mut rank) = (Scalar::Nil, None, Scalar::Nil);
        while let Some(key) = entries.next_key::<Scalar<'de>>()? {
            match key.as_text() {
                Some("ts") => timestamp = entries.next_value()?,
                Some("events") => events = entries.next_value_seed(Lenient(EventsReader(self.0)))?,
                Some("attn_dp_rank" | "data_parallel_rank") => rank = entries.next_value()?,
                Some(_) | None => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(assemble(&timestamp, events, &rank))
    }
}

fn assemble(timestamp: &Scalar<'_>, events: Option<KvBatch>, rank: &Scalar<'_>) -> Result<KvBatch, KvFrameError> {
    let mut batch = events.ok_or(KvFrameError::NoEvents)?;
    batch.timestamp = match timestamp {
        Scalar::Float(seconds) if seconds.is_finite() => Some(*seconds),
        Scalar::Unsigned(seconds) => Some(*seconds as f64),
        _ => None,
    };
    batch.rank = rank.as_unsigned().and_then(|rank| u32::try_from(rank).ok()).map(DpRank::new);
    Ok(batch)
}

/// Reads the list of events into a batch that has nothing else yet; `None` where it is not a list.
struct EventsReader(TokenUse);

impl<'de> Accept<'de> for EventsReader {
    type Value = Option<KvBatch>;

    fn scalar(self, _: Scalar<'de>) -> Option<KvBatch> {
        None
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<KvBatch>, A::Error> {
        let mut batch = KvBatch::default();
        while let Some(outcome) = items.next_element_seed(Lenient(EventReader(self.0)))? {
            match outcome {
                Outcome::Event(event) => batch.events.push(event),
                Outcome::UnknownType => batch.num_unknown_events = batch.num_unknown_events.saturating_add(1),
                Outcome::Bad(reason) => batch.bad_events.add(reason),
            }
        }
        Ok(Some(batch))
    }
}
