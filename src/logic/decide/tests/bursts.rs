//! What the rules do together while requests come and go: engines that publish, die and come back, and the books of their workers.

use std::time::{Duration, Instant};

use crate::logic::flight::FlightBook;
use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::load::{LoadTable, RankLoad};
use crate::logic::policy::CacheAwareZmq;
use crate::logic::price::BasisRule;
use crate::logic::snapshot::WorkerSnapshot;
use crate::logic::testing::{Fleet, VISIBILITY, millis, secs, start, url, worker};

/// An engine with one rank, and the books that its worker keeps on it.
struct Engine {
    id: WorkerId,
    load: LoadTable,
    flights: FlightBook,
    serving_since: Option<Instant>,
    num_reports: u64,
    /// Requests that it runs for others than this router.
    foreign: u32,
    /// How long it takes for one request.
    service_time: Duration,
    running: Vec<(Instant, DecisionId)>,
}

impl Engine {
    fn new(number: u64, foreign: u32) -> Self {
        Self {
            id: WorkerId::new(number),
            load: LoadTable::new(Some(1)),
            flights: FlightBook::default(),
            serving_since: None,
            num_reports: 0,
            foreign,
            service_time: secs(3_600),
            running: Vec::new(),
        }
    }

    fn takes(mut self, service_time: Duration) -> Self {
        self.service_time = service_time;
        self
    }

    fn publishes(&mut self, running: u64, now: Instant) {
        self.load.apply(DpRank::new(0), self.num_reports, RankLoad { running, ..RankLoad::default() }, now);
        self.num_reports += 1;
    }

    /// Publishes what it really runs.
    fn reports(&mut self, now: Instant) {
        self.publishes(u64::from(self.foreign) + self.running.len() as u64, now);
    }

    fn finishes_what_is_due(&mut self, now: Instant) {
        let flights = &mut self.flights;
        self.running.retain(|(ends_at, decision)| *ends_at > now || flights.finish(*decision).is_none());
    }

    fn snapshot(&mut self) -> WorkerSnapshot {
        let since = self.load.oldest_report_at().map(|report_at| self.flights.dispatches_since(report_at, VISIBILITY));
        let mut snapshot = WorkerSnapshot::new(self.id, url("10.0.0.1:30000"));
        snapshot.in_flight = self.flights.in_flight();
        snapshot.load = self.load.freeze(since.unwrap_or(0));
        snapshot.serving_since = self.serving_since;
        snapshot
    }
}

/// Serves the requests in one round and returns the slot of each. `first` numbers the decisions and is their seed.
fn round(engines: &mut [Engine], num_requests: u64, first: u64, now: Instant) -> Vec<usize> {
    let slots = engines.iter_mut().map(|engine| Some(engine.snapshot().into())).collect();
    let mut fleet = Fleet::frozen(slots, now).model(None);
    let mut chosen = Vec::new();
    for number in first..first + num_requests {
        let slot = fleet.decide(number).unwrap().slot;
        fleet.reserved[slot] += 1;
        let decision = DecisionId::new(number);
        engines[slot].flights.reserve(decision, None, now);
        let ends_at = now + engines[slot].service_time;
        engines[slot].running.push((ends_at, decision));
        chosen.push(slot);
    }
    chosen
}

fn share(chosen: &[usize], slot: usize) -> usize {
    chosen.iter().filter(|other| **other == slot).count()
}

fn longest_run(chosen: &[usize], slot: usize) -> usize {
    chosen.split(|other| *other != slot).map(<[usize]>::len).max().unwrap_or(0)
}

fn depths(engines: &mut [Engine]) -> Vec<u64> {
    engines.iter_mut().map(|engine| engine.snapshot().load.depth()).collect()
}

