//! What an engine says of a request's cached prompt tokens, read from the end of an answer that is only passed on.
//!
//! Engines put `"usage":{..,"prompt_tokens_details":{"cached_tokens":N}}` (OpenAI form; SGLang with `--enable-cache-report`, vLLM
//! with `--enable-prompt-tokens-details`) or `"cached_tokens":N` (SGLang `/generate`) last, both in whole answers and in the last
//! events of a stream. The answer is neither parsed nor kept: only its end is looked at, when it is over.

/// Bytes of an answer's end that are looked at. Usage and what follows it have some 300.
const TAIL_BYTES: usize = 1_024;
const KEY: &[u8] = b"\"cached_tokens\"";

/// The end of an answer. Costs one copy of at most a kilobyte per chunk.
#[derive(Debug, Clone, Default)]
pub struct UsageTail {
    tail: Vec<u8>,
}

impl UsageTail {
    /// Takes the next chunk of the answer.
    pub fn push(&mut self, chunk: &[u8]) {
        let new = &chunk[chunk.len().saturating_sub(TAIL_BYTES)..];
        let kept = TAIL_BYTES - new.len();
        let excess = self.tail.len().saturating_sub(kept);
        self.tail.drain(..excess);
        self.tail.extend_from_slice(new);
    }

    /// Returns the number of cached prompt tokens, where the engine said one. Absent is not zero.
    pub fn cached_tokens(&self) -> Option<u32> {
        let mut found = None;
        for (at, window) in self.tail.windows(KEY.len()).enumerate() {
            if window == KEY {
                // The last one counts: a stream may report usage in each event.
                found = number_after_colon(&self.tail[at + KEY.len()..]);
            }
        }
        found
    }
}

fn number_after_colon(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{TAIL_BYTES, UsageTail};

    fn cached_tokens(answer: &str, chunk_bytes: usize) -> Option<u32> {
        let mut tail = UsageTail::default();
        answer.as_bytes().chunks(chunk_bytes).for_each(|chunk| tail.push(chunk));
        tail.cached_tokens()
    }

    #[test]
    fn the_number_is_found_however_the_answer_is_cut() {
        let long = "x".repeat(3 * TAIL_BYTES);
        let rows = [
            (
                "a whole answer",
                format!(r#"{{"text":"{long}","usage":{{"prompt_tokens_details":{{"cached_tokens":96}}}}}}"#),
                Some(96),
            ),
            ("spaces", r#"{"cached_tokens" : 7 }"#.to_owned(), Some(7)),
            (
                "a stream whose last usage counts",
                "data: {\"cached_tokens\":1}\n\ndata: {\"cached_tokens\":2}\n\ndata: [DONE]\n\n".to_owned(),
                Some(2),
            ),
            ("null is not zero", r#"{"prompt_tokens_details":null,"cached_tokens":null}"#.to_owned(), None),
            ("no usage", r#"{"choices":[]}"#.to_owned(), None),
            ("a number that is none", r#"{"cached_tokens":99999999999}"#.to_owned(), None),
            ("too early to be the usage", format!(r#"{{"cached_tokens":5,"text":"{long}"}}"#), None),
            ("nothing", String::new(), None),
        ];
        for (sentence, answer, expected) in rows {
            for chunk_bytes in [1, 7, 100, 10_000] {
                assert_eq!(cached_tokens(&answer, chunk_bytes), expected, "{sentence}, in chunks of {chunk_bytes}");
            }
        }
    }
}
