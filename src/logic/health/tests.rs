use std::time::{Duration, Instant};

use super::{Cause, Health, HealthRules, HealthView, RequestEnd, StateChange, WorkerState};
use crate::logic::ids::DecisionId;
use crate::logic::probe::ProbeResult;
use crate::logic::testing::{millis, secs, start};

/// A worker's health, and a clock that goes on by a millisecond with each step.
struct Bench {
    health: Health,
    now: Instant,
    num_requests: u64,
}

/// One step of a history.
#[derive(Debug, Clone, Copy)]
enum Step {
    Answer,
    Suspend,
    Resume,
    Drain,
    /// A request, sent and ended now.
    Request(RequestEnd),
    /// The same, so many times.
    Times(u32, RequestEnd),
    Probe(ProbeResult),
    /// A probe of a worker from which something else has come.
    HeardProbe(ProbeResult),
    Pass(Duration),
}

use RequestEnd::{Failed, Nothing, Proven, Unreachable};
use Step::{Answer, Drain, HeardProbe, Pass, Probe, Request, Resume, Suspend, Times};
use WorkerState::{Draining, Ejected, Pending, Probation, Serving, Suspended};

const FULL: RequestEnd = RequestEnd::Overloaded(None);
const HEALTHY: Step = Probe(ProbeResult::Healthy);
const SLOW: Step = Probe(ProbeResult::Slow);
const REFUSED: Step = Probe(ProbeResult::Refused);
const GONE: Step = Times(3, Unreachable);

impl Bench {
    fn new(rules: HealthRules) -> Self {
        Self { health: Health::new(rules), now: start(), num_requests: 0 }
    }

    fn serving() -> Self {
        let mut bench = Self::new(HealthRules::default());
        bench.step(Answer);
        bench
    }

    fn request(&mut self, end: RequestEnd) -> Option<StateChange> {
        self.num_requests += 1;
        let id = DecisionId::new(self.num_requests);
        self.health.reserved(id);
        self.health.ended(id, end, self.now, self.now)
    }

    fn step(&mut self, step: Step) -> Option<StateChange> {
        self.now += millis(1);
        let now = self.now;
        match step {
            Answer => self.health.engine_answered(now),
            Suspend => self.health.suspend(now),
            Resume => self.health.resume(now),
            Drain => self.health.drain(now),
            Request(end) => self.request(end),
            Times(count, end) => (0..count).filter_map(|_| self.request(end)).last(),
            Probe(result) => self.health.probed(result, false, now),
            HeardProbe(result) => self.health.probed(result, true, now),
            Pass(duration) => {
                self.now += duration;
                self.health.time_passed(self.now)
            }
        }
    }

    fn steps(&mut self, steps: &[Step]) -> WorkerState {
        for step in steps {
            self.step(*step);
        }
        self.health.state()
    }

    fn view(&self) -> HealthView {
        self.health.view(self.now)
    }

    /// Returns how long the worker stays out from now on.
    fn cooldown(&self) -> Duration {
        self.health.out_until().expect("an ejected worker") - self.now
    }
}

/// A sentence, a history, and the state in which it ends.
type Row<'a> = (&'a str, &'a [Step], WorkerState);

