//! What begins and ends: blocks of the heap, locks, descriptors, mappings.

use crate::program::{MALLOC, Program, Step, code, run_with};
use Step::*;
use refrain_analysis::{Act, Detector, EpochNotes, Relation, Watcher};
use refrain_trace::EventKind::*;
use refrain_trace::{Access, Event, EventId, ThreadId};
use std::ops::Range;
use std::sync::{Arc, Mutex};

const X: u64 = 0x10_0000;
const LOCK: u64 = 0x20_0000;
const WORD: u64 = 0x30_0000;

/// The steps that race, and what they are, by the relation of the program.
fn races(program: Program) -> Vec<((u64, Act), (u64, Act))> {
    let races = run_with(3, &program, Relation::Program(code()));
    let side = |side: refrain_analysis::Side| (side.pc - 0x1000, side.act);
    races.into_iter().map(|race| (side(race.first), side(race.second))).collect()
}

#[test]
fn to_free_a_block_writes_all_of_it() {
    let before = |at| vec![(0, Allocate(X, 32)), (1, Write(at, 8)), (0, Free(X)), (2, Free(X))];
    assert_eq!(races(before(X)), [((1, Act::Plain), (2, Act::Free))]);
    assert_eq!(races(before(X + 24)), [((1, Act::Plain), (2, Act::Free))]);
    assert_eq!(races(before(X + 32)), []);
    let after = vec![(0, Allocate(X, 32)), (0, Free(X)), (1, Read(X, 4))];
    assert_eq!(races(after), [((1, Act::Free), (2, Act::Plain))]);
    // What it holds is of no account: a counter, say.
    let counter = vec![(0, Allocate(X, 8)), (1, Rmw(X)), (0, Rmw(X)), (0, Free(X)), (1, Rmw(X))];
    assert_eq!(races(counter), [((3, Act::Free), (4, Act::Atomic))]);
}

#[test]
fn to_use_a_freed_block_is_a_fault_in_any_order() {
    let found = |program: Program| {
        let races = run_with(3, &program, Relation::Program(code()));
        let side = |side: &refrain_analysis::Side| side.pc - 0x1000;
        let races = races.iter().filter(|race| race.after_free);
        races.map(|race| (side(&race.first), side(&race.second))).collect::<Vec<_>>()
    };
    let by = |user, at| {
        let freed = [
            (0, Allocate(X, 32)),
            (0, Sync(MutexLock, LOCK)),
            (0, Free(X)),
            (0, Sync(MutexUnlock, LOCK)),
        ];
        let used = [(user, Sync(MutexLock, LOCK)), (user, Write(at, 8))];
        freed.into_iter().chain(used).collect()
    };
    assert_eq!(found(by(1, X)), [(2, 5)]);
    assert_eq!(found(by(0, X + 24)), [(2, 5)], "by the thread that has freed it");
    assert_eq!(found(by(1, X + 32)), [], "behind the block");
    let again = vec![(0, Allocate(X, 32)), (0, Free(X)), (0, Allocate(X, 16)), (0, Write(X, 8))];
    assert_eq!(found(again), [], "another block");
    let enlarged = vec![(0, Allocate(X, 32)), (0, Reallocate(X, 64)), (0, Write(X, 8))];
    assert_eq!(found(enlarged), [], "still the same block");
}

/// `strlen` reads 32 bytes at a time, and four times as many in a loop.
#[test]
fn the_c_library_may_read_ahead_of_what_it_looks_through() {
    let count = |reads: &[(u64, u16)], is_library| {
        let reads = reads.iter().map(|&(at, size)| (0, Read(at, size)));
        let freed = [(0, Allocate(X, 64)), (0, Allocate(X + 80, 256)), (0, Free(X + 80))];
        let program: Vec<_> = freed.into_iter().chain(reads).collect();
        let mut code = code();
        if is_library {
            code.silent.push(0x1003..0x2000);
        }
        run_with(3, &program, Relation::Program(code)).len()
    };
    let beyond = [(X + 48, 32), (X + 80, 32), (X + 112, 32)];
    assert_eq!((count(&beyond, true), count(&beyond, false)), (0, 2));
    let across = [(X + 60, 32)];
    assert_eq!((count(&across, true), count(&across, false)), (0, 1));
    let freed = [(X + 96, 32), (X + 128, 32)];
    assert_eq!((count(&freed, true), count(&freed, false)), (2, 2));
    let between = [(X + 72, 32)];
    assert_eq!((count(&between, true), count(&between, false)), (0, 1));
    let words = [(X + 56, 8), (X + 80, 8)];
    assert_eq!(count(&words, true), 1, "not a vector");
}

