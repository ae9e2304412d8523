//! What the tests of several rules share: a point in time, a descriptor, workers as a round sees them, and fleets that decide.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::logic::admission::Caps;
use crate::logic::decide::{Choice, DecideRules, FrozenRound, NoWorker, Scratch, decide};
use crate::logic::endpoint::{FeedDescriptor, WorkerFacts, WorkerUrl};
use crate::logic::health::WorkerState;
use crate::logic::ids::WorkerId;
use crate::logic::load::{LoadView, RankLoad, RankReport};
use crate::logic::policy::{LeastLoad, Policy, PrefixMatch};
use crate::logic::price::{Basis, BasisRule, PriceRules, Priced, price};
use crate::logic::ranks::RankRange;
use crate::logic::request::RequestFacts;
use crate::logic::role::{Part, Role};
use crate::logic::snapshot::WorkerSnapshot;

/// The freshness window and the ramp of the default configuration.
pub(crate) const RULES: PriceRules =
    PriceRules { basis: BasisRule::Uniform, freshness: Duration::from_secs(5), ramp_up: Duration::from_secs(10) };

/// The dispatch visibility of the default configuration.
pub(crate) const VISIBILITY: Duration = Duration::from_millis(50);

/// Returns an arbitrary point in time, a day ahead so that a test may count back from it on a machine that has just booted.
#[expect(clippy::disallowed_methods, reason = "an arbitrary point in time to count from")]
pub(crate) fn start() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

pub(crate) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) fn url(text: &str) -> WorkerUrl {
    WorkerUrl::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the descriptor of an engine with four ranks that publishes both feeds on a wildcard.
pub(crate) fn descriptor() -> FeedDescriptor {
    FeedDescriptor {
        dp_size: 4,
        endpoint_host: "*".to_owned(),
        endpoint_port_base: Some(5_557),
        topic: "kv".to_owned(),
        block_size: Some(64),
        load_endpoint_port_base: Some(5_657),
        load_topic: None,
        replay_endpoint_port_base: None,
    }
}

/// A worker to be, with ages in place of times.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    snapshot: WorkerSnapshot,
    expected_ranks: Option<u32>,
    reports: Vec<Option<(u64, Duration)>>,
    own_dispatches: u32,
    serving_for: Option<Duration>,
    left_alone_for: Option<Duration>,
}

/// Returns an established worker that serves the model `m` and reports nothing.
pub(crate) fn worker(number: u64) -> Worker {
    let snapshot = WorkerSnapshot::new(WorkerId::new(number), url("10.0.0.1:30000"));
    let worker = Worker {
        snapshot,
        expected_ranks: None,
        reports: Vec::new(),
        own_dispatches: 0,
        serving_for: None,
        left_alone_for: None,
    };
    worker.models(&["m"])
}

impl Worker {
    pub(crate) fn number(mut self, number: u64) -> Self {
        self.snapshot.id = WorkerId::new(number);
        self
    }

    pub(crate) fn state(mut self, state: WorkerState) -> Self {
        self.snapshot.state = state;
        self
    }

    /// On probation, with its trial free.
    pub(crate) fn on_probation(mut self) -> Self {
        self.snapshot.health.may_be_tried = true;
        self.state(WorkerState::Probation)
    }

    pub(crate) fn models(mut self, models: &[&str]) -> Self {
        let models = models.iter().map(|model| Arc::from(*model)).collect();
        self.snapshot.facts = Arc::new(WorkerFacts { models, ..WorkerFacts::default() });
        self
    }

    pub(crate) fn role(mut self, role: Role) -> Self {
        let facts = WorkerFacts { role, ..(*self.snapshot.facts).clone() };
        self.snapshot.facts = Arc::new(facts);
        self
    }

    /// Owns ranks from the engine's number `first` on, which requests may be addressed to.
    pub(crate) fn owning(mut self, first: u32, count: u32) -> Self {
        let facts = WorkerFacts { ranks: RankRange::new(first, count), ..(*self.snapshot.facts).clone() };
        self.snapshot.facts = Arc::new(facts);
        self.snapshot.addressed_ranks = count;
        self
    }

    pub(crate) fn in_flight(mut self, in_flight: u32) -> Self {
        self.snapshot.in_flight = in_flight;
        self
    }

    /// One advertised rank, which has just reported this depth.
    pub(crate) fn depth(self, depth: u64) -> Self {
        self.ranks(&[Some((depth, Duration::ZERO))])
    }

    /// Advertised ranks with the depth that each reported, and how long ago.
    pub(crate) fn ranks(mut self, reports: &[Option<(u64, Duration)>]) -> Self {
        self.expected_ranks = Some(reports.len() as u32);
        self.reports = reports.to_vec();
        self
    }

    pub(crate) fn own_dispatches(mut self, own_dispatches: u32) -> Self {
        self.own_dispatches = own_dispatches;
        self
    }