/// Seen in vllm-project/router#178 and llm-d/llm-d-router#1598.
#[test]
fn own_dispatches_since_the_report_spread_a_burst_near_evenly_between_workers_reporting_zero_and_one() {
    let t0 = start();
    for (sentence, num_rounds) in
        [("64 decisions in one round", 1), ("in eight rounds", 8), ("each in its own round", 64)]
    {
        let mut engines = [Engine::new(1, 0), Engine::new(2, 1)];
        engines.iter_mut().for_each(|engine| engine.reports(t0));
        let mut chosen = Vec::new();
        for number in 0..num_rounds {
            let num_requests = 64 / num_rounds;
            chosen.extend(round(&mut engines, num_requests, number * num_requests, t0 + secs(1) + millis(number)));
        }
        assert!((32..=33).contains(&share(&chosen, 0)), "{sentence}: {chosen:?}");
    }
}

/// Seen in llm-d/llm-d-router#1598.
#[test]
fn own_dispatches_are_not_counted_twice_after_the_next_report() {
    let t0 = start();
    let mut engines = [Engine::new(1, 0), Engine::new(2, 1)];
    engines.iter_mut().for_each(|engine| engine.reports(t0));
    let burst_at = t0 + secs(1);
    round(&mut engines, 64, 0, burst_at);
    assert_eq!(depths(&mut engines).iter().sum::<u64>(), 65, "before the report they come on top of it");
    // A report this soon may or may not contain them: for a moment they may count twice, but never not at all.
    engines.iter_mut().for_each(|engine| engine.reports(burst_at + VISIBILITY));
    assert_eq!(depths(&mut engines).iter().sum::<u64>(), 65 + 64);
    engines.iter_mut().for_each(|engine| engine.reports(burst_at + VISIBILITY + millis(1)));
    assert_eq!(depths(&mut engines).iter().sum::<u64>(), 65, "after it they are in the report alone");
    let second = round(&mut engines, 64, 64, burst_at + secs(1));
    assert!((31..=33).contains(&share(&second, 0)), "{second:?}");
    assert_eq!(depths(&mut engines).iter().sum::<u64>(), 129);
}

/// Seen in vllm-project/aibrix#2569 and kubernetes-sigs/gateway-api-inference-extension#1497.
#[test]
fn an_idle_report_that_went_stale_draws_no_more_traffic() {
    let t0 = start();
    let slow = Engine::new(1, 0).takes(secs(20));
    let mut engines = [slow, Engine::new(2, 6).takes(secs(2)), Engine::new(3, 6).takes(secs(2))];
    // The first publishes its zero once and never again.
    engines[0].reports(t0);
    let mut after_the_window = Vec::new();
    for number in 0..200 {
        let age = millis(300) * number as u32;
        for engine in &mut engines {
            engine.finishes_what_is_due(t0 + age);
        }
        engines[1..].iter_mut().for_each(|engine| engine.reports(t0 + age));
        let chosen = round(&mut engines, 1, number, t0 + age);
        if age >= secs(5) {
            after_the_window.extend(chosen);
        }
    }
    assert!(longest_run(&after_the_window, 0) <= 3, "{after_the_window:?}");
    // With as many in flight as the others and a tenth of their speed it gets about a tenth of what one of them gets.
    assert!(share(&after_the_window, 0) <= 20, "{} of {}", share(&after_the_window, 0), after_the_window.len());
}

/// Seen in sgl-project/sglang#28600.
#[test]
fn a_worker_with_a_missing_rank_gets_its_share_by_in_flight_and_not_the_lot() {
    let reported = Some((30, Duration::ZERO));
    let incomplete = worker(1).ranks(&[reported, reported, reported, None]);
    let mut fleet = Fleet::of([incomplete, worker(2).depth(90)]);
    assert_eq!(fleet.send(100), [50, 50]);
}

/// Seen in smg-project/smg#1714.
#[test]
fn idle_workers_that_are_slow_to_answer_share_the_requests_evenly() {
    let t0 = start();
    let mut engines = [1, 2, 3, 4].map(|number| Engine::new(number, 0));
    let mut chosen = Vec::new();
    for number in 0..40 {
        chosen.extend(round(&mut engines, 1, number, t0 + millis(100) * number as u32));
    }
    assert_eq!([0, 1, 2, 3].map(|slot| share(&chosen, slot)), [10, 10, 10, 10]);
    assert_ne!(chosen[..4], [0, 1, 2, 3], "in an order that is not that of the list");
}

