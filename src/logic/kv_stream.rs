//! Whether one rank's KV events can be believed, and what to do when some are missing.
//!
//! A publisher numbers its batches from zero. What a router lists for a rank holds as long as it has seen every batch since it
//! began to list. A missing batch may have removed a listed block, so after a gap nothing listed before it holds: the missing part
//! is fetched from the engine's replay socket where there is one, with live batches held back meanwhile, since a replayed store
//! applied after a later removal would bring a dead block back; else the rank is cleared, and listed anew from there.
//!
//! A number that does not grow means another publisher: the engine was restarted, and its cache is empty.
//!
//! The machine is generic over the batch, so that held ones need not be decoded. It performs nothing: each input returns the
//! actions to carry out, in order.

use std::collections::VecDeque;

/// Batches held back while a replay runs. Each is at most the size of a message; beyond this the replay is given up.
const MAX_HELD: usize = 1_024;
/// Bytes of held batches beyond which the replay is given up as well.
const MAX_HELD_BYTES: usize = 32 << 20;
/// Times that a replay is asked for in a row.
const MAX_ATTEMPTS: u32 = 4;
/// Batches in a row that could not be read before the stream is not believed any more.
const MAX_UNREADABLE_IN_A_ROW: u32 = 3;

/// How far one rank's listed blocks can be believed; named by what it means for a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StreamTrust {
    /// Nothing came yet: there is nothing to match.
    #[default]
    Cold,
    /// Every batch since the publisher began was seen: what is listed holds, and nothing is missing.
    Exact,
    /// Batches are missing that no replay could bring. The rank was cleared then: what is listed holds, but is not all.
    Gapped,
    /// A replay is under way: nothing is matched.
    Rebuilding,
    /// The stream cannot be read, or proved wrong: nothing is matched until the publisher starts again or clears.
    Untrusted,
}

impl StreamTrust {
    /// Every state, for gauges that show zeros too.
    pub const ALL: [Self; 5] = [Self::Cold, Self::Exact, Self::Gapped, Self::Rebuilding, Self::Untrusted];

    /// Returns the name used in metrics and the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Exact => "exact",
            Self::Gapped => "gapped",
            Self::Rebuilding => "rebuilding",
            Self::Untrusted => "untrusted",
        }
    }

    /// Tells whether a match at this rank counts as one.
    pub fn may_match(self) -> bool {
        matches!(self, Self::Exact | Self::Gapped)
    }
}

/// What to do next, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvAction<B> {
    /// Forget every block of the rank.
    ClearRank,
    /// Apply the batch. Whether it could be read is to be told by [`KvStream::read`].
    Apply(B),
    /// Ask the replay socket for everything from this number on. Ends with [`KvStream::replay_ended`].
    Replay {
        /// First number wanted.
        from: u64,
    },
}

/// Counters of one rank's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamCounters {
    /// Batches that never came live.
    pub missing: u64,
    /// Times the publisher started again.
    pub restarts: u64,
    /// Batches that came twice.
    pub duplicates: u64,
    /// Replays that closed their gap.
    pub repaired: u64,
    /// Replays that did not.
    pub unrepaired: u64,
}

/// The stream of one rank.
#[derive(Debug, Clone)]
pub struct KvStream<B> {
    phase: Phase<B>,
    has_replay: bool,
    last: Option<u64>,
    /// Whether everything since the publisher began, or last cleared its cache, was seen.
    is_whole: bool,
    num_unreadable: u32,
    counters: StreamCounters,
}

#[derive(Debug, Clone)]
enum Phase<B> {
    Cold,
    Following,
    Rebuilding(Replaying<B>),
    Untrusted,
}

#[derive(Debug, Clone)]
struct Replaying<B> {
    from: u64,
    /// Live batches in the order of their numbers.
    held: VecDeque<(u64, B)>,
    held_bytes: usize,
    /// How many times was asked, and what the last batch was before the last time.
    attempt: u32,
    last_before: Option<u64>,
    /// Whether no number was skipped since the one asked for.
    is_unbroken: bool,
}

impl<B> KvStream<B> {
    /// Returns a stream of which nothing is known. `has_replay` tells whether missing batches can be asked for.
    pub fn new(has_replay: bool) -> Self {
        Self {
            phase: Phase::Cold,
            has_replay,
            last: None,
            is_whole: false,
            num_unreadable: 0,
            counters: StreamCounters::default(),
        }
    }

    /// Returns how far what is listed can be believed.
    pub fn trust(&self) -> StreamTrust {
        match &self.phase {
            Phase::Cold => StreamTrust::Cold,
            Phase::Following if self.is_whole => StreamTrust::Exact,
            Phase::Following => StreamTrust::Gapped,
            Phase::Rebuilding(_) => StreamTrust::Rebuilding,
            Phase::Untrusted => StreamTrust::Untrusted,
        }
    }

    /// Returns the stream's counters.
    pub fn counters(&self) -> StreamCounters {
        self.counters
    }

