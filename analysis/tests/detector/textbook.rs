//! Sequences with known answers: the examples of the paper, and one of each kind of order.

use crate::program::{Program, Step, run};
use Step::*;
use refrain_analysis::{Act, Race};
use refrain_trace::EventKind::*;
use refrain_trace::{EventId, ThreadId, order};

const X: u64 = 0x10_0000;
const Y: u64 = 0x10_0040;
const M: u64 = 0x20_0000;
const FLAG: u64 = 0x20_0100;

/// The numbers of the instructions that race, of each race the one that was seen first first.
fn racing(threads: u32, program: Program) -> Vec<(u64, u64)> {
    let number = |pc: u64| pc - 0x1000;
    let mut pairs: Vec<_> = run(threads, &program)
        .iter()
        .map(|race| (number(race.first.pc), number(race.second.pc)))
        .collect();
    pairs.sort_unstable();
    pairs
}

fn ordered(program: Program) {
    assert_eq!(racing(3, program), []);
}

#[test]
fn a_lock_orders_what_it_protects() {
    // The paper, section 2.2.
    ordered(vec![
        (0, Sync(MutexLock, M)),
        (0, Write(X, 8)),
        (0, Sync(MutexUnlock, M)),
        (1, Sync(MutexLock, M)),
        (1, Write(X, 8)),
        (1, Sync(MutexUnlock, M)),
    ]);
}

#[test]
fn accesses_before_and_after_the_lock_race() {
    let program = vec![
        (0, Write(Y, 8)),
        (0, Sync(MutexLock, M)),
        (0, Sync(MutexUnlock, M)),
        (0, Write(X, 8)),
        (1, Read(Y, 8)),
        (1, Sync(MutexLock, M)),
        (1, Read(Y, 8)),
        (1, Write(X, 8)),
    ];
    assert_eq!(racing(2, program), [(0, 4), (3, 7)]);
}

#[test]
fn reads_that_are_shared_race_with_a_write_each() {
    // The paper, section 3: read-shared data, then a write that only one reader is ordered with.
    let program = vec![
        (0, Write(X, 8)),
        (0, Create(1)),
        (0, Create(2)),
        (1, Read(X, 8)),
        (2, Read(X, 8)),
        (1, Sync(ThreadExit, order::thread_object(ThreadId(1)))),
        (0, Sync(ThreadJoin, order::thread_object(ThreadId(1)))),
        (0, Write(X, 8)),
        (0, Read(X, 8)),
    ];
    assert_eq!(racing(3, program), [(4, 7)]);
}

#[test]
fn both_sides_are_told() {
    let program = vec![
        (0, Sync(MutexLock, M)),
        (0, Write(X, 8)),
        (1, Sync(SemGetValue, M)),
        (1, Sync(SemGetValue, M)),
        (1, Read(X + 2, 4)),
        (1, Read(X + 2, 4)),
    ];
    let races = run(2, &program);
    let [Race { first, second, count, .. }] = races.as_slice() else { panic!("{races:?}") };
    assert_eq!((first.thread, first.event), (ThreadId(0), EventId(0)));
    assert_eq!((first.address, first.size, first.pc), (X + 2, 4, 0x1001));
    assert_eq!((second.thread, second.event), (ThreadId(1), EventId(1)));
    assert_eq!((second.address, second.size, second.pc), (X + 2, 4, 0x1004));
    assert!(first.writes && !first.reads && second.reads && !second.writes);
    assert_eq!(*count, 1, "instructions race, not their repetitions in one epoch");
}

#[test]
fn bytes_are_told_apart() {
    let program = vec![
        (0, Write(X, 3)),
        (1, Write(X + 3, 1)),
        (0, Write(Y + 4, 16)),
        (1, Read(Y, 4)),
        (1, Read(Y + 19, 2)),
        (1, Read(Y + 20, 8)),
    ];
    assert_eq!(racing(2, program), [(2, 4)]);
}

#[test]
fn a_thread_begins_after_its_creation_and_ends_before_it_is_joined() {
    let child = order::thread_object(ThreadId(1));
    ordered(vec![
        (0, Write(X, 8)),
        (0, Create(1)),
        (1, Write(X, 8)),
        (1, Sync(ThreadExit, child)),
        (0, Sync(ThreadJoin, child)),
        (0, Write(X, 8)),
    ]);
    let early = vec![
        (0, Create(1)),
        (0, Write(X, 8)),
        (1, Write(X, 8)),
        (1, Write(Y, 8)),
        (1, Sync(ThreadExit, child)),
        (0, Fails(ThreadJoin, child)),
        (0, Write(Y, 8)),
    ];
    assert_eq!(racing(2, early), [(1, 2), (3, 6)]);
}

#[test]
fn a_stack_that_is_used_again_does_not_race() {
    ordered(vec![
        (0, Create(1)),
        (1, Write(X, 8)),
        (1, Sync(ThreadExit, order::thread_object(ThreadId(1)))),
        (0, Sync(ThreadCreate, order::THREADS)),
        (0, Create(2)),
        (2, Write(X, 8)),
    ]);
}