/// Seen in vllm-project/router#179.
#[test]
fn a_shared_prefix_does_not_collect_more_than_the_balance_threshold_allows() {
    let mut matches = [(0, 16); 8];
    matches[5] = (16, 16);
    let mut fleet = Fleet::of((1..=8).map(worker)).policy(CacheAwareZmq::default()).matches(&matches);
    let sent = fleet.send(480);
    let (most, least) = (sent.iter().max().unwrap(), sent.iter().min().unwrap());
    assert!(most - least <= 33 && sent[5] == *most, "{sent:?}");
}

/// Seen in sgl-project/sglang#14532.
#[test]
fn prompts_that_match_nobody_go_to_the_idle_worker() {
    let busy = worker(1).in_flight(3).depth(70);
    let fleet = Fleet::of([busy, worker(2).depth(0)]).policy(CacheAwareZmq::default()).matches(&[(0, 40), (0, 40)]);
    for seed in 0..100 {
        assert_eq!(fleet.decide(seed).map(|choice| choice.slot), Ok(1), "seed {seed}");
    }
}

/// Seen in BerriAI/litellm#40401.
#[test]
fn completions_of_a_worker_that_was_replaced_do_not_touch_the_new_one() {
    let t0 = start();
    let mut engines = [Engine::new(1, 0).takes(secs(60)), Engine::new(2, 0)];
    let streams = round(&mut engines[..1], 5, 0, t0);
    engines[0] = Engine::new(3, 0);
    for number in 0..streams.len() as u64 {
        assert!(engines[0].flights.finish(DecisionId::new(number)).is_none());
    }
    assert_eq!(engines[0].flights.in_flight(), 0, "never below zero, which would win every comparison");
    let chosen = round(&mut engines, 200, 5, t0 + secs(1));
    assert_eq!(share(&chosen, 0), 100);
}

/// Seen in ai-dynamo/dynamo#13513.
#[test]
fn a_worker_that_comes_back_with_its_requests_still_running_is_not_over_filled() {
    let t0 = start();
    let back = || Engine::new(3, 30);
    let reported = |mut engine: Engine| {
        engine.reports(t0);
        engine
    };
    let established = || Engine::new(2, 10);
    let rows = [
        ("its own report shows them", [reported(back()), reported(established())]),
        ("it has not reported yet, and the other is busy by in-flight", [back(), reported(established())]),
    ];
    for (sentence, mut engines) in rows {
        engines[0].serving_since = Some(t0);
        for number in 0..10 {
            engines[1].flights.reserve(DecisionId::new(1_000 + number), None, t0 - secs(9));
        }
        let chosen = round(&mut engines, 60, 0, t0 + secs(1));
        assert!(share(&chosen, 0) <= 20, "{sentence}: {} of 60", share(&chosen, 0));
    }
}

#[test]
fn a_newcomer_is_not_sent_everything_at_once_even_if_it_reports_zeros() {
    let t0 = start();
    let mut engines = [Engine::new(1, 30), Engine::new(2, 30), Engine::new(3, 0)];
    engines[2].serving_since = Some(t0);
    let mut chosen = Vec::new();
    for number in 0..10 {
        let now = t0 + secs(1) + millis(100) * number as u32;
        engines[..2].iter_mut().for_each(|engine| engine.reports(now));
        engines[2].publishes(0, now);
        chosen.extend(round(&mut engines, 3, 3 * number, now));
    }
    let newcomer = share(&chosen, 2);
    assert!((2..=15).contains(&newcomer), "{newcomer} of 30 in the second second of a ramp of ten");
}

#[test]
fn a_silent_worker_is_not_sent_a_whole_round_under_the_scaled_rule() {
    // Slow clients hold requests open that the engines have finished: the ratio is one tenth.
    let trusted = |number| worker(number).in_flight(20).depth(2);
    let mut fleet = Fleet::of([trusted(1), trusted(2), worker(3).in_flight(20)]).basis(BasisRule::Scaled);
    let sent = fleet.send(60);
    assert!(sent.iter().all(|count| *count == 20), "{sent:?}");
}
