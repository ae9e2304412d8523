//! The load that an engine publishes, in both forms that exist.
//!
//! SGLang publishes a tagged array, `LoadStat`, of 6 elements (0.5.19) or 11 (0.5.20 and later); branches publish the map
//! `LoadSnapshot`, in which a zero is left out. The first msgpack value tells which it is.
//!
//! A wrong number here moves a fleet's traffic, and zero draws the most. Hence:
//!
//! - A count is an integer of zero or more. Nil, a float, NaN, a boolean or text refuses the frame; so does a negative
//!   number. Nothing is turned into zero.
//! - Request counts above [`MAX_REQUESTS`] and token counts above [`MAX_TOKENS`] refuse the frame: no engine holds so many, so
//!   the number is an overflow or garbage. Totals since the start of the engine may be anything that fits 63 bits.
//! - In the map, an absent count is zero, as its encoder leaves zeros out, and the empty map is a valid report of an idle
//!   rank. But a map with entries of which none is known is refused: a KV event batch on the wrong socket is not idleness.
//!   A repeated key counts by its last value.
//! - In the array, fewer than four counts are refused, and so are some of the five later ones without the rest. Without them
//!   their fields are `None`. Whatever comes after the eleventh element is ignored. The rank is ignored too: the socket says
//!   whose report it is.
//! - A capacity of zero means that the engine does not know it. Where it is known, the used tokens are cut to it.
//! - Bytes after the value refuse the frame.

use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::logic::load::{LoadSource, RankLoad};
use crate::wire::lenient::{Accept, Scalar, skip_items};
use crate::wire::msgpack::{self, MsgpackFault};

/// The most requests that a count may say. Engines hold thousands.
pub const MAX_REQUESTS: u64 = 10_000_000;

/// The most tokens that a count may say. The largest KV caches hold some hundred million.
pub const MAX_TOKENS: u64 = 1_000_000_000_000;

/// The most that a total since the start of the engine may say: what a signed counter holds. A bound like that of the gauges
/// would be reached, microseconds in twelve days.
const MAX_TOTAL: u64 = i64::MAX as u64;

/// First element of the array form.
const STAT_TAG: &str = "LoadStat";

/// Counts that every array has. The rank stands between them and those that newer engines append.
const NUM_FIRST_COUNTS: usize = 4;
const NUM_LATER_COUNTS: usize = Count::ALL.len() - NUM_FIRST_COUNTS;

/// Says why a payload is not a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadFrameError {
    /// It is not one msgpack value.
    #[error(transparent)]
    Msgpack(#[from] MsgpackFault),
    /// It is neither a map nor an array.
    #[error("the payload is neither a map nor an array")]
    Shape,
    /// The first element of the array is not `LoadStat`.
    #[error("the array is not tagged {STAT_TAG:?}")]
    Tag,
    /// The map has entries, and none of them is part of a report.
    #[error("the map has no key of a load report")]
    ForeignMap,
    /// The array lacks some of the first four counts.
    #[error("the array has {found} of the first {NUM_FIRST_COUNTS} counts")]
    TooFewCounts {
        /// How many it has.
        found: usize,
    },
    /// The array has some of the five later counts, but not all.
    #[error("the array has {found} of the {NUM_LATER_COUNTS} later counts")]
    PartialCounts {
        /// How many it has.
        found: usize,
    },
    /// A count is not an integer.
    #[error("{field} is {found}, not an integer")]
    NotAnInteger {
        /// The count's key.
        field: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A count is below zero.
    #[error("{field} is {value}, below zero")]
    Negative {
        /// The count's key.
        field: &'static str,
        /// What it says.
        value: i64,
    },
    /// A count is more than any engine can hold.
    #[error("{field} is {value}, above {limit}")]
    TooLarge {
        /// The count's key.
        field: &'static str,
        /// What it says.
        value: u64,
        /// The most that it may say.
        limit: u64,
    },
}

impl LoadFrameError {
    /// Every reason, for counters that show zeros too.
    pub const REASONS: [&'static str; 10] = [
        "malformed",
        "trailing_bytes",
        "shape",
        "tag",
        "foreign_map",
        "too_few_counts",
        "partial_counts",
        "not_an_integer",
        "negative",
        "too_large",
    ];

    /// Returns the reason as a metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Msgpack(fault) => fault.reason(),
            Self::Shape => "shape",
            Self::Tag => "tag",
            Self::ForeignMap => "foreign_map",
            Self::TooFewCounts { .. } => "too_few_counts",
            Self::PartialCounts { .. } => "partial_counts",
            Self::NotAnInteger { .. } => "not_an_integer",
            Self::Negative { .. } => "negative",
            Self::TooLarge { .. } => "too_large",
        }
    }
}

