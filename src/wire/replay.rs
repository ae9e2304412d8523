//! The replay protocol of KV events (SGLang and vLLM): a request for everything from a number on, and its replies.
//!
//! A DEALER sees three parts (SGLang up to 0.5.21: empty delimiter, sequence, payload) or four (SGLang from 0.5.22 and vLLM 0.32:
//! empty delimiter, topic, sequence, payload). The end is the sequence -1.

use crate::wire::message::{MessageError, StreamMessage, split};

/// One reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A batch as it was published.
    Batch(StreamMessage<'a>),
    /// Nothing more comes.
    End,
}

/// Returns the parts of the request for all batches from `from` on.
pub fn request(from: u64) -> Vec<Vec<u8>> {
    vec![Vec::new(), from.to_be_bytes().to_vec()]
}

/// Reads a reply of either layout.
///
/// # Errors
/// Refuses whatever has other parts.
pub fn read_reply<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> Result<Reply<'a>, MessageError> {
    // With three parts the delimiter stands in the place of the topic; with four it comes on top.
    let num_delimiters = usize::from(parts.clone().count() == 4);
    match split(parts.skip(num_delimiters)) {
        Ok(message) => Ok(Reply::Batch(message)),
        Err(MessageError::EndMarker) => Ok(Reply::End),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{Reply, read_reply, request};
    use crate::wire::message::{MessageError, StreamMessage};

    /// Seen in vllm-project/vllm#45174.
    #[test]
    fn both_layouts_of_a_reply_are_read() {
        let seven: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 7];
        let end: &[u8] = &[0xff; 8];
        let batch = |topic| Ok(Reply::Batch(StreamMessage { topic, sequence: 7, payload: b"\x90" }));
        type Row<'a> = (&'a str, &'a [&'a [u8]], Result<Reply<'a>, MessageError>);
        let rows: &[Row<'_>] = &[
            ("three parts", &[b"", seven, b"\x90"], batch(b"")),
            ("four parts", &[b"", b"kv", seven, b"\x90"], batch(b"kv")),
            ("the end in three parts", &[b"", end, b""], Ok(Reply::End)),
            ("the end in four parts", &[b"", b"", end, b""], Ok(Reply::End)),
            ("two parts", &[b"", seven], Err(MessageError::Parts { found: 2 })),
        ];
        for (sentence, parts, expected) in rows {
            assert_eq!(read_reply(parts.iter().copied()), *expected, "{sentence}");
        }
    }

    #[test]
    fn a_request_is_a_delimiter_and_a_number() {
        assert_eq!(request(258), [vec![], vec![0, 0, 0, 0, 0, 0, 1, 2]]);
    }
}
