//! The load of each candidate of one decision, all on one basis.
//!
//! Engine queue depth and this router's in-flight count are unlike quantities: the first contains everybody's traffic, the
//! second only ours. A comparison that mixes them sends everything to whichever side happens to be smaller. So the basis is
//! settled for the whole decision before any candidate is priced.

use std::time::{Duration, Instant};

use crate::logic::load::Trust;
use crate::logic::snapshot::WorkerSnapshot;

/// How candidates without a trusted report are priced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BasisRule {
    /// If any candidate has no trusted report, all are priced by in-flight for this decision.
    #[default]
    Uniform,
    /// Such a candidate is priced at its in-flight times the fleet's ratio of reported depth to own in-flight.
    Scaled,
    /// Such a candidate is priced at its in-flight beside the depths of the others. Compares unlike quantities; kept to compare
    /// with the behaviour of the first upstream version.
    Mixed,
}

/// What the loads of one decision are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Queue depth that the engines reported, of every candidate.
    Engine,
    /// This router's in-flight, of every candidate.
    InFlight,
    /// Queue depth, and in-flight scaled to it where there is no trusted report.
    Scaled,
    /// Queue depth, and raw in-flight where there is no trusted report.
    Mixed,
}

impl Basis {
    /// Every basis, for counters that show zeros too.
    pub const ALL: [Self; 4] = [Self::Engine, Self::InFlight, Self::Scaled, Self::Mixed];

    /// Returns the name used in metrics, logs and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::InFlight => "in_flight",
            Self::Scaled => "scaled",
            Self::Mixed => "mixed",
        }
    }
}

/// A candidate with its load. Loads of one decision are comparable with each other and with nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priced {
    /// Its place in the round.
    pub slot: usize,
    /// Requests, on the decision's basis.
    pub load: f64,
    is_trusted: bool,
}

impl Priced {
    /// Returns the candidate of the slot, not priced yet.
    pub fn new(slot: usize) -> Self {
        Self { slot, load: 0.0, is_trusted: false }
    }

    /// Returns the same candidate at another load.
    #[must_use]
    pub fn at(self, load: f64) -> Self {
        Self { load, ..self }
    }
}

/// How to price.
#[derive(Debug, Clone, Copy)]
pub struct PriceRules {
    /// What to do about candidates without a trusted report.
    pub basis: BasisRule,
    /// How old a report may be.
    pub freshness: Duration,
    /// How long a worker that begins to serve is priced as if it were as loaded as the others.
    pub ramp_up: Duration,
}

/// Prices the candidates named by `priced` in place and returns the basis. `snapshot_of` and `reserved_of` look a slot up.
pub fn price<'a>(
    priced: &mut [Priced],
    snapshot_of: impl Fn(usize) -> Option<&'a WorkerSnapshot>,
    reserved_of: impl Fn(usize) -> u32,
    rules: &PriceRules,
    now: Instant,
) -> Basis {
    let totals = Totals::of(priced, &snapshot_of, rules, now);
    let (basis, ratio) = totals.settle(rules.basis, priced.len());
    for candidate in priced.iter_mut() {
        let Some(snapshot) = snapshot_of(candidate.slot) else { continue };
        let reserved = reserved_of(candidate.slot);
        candidate.load = if candidate.is_trusted && basis != Basis::InFlight {
            snapshot.load.depth() as f64 + f64::from(reserved)
        } else if basis == Basis::Scaled {
            // What this round adds is queued for certain: scaled below one it would draw the rest of the round after it.
            f64::from(snapshot.in_flight) * ratio + f64::from(reserved) * ratio.max(1.0)
        } else {
            own_requests(snapshot, reserved)
        };
    }
    if totals.has_newcomer {
        raise_newcomers(priced, &snapshot_of, &reserved_of, rules.ramp_up, now);
    }
    basis
}

/// Returns the trust that a decision puts into the worker's reports.
pub fn trust(snapshot: &WorkerSnapshot, rules: &PriceRules, now: Instant) -> Trust {
    snapshot.load.trust(now, rules.freshness)
}