#[test]
fn to_enlarge_a_block_ends_it() {
    let program = vec![(0, Allocate(X, 32)), (1, Read(X, 8)), (0, Reallocate(X, 64))];
    assert_eq!(races(program), [((1, Act::Plain), (2, Act::Free))]);
    // Where it is, the block keeps its history.
    let after = |at| vec![(0, Allocate(X, 32)), (0, Reallocate(X, 64)), (1, Read(at, 8))];
    assert_eq!(races(after(X)), [((1, Act::Free), (2, Act::Plain))]);
    assert_eq!(races(after(X + 32)), []);
}

#[test]
fn a_block_that_is_used_again_is_new() {
    let again = |at| {
        vec![
            (0, Allocate(X, 32)),
            (0, Write(at, 8)),
            (0, Free(X)),
            (1, Allocate(X, 32)),
            (1, Write(at, 8)),
        ]
    };
    assert_eq!(races(again(X + 24)), []);
    assert_eq!(races(again(X + 32)).len(), 1, "behind the block");
    // The same thread in the same epoch.
    let mine = vec![(0, Write(X, 8)), (0, Allocate(X, 8)), (0, Write(X, 8)), (1, Read(X, 8))];
    assert_eq!(races(mine), [((2, Act::Plain), (3, Act::Plain))]);
}

#[test]
fn an_allocator_s_own_work_is_no_access_and_no_order() {
    let memory = vec![(0, Allocate(X, 8)), (1, Allocate(X + 64, 8))];
    assert_eq!(races(memory), []);
    let order = vec![
        (0, Rmw(WORD)),
        (0, Write(X, 8)),
        (0, Within(WORD)),
        (1, Within(WORD)),
        (1, Write(X, 8)),
    ];
    assert_eq!(races(order), [((1, Act::Plain), (4, Act::Plain))]);
}

#[test]
fn an_allocator_s_code_is_its_own_whoever_calls_it() {
    let code = || refrain_analysis::Code {
        allocator_code: std::iter::once(0x1001..0x1002).collect(),
        ..code()
    };
    let program = |reader: Step| vec![(0, Write(X, 8)), (1, reader), (2, Write(X + 64, 8))];
    let found = |reader| run_with(3, &program(reader), Relation::Program(code())).len();
    assert_eq!(found(Read(X, 8)), 0);
    let freed = vec![(1, Allocate(X, 8)), (1, Free(X)), (0, Write(X, 8))];
    assert_eq!(run_with(3, &freed, Relation::Program(code())).len(), 1, "a call is the caller's");
}

#[test]
fn to_destroy_a_lock_writes_it() {
    let program = |ordered: bool| -> Program {
        let join = [(0, Sync(MutexLock, LOCK)), (0, Sync(MutexUnlock, LOCK))];
        let use_it = [(1, Sync(MutexLock, LOCK)), (1, Sync(MutexUnlock, LOCK))];
        let join = join.into_iter().filter(|_| ordered);
        use_it.into_iter().chain(join).chain([(0, Sync(MutexDestroy, LOCK))]).collect()
    };
    assert_eq!(races(program(true)), []);
    assert_eq!(races(program(false)), [((1, Act::Lock), (2, Act::Destroy))]);
    let block = vec![(0, Allocate(LOCK, 40)), (1, Sync(MutexUnlock, LOCK)), (0, Free(LOCK))];
    assert_eq!(races(block), [((1, Act::Lock), (2, Act::Free))]);
    // A lock that was busy has not been destroyed.
    let busy = vec![(1, Sync(MutexLock, LOCK)), (0, Fails(MutexDestroy, LOCK))];
    assert_eq!(races(busy), []);
}

