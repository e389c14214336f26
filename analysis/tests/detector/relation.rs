//! What the program orders, against what a replay keeps.

use crate::program::{Program, Step, run_with};
use Step::*;
use refrain_analysis::{Atomics, Code, Relation};
use refrain_trace::EventKind::*;
use refrain_trace::{ThreadId, order};

const X: u64 = 0x10_0000;
const Y: u64 = 0x10_0100;
const FLAG: u64 = 0x20_0100;

/// How many races there are in what a replay keeps, and in what the program orders.
fn races(program: Program) -> (usize, usize) {
    let code = Code {
        unused: [0x1000 + 1, 0x1000 + 2].into(),
        silent: std::iter::once(0x1000 + 8..0x1000 + 16).collect(),
        ..Code::default()
    };
    let of = |relation| run_with(3, &program, relation).len();
    (of(Relation::Kept), of(Relation::Program(code)))
}

#[test]
fn two_writes_of_bytes_order_nothing_for_the_program() {
    let program = vec![(0, Write(X, 8)), (0, Send(Y, 1)), (1, Send(Y + 8, 1)), (1, Write(X, 8))];
    assert_eq!(races(program), (0, 1));
}

#[test]
fn bytes_that_are_received_do() {
    let program = vec![(0, Write(X, 8)), (0, Send(Y, 1)), (1, Receive(Y + 8, 1)), (1, Write(X, 8))];
    assert_eq!(races(program), (0, 0));
}

#[test]
fn a_result_that_nobody_uses_acquires_nothing() {
    let program = vec![(0, Write(X, 8)), (0, Rmw(FLAG)), (1, Rmw(FLAG)), (1, Write(X, 8))];
    assert_eq!(races(program), (0, 1));
    let used = vec![
        (1, Read(Y, 8)),
        (0, Write(X, 8)),
        (2, Read(Y, 8)),
        (0, Rmw(FLAG)),
        (1, Rmw(FLAG)),
        (1, Write(X, 8)),
    ];
    assert_eq!(races(used), (0, 0));
}

/// As a seqlock's reader looks at the version again: the writer's next store comes behind that, and is ordered
/// by nothing.
#[test]
fn a_load_with_a_place_among_stores_releases_nothing() {
    let program = vec![(0, Write(X, 8)), (0, Rmw(FLAG)), (1, Rmw(FLAG)), (1, Write(X, 8))];
    for (load, found) in [(0x1000 + 1, 1), (0x1000 + 2, 0)] {
        let code = Code { loads: [load].into(), ..Code::default() };
        assert_eq!(run_with(3, &program, Relation::Program(code)).len(), found);
    }
}

#[test]
fn atomics_of_the_library_are_its_own() {
    let idle = |_| (2, Read(Y, 8));
    let with = |after: usize| -> Program {
        let before = (0..after).map(idle);
        let program = [(0, Write(X, 8)), (0, Rmw(FLAG)), (1, Rmw(FLAG)), (1, Write(X, 8))];
        before.chain(program).collect()
    };
    assert_eq!(races(with(4)), (0, 0));
    assert_eq!(races(with(7)), (0, 1));
}

/// A lock in the library's memory; whoever calls for it.
#[test]
fn locks_of_the_library_are_its_own() {
    let with = |lock| {
        vec![
            (0, Write(X, 8)),
            (0, Sync(MutexLock, lock)),
            (0, Sync(MutexUnlock, lock)),
            (1, Sync(MutexLock, lock)),
            (1, Sync(MutexUnlock, lock)),
            (1, Write(X, 8)),
        ]
    };
    assert_eq!(races(with(0x1008)), (0, 1));
    assert_eq!(races(with(0x1018)), (0, 0));
}

/// Who has slept for a lock of the library's may be woken by its release, or have come later.
#[test]
fn sleep_for_locks_of_the_library_is_its_own() {
    let with = |word| vec![(0, Write(X, 8)), (0, Wake(word)), (1, Sleep(word)), (1, Write(X, 8))];
    assert_eq!(races(with(0x1008)).1, 1);
    assert_eq!(races(with(0x1018)).1, 0);
}

/// The end of a thread comes before the creation of another for a replay; for the program only if that
/// one gets its stack.
#[test]
fn threads_that_end_and_begin() {
    let exit = Sync(ThreadExit, order::thread_object(ThreadId(1)));
    let create = Sync(ThreadCreate, 0);
    let with = |stack| {
        vec![
            (0, CreateOn(1, 0x5000)),
            (1, Write(X, 8)),
            (1, exit),
            (0, create),
            (0, CreateOn(2, stack)),
            (2, Write(X, 8)),
        ]
    };
    assert_eq!(races(with(0x6000)), (0, 1));
    assert_eq!(races(with(0x5000)), (0, 0), "nobody knows where the stack is");
}

/// How many races there are if a thread writes somewhere on its stack, at `at`, and ends, and these steps
/// follow.
fn after_an_end(at: u64, steps: &[(u32, Step)]) -> usize {
    let mut program = vec![
        (0, Map(0x5000, 0x2000)),
        (0, CreateOn(1, 0x6000)),
        (1, Write(X, 8)),
        (1, Write(at, 8)),
        (1, Sync(ThreadExit, order::thread_object(ThreadId(1)))),
    ];
    program.extend_from_slice(steps);
    races(program).1
}

