//! Replays of contracted skeletons take as long as those of the whole ones.

mod common;

use common::Recording;
use proptest::prelude::*;
use refrain_scheduler::testing::{any_program, choices, record};
use refrain_scheduler::{
    Config, Constraints, Costs, Deadlock, Model, Orig, Outcome, Skeleton, Waiting, simulate,
};
use refrain_trace::EventKind::*;
use refrain_trace::{EventId, ThreadId, order};

const L: u64 = 0x1000;
const W: u64 = 0x3000;

const COSTS: Costs = Costs {
    acquire: 2,
    release: 1,
    other: 3,
    handoff: 4,
    wake: 50,
    rouse: 20,
    patience: 10,
    back: 6,
    vain: 5,
    travel: 7,
};

fn arrive(skeleton: &Skeleton, cores: u32) -> Outcome {
    let config = Config { cores, quantum: u64::MAX, costs: COSTS };
    let model = Model::waiting(Waiting::Glibc);
    simulate(skeleton, &Constraints::none(), &config, &model, &mut Orig, &mut ())
}

/// Holds the contracted run against the whole one; how many operations are left.
fn check(skeleton: &Skeleton, cores: u32) -> Result<u64, TestCaseError> {
    let contracted = skeleton.contracted(&COSTS);
    match (arrive(skeleton, cores), arrive(contracted.skeleton(), cores)) {
        (Outcome::Deadlocked(whole), Outcome::Deadlocked(part)) => {
            // Whose counts come too late to matter is not said of the part.
            let stuck = |deadlock: Deadlock| {
                let waits = deadlock.waits.into_iter();
                waits.map(|it| (it.thread, it.event, it.object, it.want)).collect::<Vec<_>>()
            };
            prop_assert_eq!(whole.at, part.at);
            prop_assert_eq!(stuck(whole), stuck(contracted.explain(part)));
        }
        (whole, part) => prop_assert_eq!(whole, part),
    }
    Ok(contracted.skeleton().events())
}

/// A load of what has been stored so far.
fn load(r: &mut Recording, thread: usize, work: u64, word: u64) {
    let bound = r.tickets(word);
    r.push(thread, work, SyncLoad, word).ticket = bound;
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Store(u64),
    Load(u64),
    /// A critical section with one of both in it.
    Section(u64, bool),
    /// The same under one of two locks that few threads take.
    Other(u64, u64, bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..4).prop_map(Op::Store),
        4 => (0u64..4).prop_map(Op::Load),
        1 => (0u64..4, any::<bool>()).prop_map(|(word, stores)| Op::Section(word, stores)),
        2 => (1u64..8, 0u64..4, any::<bool>()).prop_map(|(lock, word, stores)| Op::Other(lock, word, stores)),
    ]
}

/// What threads did, in its order, one of which has created another.
fn words() -> impl Strategy<Value = Recording> {
    let steps = proptest::collection::vec((0usize..3, 0u64..40, op()), 1..60);
    steps.prop_map(|steps| {
        let mut r = Recording::new(3);
        r.push(0, 5, Atomic, W);
        r.push(0, 0, ThreadCreate, order::thread_object(ThreadId(2)));
        for (thread, work, op) in steps {
            let access = |r: &mut Recording, word, stores| {
                if stores {
                    r.push(thread, work, SyncStore, W + 64 * word);
                } else {
                    load(r, thread, work, W + 64 * word);
                }
            };
            match op {
                Op::Store(word) => access(&mut r, word, true),
                Op::Load(word) => access(&mut r, word, false),
                Op::Other(lock, word, stores) => {
                    r.push(thread, work, MutexLock, L + 64 * lock);
                    access(&mut r, word, stores);
                    r.push(thread, work, MutexUnlock, L + 64 * lock);
                }
                Op::Section(word, stores) => {
                    r.push(thread, work, MutexLock, L);
                    access(&mut r, word, stores);
                    r.push(thread, work, MutexUnlock, L);
                }
            }
        }
        for thread in 0..3 {
            r.push(thread, 1, ThreadExit, thread as u64 + 1);
        }
        r
    })
}

proptest! {
    #[test]
    fn words_take_as_long(r in words(), predicts in any::<bool>(), cores in 1u32..4) {
        let skeleton = if predicts { r.predicting(false) } else { r.skeleton() };
        check(&skeleton, cores)?;
    }

    #[test]
    fn programs_take_as_long(
        program in any_program(),
        choices in choices(),
        predicts in any::<bool>(),
        cores in 1u32..5,
    ) {
        let r = record(&program, &choices);
        let skeleton = if predicts { r.predicting(false) } else { r.skeleton() };
        check(&skeleton, cores)?;
    }
}

#[test]
fn what_orders_nothing_is_work() {
    let mut r = Recording::new(2);
    r.push(0, 10, SyncStore, W);
    load(&mut r, 0, 10, W);
    // Another thread waits for the first store alone, and once.
    load(&mut r, 1, 0, W);
    load(&mut r, 1, 10, W);
    r.push(0, 10, SyncStore, W);
    r.push(0, 10, Atomic, W + 64);
    r.push(0, 10, ThreadExit, 1);
    r.push(1, 10, ThreadExit, 2);
    let contracted = r.skeleton().contracted(&COSTS);
    let places = |thread: u32| (0..5).map(move |event| (ThreadId(thread), event));
    let left: Vec<_> = places(0).filter(|&(t, e)| contracted.place(t, e).is_some()).collect();
    assert_eq!(left, [(ThreadId(0), 0), (ThreadId(0), 4)]);
    let left: Vec<_> = places(1).filter(|&(t, e)| contracted.place(t, e).is_some()).collect();
    assert_eq!(left, [(ThreadId(1), 0), (ThreadId(1), 2)]);
    assert_eq!(check(&r.skeleton(), 2).expect("the same run"), 4);
}

#[test]
fn a_lock_that_one_thread_takes_is_work() {
    let mut r = Recording::new(2);
    for (thread, lock) in [(0, L), (0, L + 64), (1, L), (0, L + 64)] {
        r.push(thread, 10, MutexLock, lock);
        r.push(thread, 10, MutexUnlock, lock);
    }
    r.push(0, 10, ThreadExit, 1);
    r.push(1, 10, ThreadExit, 2);
    // Two sections of the lock that both take, and the ends.
    assert_eq!(check(&r.skeleton(), 2).expect("the same run"), 6);
}

#[test]
fn a_deadlock_has_the_events_own_numbers() {
    let mut r = Recording::new(2);
    r.push(0, 0, Atomic, W + 64);
    r.push(0, 0, Atomic, W + 64);
    // t1 has stored what the recording has lost.
    load(&mut r, 0, 0, W);
    let lost = r.tickets(W);
    r.threads[0][2].ticket = lost + 5;
    r.push(0, 0, MutexLock, L);
    r.push(0, 0, MutexLock, L + 64);
    r.push(0, 0, ThreadExit, 1);
    r.push(1, 0, Atomic, W + 64);
    r.push(1, 0, MutexLock, L + 64);
    r.push(1, 1000, MutexLock, L);
    r.push(1, 0, ThreadExit, 2);
    let skeleton = r.predicting(false);
    let Outcome::Deadlocked(deadlock) = arrive(skeleton.contracted(&COSTS).skeleton(), 2) else {
        panic!("each has what the other wants");
    };
    let explained = skeleton.contracted(&COSTS).explain(deadlock);
    let waiting: Vec<EventId> = explained.waits.iter().map(|wait| wait.event).collect();
    assert_eq!(waiting, [EventId(4), EventId(2)]);
}