/// Who was released by a barrier may destroy it while others have not left it.
#[test]
fn a_barrier_may_be_destroyed_by_the_first_to_leave() {
    let arrive = |thread| (thread, Sync(BarrierArrive, LOCK));
    let leave = |thread| (thread, Sync(BarrierLeave, LOCK));
    let destroy = (0, Sync(BarrierDestroy, LOCK));
    assert_eq!(races(vec![arrive(0), arrive(1), leave(0), destroy, leave(1)]), []);
    assert_eq!(races(vec![arrive(1), destroy]), [((0, Act::Lock), (1, Act::Destroy))]);
}

/// Who is slow to leave a barrier is not behind what others do until the next round.
#[test]
fn a_barrier_orders_the_threads_of_one_round() {
    let arrive = |thread| (thread, Sync(BarrierArrive, LOCK));
    let leave = |thread| (thread, Sync(BarrierLeave, LOCK));
    let program = |first: Step, second: Step| {
        let begin = [(0, Step::Barrier(LOCK, 2)), (0, first), arrive(0), arrive(1), leave(0)];
        let then =
            [(0, second), arrive(0), leave(1), (1, Write(X, 4)), arrive(1), leave(1), leave(0)];
        begin.into_iter().chain(then).chain([(0, Write(X, 4))]).collect::<Program>()
    };
    assert_eq!(races(program(Write(X, 4), Read(X + 8, 4))), []);
    let racy = races(program(Read(X + 8, 4), Write(X, 4)));
    assert_eq!(racy, [((5, Act::Plain), (8, Act::Plain))]);
}

/// Who asks for a lock touches it before it is his.
#[test]
fn to_lock_does_not_order_what_came_before_the_lock() {
    let lock = |thread| [(thread, Sync(MutexLock, LOCK)), (thread, Sync(MutexUnlock, LOCK))];
    let mut program = vec![(0, Write(LOCK, 8))];
    program.extend(lock(0).into_iter().chain(lock(1)));
    assert_eq!(races(program), [((0, Act::Plain), (3, Act::Lock))]);
}

/// `dup2` puts one descriptor in another one's place at one stroke, which `close` must not meet.
#[test]
fn to_copy_a_descriptor_over_another_uses_that() {
    let copy = |from, to| (1, Copy(from, to));
    assert_eq!(races(vec![(0, Use(7, 1)), copy(6, 7)]), []);
    assert_eq!(races(vec![copy(6, 7), (0, Use(7, 1))]), []);
    let closed = vec![copy(6, 7), (0, Close(7, 0))];
    assert_eq!(races(closed), [((0, Act::Descriptor), (1, Act::Close))]);
    let closed = vec![copy(7, 6), (0, Close(7, 0))];
    assert_eq!(races(closed), [((0, Act::Descriptor), (1, Act::Close))]);
    assert_eq!(races(vec![copy(7, 7), (0, Use(7, 0))]), []);
}

/// Bytes come out of the pipe that they went into, whatever its ends are called.
#[test]
fn a_pipe_orders_those_who_use_it() {
    let program = |through: u32, from: u32| -> Program {
        let pipes = [(0, Pipe(5, 6)), (0, Pipe(7, 8)), (0, Copy(6, 9)), (0, Create(1))];
        let send = [(0, Write(X, 4)), (0, Bytes(through))];
        pipes.into_iter().chain(send).chain([(1, Use(from, 1)), (1, Write(X, 4))]).collect()
    };
    for (through, from, found) in [(6, 5, 0), (9, 5, 0), (6, 7, 1), (8, 7, 0), (9, 7, 1)] {
        assert_eq!(races(program(through, from)).len(), found, "{through} to {from}");
    }
    // Where a descriptor came from is not always known, nor what a call waits for.
    assert_eq!(races(program(1, 0)), []);
    assert_eq!(races(program(8, 0)), []);
    let reused =
        [(0, Pipe(5, 6)), (0, Create(1)), (0, Close(6, 0)), (0, Write(X, 4)), (0, Bytes(6))];
    let reused = reused.into_iter().chain([(1, Use(5, 1)), (1, Write(X, 4))]).collect();
    assert_eq!(races(reused).len(), 1);
}