    /// Tells that the subscription is connected. What the publisher sent before is asked for, where it can be.
    pub fn opened(&mut self) -> Vec<KvAction<B>> {
        if !self.has_replay || self.last.is_some() || !matches!(self.phase, Phase::Cold) {
            return Vec::new();
        }
        self.begin_replay(0, VecDeque::new(), 0)
    }

    /// Tells that everything listed has become void although no batch is missing: it is asked for again, where it can be.
    pub fn relist(&mut self) -> Vec<KvAction<B>> {
        let mut actions = self.reconnected();
        actions.extend(self.opened());
        actions
    }

    /// Takes a live batch of so many bytes.
    pub fn live(&mut self, sequence: u64, batch: B, num_bytes: usize) -> Vec<KvAction<B>> {
        if let Phase::Rebuilding(_) = self.phase {
            return self.hold(sequence, batch, num_bytes);
        }
        let Some(last) = self.last else {
            return self.begin(sequence, batch, num_bytes);
        };
        if sequence == last {
            self.counters.duplicates += 1;
            return Vec::new();
        }
        if sequence < last {
            return self.restart(sequence, batch, num_bytes);
        }
        let missing = sequence - last - 1;
        if missing == 0 {
            self.last = Some(sequence);
            return vec![KvAction::Apply(batch)];
        }
        self.counters.missing = self.counters.missing.saturating_add(missing);
        if self.has_replay {
            return self.start_replay(last + 1, sequence, batch, num_bytes);
        }
        self.follow_from(sequence, batch)
    }

    /// Takes a batch from the running replay. Ends it as soon as it reaches the batches held back.
    pub fn replayed(&mut self, sequence: u64, batch: B) -> Vec<KvAction<B>> {
        let next = self.last.map_or(0, |last| last.saturating_add(1));
        let Phase::Rebuilding(replaying) = &mut self.phase else {
            return Vec::new();
        };
        let wanted = next.max(replaying.from);
        if sequence < wanted {
            self.counters.duplicates += 1;
            return Vec::new();
        }
        let mut actions = Vec::new();
        if sequence > wanted {
            // The publisher's ring begins later than what was asked for, or the reply has a hole.
            replaying.is_unbroken = false;
            actions.push(KvAction::ClearRank);
        }
        self.last = Some(sequence);
        actions.push(KvAction::Apply(batch));
        let had_held = !replaying.held.is_empty();
        actions.extend(self.apply_held());
        if had_held && self.held_is_empty() {
            self.finish_replay();
        }
        actions
    }

    /// Tells that the replay has ended: by its end marker, by a timeout, or because the socket failed. What is missing between the
    /// batches held back is asked for again, as long as each time brings something.
    pub fn replay_ended(&mut self) -> Vec<KvAction<B>> {
        let last = self.last;
        let Phase::Rebuilding(replaying) = &mut self.phase else {
            return Vec::new();
        };
        if last.is_none() && replaying.held.is_empty() {
            // The publisher has sent nothing yet, or has no replay after all.
            self.phase = Phase::Cold;
            return Vec::new();
        }
        let next = last.map_or(0, |last| last.saturating_add(1)).max(replaying.from);
        let is_missing = replaying.held.front().is_some_and(|(first, _)| *first > next);
        if is_missing && last > replaying.last_before && replaying.attempt < MAX_ATTEMPTS {
            replaying.attempt += 1;
            replaying.last_before = last;
            return vec![KvAction::Replay { from: next }];
        }
        let mut actions = self.apply_held();
        while !self.held_is_empty() {
            // What is missing will not come any more.
            actions.extend(self.skip_hole());
            actions.extend(self.apply_held());
        }
        self.finish_replay();
        actions
    }

    /// Applies those held batches that follow without a hole.
    fn apply_held(&mut self) -> Vec<KvAction<B>> {
        let Phase::Rebuilding(replaying) = &mut self.phase else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        loop {
            let next = self.last.map_or(replaying.from, |last| last.saturating_add(1).max(replaying.from));
            match replaying.held.front() {
                Some((first, _)) if *first <= next => {}
                Some(_) | None => return actions,
            }
            let Some((sequence, batch)) = replaying.held.pop_front() else { return actions };
            if sequence < next {
                self.counters.duplicates += 1;
            } else {
                self.last = Some(sequence);
                actions.push(KvAction::Apply(batch));
            }
        }
    }

    fn skip_hole(&mut self) -> Vec<KvAction<B>> {
        let Phase::Rebuilding(replaying) = &mut self.phase else {
            return Vec::new();
        };
        let Some((sequence, batch)) = replaying.held.pop_front() else { return Vec::new() };
        replaying.is_unbroken = false;
        self.last = Some(sequence);
        vec![KvAction::ClearRank, KvAction::Apply(batch)]
    }

    fn held_is_empty(&self) -> bool {
        !matches!(&self.phase, Phase::Rebuilding(replaying) if !replaying.held.is_empty())
    }

