//! Predictions: the original and what is relaxed, replayed by arrival.

mod common;

use common::{Recording, Virtual};
use refrain_scheduler::{
    Admission, Config, Conflicts, Constraints, Costs, Model, Noise, Orig, Outcome, Skeleton,
    Waiting, simulate,
};
use refrain_trace::{Access, EventId, EventKind::*, ThreadId};
use refrain_transform::{Cores, Options, Plan, Relaxed, Replayer, measure, rank};

const L: u64 = 0x1000;
const M: u64 = 0x2000;
const X: u64 = 0x8000;
const Y: u64 = 0x9000;

/// Replays by arrival, as the command does.
struct ByArrival {
    ordered: Virtual,
    skeleton: Skeleton,
    cores: u32,
    /// How long the recording took, if the model is held against it.
    recorded: Option<u64>,
}

impl ByArrival {
    fn of(recording: &Recording, cores: u32) -> ByArrival {
        let (ordered, skeleton) = (recording.replayer(), recording.skeleton());
        ByArrival { ordered, skeleton, cores, recorded: None }
    }
}

struct Exclusions<'a>(&'a Relaxed<'a>);

impl Conflicts for Exclusions<'_> {
    fn conflict(&self, a: u32, b: u32) -> bool {
        self.0.conflict(a, b)
    }

    fn is_free(&self, class: u32) -> bool {
        self.0.is_free(class)
    }
}

impl Replayer for ByArrival {
    fn replay(
        &mut self,
        plan: Option<&Plan>,
        cores: Cores,
        visit: &mut dyn FnMut(ThreadId, EventId, u64, u64),
    ) -> Result<u64, String> {
        self.ordered.replay(plan, cores, visit)
    }

    fn arrive(&mut self, relaxed: Option<&Relaxed<'_>>, trial: u32) -> Result<u64, String> {
        let costs = Costs { patience: 3, rouse: 20, wake: 40, ..Costs::FREE };
        let config = Config { cores: self.cores, quantum: 10_000, costs };
        let noise = Some(Noise { seed: u64::from(trial), per_mille: 10 });
        let model = Model { noise, ..Model::waiting(Waiting::Glibc) };
        let run = |constraints: &Constraints<'_>| match simulate(
            &self.skeleton,
            constraints,
            &config,
            &model,
            &mut Orig,
            &mut (),
        ) {
            Outcome::Completed(run) => Ok(run.duration),
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        };
        let Some(relaxed) = relaxed else { return run(&Constraints::none()) };
        let conflicts = Exclusions(relaxed);
        let sections = relaxed.sections().iter().copied();
        let admission = Admission::new(self.skeleton.threads(), sections, &conflicts);
        run(&Constraints::relaxing(&self.skeleton, |lock| relaxed.relaxes(lock), admission))
    }

    fn recorded(&self) -> Option<u64> {
        self.recorded
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        self.skeleton.nanoseconds(ticks)
    }
}

/// A section of the thread that reads X under L.
fn reads(r: &mut Recording, thread: usize) {
    r.lock(thread, 100, L, 0x100);
    r.read(thread, X, 8);
    r.unlock(thread, 200, L, 0x110);
}

fn ends(r: &mut Recording) {
    r.event(0, 5, ThreadExit, 1, 0);
    r.event(1, 5, ThreadExit, 2, 0);
}

/// Two threads, each of which reads X under L 50 times.
fn two_readers() -> Recording {
    let mut r = Recording::new(2);
    r.share(X, 8);
    for _ in 0..50 {
        for thread in 0..2 {
            reads(&mut r, thread);
        }
    }
    ends(&mut r);
    r
}