#[test]
fn a_stack_that_is_used_again_is_new_memory() {
    let found = |at| after_an_end(at, &[(0, CreateOn(2, 0x6000)), (2, Write(at, 8))]);
    assert_eq!(found(0x5100), 0);
    assert_eq!(found(X), 1);
}

/// Whoever creates a thread clears the stack of one that has ended, before it is created.
#[test]
fn the_stack_of_a_thread_that_has_ended_is_the_librarys() {
    let found = |at| after_an_end(at, &[(0, Write(at, 8))]);
    assert_eq!(found(0x5100), 0);
    assert_eq!(found(X), 1);
}

/// Memory that is mapped anew has no history.
#[test]
fn new_memory() {
    let with = |at| vec![(0, Write(X, 8)), (1, Map(at, 0x1000)), (1, Write(X, 8))];
    assert_eq!(races(with(X)), (1, 0));
    assert_eq!(races(with(X + 0x1000)), (1, 1));
    assert_eq!(races(with(X - 0x1000)), (1, 1));
    let much = vec![(0, Write(X, 8)), (1, Map(0, 1 << 40)), (1, Write(X, 8))];
    assert_eq!(races(much), (1, 0));
}

#[test]
fn a_signal_comes_after_it_was_sent_and_its_handler_was_named() {
    for before in [Kill, Handle] {
        let program = vec![(0, Write(X, 8)), (0, before), (1, Sync(Signal, 0)), (1, Write(X, 8))];
        assert_eq!(races(program).1, 0);
    }
}

/// A wait may end without a signal: what the program does then is ordered by the mutex.
#[test]
fn a_signal_of_a_condition_variable_is_kept_but_orders_nothing() {
    let (condition, mutex) = (FLAG, Y);
    let program = vec![
        (0, Write(X, 8)),
        (0, Sync(CondSignal, condition)),
        (1, WaitEnd(mutex, condition)),
        (1, Write(X, 8)),
    ];
    assert_eq!(races(program), (0, 1));
}

/// A plain store may be an atomic one; an instruction that loads and stores is none.
#[test]
fn an_update_without_a_lock_prefix_is_no_atomic() {
    let update = vec![(0, Rmw(FLAG)), (2, Read(Y, 8)), (1, Update(FLAG, 4))];
    assert_eq!(races(update), (0, 1));
    assert_eq!(races(vec![(0, Rmw(FLAG)), (2, Read(Y, 8)), (1, Write(FLAG, 4))]), (0, 0));
}

/// The same where the update was watched: to the program it is plain, unless a loop waits for it, or a
/// library does so.
#[test]
fn a_watched_update_is_no_atomic_unless_it_is_polled() {
    let program = vec![(0, Write(X, 8)), (0, Store(FLAG)), (1, Rmw(FLAG)), (1, Write(X, 8))];
    let with = |polled: &[u64], trusted: u64| {
        let polled = polled.iter().copied().collect();
        let trusted = std::iter::once(trusted..trusted + 8).collect();
        let code = Code { updates: [0x1001].into(), polled, trusted, ..Code::default() };
        run_with(2, &program, Relation::Program(code)).len()
    };
    assert_eq!(with(&[], 0), 2);
    assert_eq!(with(&[FLAG], 0), 0);
    assert_eq!(with(&[], 0x1000), 0);
}

/// A store that is read orders; a load before a store does so only if who came first is no accident.
#[test]
fn what_atomics_order_is_a_choice() {
    let found = |program: &Program| {
        let of = |atomics| {
            let code = Code { atomics, ..Code::default() };
            run_with(3, program, Relation::Program(code)).len()
        };
        use Atomics::*;
        [Relaxed, AcquireRelease, SequentiallyConsistent].map(of)
    };
    let passed =
        vec![(0, Write(X, 8)), (0, Store(FLAG)), (1, Load(FLAG)), (1, Rmw(FLAG)), (1, Write(X, 8))];
    assert_eq!(found(&passed), [1, 0, 0]);
    let looked = vec![(0, Write(X, 8)), (0, Load(FLAG)), (1, Rmw(FLAG)), (1, Write(X, 8))];
    assert_eq!(found(&looked), [1, 1, 0]);
    let locked = vec![
        (0, Sync(MutexLock, Y)),
        (0, Write(X, 8)),
        (0, Sync(MutexUnlock, Y)),
        (1, Sync(MutexLock, Y)),
        (1, Write(X, 8)),
    ];
    assert_eq!(found(&locked), [0, 0, 0]);
}

/// A replay holds no store back that is not watched, so one may come before an update that found the word
/// without it. What loads read is recorded, and updates that find what was stored wait for it.
#[test]
fn a_plain_store_is_not_kept_behind_updates() {
    let program = |first: Step, second: Step| {
        // What a thread reports is from after its last report.
        vec![
            (0, Rmw(FLAG)),
            (0, Create(1)),
            (0, Create(2)),
            (1, first),
            (2, Read(X, 8)),
            (2, second),
        ]
    };
    assert_eq!(races(program(Rmw(FLAG), Write(FLAG, 4))), (1, 0));
    assert_eq!(races(program(Write(FLAG, 4), Write(FLAG, 4))), (1, 0));
    assert_eq!(races(program(Load(FLAG), Write(FLAG, 4))), (0, 0));
    assert_eq!(races(program(Write(FLAG, 4), Rmw(FLAG))), (0, 0));
}
