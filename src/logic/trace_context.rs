//! W3C trace context: which trace a client's request belongs to, and what the engine is told of it.
//!
//! A valid `traceparent` makes the request's span a child of the one that it names; anything else (missing, malformed, sent twice)
//! starts a new trace, and is never an error. Where a new trace starts, the client's `tracestate` is not passed on, for it belongs to
//! another one. A caller that has decided against recording is obeyed: there is no span then, and its header is passed on as it came.
//! Later versions of the header are read as the standard asks: by the fields of version 00, with whatever follows them left out.

use std::fmt;

use crate::logic::rng::Rng;

/// Length of the header's value in version 00.
const LENGTH: usize = 55;
/// The caller may have recorded its part.
const SAMPLED: u8 = 0b01;
/// The trace id is random, which holds for all of the trace.
const RANDOM: u8 = 0b10;

/// Identifies a trace. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl TraceId {
    /// Returns the id as it is written in messages.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// Identifies a span within its trace. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    /// Returns the id as it is written in messages.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// What a `traceparent` says: one span of one trace. Its `Display` is the value of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span within it.
    pub span: SpanId,
    flags: u8,
}

impl TraceContext {
    /// Reads the value of a `traceparent`; `None` where it is not valid.
    pub fn parse(value: &[u8]) -> Option<Self> {
        if value.get(LENGTH).is_some_and(|byte| *byte != b'-') {
            return None;
        }
        let text = std::str::from_utf8(value.get(..LENGTH)?).ok()?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if !text.bytes().all(|byte| is_hex(byte) || byte == b'-') {
            return None;
        }
        let fields: Vec<&str> = text.split('-').collect();
        let [version, trace, span, flags] = fields[..] else { return None };
        if [version.len(), trace.len(), span.len(), flags.len()] != [2, 32, 16, 2] {
            return None;
        }
        match version {
            "ff" => return None,
            "00" if value.len() != LENGTH => return None,
            _ => {}
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
        // What other flags mean is not known here, and so they are not passed on.
        let flags = u8::from_str_radix(flags, 16).ok()? & (SAMPLED | RANDOM);
        Some(Self { trace: TraceId(trace), span: SpanId(span), flags })
    }

    /// Returns the flags that are known.
    pub const fn flags(self) -> u8 {
        self.flags
    }

    /// Tells whether the caller may have recorded its part.
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace.0, self.span.0, self.flags)
    }
}

/// The place of a request in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A new trace begins with it.
    Root(TraceContext),
    /// It has a span of its own below the caller's.
    Child {
        /// Its own.
        own: TraceContext,
        /// The caller's.
        parent: SpanId,
    },
    /// The caller's trace is not recorded, and so it has no span.
    Unrecorded,
}

impl Place {
    /// Returns the place of a request with these `traceparent` headers.
    pub fn of<'a>(mut headers: impl Iterator<Item = &'a [u8]>, rng: &mut Rng) -> Self {
        let only = headers.next().filter(|_| headers.next().is_none());
        match only.and_then(TraceContext::parse) {
            None => Self::Root(TraceContext { trace: new_trace(rng), span: new_span(rng), flags: SAMPLED }),
            Some(parent) if parent.is_sampled() => {
                Self::Child { own: TraceContext { span: new_span(rng), ..parent }, parent: parent.span }
            }
            Some(_) => Self::Unrecorded,
        }
    }
}

fn new_trace(rng: &mut Rng) -> TraceId {
    TraceId(((u128::from(rng.next_u64()) << 64) | u128::from(rng.next_u64())).max(1))
}

fn new_span(rng: &mut Rng) -> SpanId {
    SpanId(rng.next_u64().max(1))
}

#[cfg(test)]
mod tests {
    use super::{Place, TraceContext};
    use crate::logic::rng::Rng;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn place(headers: &[&str]) -> Place {
        Place::of(headers.iter().map(|header| header.as_bytes()), &mut Rng::from_seed(7))
    }

    #[test]
    fn a_valid_header_is_read_and_written_as_it_was() {
        for flags in ["00", "01", "02", "03"] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            let context = TraceContext::parse(text.as_bytes()).expect("a valid header");
            assert_eq!(context.to_string(), text);
            assert_eq!(context.is_sampled(), flags == "01" || flags == "03");
            assert_eq!(context.trace.to_bytes()[..2], [0x0a, 0xf7]);
            assert_eq!(context.span.to_bytes()[..2], [0xb7, 0xad]);
        }
    }

    #[test]
    fn a_later_version_is_read_by_what_is_known_of_it() {
        for text in [format!("01-{TRACE}-{SPAN}-ff"), format!("cc-{TRACE}-{SPAN}-03-what-follows")] {
            let context = TraceContext::parse(text.as_bytes()).expect("a valid header");
            assert_eq!(context.to_string(), format!("00-{TRACE}-{SPAN}-03"));
        }
    }

    #[test]
    fn what_is_not_a_valid_header_starts_a_new_trace() {
        let bad = [
            String::new(),
            "-".repeat(55),
            "é".repeat(28),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("01-{TRACE}-{SPAN}-01.more"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}{SPAN}--01-"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("0g-{TRACE}-{SPAN}-01"),
            "00".repeat(40_000),
        ];
        for text in bad {
            assert_eq!(TraceContext::parse(text.as_bytes()), None, "{text}");
            assert!(matches!(place(&[&text]), Place::Root(_)), "{text}");
        }
        let valid = format!("00-{TRACE}-{SPAN}-01");
        assert!(matches!(place(&[]), Place::Root(_)));
        assert!(matches!(place(&[&valid, &valid]), Place::Root(_)), "which of the two would be a guess");
    }

    #[test]
    fn a_child_keeps_the_trace_and_its_flags_and_has_a_span_of_its_own() {
        let Place::Child { own, parent } = place(&[&format!("00-{TRACE}-{SPAN}-03")]) else {
            panic!("it has a parent")
        };
        assert_eq!(parent.to_bytes(), 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        assert_ne!(own.span, parent);
        assert!(own.to_string().starts_with(&format!("00-{TRACE}-")) && own.to_string().ends_with("-03"), "{own}");
    }

    #[test]
    fn a_caller_that_records_nothing_is_obeyed() {
        for flags in ["00", "02", "fe"] {
            assert_eq!(place(&[&format!("00-{TRACE}-{SPAN}-{flags}")]), Place::Unrecorded, "{flags}");
        }
    }

    #[test]
    fn new_traces_are_recorded_and_differ() {
        let mut rng = Rng::from_seed(7);
        let mut next = || match Place::of(std::iter::empty(), &mut rng) {
            Place::Root(own) => own,
            other => panic!("{other:?}"),
        };
        let (first, second) = (next(), next());
        assert!(first.is_sampled() && first.trace != second.trace && first.span != second.span);
        assert_eq!(TraceContext::parse(first.to_string().as_bytes()), Some(first));
    }
}