#[test]
fn two_readers_gain_what_they_waited() {
    let r = two_readers();
    let mut replayer = ByArrival::of(&r, 2);
    let measured = measure(&r.sections(), &mut replayer, &Options::default()).expect("replays");
    let gain = measured.gain.expect("by arrival");
    let free = measured.ulcp_free_ns.expect("replayed");
    assert!((14_000..16_000).contains(&free), "each thread works 15 µs: {free}");
    assert!(measured.original_ns > 19_000, "all sections are one after the other: {measured:?}");
    assert!(gain.least_ns > 0 && gain.least_ns <= gain.likely_ns, "{gain:?}");
    assert!(gain.likely_ns <= gain.most_ns && !gain.is_none(), "{gain:?}");
    let report = rank(&measured, &mut ());
    assert_eq!(report.groups[0].alone.map(|alone| alone.likely_ns > 0), Some(true));
}

#[test]
fn what_the_model_does_not_know_widens_the_range() {
    let r = two_readers();
    let measured = |recorded| {
        let mut replayer = ByArrival { recorded, ..ByArrival::of(&r, 2) };
        measure(&r.sections(), &mut replayer, &Options::default()).expect("replays")
    };
    let known = measured(None);
    assert_eq!(known.check_ns, None);
    let (original, gain) = (known.original_ns as i64, known.gain.expect("by arrival"));
    // A quarter of the recording is missing in the model, or the model has a quarter too much.
    let check = measured(Some(1)).check_ns.expect("there is a recording");
    let [longer, shorter] = [check * 4 / 3, check * 4 / 5].map(|recorded| {
        let other = measured(Some(recorded));
        assert_eq!(other.check_ns, Some(check));
        other.gain.expect("by arrival")
    });
    assert_eq!((longer.likely_ns, shorter.likely_ns), (gain.likely_ns, gain.likely_ns));
    let near = |found: i64, expected: i64| found.abs_diff(expected) < original as u64 / 100;
    assert!(near(longer.least_ns, gain.least_ns * 3 / 4), "{gain:?} {longer:?}");
    assert!(near(longer.most_ns, gain.most_ns * 3 / 4 + original / 4), "{gain:?} {longer:?}");
    assert!(near(shorter.least_ns, gain.least_ns * 5 / 4 - original / 4), "{gain:?} {shorter:?}");
    assert!(near(shorter.most_ns, gain.most_ns * 5 / 4), "{gain:?} {shorter:?}");
}

#[test]
fn true_contention_gains_nothing_to_the_tick() {
    let mut r = Recording::new(2);
    for _ in 0..50 {
        for thread in 0..2 {
            r.lock(thread, 100, L, 0x100);
            r.access(thread, X, 4, Access::READ | Access::WRITE);
            r.unlock(thread, 200, L, 0x110);
        }
    }
    ends(&mut r);
    // However long the recording took.
    let mut replayer = ByArrival { recorded: Some(100_000), ..ByArrival::of(&r, 2) };
    let measured = measure(&r.sections(), &mut replayer, &Options::default()).expect("replays");
    let gain = measured.gain.expect("by arrival");
    assert_eq!((gain.least_ns, gain.likely_ns, gain.most_ns), (0, 0, 0));
    assert!(gain.is_none());
    assert_eq!(measured.ulcp_free_ns, Some(measured.original_ns));
}

#[test]
fn a_lock_that_is_needed_does_not_keep_the_order_that_another_gave_it() {
    // Readers of X under L, then a counter under M.
    let mut r = Recording::new(2);
    r.share(X, 8);
    for _ in 0..50 {
        for thread in 0..2 {
            reads(&mut r, thread);
            r.lock(thread, 50, M, 0x200);
            r.access(thread, Y, 4, Access::READ | Access::WRITE);
            r.unlock(thread, 5, M, 0x210);
        }
    }
    ends(&mut r);
    let mut replayer = ByArrival::of(&r, 2);
    let measured = measure(&r.sections(), &mut replayer, &Options::default()).expect("replays");
    let gain = measured.gain.expect("by arrival");
    assert!(gain.likely_ns * 5 > measured.original_ns as i64, "{measured:?}");
}
