//! What the rules do together while requests come and go: engines that publish, die and come back, and the books of their workers.

use std::time::{Duration, Instant};

use crate::logic::flight::FlightBook;
use crate::logic::ids::{DecisionId, DpRank, WorkerId};
use crate::logic::load::{LoadTable, RankLoad};
use crate::logic::policy::CacheAwareZmq;
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
        self.running.retain(|(ends_at, decision)| *ends_at > now || !flights.finish(*decision));
    }

    fn snapshot(&mut self) -> WorkerSnapshot {
        let since = self.load.oldest_report_at().map(|report_at| self.flights.dispatches_since(report_at, VISIBILITY));
        let mut snapshot = (*worker(self.id.number()).freeze(start())).clone();
        snapshot.url = url("10.0.0.1:30000");
        snapshot.in_flight = self.flights.in_flight();
        snapshot.load = self.load.freeze(since.unwrap_or(0));
        snapshot.serving_since = self.serving_since;
        snapshot
    }
}

/// Serves the requests in one round and returns the slot of each. `first` numbers the decisions and is their seed.
fn round(engines: &mut [Engine], num_requests: u64, first: u64, now: Instant) -> Vec<usize> {
    let slots = engines.iter_mut().map(|engine| Some(engine.snapshot().into())).collect();
    let mut fleet = Fleet::frozen(slots, now);
    let mut chosen = Vec::new();
    for number in first..first + num_requests {
        let slot = fleet.decide(number).unwrap().slot;
        fleet.reserved[slot] += 1;
        let decision = DecisionId::new(number);
        engines[slot].flights.reserve(decision, now);
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

#[test]
fn probe_ramp() {
    let t0 = start();
    for honest in [true, false] {
        let mut engines =
            [Engine::new(1, 30).takes(secs(3)), Engine::new(2, 30).takes(secs(3)), Engine::new(3, 0).takes(secs(3))];
        engines[2].serving_since = Some(t0);
        for engine in &mut engines {
            engine.reports(t0);
        }
        let mut per_second = Vec::new();
        for tick in 0..240u64 {
            let now = t0 + millis(50) * tick as u32;
            for (i, engine) in engines.iter_mut().enumerate() {
                engine.finishes_what_is_due(now);
                if i == 2 && !honest && tick < 160 { engine.publishes(0, now) } else { engine.reports(now) }
            }
            let chosen = round(&mut engines, 2, tick * 2, now);
            if tick % 20 == 0 {
                per_second.push((0, 0));
            }
            let last = per_second.last_mut().unwrap();
            last.0 += share(&chosen, 2);
            last.1 = engines[2].flights.in_flight();
        }
        println!("honest {honest}: {per_second:?} {:?}", depths(&mut engines));
    }
    let mut e = [Engine::new(1, 30), Engine::new(2, 30), Engine::new(3, 0)];
    e[2].serving_since = Some(t0);
    for engine in &mut e {
        engine.reports(t0 + secs(1));
    }
    let chosen = round(&mut e, 30, 0, t0 + secs(1));
    println!("burst of 30 after 1 s: {}", share(&chosen, 2));
    let _ = longest_run(&chosen, 2);
    let _ = CacheAwareZmq::default();
}