    pub(crate) fn serving_for(mut self, serving_for: Duration) -> Self {
        self.serving_for = Some(serving_for);
        self
    }

    /// Its engine wants to be left alone for so long from the start.
    pub(crate) fn left_alone_for(mut self, duration: Duration) -> Self {
        self.left_alone_for = Some(duration);
        self
    }

    pub(crate) fn freeze(self, now: Instant) -> Arc<WorkerSnapshot> {
        let report = |(depth, age): (u64, Duration)| RankReport {
            load: RankLoad { running: depth, ..RankLoad::default() },
            received_at: now - age,
        };
        let reports = self.reports.into_iter().map(|entry| entry.map(report)).collect();
        let load = LoadView::new(self.expected_ranks, reports, self.own_dispatches);
        let serving_since = self.serving_for.map(|age| now - age);
        let left_alone_until = self.left_alone_for.map(|duration| now + duration);
        Arc::new(WorkerSnapshot { load, serving_since, left_alone_until, ..self.snapshot })
    }
}

/// A frozen round with the request and the rules that decide on it.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) slots: Vec<Option<Arc<WorkerSnapshot>>>,
    pub(crate) reserved: Vec<u32>,
    pub(crate) matches: Vec<PrefixMatch>,
    pub(crate) request: RequestFacts,
    pub(crate) price: PriceRules,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) turn: u64,
    pub(crate) caps: Caps,
    pub(crate) part: Part,
    pub(crate) now: Instant,
}

impl Fleet {
    /// Returns a fleet that routes requests for the model `m` to the least loaded worker.
    pub(crate) fn of(workers: impl IntoIterator<Item = Worker>) -> Self {
        let now = start();
        Self::frozen(workers.into_iter().map(|worker| Some(worker.freeze(now))).collect(), now)
    }

    /// Returns the same for snapshots that exist already.
    pub(crate) fn frozen(slots: Vec<Option<Arc<WorkerSnapshot>>>, now: Instant) -> Self {
        Self {
            reserved: vec![0; slots.len()],
            matches: Vec::new(),
            slots,
            request: RequestFacts { model: Some(Arc::from("m")), ..RequestFacts::default() },
            price: RULES,
            policy: Box::new(LeastLoad),
            turn: 0,
            caps: Caps::default(),
            part: Part::Whole,
            now,
        }
    }

    pub(crate) fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Box::new(policy);
        self
    }

    pub(crate) fn basis(mut self, basis: BasisRule) -> Self {
        self.price.basis = basis;
        self
    }

    pub(crate) fn reserved(mut self, reserved: &[u32]) -> Self {
        self.reserved = reserved.to_vec();
        self
    }

    /// Matched blocks and blocks of the prompt, by slot.
    pub(crate) fn matches(mut self, matches: &[(u32, u32)]) -> Self {
        self.matches = matches
            .iter()
            .map(|&(matched_blocks, prompt_blocks)| PrefixMatch::of_blocks(matched_blocks, prompt_blocks))
            .collect();
        self
    }

    pub(crate) fn model(mut self, model: Option<&str>) -> Self {
        self.request.model = model.map(Arc::from);
        self
    }

    pub(crate) fn excluded(mut self, numbers: &[u64]) -> Self {
        self.request.excluded = numbers.iter().map(|number| WorkerId::new(*number)).collect();
        self
    }

    /// Prices every worker that answered, whatever its state.
    pub(crate) fn price(&self) -> (Basis, Vec<f64>) {
        let filled = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        let mut priced: Vec<Priced> = filled.map(|(slot, _)| Priced::new(slot)).collect();
        let (slots, reserved) = (&self.slots, &self.reserved);
        let basis = price(&mut priced, |slot| slots[slot].as_deref(), |slot| reserved[slot], &self.price, self.now);
        (basis, priced.iter().map(|candidate| candidate.load).collect())
    }

    pub(crate) fn decide(&self, seed: u64) -> Result<Choice, NoWorker> {
        self.decide_with(seed, &mut Scratch::default())
    }

    pub(crate) fn decide_with(&self, seed: u64, scratch: &mut Scratch) -> Result<Choice, NoWorker> {
        let round = FrozenRound { slots: &self.slots, reserved: &self.reserved, matches: &self.matches, now: self.now };
        let rules = DecideRules {
            price: self.price,
            policy: &*self.policy,
            turn: self.turn,
            seed,
            caps: self.caps,
            part: self.part,
        };
        decide(&self.request, &round, &rules, scratch)
    }

    /// Decides as often in this one round, each decision reserved before the next, and returns how many went to each slot.
    pub(crate) fn send(&mut self, num_requests: u64) -> Vec<u32> {
        let before = self.reserved.clone();
        for seed in 0..num_requests {
            let choice = self.decide(seed).unwrap_or_else(|cause| panic!("request {seed}: {cause}"));
            self.reserved[choice.slot] += 1;
        }
        self.reserved.iter().zip(before).map(|(after, before)| after - before).collect()
    }
}