#[test]
fn to_close_a_descriptor_writes_it() {
    let uses = vec![(0, Use(7, 1)), (1, Close(7, 0)), (2, Use(7, 3))];
    assert_eq!(races(uses), [((0, Act::Descriptor), (1, Act::Close))], "the third is another one");
    let after = vec![(1, Close(7, 0)), (0, Use(7, -9))];
    assert_eq!(races(after), [((0, Act::Close), (1, Act::Descriptor))]);
    assert_eq!(races(vec![(0, Use(8, 1)), (1, Close(7, 0))]), []);
    let twice = vec![(0, Close(7, 0)), (1, Close(7, -9))];
    assert_eq!(races(twice), [((0, Act::Close), (1, Act::Close))]);
}

#[test]
fn to_unmap_memory_writes_it() {
    let program = |at| vec![(0, Map(X, 0x2000)), (1, Write(at, 8)), (0, Unmap(X, 0x2000))];
    assert_eq!(races(program(X + 0x1ff8)), [((1, Act::Plain), (2, Act::Unmap))]);
    assert_eq!(races(program(X + 0x2000)), []);
    let replaced = |at| vec![(0, Map(X, 0x2000)), (1, Write(at, 8)), (0, MapAt(X, 0x2000))];
    assert_eq!(races(replaced(X + 0x1ff8)), [((1, Act::Plain), (2, Act::Unmap))]);
    assert_eq!(races(replaced(X + 0x2000)), []);
    let after = vec![(0, Map(X, 0x2000)), (0, MapAt(X, 0x2000)), (1, Write(X, 8))];
    assert_eq!(races(after), [], "new memory");
    let much = vec![(0, Map(X, 1 << 40)), (1, Write(X + 0x1000, 8)), (0, Unmap(X, 1 << 40))];
    assert_eq!(races(much), [((1, Act::Plain), (2, Act::Unmap))]);
}

/// What a watcher has told of epochs.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Option<Range<u64>>>>>);

impl Told {
    /// Since the last time: `None` is an epoch that begins, and memory what was forgotten.
    fn next(&self) -> Vec<Option<Range<u64>>> {
        std::mem::take(&mut self.0.lock().expect("nobody panics with it"))
    }
}

impl EpochNotes for Told {
    fn next_epoch(&mut self) {
        self.0.lock().expect("nobody panics with it").push(None);
    }

    fn forget(&mut self, range: Range<u64>) {
        self.0.lock().expect("nobody panics with it").push(Some(range));
    }
}

fn told() -> (Watcher, Told) {
    let detector = Detector::new([], Relation::Program(code()));
    let told = Told::default();
    let watcher = detector.thread_in_epochs(ThreadId(1), Box::new(told.clone()));
    (watcher.expect("there are few threads"), told)
}

/// Who shows only what is new in an epoch has to show again what the detector has dropped, unless nothing
/// was noted of it.
#[test]
fn what_is_dropped_begins_an_epoch() {
    let (mut watcher, told) = told();
    let access = |kind, pc| Access { address: X, size: 8, kind, pc };
    watcher.accesses(&[access(Access::WRITE, 0x1000)]);
    assert_eq!(told.next(), []);
    watcher.accesses(&[access(Access::CALLED, MALLOC), access(Access::WRITE, 0x1001)]);
    assert_eq!(told.next(), [], "nothing is noted behind a call");
    watcher.accesses(&[access(Access::WRITE, 0x1001)]);
    assert_eq!(told.next(), [None], "what the allocator does is no access");
}

/// A new block has no history, and all else has.
#[test]
fn to_allocate_a_block_forgets_nothing_else() {
    let (mut watcher, told) = told();
    let record = |kind, address| Access { address, size: 0, kind, pc: MALLOC };
    let argument = record(Access::ARGUMENT, 0);
    let size = record(Access::CALLED, 40);
    watcher.accesses(&[size, argument, argument, argument, record(Access::ANSWERED, X)]);
    assert_eq!(told.next(), [Some(X..X + 40)]);
}

/// An epoch ends with what others may learn of it (FastTrack, Figure 5: the rules that increment a
/// thread's clock).
#[test]
fn only_releases_begin_epochs() {
    let (mut watcher, told) = told();
    let event = |kind| Event { code: kind as u8, object: LOCK, ..Event::default() };
    for (id, kind, begin) in [(1, MutexLock, 0), (2, MutexUnlock, 1), (3, Rdtsc, 0)] {
        watcher.event(EventId(id), &event(kind), None);
        assert_eq!(told.next(), vec![None; begin], "{kind:?}");
    }
}
