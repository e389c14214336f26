//! The model that predicts: arrivals, sleeping as glibc does it, and relaxed locks.

mod common;

use common::{Recording, replay};
use refrain_scheduler::{
    Admission, Config, Conflicts, Constraints, Costs, Model, Orig, Outcome, Skeleton, Waiting,
    simulate,
};
use refrain_trace::EventKind::*;
use refrain_trace::{Event, ThreadId};

const L: u64 = 0x1000;
const COSTS: Costs = Costs { wake: 50, patience: 10, vain: 5, rouse: 20, ..Costs::FREE };
const MACHINE: Config = Config { cores: 2, quantum: u64::MAX, costs: COSTS };

const MODEL: Model<'_> =
    Model { waiting: Waiting::Glibc, noise: None, wakings: &[], handoffs: &[], clocks: None };

fn exact() -> (Orig, Model<'static>) {
    (Orig, MODEL)
}

/// `t0` has the lock from 0 to `release`; `t1` comes to it at 30.
fn contended(release: u64) -> Recording {
    let mut r = Recording::new(2);
    r.push(0, 0, MutexLock, L);
    r.push(0, release, MutexUnlock, L);
    r.push(0, 5, ThreadExit, 1);
    r.push(1, 30, MutexLock, L);
    r.push(1, 7, MutexUnlock, L);
    r.push(1, 1, ThreadExit, 2);
    r
}

#[test]
fn a_thread_that_sleeps_is_woken_late_and_at_a_price() {
    let none = Constraints::none();
    let (outcome, times) = replay(&contended(100).skeleton(), &none, &MACHINE, exact());
    assert!(matches!(outcome, Outcome::Completed(_)));
    // t1 is asleep from 40 on; t0 spends 20 on waking it, which takes 50.
    assert!(times.contains(&(0, 2, 125, 125)), "{times:?}");
    assert!(times.contains(&(1, 0, 30, 150)), "{times:?}");
    // Having slept, it cannot know that nobody else sleeps: its release makes a call in vain.
    assert!(times.contains(&(1, 1, 157, 162)), "{times:?}");
}

#[test]
fn a_thread_on_its_way_to_sleep_sees_a_release() {
    let none = Constraints::none();
    let (_, times) = replay(&contended(35).skeleton(), &none, &MACHINE, exact());
    assert!(times.contains(&(0, 1, 35, 40)), "the call in vain: {times:?}");
    assert!(times.contains(&(1, 0, 30, 40)), "awake at the end of its own call: {times:?}");
}

#[test]
fn a_thread_that_did_not_sleep_is_back_later_and_leaves_its_mark() {
    let machine = Config { costs: Costs { back: 6, ..COSTS }, ..MACHINE };
    let (_, times) = replay(&contended(35).skeleton(), &Constraints::none(), &machine, exact());
    // It looks at 40 and is back at 46.
    assert!(times.contains(&(1, 0, 30, 46)), "{times:?}");
    // The lock's word says that others may sleep, so its release makes a call in vain.
    assert!(times.contains(&(1, 1, 53, 58)), "{times:?}");
}

#[test]
fn sleeps_are_counted() {
    let slept = |release| {
        let skeleton = contended(release).skeleton();
        let (mut orig, model) = exact();
        match simulate(&skeleton, &Constraints::none(), &MACHINE, &model, &mut orig, &mut ()) {
            Outcome::Completed(run) => (run.threads[1].slept, run.threads[1].slept_for),
            Outcome::Deadlocked(deadlock) => panic!("{deadlock}"),
        }
    };
    assert_eq!(slept(35), (0, 0), "awake all the time");
    assert_eq!(slept(100), (1, 120), "from 30 to 150");
}