#[test]
fn readers_of_a_lock_are_ordered_with_writers_alone() {
    ordered(vec![
        (0, Sync(WriteLock, M)),
        (0, Write(X, 8)),
        (0, Sync(RwUnlock, M)),
        (1, Sync(ReadLock, M)),
        (1, Read(X, 8)),
        (1, Sync(RwUnlock, M)),
        (2, Sync(WriteLock, M)),
        (2, Write(X, 8)),
    ]);
    let readers = vec![
        (0, Sync(ReadLock, M)),
        (0, Write(X, 8)),
        (0, Sync(RwUnlock, M)),
        (1, Sync(ReadLock, M)),
        (1, Write(X, 8)),
    ];
    assert_eq!(racing(2, readers), [(1, 4)]);
}

#[test]
fn what_was_refused_orders_nothing() {
    let refused = vec![
        (0, Sync(MutexLock, M)),
        (0, Write(X, 8)),
        (0, Sync(MutexUnlock, M)),
        (1, Fails(MutexTryLock, M)),
        (1, Write(X, 8)),
    ];
    assert_eq!(racing(2, refused), [(1, 4)]);
}

#[test]
fn waits_and_their_ends_order() {
    for (release, acquire) in [
        (CondSignal, CondWaitEnd),
        (CondBroadcast, CondWaitEnd),
        (BarrierArrive, BarrierLeave),
        (SemPost, SemWait),
        (SpinUnlock, SpinLock),
    ] {
        ordered(vec![
            (0, Write(X, 8)),
            (0, Sync(release, M)),
            (1, Sync(acquire, M)),
            (1, Write(X, 8)),
        ]);
        let late =
            vec![(0, Sync(release, M)), (0, Write(X, 8)), (1, Sync(acquire, M)), (1, Write(X, 8))];
        assert_eq!(racing(2, late), [(1, 3)], "{release:?}");
    }
}

#[test]
fn atomic_words_order_and_do_not_race_with_themselves() {
    ordered(vec![
        (0, Write(X, 8)),
        (0, Rmw(FLAG)),
        (1, Load(FLAG)),
        (1, Write(X, 8)),
        (0, Rmw(FLAG)),
        (1, Rmw(FLAG)),
    ]);
    // A load releases nothing, and a plain load is none that was recorded.
    let plain = vec![
        (0, Write(X, 8)),
        (0, Load(FLAG)),
        (1, Rmw(FLAG)),
        (1, Write(X, 8)),
        (0, Read(FLAG, 4)),
    ];
    assert_eq!(racing(2, plain), [(0, 3), (2, 4)]);
}

#[test]
fn a_plain_store_to_an_atomic_word_releases_it() {
    ordered(vec![(0, Write(X, 8)), (0, Write(FLAG, 4)), (1, Load(FLAG)), (1, Write(X, 8))]);
    let late = vec![(0, Write(FLAG, 4)), (0, Write(X, 8)), (1, Load(FLAG)), (1, Write(X, 8))];
    assert_eq!(racing(2, late), [(1, 3)]);
}

#[test]
fn a_store_that_is_seen_too_late_releases_what_was_acquired_meanwhile() {
    // Thread 0 stores to X and to FLAG; thread 1 reads FLAG, and goes on before thread 0 has
    // reported what it did.
    ordered(vec![
        (0, Read(Y, 8)),
        (1, Load(FLAG)),
        (1, Write(X, 8)),
        (0, Writes([X, FLAG])),
        (1, Write(X, 8)),
    ]);
    let before = vec![(1, Load(FLAG)), (1, Write(X, 8)), (0, Read(Y, 8)), (0, Writes([X, FLAG]))];
    assert_eq!(racing(2, before), [(1, 3)], "thread 0 had reported since the load");
}

#[test]
fn the_kernel_reads_and_writes_for_its_caller() {
    let program =
        vec![(0, Write(X, 16)), (1, Receive(X + 8, 16)), (2, Write(Y, 1)), (1, Send(Y - 8, 64))];
    let races = run(3, &program);
    let pairs: Vec<_> = races.iter().map(|race| (race.first.pc, race.second.pc)).collect();
    assert_eq!(pairs, [(0x1000, 0x1001), (0x1002, 0x1003)]);
    assert!(
        races.iter().all(|race| (race.first.act, race.second.act) == (Act::Plain, Act::Kernel))
    );
}

#[test]
fn threads_that_cannot_be_watched_end_the_search() {
    let detector = refrain_analysis::Detector::new([], refrain_analysis::Relation::Kept);
    let mut watchers = [0, 1].map(|id| detector.thread(ThreadId(id)).expect("is watched"));
    let write = |at| refrain_trace::Access { address: at, size: 8, kind: 2, pc: at as u32 };
    watchers.iter_mut().for_each(|watcher| watcher.accesses(&[write(X)]));
    assert!(detector.thread(ThreadId(1 << 16)).is_none());
    watchers.iter_mut().for_each(|watcher| watcher.accesses(&[write(Y)]));
    let races = detector.races();
    assert_eq!(races.iter().map(|race| race.first.address).collect::<Vec<_>>(), [X]);
}

#[test]
fn system_calls_are_in_an_order() {
    ordered(vec![(0, Write(X, 8)), (0, Send(Y, 1)), (1, Receive(Y + 8, 1)), (1, Write(X, 8))]);
}