    fn finish_replay(&mut self) {
        let Phase::Rebuilding(replaying) = &self.phase else { return };
        self.is_whole = replaying.is_unbroken && (self.is_whole || replaying.from == 0);
        if replaying.is_unbroken {
            self.counters.repaired += 1;
        } else {
            self.counters.unrepaired += 1;
        }
        self.phase = Phase::Following;
    }

    /// Tells whether a batch could be read. One that could not is as good as lost, and so is what was listed before it.
    pub fn read(&mut self, was_readable: bool) -> Vec<KvAction<B>> {
        if was_readable {
            self.num_unreadable = 0;
            return Vec::new();
        }
        self.num_unreadable = self.num_unreadable.saturating_add(1);
        self.is_whole = false;
        match &mut self.phase {
            Phase::Rebuilding(replaying) => replaying.is_unbroken = false,
            Phase::Cold | Phase::Following | Phase::Untrusted => {
                if self.num_unreadable >= MAX_UNREADABLE_IN_A_ROW {
                    self.phase = Phase::Untrusted;
                }
            }
        }
        vec![KvAction::ClearRank]
    }

    /// Tells that something of a batch that was read is missing: what is listed may be less than there is, or more.
    pub fn doubted(&mut self) {
        self.is_whole = false;
    }

    /// Tells that the publisher has cleared its cache: nothing is listed, and nothing is missing.
    pub fn cleared(&mut self) {
        if let Phase::Untrusted | Phase::Following = self.phase {
            self.phase = Phase::Following;
            self.is_whole = true;
        }
    }

    /// Tells that what the rank lists has proved wrong. It is asked for again where it can be; else nothing counts until the
    /// publisher starts again or clears.
    pub fn distrust(&mut self) -> Vec<KvAction<B>> {
        if self.has_replay {
            return self.relist();
        }
        self.phase = Phase::Untrusted;
        self.is_whole = false;
        vec![KvAction::ClearRank]
    }

    /// Tells that the connection is a new one. The publisher may be another one, with any number, so nothing listed holds.
    pub fn reconnected(&mut self) -> Vec<KvAction<B>> {
        let had_listed = self.last.is_some();
        *self = Self { counters: self.counters, ..Self::new(self.has_replay) };
        if had_listed { vec![KvAction::ClearRank] } else { Vec::new() }
    }

    fn begin(&mut self, sequence: u64, batch: B, num_bytes: usize) -> Vec<KvAction<B>> {
        if sequence > 0 && self.has_replay {
            return self.start_replay(0, sequence, batch, num_bytes);
        }
        self.phase = Phase::Following;
        self.last = Some(sequence);
        // Without replay, a late joiner lists only what it hears from now on.
        self.is_whole = sequence == 0;
        vec![KvAction::Apply(batch)]
    }

    fn restart(&mut self, sequence: u64, batch: B, num_bytes: usize) -> Vec<KvAction<B>> {
        self.counters.restarts += 1;
        self.num_unreadable = 0;
        self.last = None;
        let mut actions = vec![KvAction::ClearRank];
        actions.extend(self.begin(sequence, batch, num_bytes));
        actions
    }

    /// What is missing will not come: the rank begins anew with this batch.
    fn follow_from(&mut self, sequence: u64, batch: B) -> Vec<KvAction<B>> {
        self.last = Some(sequence);
        self.is_whole = false;
        if !matches!(self.phase, Phase::Untrusted) {
            self.phase = Phase::Following;
        }
        vec![KvAction::ClearRank, KvAction::Apply(batch)]
    }

    fn start_replay(&mut self, from: u64, sequence: u64, batch: B, num_bytes: usize) -> Vec<KvAction<B>> {
        self.begin_replay(from, VecDeque::from([(sequence, batch)]), num_bytes)
    }

    fn begin_replay(&mut self, from: u64, held: VecDeque<(u64, B)>, held_bytes: usize) -> Vec<KvAction<B>> {
        self.phase = Phase::Rebuilding(Replaying {
            from,
            held,
            held_bytes,
            attempt: 1,
            last_before: self.last,
            is_unbroken: true,
        });
        vec![KvAction::Replay { from }]
    }

    fn hold(&mut self, sequence: u64, batch: B, num_bytes: usize) -> Vec<KvAction<B>> {
        let Phase::Rebuilding(replaying) = &mut self.phase else {
            return Vec::new();
        };
        let newest = replaying.held.back().map(|(newest, _)| *newest);
        if newest == Some(sequence) {
            self.counters.duplicates += 1;
            return Vec::new();
        }
        if newest.is_some_and(|newest| sequence < newest) {
            return self.restart(sequence, batch, num_bytes);
        }
        replaying.held_bytes = replaying.held_bytes.saturating_add(num_bytes);
        if replaying.held.len() >= MAX_HELD || replaying.held_bytes > MAX_HELD_BYTES {
            self.counters.unrepaired += 1;
            self.phase = Phase::Following;
            return self.follow_from(sequence, batch);
        }
        if let Some(newest) = newest {
            self.counters.missing = self.counters.missing.saturating_add(sequence - newest - 1);
        }
        replaying.held.push_back((sequence, batch));
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
