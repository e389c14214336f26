//! Predictions: the original and what is relaxed, replayed by arrival.

mod common;

use common::{Recording, Virtual};
use refrain_scheduler::{
    Admission, Config, Conflicts, Constraints, Costs, Model, Noise, Orig, Outcome, Skeleton,
    Waiting, simulate,
};
use refrain_trace::{Access, EventId, EventKind::*, ThreadId};
use refrain_transform::{
    Arrival, Basis, Cores, Group, Options, Plan, Relaxed, Replayer, Report, Setting, measure, rank,
};
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// How many sections pay for a lock, in the relaxed replay with the fewest.
    paying: AtomicU64,
}

impl ByArrival {
    fn of(recording: &Recording, cores: u32) -> ByArrival {
        let (ordered, skeleton) = (recording.replayer(), recording.skeleton());
        let paying = AtomicU64::new(u64::MAX);
        ByArrival { ordered, skeleton, cores, recorded: None, paying }
    }
}

struct Exclusions<'a>(&'a Relaxed<'a>);

impl Conflicts for Exclusions<'_> {
    fn conflict(&self, a: u32, b: u32) -> bool {
        self.0.conflict(a, b)
    }

    fn is_lockless(&self, class: u32) -> bool {
        self.0.is_lockless(class)
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

    fn arrive(&self, relaxed: Option<&Relaxed<'_>>, setting: Setting) -> Result<Arrival, String> {
        let costs = Costs { patience: 3, vain: 1, rouse: 20, wake: 40, ..Costs::FREE };
        let cores = setting.cores.unwrap_or(self.cores);
        let config = Config { cores, quantum: 10_000, costs };
        let noise = Some(Noise { seed: u64::from(setting.trial), per_mille: 10 });
        let model = Model { noise, ..Model::waiting(Waiting::Glibc) };
        let run = |constraints: &Constraints<'_>| match simulate(
            &self.skeleton,
            constraints,
            &config,
            &model,
            &mut Orig,
            &mut (),
        ) {
            Outcome::Completed(run) => {
                let waited = run.threads.iter().map(|thread| thread.wanted).sum();
                Ok(Arrival { duration: run.duration, waited })
            }
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        };
        let Some(relaxed) = relaxed else { return run(&Constraints::none()) };
        let pays = |kind: u32| !relaxed.is_lockless(kind);
        let paying = relaxed.sections().iter().filter(|(_, _, kind)| pays(*kind)).count();
        self.paying.fetch_min(paying as u64, Ordering::Relaxed);
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

/// A section of the thread that reads X under M, which it had to wait for.
fn reads_at(r: &mut Recording, thread: usize, waited: u64) {
    let acquired = r.event(thread, 100, MutexLock, M, 0x200);
    acquired.end = acquired.begin + waited;
    r.read(thread, X, 8);
    r.unlock(thread, 200 + waited, M, 0x210);
}

fn ends(r: &mut Recording) {
    r.event(0, 5, ThreadExit, 1, 0);
    r.event(1, 5, ThreadExit, 2, 0);
}

/// Two threads, each of which reads X under L 50 times.
fn two_readers() -> Recording {
    let mut r = readers();
    ends(&mut r);
    r
}

fn readers() -> Recording {
    let mut r = Recording::new(2);
    r.share(X, 8);
    for _ in 0..50 {
        for thread in 0..2 {
            reads(&mut r, thread);
        }
    }
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
    let report = rank(&measured, measured.check_ns.unwrap_or(0), &mut ());
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
    assert_eq!(longer.likely_ns, gain.likely_ns);
    let near = |found: i64, expected: i64| found.abs_diff(expected) < original as u64 / 100;
    assert!(near(longer.least_ns, gain.least_ns * 3 / 4), "{gain:?} {longer:?}");
    assert!(near(longer.most_ns, gain.most_ns * 3 / 4 + original / 4), "{gain:?} {longer:?}");
    // What the model has too much of is waiting.
    assert!(near(shorter.likely_ns, gain.likely_ns - original / 5), "{gain:?} {shorter:?}");
    assert!(near(shorter.least_ns, gain.least_ns - original / 5), "{gain:?} {shorter:?}");
    assert!(near(shorter.most_ns, gain.most_ns), "{gain:?} {shorter:?}");
}

#[test]
fn waiting_that_the_recording_did_not_have_is_no_gain() {
    let r = two_readers();
    let measured = |recorded| {
        let mut replayer = ByArrival { recorded, ..ByArrival::of(&r, 2) };
        measure(&r.sections(), &mut replayer, &Options::default()).expect("replays")
    };
    let model = measured(Some(u64::MAX));
    let check = model.check_ns.expect("there is a recording");
    let (free, all) = (model.ulcp_free_ns.expect("replayed"), model.gain.expect("by arrival"));
    for tenths in 0..=10 {
        let surplus = (check - free) * tenths / 10;
        let held = measured(Some(check - surplus));
        let gain = held.gain.expect("by arrival");
        let expected = all.likely_ns as u64 * (10 - tenths) / 10;
        let near = |found: u64, expected: u64| found.abs_diff(expected) < check / 50;
        assert!(near(gain.likely_ns.unsigned_abs(), expected), "{tenths}: {gain:?} of {all:?}");
        assert!(near(held.original_ns, model.original_ns - surplus), "{tenths}: {held:?}");
        assert_eq!(held.ulcp_free_ns.map(|it| near(it, free)), Some(true), "{tenths}: {held:?}");
        assert!((gain.least_ns..=gain.most_ns).contains(&gain.likely_ns));
        assert!(near(held.over_cores[1].original_ns, held.original_ns), "{tenths}: {held:?}");
        let alone = held.pairs.iter().find_map(|pair| pair.alone).expect("there is one group");
        assert!(near(alone.likely_ns.unsigned_abs(), expected), "{tenths}: {alone:?}");
    }
}

#[test]
fn the_recorded_waiting_ranks_where_the_model_is_far_off() {
    // What waits in the model does not in the recording, and the other way round.
    let mut r = readers();
    reads_at(&mut r, 0, 0);
    reads_at(&mut r, 1, 150);
    ends(&mut r);
    let ranked = |recorded_ns| {
        let mut replayer = ByArrival { recorded: Some(1), ..ByArrival::of(&r, 2) };
        let measured = measure(&r.sections(), &mut replayer, &Options::default());
        let measured = measured.expect("replays");
        let check = measured.check_ns.expect("there is a recording");
        rank(&measured, check * recorded_ns / 100, &mut ())
    };
    let firsts = |report: &Report| {
        let of = |group: &Group| (group.first.pc, group.in_vain_ns);
        report.groups.iter().map(of).collect::<Vec<_>>()
    };
    for near in [95, 100, 109] {
        let report = ranked(near);
        assert_eq!(report.ranked_by, Basis::Gain);
        assert_eq!(firsts(&report), [(0x100, 0), (0x200, 150)]);
        let in_vain: u64 = report.sites.iter().map(|site| site.unnecessary_ns).sum();
        assert_eq!(in_vain, 150, "rows and sites say the same");
    }
    for far in [80, 120] {
        let report = ranked(far);
        assert_eq!(report.ranked_by, Basis::RecordedWaiting);
        assert_eq!(firsts(&report), [(0x200, 150), (0x100, 0)]);
        assert_eq!(report.groups[0].rank, 1);
    }
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

fn paying(r: &Recording) -> u64 {
    let mut replayer = ByArrival::of(r, 2);
    measure(&r.sections(), &mut replayer, &Options::default()).expect("replays");
    replayer.paying.into_inner()
}

#[test]
fn sections_do_not_pay_for_a_rare_one_that_they_conflict_with() {
    let with = |rounds: u64, written: u64, words: u64| {
        let mut r = Recording::new(2);
        r.share(X, 8 * words as u16);
        for round in 0..rounds {
            for thread in 0..2 {
                r.lock(thread, 100, L, 0x100);
                if round < written {
                    r.write(thread, X, 8);
                }
                r.read(thread, X + round % words * 8, 8);
                r.unlock(thread, 200, L, 0x110);
            }
        }
        ends(&mut r);
        paying(&r)
    };
    assert_eq!(with(1500, 0, 1), 0, "nobody writes");
    assert_eq!(with(1500, 1, 1), 2, "who writes conflicts with all");
    assert_eq!(with(1500, 10, 1), 3000, "too many write");
    // Every section is of a kind of its own.
    assert_eq!(with(1500, 0, 1500), 0);
    assert_eq!(with(1500, 1500, 1500), 3000);
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

/// A writer has the lock; a reader of something else and then another writer come to it.
#[test]
fn waiting_behind_what_does_not_conflict_is_in_vain() {
    let mut r = Recording::new(3);
    r.share(X, 8);
    r.share(Y, 8);
    let mut section = |thread: usize, (came, had, left): (u64, u64, u64), at: u64, kind: u16| {
        let lock = r.event(thread, came, MutexLock, L, 0x100 * (thread as u64 + 1));
        lock.end = had;
        r.access(thread, at, 8, kind);
        let unlock = r.event(thread, 0, MutexUnlock, L, 0x100 * (thread as u64 + 1) + 0x10);
        (unlock.begin, unlock.end) = (left, left);
    };
    section(0, (0, 0, 10), X, Access::WRITE);
    section(1, (2, 10, 15), Y, Access::READ);
    section(2, (4, 15, 20), X, Access::WRITE);
    let measured = measure(&r.sections(), &mut ByArrival::of(&r, 3), &Options::default())
        .expect("the original ends");
    let waited = |pc: u64| {
        let site = measured.sites.iter().find(|site| site.region.acquire == pc);
        let site = site.expect("every region with sections is there");
        (site.sections, site.waited, site.waited_ns, site.unnecessary_ns)
    };
    assert_eq!(waited(0x100), (1, 0, 0, 0));
    assert_eq!(waited(0x200), (1, 1, 8, 8));
    // For the other writer until 10, and for the reader until 15.
    assert_eq!(waited(0x300), (1, 1, 11, 5));
    let cores: Vec<u32> = measured.over_cores.iter().map(|it| it.cores).collect();
    assert_eq!(cores, [1, 2, 4]);
}

/// Each thread has a lock of its own, so nobody contends; nothing is to be gained.
#[test]
fn locks_of_one_thread_alone_gain_nothing() {
    let mut r = Recording::new(2);
    r.share(X, 8);
    for thread in 0..2 {
        r.event(thread, 0, ThreadStart, thread as u64 + 1, 0);
        for _ in 0..100 {
            let lock = [L, M][thread];
            r.lock(thread, 20, lock, 0x100);
            r.read(thread, X, 8);
            r.unlock(thread, 20, lock, 0x110);
        }
        r.event(thread, 0, ThreadExit, thread as u64 + 1, 0);
    }
    let mut replayer = ByArrival::of(&r, 2);
    let measured = measure(&r.sections(), &mut replayer, &Options::default()).expect("replays");
    let gain = measured.gain.expect("replayed by arrival");
    assert_eq!((gain.least_ns, gain.likely_ns, gain.most_ns), (0, 0, 0));
}