/// Decodes the payload of a load message, in either form. The module's documentation has the rules.
///
/// # Errors
/// Refuses, with a reason from a closed set, whatever those rules do not accept.
pub fn decode_load(payload: &[u8]) -> Result<RankLoad, LoadFrameError> {
    msgpack::decode(payload, ReportReader)?
}

/// The counts that are kept, in the order of the array form.
#[derive(Debug, Clone, Copy)]
enum Count {
    Running,
    Waiting,
    Used,
    Capacity,
    WaitingUncached,
    Total,
    MaxRunning,
    PrefillUncachedTotal,
    PrefillBusyTotal,
}

impl Count {
    const ALL: [Self; 9] = [
        Self::Running,
        Self::Waiting,
        Self::Used,
        Self::Capacity,
        Self::WaitingUncached,
        Self::Total,
        Self::MaxRunning,
        Self::PrefillUncachedTotal,
        Self::PrefillBusyTotal,
    ];

    /// Returns the key in the map form.
    fn key(self) -> &'static str {
        match self {
            Self::Running => "num_running_reqs",
            Self::Waiting => "num_waiting_reqs",
            Self::Used => "num_used_tokens",
            Self::Capacity => "max_total_num_tokens",
            Self::WaitingUncached => "num_waiting_uncached_tokens",
            Self::Total => "num_total_tokens",
            Self::MaxRunning => "max_running_requests",
            Self::PrefillUncachedTotal => "total_prefill_uncached_tokens",
            Self::PrefillBusyTotal => "total_prefill_busy_us",
        }
    }

    fn limit(self) -> u64 {
        match self {
            Self::Running | Self::Waiting | Self::MaxRunning => MAX_REQUESTS,
            Self::Used | Self::Capacity | Self::WaitingUncached | Self::Total => MAX_TOKENS,
            Self::PrefillUncachedTotal | Self::PrefillBusyTotal => MAX_TOTAL,
        }
    }
}

/// What a key of the map form is to this decoder.
enum Key {
    Counted(Count),
    /// Part of a report, but not needed.
    Known,
    Foreign,
}

impl Key {
    fn parse(key: &Scalar<'_>) -> Self {
        // A key of another type is no more foreign than an unknown one.
        let Some(name) = key.as_text() else {
            return Self::Foreign;
        };
        if let Some(count) = Count::ALL.into_iter().find(|count| count.key() == name) {
            return Self::Counted(count);
        }
        match name {
            "timestamp"
            | "dp_rank"
            | "num_active_tokens"
            | "num_prealloc_ready_tokens"
            | "token_usage"
            | "gen_throughput"
            | "cache_hit_rate"
            | "utilization"
            | "decode_moments"
            | "memory"
            | "speculative"
            | "lora"
            | "disaggregation"
            | "queues" => Self::Known,
            _ => Self::Foreign,
        }
    }
}

/// The counts as they came, and what an absent one means in the form they came in.
struct Counts<'a> {
    found: [Option<Scalar<'a>>; Count::ALL.len()],
    absent: Option<u64>,
}

impl<'a> Counts<'a> {
    fn new(absent: Option<u64>) -> Self {
        Self { found: [const { None }; Count::ALL.len()], absent }
    }

    fn set(&mut self, count: Count, scalar: Scalar<'a>) {
        self.found[count as usize] = Some(scalar);
    }

    fn to_load(&self, source: LoadSource) -> Result<RankLoad, LoadFrameError> {
        let capacity_tokens = self.read(Count::Capacity)?.filter(|capacity| *capacity > 0);
        let used_tokens = self.read_required(Count::Used)?;
        Ok(RankLoad {
            source,
            running: self.read_required(Count::Running)?,
            waiting: self.read_required(Count::Waiting)?,
            used_tokens: Some(capacity_tokens.map_or(used_tokens, |capacity| used_tokens.min(capacity))),
            capacity_tokens,
            waiting_uncached_tokens: self.read(Count::WaitingUncached)?,
            total_tokens: self.read(Count::Total)?,
            max_running: self.read(Count::MaxRunning)?,
            prefill_uncached_tokens_total: self.read(Count::PrefillUncachedTotal)?,
            prefill_busy_us_total: self.read(Count::PrefillBusyTotal)?,
        })
    }