#[test]
fn a_lock_is_not_handed_over_to_a_sleeper() {
    // t0 comes again while t1 is being woken, and overtakes it.
    let mut r = Recording::new(2);
    r.push(0, 0, MutexLock, L);
    r.push(0, 100, MutexUnlock, L);
    r.push(0, 5, MutexLock, L);
    r.push(0, 40, MutexUnlock, L);
    r.push(0, 5, ThreadExit, 1);
    r.push(1, 30, MutexLock, L);
    r.push(1, 7, MutexUnlock, L);
    r.push(1, 1, ThreadExit, 2);
    let (_, times) = replay(&r.skeleton(), &Constraints::none(), &MACHINE, exact());
    // 100 and 20 for waking t1; t0 has the lock again from 125 to 165, t1 wakes at 150 in vain, is
    // asleep at 160, and woken at 165.
    assert!(times.contains(&(0, 2, 125, 125)), "{times:?}");
    assert!(times.contains(&(1, 0, 30, 215)), "{times:?}");
}

/// `t0` joins `t1` under the lock, so `t1` must have had the lock before. `t0` asks for it first. On the
/// only core, `t1` would never run if `t0` waited awake.
#[test]
fn who_must_let_another_go_first_gives_its_core_away() {
    let mut r = Recording::new(2);
    r.push(1, 40, MutexLock, L);
    r.push(1, 7, MutexUnlock, L);
    r.push(1, 1, ThreadExit, 2);
    r.push(0, 10, MutexLock, L);
    r.push(0, 5, ThreadJoin, 2);
    r.push(0, 5, MutexUnlock, L);
    r.push(0, 5, ThreadExit, 1);
    for cores in [1, 2] {
        let machine = Config { cores, ..MACHINE };
        let (outcome, times) = replay(&r.skeleton(), &Constraints::none(), &machine, exact());
        assert!(matches!(outcome, Outcome::Completed(_)), "{cores}: {outcome:?}");
        let at = |thread, event| times.iter().find(|it| (it.0, it.1) == (thread, event));
        assert!(at(1, 0).map(|it| it.3) <= at(0, 0).map(|it| it.3), "{cores}: {times:?}");
    }
}

/// `t0` stores a word, and then `t1` reads it; `under` says who does so under the lock.
fn word(under: [bool; 2]) -> Recording {
    const WORD: u64 = 0x2000;
    let mut r = Recording::new(2);
    for (thread, kind) in [(0, SyncStore), (1, SyncLoad)] {
        let lock = |r: &mut Recording, kind| {
            if under[thread] {
                r.push(thread, 10, kind, L);
            }
        };
        r.push(thread, [100, 200][thread], ThreadStart, thread as u64 + 1);
        lock(&mut r, MutexLock);
        r.push(thread, 10, kind, WORD);
        lock(&mut r, MutexUnlock);
        r.push(thread, 10, ThreadExit, thread as u64 + 1);
    }
    // Natively t1 would have come first, but for its creation.
    r.threads[1]
        .iter_mut()
        .for_each(|event| (event.begin, event.end) = (event.begin - 190, event.end - 190));
    r
}

#[test]
fn a_load_under_the_lock_of_its_word_waits_for_no_store() {
    let ends = |skeleton: &Skeleton| {
        let (outcome, times) = replay(skeleton, &Constraints::none(), &MACHINE, exact());
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        times.iter().filter(|it| it.0 == 1).map(|it| it.3).max()
    };
    let recorded = ends(&word([true; 2]).skeleton());
    assert!(recorded > Some(120), "t1 waits for t0's section: {recorded:?}");
    let predicted = ends(&word([true; 2]).predicting(false));
    assert_eq!(predicted, Some(50), "whoever comes first has the lock first");
    // A store or a load that no lock protects is ordered as it was.
    for under in [[true, false], [false, true]] {
        let predicted = ends(&word(under).predicting(false));
        assert!(predicted > Some(110), "{under:?}: {predicted:?}");
    }
}

