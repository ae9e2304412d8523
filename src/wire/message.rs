//! The three parts of every message that an engine publishes: topic, sequence number, payload.

/// Width of the sequence number: big-endian, counted from zero by each publisher.
const SEQUENCE_BYTES: usize = 8;

/// What takes the place of the sequence number at the end of a replay; -1 to its sender.
const END_MARKER: u64 = u64::MAX;

/// One message of an engine's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMessage<'a> {
    /// The topic; often empty.
    pub topic: &'a [u8],
    /// The publisher's number of the message.
    pub sequence: u64,
    /// The msgpack value; at least one byte.
    pub payload: &'a [u8],
}

/// Says why a message is none of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It has not exactly three parts.
    #[error("the message has {found} parts instead of 3")]
    Parts {
        /// How many it has.
        found: usize,
    },
    /// Its second part is not eight bytes.
    #[error("the sequence number has {found} bytes instead of 8")]
    SequenceWidth {
        /// How many bytes it is.
        found: usize,
    },
    /// It ends a replay and carries nothing. Not a fault where a replay was asked for.
    #[error("the message is the end marker of a replay")]
    EndMarker,
    /// Its payload is empty.
    #[error("the payload is empty")]
    EmptyPayload,
}

impl MessageError {
    /// Every reason, for counters that show zeros too.
    pub const REASONS: [&'static str; 4] = ["parts", "sequence_width", "end_marker", "empty_payload"];

    /// Returns the reason as a metric label.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Parts { .. } => "parts",
            Self::SequenceWidth { .. } => "sequence_width",
            Self::EndMarker => "end_marker",
            Self::EmptyPayload => "empty_payload",
        }
    }
}

/// Splits a message into its three parts.
///
/// A replayed message is one of these once its empty delimiter is taken off where four parts came; where three came, the
/// delimiter stands in place of the topic.
///
/// # Errors
/// Refuses whatever has other parts. The end marker of a replay is an error of its own, whatever its payload is.
pub fn split<'a>(mut parts: impl Iterator<Item = &'a [u8]>) -> Result<StreamMessage<'a>, MessageError> {
    let (topic, sequence, payload) = match (parts.next(), parts.next(), parts.next()) {
        (Some(topic), Some(sequence), Some(payload)) => (topic, sequence, payload),
        (first, second, _) => {
            return Err(MessageError::Parts { found: usize::from(first.is_some()) + usize::from(second.is_some()) });
        }
    };
    let excess = parts.count();
    if excess > 0 {
        return Err(MessageError::Parts { found: 3 + excess });
    }
    let sequence: [u8; SEQUENCE_BYTES] =
        sequence.try_into().map_err(|_| MessageError::SequenceWidth { found: sequence.len() })?;
    let sequence = u64::from_be_bytes(sequence);
    if sequence == END_MARKER {
        return Err(MessageError::EndMarker);
    }
    if payload.is_empty() {
        return Err(MessageError::EmptyPayload);
    }
    Ok(StreamMessage { topic, sequence, payload })
}

#[cfg(test)]
mod tests {
    use super::{MessageError, StreamMessage, split};
    use crate::wire::golden;

    fn split_owned(parts: &[Vec<u8>]) -> Result<StreamMessage<'_>, MessageError> {
        split(parts.iter().map(Vec::as_slice))
    }

    /// Seen in ROCm/ATOM#2203.
    #[test]
    fn only_three_parts_with_an_eight_byte_number_and_a_payload_are_a_message() {
        let seven: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 7];
        let end: &[u8] = &[0xff; 8];
        let message = |topic, sequence, payload| Ok(StreamMessage { topic, sequence, payload });
        type Row<'a> = (&'a str, &'a [&'a [u8]], Result<StreamMessage<'a>, MessageError>);
        let rows: &[Row<'_>] = &[
            ("three parts", &[b"load", seven, b"\x80"], message(b"load", 7, b"\x80")),
            ("an empty topic is a topic", &[b"", seven, b"x"], message(b"", 7, b"x")),
            ("no part", &[], Err(MessageError::Parts { found: 0 })),
            ("one part", &[seven], Err(MessageError::Parts { found: 1 })),
            ("two parts", &[seven, b"x"], Err(MessageError::Parts { found: 2 })),
            ("four parts", &[b"", b"", seven, b"x"], Err(MessageError::Parts { found: 4 })),
            ("a short number", &[b"", &[1, 2], b"x"], Err(MessageError::SequenceWidth { found: 2 })),
            ("a long number", &[b"", &[0; 9], b"x"], Err(MessageError::SequenceWidth { found: 9 })),
            ("an empty payload", &[b"", seven, b""], Err(MessageError::EmptyPayload)),
            ("the end marker", &[b"", end, b""], Err(MessageError::EndMarker)),
            ("the end marker with a payload", &[b"", end, b"x"], Err(MessageError::EndMarker)),
        ];
        for (sentence, parts, expected) in rows {
            assert_eq!(split(parts.iter().copied()), *expected, "{sentence}");
        }
    }

    #[test]
    fn every_reason_is_in_the_closed_set() {
        let errors = [
            MessageError::Parts { found: 1 },
            MessageError::SequenceWidth { found: 1 },
            MessageError::EndMarker,
            MessageError::EmptyPayload,
        ];
        assert_eq!(errors.map(MessageError::reason), MessageError::REASONS);
    }

    #[test]
    fn every_recorded_message_splits_into_its_topic_and_number() {
        for name in golden::LOAD_FILES.iter().chain(golden::KV_FILES) {
            for record in golden::read(name) {
                let message = split_owned(&record.frames).unwrap();
                let meaning = record.meaning();
                let topic = meaning["topic"].as_str().unwrap();
                assert_eq!(message.topic, topic.as_bytes(), "{name}: {}", record.name);
                assert_eq!(message.sequence, meaning["seq"].as_u64().unwrap(), "{name}: {}", record.name);
            }
        }
    }

    #[test]
    fn every_recorded_replay_message_splits_with_or_without_a_topic() {
        for name in golden::REPLAY_FILES {
            for record in golden::read(name) {
                let parts = if record.frames.len() == 4 { &record.frames[1..] } else { &record.frames[..] };
                match record.meaning()["seq"].as_u64() {
                    Some(sequence) => assert_eq!(split_owned(parts).unwrap().sequence, sequence, "{name}"),
                    None => assert_eq!(split_owned(parts), Err(MessageError::EndMarker), "{name}"),
                }
            }
        }
    }
}