#[derive(Default)]
struct Totals {
    num_trusted: usize,
    depth: f64,
    in_flight: f64,
    has_newcomer: bool,
}

impl Totals {
    /// Looks at each candidate once, and notes with it whether its report may be used.
    fn of<'a>(
        priced: &mut [Priced],
        snapshot_of: &impl Fn(usize) -> Option<&'a WorkerSnapshot>,
        rules: &PriceRules,
        now: Instant,
    ) -> Self {
        let mut totals = Self::default();
        for candidate in priced.iter_mut() {
            let Some(snapshot) = snapshot_of(candidate.slot) else { continue };
            candidate.is_trusted = trust(snapshot, rules, now).is_trusted();
            totals.has_newcomer |= ramp_remaining(snapshot, rules.ramp_up, now).is_some();
            if candidate.is_trusted {
                totals.num_trusted += 1;
                totals.depth += snapshot.load.depth() as f64;
                totals.in_flight += f64::from(snapshot.in_flight);
            }
        }
        totals
    }

    /// Returns the basis, and the ratio of depth to in-flight for `Scaled`.
    fn settle(&self, rule: BasisRule, num_candidates: usize) -> (Basis, f64) {
        if self.num_trusted == num_candidates && num_candidates > 0 {
            return (Basis::Engine, 1.0);
        }
        if self.num_trusted == 0 {
            return (Basis::InFlight, 1.0);
        }
        match rule {
            BasisRule::Uniform => (Basis::InFlight, 1.0),
            BasisRule::Mixed => (Basis::Mixed, 1.0),
            // Without own requests at any trusted worker, or without any reported one, there is nothing to scale by: a ratio of
            // nothing would make the silent worker look idle, so the decision falls back to in-flight for all.
            BasisRule::Scaled if self.in_flight <= 0.0 || self.depth <= 0.0 => (Basis::InFlight, 1.0),
            BasisRule::Scaled => (Basis::Scaled, self.depth / self.in_flight),
        }
    }
}

/// An engine that has only just started may report zeros for many seconds, and an empty worker would be sent everything. Until
/// its ramp has passed, a newcomer holds at least what this router has in flight there, whatever it reports, and the mean of the
/// established workers comes on top, falling linearly to nothing: so its share grows with time. A fleet of newcomers only has no
/// mean to be raised by, and is left alone.
fn raise_newcomers<'a>(
    priced: &mut [Priced],
    snapshot_of: &impl Fn(usize) -> Option<&'a WorkerSnapshot>,
    reserved_of: &impl Fn(usize) -> u32,
    ramp_up: Duration,
    now: Instant,
) {
    let remaining_of = |slot: usize| ramp_remaining(snapshot_of(slot)?, ramp_up, now);
    let (mut sum, mut num_established) = (0.0, 0_u32);
    for candidate in priced.iter() {
        if remaining_of(candidate.slot).is_none() {
            sum += candidate.load;
            num_established += 1;
        }
    }
    if num_established == 0 || num_established as usize == priced.len() {
        return;
    }
    let mean = sum / f64::from(num_established);
    for candidate in priced.iter_mut() {
        let Some(remaining) = remaining_of(candidate.slot) else { continue };
        let Some(snapshot) = snapshot_of(candidate.slot) else { continue };
        let own = own_requests(snapshot, reserved_of(candidate.slot));
        candidate.load = candidate.load.max(own) + mean * remaining;
    }
}

/// Returns the part of its ramp that the worker still has before it, 1 to 0; `None` for an established one.
fn ramp_remaining(snapshot: &WorkerSnapshot, ramp_up: Duration, now: Instant) -> Option<f64> {
    let served_for = now.saturating_duration_since(snapshot.serving_since?);
    (served_for < ramp_up).then(|| 1.0 - served_for.as_secs_f64() / ramp_up.as_secs_f64())
}

/// Returns how many requests of this router the worker has or is about to have.
fn own_requests(snapshot: &WorkerSnapshot, reserved: u32) -> f64 {
    f64::from(snapshot.in_flight) + f64::from(reserved)
}

#[cfg(test)]
mod tests;