#[test]
fn whoever_tries_a_lock_until_it_is_free_waits_for_it() {
    let mut r = Recording::new(1);
    r.push(0, 0, ThreadStart, 1);
    for result in [16, 16, 16, 0] {
        r.push(0, 50, MutexTryLock, L).result = result;
    }
    r.push(0, 30, MutexUnlock, L);
    r.push(0, 5, ThreadExit, 1);
    let end = |skeleton: &Skeleton| {
        let (_, times) = replay(skeleton, &Constraints::none(), &MACHINE, exact());
        times.iter().map(|it| it.3).max()
    };
    assert_eq!(end(&r.skeleton()), Some(235));
    assert_eq!(end(&r.predicting(false)), Some(85), "nobody has it: the first try would do");
    // Something else between the tries is no wait.
    r.threads[0][3].code = SyncLoad as u8;
    r.threads[0][3].object = 0x3000;
    assert_eq!(end(&r.predicting(false)), Some(235));
}

#[test]
fn whoever_had_such_a_lock_at_once_would_have_tried_again() {
    // t1 comes to the lock when t0 has let go of it, but does not in the prediction.
    let times_of_t1 = |tries: &[i32]| {
        let mut r = Recording::new(2);
        r.push(0, 0, ThreadStart, 1);
        for &result in tries {
            r.push(0, 10, MutexTryLock, L).result = result;
        }
        r.push(0, 60_000, MutexUnlock, L);
        r.push(0, 5, ThreadExit, 1);
        r.push(1, 80_000, ThreadStart, 2);
        r.push(1, 10, MutexTryLock, L);
        r.push(1, 10, MutexUnlock, L);
        r.push(1, 5, ThreadExit, 2);
        let early = |event: &mut Event| {
            (event.begin, event.end) = (event.begin - 79_900, event.end - 79_900);
        };
        r.threads[1].iter_mut().for_each(early);
        let (outcome, times) =
            replay(&r.predicting(false), &Constraints::none(), &MACHINE, exact());
        let Outcome::Completed(run) = outcome else { panic!("{outcome:?}") };
        let end = times.iter().filter(|it| it.0 == 1).map(|it| it.3).max();
        (run.threads[1].spinning > 50_000, end)
    };
    let (awake, soon) = times_of_t1(&[16, 0]);
    let (sleeps_not, late) = times_of_t1(&[0]);
    assert!(awake && !sleeps_not);
    assert!(soon < late, "who is awake need not be woken: {soon:?}, {late:?}");
}

#[test]
fn what_calls_took_without_waiting_is_the_recorder_s_work() {
    let mut r = Recording::new(1);
    for round in 0..100 {
        // One in ten slept.
        let time = if round % 10 == 0 { 50_000 } else { 300 };
        r.push_timed(0, 10, WriteLock, L, time);
        r.push_timed(0, 10, RwUnlock, L, 200);
    }
    r.push(0, 0, ThreadExit, 1);
    let end = |skeleton: &Skeleton| {
        let (_, times) = replay(skeleton, &Constraints::none(), &MACHINE, exact());
        times.iter().map(|it| it.3).max()
    };
    assert_eq!(end(&r.predicting(false)), Some(2_000));
    assert_eq!(end(&r.predicting(true)), Some(52_000));
}

#[test]
fn a_thread_that_waits_awake_goes_on_as_late_as_in_the_recording() {
    let mut r = Recording::new(2);
    for thread in 0..2 {
        r.push(thread, 0, ThreadStart, thread as u64 + 1);
        r.push(thread, 10 * thread as u64, SpinLock, L);
        r.push(thread, 100, SpinUnlock, L);
        r.push(thread, 1, ThreadExit, thread as u64 + 1);
    }
    let model = Model { handoffs: &[70], ..MODEL };
    let (_, times) = replay(&r.skeleton(), &Constraints::none(), &MACHINE, (Orig, model));
    assert!(times.contains(&(1, 1, 10, 170)), "100 and 70: {times:?}");
}

/// Classes conflict by number.
struct Table(fn(u32, u32) -> bool, bool);

impl Conflicts for Table {
    fn conflict(&self, a: u32, b: u32) -> bool {
        (self.0)(a, b)
    }

    fn is_lockless(&self, _: u32) -> bool {
        self.1
    }
}