fn assert_histories(rows: &[Row<'_>]) {
    for (sentence, steps, expected) in rows {
        assert_eq!(Bench::new(HealthRules::default()).steps(steps), *expected, "{sentence}");
    }
}

#[test]
fn what_engine_and_platform_say_makes_the_state() {
    assert_histories(&[
        ("a worker that was not asked is pending", &[], Pending),
        ("a worker that answered serves", &[Answer], Serving),
        ("failures of a pending worker do not show", &[GONE, Answer], Serving),
        ("nor do its probes", &[SLOW, SLOW, REFUSED, Answer], Serving),
        ("a readiness blip suspends", &[Answer, Suspend], Suspended),
        ("and ends", &[Answer, Suspend, Resume], Serving),
        ("suspending does not make a worker known", &[Suspend, Resume], Pending),
        ("draining is for good", &[Answer, Drain, Resume, Answer], Draining),
    ]);
}

#[test]
fn requests_that_fail_eject_and_what_is_not_the_workers_doing_does_not() {
    assert_histories(&[
        ("one that is missed once serves", &[Answer, Request(Unreachable)], Serving),
        ("three in a row eject", &[Answer, GONE], Ejected),
        (
            "a success between them keeps it",
            &[Answer, Times(2, Unreachable), Request(Proven), Times(2, Unreachable)],
            Serving,
        ),
        (
            "a failure says nothing of whether it is reached",
            &[Answer, Times(2, Unreachable), Request(Failed), Request(Unreachable)],
            Ejected,
        ),
        ("ejected while suspended, it is out when it is ready again", &[Answer, Suspend, GONE, Resume], Ejected),
        ("nine failures are too few", &[Answer, Times(9, Failed)], Serving),
        ("ten are enough", &[Answer, Times(10, Failed)], Ejected),
        ("half is enough", &[Answer, Times(9, Proven), Times(9, Failed)], Ejected),
        ("less than half is not", &[Answer, Times(10, Proven), Times(9, Failed)], Serving),
        (
            "failures of half a minute ago are forgotten",
            &[Answer, Times(9, Failed), Pass(secs(30)), Times(9, Failed)],
            Serving,
        ),
        ("back pressure is no failure", &[Answer, Times(1_000, FULL)], Serving),
        ("and does not dilute the failures either", &[Answer, Times(1_000, FULL), Times(10, Failed)], Ejected),
        ("clients that leave are no failures", &[Answer, Times(1_000, Nothing)], Serving),
    ]);
}

#[test]
fn probes_that_fail_eject_a_worker_that_is_silent_otherwise() {
    assert_histories(&[
        ("two slow probes are too few", &[Answer, SLOW, SLOW], Serving),
        ("three eject a worker of which nothing is heard", &[Answer, SLOW, SLOW, Probe(ProbeResult::Failed)], Ejected),
        ("a healthy one between them keeps it", &[Answer, SLOW, SLOW, HEALTHY, SLOW, SLOW], Serving),
        (
            "so does anything else that comes from it",
            &[Answer, SLOW, SLOW, HeardProbe(ProbeResult::Slow), SLOW, SLOW],
            Serving,
        ),
        ("but not if it refuses connections", &[Answer, REFUSED, REFUSED, HeardProbe(ProbeResult::Refused)], Ejected),
        ("an engine without the path is not judged by it", &[Answer, Probe(ProbeResult::NoPath), SLOW, SLOW], Serving),
    ]);
}

#[test]
fn an_ejected_worker_returns_when_it_does_well() {
    let five = Pass(secs(5));
    assert_histories(&[
        ("it stays out for its cool-down", &[Answer, GONE, Pass(millis(4_990))], Ejected),
        ("then it is tried", &[Answer, GONE, five], Probation),
        ("introspection does not shorten that", &[Answer, GONE, Answer], Ejected),
        ("three successes let it serve", &[Answer, GONE, five, Times(3, Proven)], Serving),
        ("two do not", &[Answer, GONE, five, Times(2, Proven)], Probation),
        ("one failure ejects it again", &[Answer, GONE, five, Times(2, Proven), Request(Failed)], Ejected),
        ("so does not reaching it once", &[Answer, GONE, five, Request(Unreachable)], Ejected),
        ("so does a failed probe", &[Answer, GONE, five, SLOW], Ejected),
        ("back pressure is neither", &[Answer, GONE, five, Times(50, FULL), Times(50, Nothing)], Probation),
        ("probes alone let it serve", &[Answer, GONE, five, HEALTHY, HEALTHY, HEALTHY], Serving),
        ("so does introspection alone", &[Answer, GONE, five, Answer, Answer, Answer], Serving),
        (
            "two healthy probes bring one back early that was silent",
            &[Answer, GONE, REFUSED, HEALTHY, HEALTHY],
            Probation,
        ),
        ("one does not", &[Answer, GONE, REFUSED, HEALTHY], Ejected),
        ("two in a row are meant", &[Answer, GONE, REFUSED, HEALTHY, SLOW, HEALTHY], Ejected),
        ("one that probes ejected was silent", &[Answer, SLOW, SLOW, SLOW, HEALTHY, HEALTHY], Probation),
        (
            "one whose probes were healthy all along is not back early",
            &[Answer, Times(10, Failed), HEALTHY, HEALTHY],
            Ejected,
        ),
        ("a success as the last resort puts it on probation", &[Answer, GONE, Request(Proven)], Probation),
        ("failures as the last resort change nothing", &[Answer, GONE, Times(50, Failed)], Ejected),
    ]);
}

#[test]
fn a_change_is_reported_once_and_with_its_cause() {
    let mut bench = Bench::serving();
    assert_eq!(bench.step(Answer), None);
    let rows = [
        (Times(10, Failed), WorkerState::Serving, WorkerState::Ejected, Cause::FailureRate),
        (Pass(secs(5)), WorkerState::Ejected, WorkerState::Probation, Cause::CooledDown),
        (Request(Failed), WorkerState::Probation, WorkerState::Ejected, Cause::TrialFailed),
        (Pass(secs(10)), WorkerState::Ejected, WorkerState::Probation, Cause::CooledDown),
        (Times(3, Proven), WorkerState::Probation, WorkerState::Serving, Cause::Proven),
        (GONE, WorkerState::Serving, WorkerState::Ejected, Cause::Unreachable),
        (Request(Proven), WorkerState::Ejected, WorkerState::Probation, Cause::Proven),
    ];
    for (step, from, to, cause) in rows {
        assert_eq!(bench.step(step), Some(StateChange { from, to, cause }), "{step:?}");
    }
}

#[test]
fn each_ejection_in_a_row_doubles_the_cool_down_until_it_has_served_for_a_while() {
    let mut bench = Bench::serving();
    bench.step(GONE);
    for expected in [5, 10, 20, 40, 60, 60] {
        assert_eq!(bench.cooldown(), secs(expected));
        bench.steps(&[Pass(secs(expected)), Request(Failed)]);
    }
    bench.steps(&[Pass(secs(60)), Times(3, Proven), Pass(secs(59)), GONE]);
    assert_eq!(bench.cooldown(), secs(60), "it has not served for long enough");
    bench.steps(&[Pass(secs(60)), Times(3, Proven), Pass(secs(60)), GONE]);
    assert_eq!(bench.cooldown(), secs(5));
}

#[test]
fn a_trial_is_one_request_until_it_ends_and_cannot_be_stolen() {
    let mut bench = Bench::serving();
    assert!(!bench.view().may_be_tried, "a serving worker needs no trial");
    bench.steps(&[GONE]);
    assert!(!bench.view().may_be_tried, "nor does an ejected one get any");
    bench.step(Pass(secs(5)));
    let (first, other, now) = (DecisionId::new(100), DecisionId::new(101), bench.now);
    for end in [Nothing, FULL] {
        assert!(bench.view().may_be_tried);
        bench.health.reserved(first);
        bench.health.reserved(other);
        assert!(!bench.view().may_be_tried);
        bench.health.ended(other, Nothing, now, now);
        assert!(!bench.view().may_be_tried, "the end of another request does not free it");
        bench.health.ended(first, end, now, now);
    }
    assert!(bench.view().may_be_tried, "a trial that says nothing is given back");
    bench.health.reserved(first);
    bench.steps(&[HEALTHY, HEALTHY, HEALTHY, Answer]);
    assert_eq!(bench.health.state(), WorkerState::Probation, "while a trial is under way, its end is what counts");
    assert!(bench.health.ended(first, Failed, now, now).is_some());
}

#[test]
fn what_was_sent_before_the_ejection_says_nothing_when_it_ends() {
    let mut bench = Bench::serving();
    let early = bench.now;
    bench.steps(&[GONE]);
    let old = DecisionId::new(999);
    for end in [Proven, Failed, Unreachable] {
        bench.now += secs(1);
        assert_eq!(bench.health.ended(old, end, early, bench.now), None);
    }
    assert_eq!(bench.steps(&[Pass(secs(5))]), WorkerState::Probation);
    for end in [Failed, Proven, Proven, Proven, Unreachable] {
        assert_eq!(bench.health.ended(old, end, early, bench.now), None);
    }
    assert_eq!(bench.steps(&[Times(3, Proven)]), WorkerState::Serving);
    for _ in 0..200 {
        assert_eq!(bench.health.ended(old, Failed, early, bench.now), None, "hung ones that end much later");
    }
}

#[test]
fn a_worker_that_returns_is_a_newcomer_with_a_clean_record() {
    let mut bench = Bench::serving();
    let began = bench.health.serving_since();
    bench.steps(&[Times(10, Failed)]);
    assert_eq!(bench.health.serving_since(), None, "an ejected worker is not serving");
    bench.steps(&[Pass(secs(5)), Times(3, Proven)]);
    assert!(bench.health.serving_since() > began);
    assert_eq!(bench.view(), HealthView::default());
    assert_eq!(bench.steps(&[Times(9, Failed)]), WorkerState::Serving);
    assert_eq!((bench.view().window.ended, bench.view().window.failed), (9, 9));
}

#[test]
fn a_ratio_of_zero_never_ejects_for_failures() {
    let mut bench = Bench::new(HealthRules { failure_ratio: 0.0, ..HealthRules::default() });
    assert_eq!(bench.steps(&[Answer, Times(1_000, Failed)]), WorkerState::Serving);
    assert_eq!(bench.steps(&[Times(1_000, Unreachable)]), WorkerState::Ejected, "being out of reach still does");
}

#[test]
fn an_engine_without_room_is_left_alone_for_as_long_as_it_asks_for_within_reason() {
    for (asked, expected) in [(None, 1), (Some(3), 3), (Some(3_600), 30)] {
        let mut bench = Bench::serving();
        bench.step(Request(RequestEnd::Overloaded(asked.map(secs))));
        assert_eq!(bench.health.left_alone_until(), Some(bench.now + secs(expected)));
        bench.step(Request(Proven));
        assert_eq!(bench.health.left_alone_until(), None);
    }
}
