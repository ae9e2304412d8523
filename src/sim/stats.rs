//! What a simulated engine has seen. Every list is bounded: an engine may serve a benchmark for hours.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use actix_web::HttpRequest;
use bytes::Bytes;

/// The inference requests that are kept whole.
const MAX_RECENT_REQUESTS: usize = 16;

/// The longest recorded body; 16 of them are 128 MiB.
const MAX_RECORDED_BODY_BYTES: usize = 8 << 20;

/// The different paths that are counted apart; a scan of random paths must not grow the table.
const MAX_PATHS: usize = 64;

/// The entry of [`SimStats::requests`] that counts all further paths.
const OTHER_PATHS: &str = "(other)";

/// What a simulated engine has seen and holds at this moment.
#[derive(Debug, Clone)]
pub struct SimStats {
    /// Requests by path, probes included. After 64 different paths, all others count as `(other)`.
    pub requests: BTreeMap<String, u64>,
    /// Requests in slots, over all ranks.
    pub running: u64,
    /// Requests in queues.
    pub waiting: u64,
    /// Requests that got their whole answer.
    pub completed: u64,
    /// Requests whose client left before that.
    pub aborted: u64,
    /// Requests that the engine broke off because it was told to.
    pub failed: u64,
    /// Prompt tokens of all requests whose prompt has been computed.
    pub num_prompt_tokens: u64,
    /// How many of these were cached.
    pub num_cached_tokens: u64,
    /// The same seven numbers per rank.
    pub ranks: Vec<RankStats>,
    /// The last 16 requests to inference routes, oldest first.
    pub recent: Vec<RecordedRequest>,
    /// When the engine noticed the last 256 aborts, oldest first.
    pub recent_aborts: Vec<Instant>,
}

impl SimStats {
    /// Returns the number of requests to `path`.
    #[must_use]
    pub fn num_requests(&self, path: &str) -> u64 {
        self.requests.get(path).copied().unwrap_or_default()
    }

    /// Returns the number of requests to all paths.
    #[must_use]
    pub fn num_requests_in_total(&self) -> u64 {
        self.requests.values().sum()
    }

    pub(super) fn new(recorder: &Recorder, ranks: Vec<RankStats>, recent_aborts: Vec<Instant>) -> Self {
        let total = |number: fn(&RankStats) -> u64| ranks.iter().map(number).sum();
        Self {
            requests: recorder.requests.clone(),
            running: total(|rank| rank.running),
            waiting: total(|rank| rank.waiting),
            completed: total(|rank| rank.completed),
            aborted: total(|rank| rank.aborted),
            failed: total(|rank| rank.failed),
            num_prompt_tokens: total(|rank| rank.num_prompt_tokens),
            num_cached_tokens: total(|rank| rank.num_cached_tokens),
            ranks,
            recent: recorder.recent.iter().cloned().collect(),
            recent_aborts,
        }
    }
}

/// What one rank has seen and holds at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankStats {
    /// Requests in slots.
    pub running: u64,
    /// Requests in the queue.
    pub waiting: u64,
    /// Requests that got their whole answer.
    pub completed: u64,
    /// Requests whose client left before that.
    pub aborted: u64,
    /// Requests that the engine broke off because it was told to.
    pub failed: u64,
    /// Prompt tokens of the requests whose prompt has been computed.
    pub num_prompt_tokens: u64,
    /// How many of these were cached.
    pub num_cached_tokens: u64,
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The path and the query.
    pub path_and_query: String,
    /// Names in lower case and values as they were sent, sorted by name; values of one name keep their order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The first 8 MiB of the body.
    pub body: Bytes,
    /// The length of the whole body.
    pub body_bytes: usize,
}

impl RecordedRequest {
    /// Returns the first value of the header `name`, which is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_slice())
    }

    fn new(request: &HttpRequest, body: &Bytes) -> Self {
        let mut headers: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect();
        headers.sort_by(|left, right| left.0.cmp(&right.0));
        Self { path_and_query: request.uri().to_string(), headers, body: kept_body(body), body_bytes: body.len() }
    }
}

/// Counts requests and keeps the last ones.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    requests: BTreeMap<String, u64>,
    recent: VecDeque<RecordedRequest>,
}

impl Recorder {
    pub(super) fn count(&mut self, path: &str) {
        let known = self.requests.contains_key(path) || self.requests.len() < MAX_PATHS;
        let key = if known { path } else { OTHER_PATHS };
        *self.requests.entry(key.to_owned()).or_default() += 1;
    }

    pub(super) fn keep(&mut self, request: &HttpRequest, body: &Bytes) {
        if self.recent.len() == MAX_RECENT_REQUESTS {
            self.recent.pop_front();
        }
        self.recent.push_back(RecordedRequest::new(request, body));
    }
}

/// A part of a longer body is copied, since a slice of it would keep the whole alive.
fn kept_body(body: &Bytes) -> Bytes {
    match body.get(..MAX_RECORDED_BODY_BYTES) {
        Some(start) => Bytes::copy_from_slice(start),
        None => body.clone(),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn only_the_last_requests_are_kept_and_long_bodies_are_cut() {
        let mut recorder = Recorder::default();
        let long = Bytes::from(vec![b'x'; MAX_RECORDED_BODY_BYTES + 1]);
        let short = Bytes::from_static(b"{}");
        for index in 0..=MAX_RECENT_REQUESTS {
            let request = TestRequest::with_uri(&format!("/{index}?q")).insert_header(("X-Two", "2")).to_http_request();
            recorder.keep(&request, if index == 1 { &long } else { &short });
        }
        let stats = SimStats::new(&recorder, Vec::new(), Vec::new());
        assert_eq!(stats.recent.len(), MAX_RECENT_REQUESTS);
        let oldest = &stats.recent[0];
        assert_eq!(oldest.path_and_query, "/1?q");
        assert_eq!(oldest.header("x-two"), Some(&b"2"[..]));
        assert_eq!((oldest.body.len(), oldest.body_bytes), (MAX_RECORDED_BODY_BYTES, MAX_RECORDED_BODY_BYTES + 1));
    }

    #[test]
    fn a_scan_of_random_paths_does_not_grow_the_table() {
        let mut recorder = Recorder::default();
        for index in 0..200 {
            recorder.count(&format!("/{index}"));
        }
        recorder.count("/0");
        let stats = SimStats::new(&recorder, Vec::new(), Vec::new());
        assert_eq!(stats.num_requests("/0"), 2);
        assert_eq!(stats.num_requests(OTHER_PATHS), 200 - MAX_PATHS as u64);
        assert_eq!(stats.num_requests_in_total(), 201);
    }
}