/// Rounds of four threads, the sections of each thread of a class of its own.
fn rounds(sections: u64) -> (Skeleton, Vec<(ThreadId, u32, u32)>) {
    let mut r = Recording::new(4);
    let mut begins = Vec::new();
    for round in 0..sections {
        for thread in 0..4 {
            let id = ThreadId(u32::try_from(thread).expect("four threads"));
            r.push(thread, 13 + round * 7 % 31, MutexLock, L);
            begins.push((id, u32::try_from(2 * round).expect("few rounds"), id.0));
            r.push(thread, 5 + round * 3 % 17, MutexUnlock, L);
        }
    }
    for thread in 0..4 {
        r.push(thread, 1, ThreadExit, thread as u64 + 1);
    }
    (r.skeleton(), begins)
}

fn duration(skeleton: &Skeleton, constraints: &Constraints<'_>, config: &Config) -> u64 {
    let outcome = simulate(skeleton, constraints, config, &MODEL, &mut Orig, &mut ());
    outcome.completed().expect("no deadlock").duration
}

#[test]
fn where_everything_conflicts_nothing_is_gained() {
    let (skeleton, begins) = rounds(50);
    let all = Table(|_, _| true, false);
    for cores in [1, 2, 4] {
        let config = Config { cores, quantum: 1000, costs: Costs { travel: 3, ..COSTS } };
        let admission = Admission::new(4, begins.iter().copied(), &all);
        let relaxed = Constraints::relaxing(&skeleton, |address| address == L, admission);
        let original = duration(&skeleton, &Constraints::none(), &config);
        assert_eq!(duration(&skeleton, &relaxed, &config), original, "{cores} cores");
    }
}

#[test]
fn where_nothing_conflicts_threads_do_not_wait() {
    let (skeleton, begins) = rounds(50);
    let none = Table(|_, _| false, true);
    let config = Config { cores: 4, ..MACHINE };
    let admission = Admission::new(4, begins.iter().copied(), &none);
    let relaxed = Constraints::relaxing(&skeleton, |address| address == L, admission);
    let own: u64 = (0..50).map(|round| 13 + round * 7 % 31 + 5 + round * 3 % 17).sum();
    assert_eq!(duration(&skeleton, &relaxed, &config), own + 1);
}

#[test]
fn sections_exclude_those_that_they_conflict_with_and_no_others() {
    // t0 and t1 conflict, t2 and t3 do, and nobody else.
    let (skeleton, begins) = rounds(50);
    let pairs = Table(|a, b| a / 2 == b / 2, false);
    let config = Config { cores: 4, ..MACHINE };
    let admission = Admission::new(4, begins.iter().copied(), &pairs);
    let relaxed = Constraints::relaxing(&skeleton, |address| address == L, admission);
    let mut inside: Vec<(u64, u64, u32)> = Vec::new();
    let mut entered = [0; 4];
    let mut visit = |thread: ThreadId, event: refrain_trace::EventId, begin, end| match event.0 {
        100 => {}
        even if even % 2 == 0 => entered[thread.index()] = end,
        _ => inside.push((entered[thread.index()], begin, thread.0)),
    };
    let outcome = simulate(&skeleton, &relaxed, &config, &MODEL, &mut Orig, &mut visit);
    assert!(matches!(outcome, Outcome::Completed(_)));
    let mut together = 0;
    for (index, a) in inside.iter().enumerate() {
        for b in &inside[..index] {
            let overlap = a.0 < b.1 && b.0 < a.1;
            assert!(!overlap || a.2 == b.2 || a.2 / 2 != b.2 / 2, "{a:?} and {b:?} conflict");
            together += u32::from(overlap && a.2 / 2 != b.2 / 2);
        }
    }
    assert!(together > 0, "nothing was relaxed");
    let original = duration(&skeleton, &Constraints::none(), &config);
    assert!(duration(&skeleton, &relaxed, &config) < original);
}

#[test]
fn the_papers_scheduler_pays_for_no_waking() {
    let none = Constraints::none();
    let (_, times) = replay(&contended(100).skeleton(), &none, &MACHINE, Orig);
    assert!(times.contains(&(0, 2, 105, 105)), "{times:?}");
}