    fn read_required(&self, count: Count) -> Result<u64, LoadFrameError> {
        // Both readers have seen to it that these are there, or that absent means zero; refusing costs nothing.
        self.read(count)?.ok_or(LoadFrameError::NotAnInteger { field: count.key(), found: "absent" })
    }

    fn read(&self, count: Count) -> Result<Option<u64>, LoadFrameError> {
        let field = count.key();
        let limit = count.limit();
        match &self.found[count as usize] {
            None => Ok(self.absent),
            Some(Scalar::Unsigned(value)) if *value <= limit => Ok(Some(*value)),
            Some(Scalar::Unsigned(value)) => Err(LoadFrameError::TooLarge { field, value: *value, limit }),
            Some(Scalar::Negative(value)) => Err(LoadFrameError::Negative { field, value: *value }),
            Some(other) => Err(LoadFrameError::NotAnInteger { field, found: other.type_name() }),
        }
    }
}

struct ReportReader;

impl<'de> Accept<'de> for ReportReader {
    type Value = Result<RankLoad, LoadFrameError>;

    fn scalar(self, _: Scalar<'de>) -> Self::Value {
        Err(LoadFrameError::Shape)
    }

    fn array<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let result = read_stat(&mut items)?;
        skip_items(&mut items)?;
        Ok(result)
    }

    fn map<A: MapAccess<'de>>(self, entries: A) -> Result<Self::Value, A::Error> {
        read_snapshot(entries)
    }
}

fn read_stat<'de, A: SeqAccess<'de>>(items: &mut A) -> Result<Result<RankLoad, LoadFrameError>, A::Error> {
    let tag = items.next_element::<Scalar<'de>>()?;
    if tag.as_ref().and_then(Scalar::as_text) != Some(STAT_TAG) {
        return Ok(Err(LoadFrameError::Tag));
    }
    let (first, later) = Count::ALL.split_at(NUM_FIRST_COUNTS);
    let mut counts = Counts::new(None);
    let found = read_counts(items, first, &mut counts)?;
    if found < first.len() {
        return Ok(Err(LoadFrameError::TooFewCounts { found }));
    }
    let _rank = items.next_element::<IgnoredAny>()?;
    let found = read_counts(items, later, &mut counts)?;
    if found != 0 && found != later.len() {
        return Ok(Err(LoadFrameError::PartialCounts { found }));
    }
    Ok(counts.to_load(LoadSource::ZmqStat))
}

/// Reads the given counts and returns how many were there.
fn read_counts<'de, A: SeqAccess<'de>>(
    items: &mut A,
    order: &[Count],
    counts: &mut Counts<'de>,
) -> Result<usize, A::Error> {
    for (index, count) in order.iter().enumerate() {
        let Some(scalar) = items.next_element()? else {
            return Ok(index);
        };
        counts.set(*count, scalar);
    }
    Ok(order.len())
}

fn read_snapshot<'de, A: MapAccess<'de>>(mut entries: A) -> Result<Result<RankLoad, LoadFrameError>, A::Error> {
    let mut counts = Counts::new(Some(0));
    let mut num_foreign = 0_u64;
    let mut num_known = 0_u64;
    while let Some(key) = entries.next_key::<Scalar<'de>>()? {
        match Key::parse(&key) {
            Key::Counted(count) => {
                num_known += 1;
                counts.set(count, entries.next_value()?);
            }
            Key::Known => {
                num_known += 1;
                entries.next_value::<IgnoredAny>()?;
            }
            Key::Foreign => {
                num_foreign += 1;
                entries.next_value::<IgnoredAny>()?;
            }
        }
    }
    if num_known == 0 && num_foreign > 0 {
        return Ok(Err(LoadFrameError::ForeignMap));
    }
    Ok(counts.to_load(LoadSource::ZmqSnapshot))
}

#[cfg(test)]
mod tests;
