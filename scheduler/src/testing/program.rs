//! Programs for property tests, and the runs that a machine could have recorded of them.

use super::Recording;
use proptest::prelude::*;
use refrain_trace::EventKind;

/// What a thread of a generated program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Takes one of three locks.
    Lock(u64),
    /// Lets go of it.
    Unlock(u64),
    /// Tries to take it, and lets go of it at once.
    Try(u64),
    /// Reads under one of two reader-writer locks.
    Read(u64),
    /// Writes under it.
    Write(u64),
    /// Lets go of it.
    RwUnlock(u64),
    /// An atomic instruction on one of two words.
    Atomic(u64),
    /// A system call that sleeps for so many ticks.
    Sleep(u64),
    /// Takes the semaphore, of one unit, up.
    Post,
    /// Takes it down.
    Down,
    /// Waits for [`COND`] with lock 0.
    CondWait,
    /// Wakes one that waits for [`COND`].
    Signal,
    /// Wakes all.
    Broadcast,
    /// Of all threads.
    Barrier,
}

/// Operations with the work before them, by thread.
pub type Program = Vec<Vec<(u64, Op)>>;

/// The first lock; the others follow, 64 bytes apart.
pub const LOCK: u64 = 0x1000;
/// The first reader-writer lock.
pub const RW: u64 = 0x2000;
/// The first word of atomic instructions.
pub const ATOMIC: u64 = 0x3000;
/// The semaphore.
pub const SEM: u64 = 0x5000;
/// The condition variable.
pub const COND: u64 = 0x6000;
/// The barrier.
pub const BARRIER: u64 = 0x7000;

/// Nested critical sections, in ascending order of the locks.
fn locks() -> impl Strategy<Value = Vec<Op>> {
    proptest::sample::subsequence(vec![0u64, 1, 2], 1..=3).prop_map(|locks| {
        let down = locks.iter().map(|&lock| Op::Lock(lock));
        down.chain(locks.iter().rev().map(|&lock| Op::Unlock(lock))).collect()
    })
}

/// What only the order of locks decides on.
fn plain_step() -> impl Strategy<Value = Vec<Op>> {
    prop_oneof![
        4 => locks(),
        1 => (0u64..2).prop_map(|lock| vec![Op::Read(lock), Op::RwUnlock(lock)]),
        1 => (0u64..2).prop_map(|lock| vec![Op::Write(lock), Op::RwUnlock(lock)]),
        2 => (0u64..2).prop_map(|word| vec![Op::Atomic(word)]),
        1 => (0u64..50).prop_map(|time| vec![Op::Sleep(time)]),
    ]
}

fn any_step() -> impl Strategy<Value = Vec<Op>> {
    prop_oneof![
        6 => plain_step(),
        1 => Just(vec![Op::Post]),
        1 => Just(vec![Op::Down]),
        1 => (0u64..3).prop_map(|lock| vec![Op::Try(lock)]),
        2 => Just(vec![Op::Lock(0), Op::CondWait, Op::Unlock(0)]),
        2 => Just(vec![Op::Signal]),
        1 => Just(vec![Op::Lock(0), Op::Broadcast, Op::Unlock(0)]),
    ]
}

/// One to four threads; a barrier of all of them between the phases.
fn of(step: impl Strategy<Value = Vec<Op>> + 'static) -> impl Strategy<Value = Program> {
    let work = proptest::collection::vec(0u64..40, 6);
    let steps = proptest::collection::vec((work, step), 0..5).boxed();
    (1usize..5, 1usize..3).prop_flat_map(move |(threads, phases)| {
        let thread = proptest::collection::vec(steps.clone(), phases).prop_map(|phases| {
            let mut ops = Vec::new();
            for (phase, steps) in phases.into_iter().enumerate() {
                if phase > 0 {
                    ops.push((3, Op::Barrier));
                }
                for (work, step) in steps {
                    ops.extend(work.into_iter().zip(step));
                }
            }
            ops
        });
        proptest::collection::vec(thread, threads)
    })
}

/// Programs of locks, reader-writer locks, atomic instructions, sleeps and barriers: what they
/// do does not depend on any order.
pub fn plain() -> impl Strategy<Value = Program> {
    of(plain_step())
}

/// Programs of everything.
pub fn any_program() -> impl Strategy<Value = Program> {
    of(any_step())
}

/// Programs that only locks, semaphores and barriers order, so that a full replay leaves every
/// order to the scheduler, as the virtual clock does.
pub fn by_locks() -> impl Strategy<Value = Program> {
    any_program().prop_map(|mut program| {
        let left_out = [Op::CondWait, Op::Signal, Op::Broadcast];
        for thread in &mut program {
            thread.retain(|(_, op)| !left_out.contains(op) && !matches!(op, Op::Atomic(_)));
        }
        program
    })
}

/// Decides who is next in a recording.
pub fn choices() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 24)
}

/// Whether an order other than the recorded one may end in a deadlock: somebody takes the
/// semaphore that another one waits to give back.
pub fn may_deadlock(program: &Program) -> bool {
    program.iter().flatten().any(|(_, op)| *op == Op::Down)
}

/// A run of `program` in which operations alternate as `choices` say.
pub fn record(program: &Program, choices: &[u8]) -> Recording {
    record_after(Recording::new(program.len()), program, choices)
}

/// The same, after what has happened in a recording.
pub fn record_after(recording: Recording, program: &Program, choices: &[u8]) -> Recording {
    let mut run = Run {
        recording,
        program,
        next: vec![0; program.len()],
        begun: vec![false; program.len()],
        woken: vec![false; program.len()],
        locks: [None; 3],
        writers: [None; 2],
        readers: [0; 2],
        level: 1,
        rounds: vec![0; program.len()],
        arrived: 0,
    };
    for turn in 0.. {
        let threads = || (0..program.len()).filter(|&t| run.next[t] < program[t].len());
        let ready: Vec<usize> = threads().filter(|&t| run.can(t)).collect();
        if let Some(&t) = ready.get(choices[turn % choices.len()] as usize % ready.len().max(1)) {
            run.step(t);
        } else if let Some(t) = threads().find(|&t| run.op(t).1 != Op::Barrier) {
            run.give_up(t);
        } else {
            break;
        }
    }
    run.recording
}

struct Run<'a> {
    recording: Recording,
    program: &'a Program,
    next: Vec<usize>,
    /// By thread: the operation in hand has begun (a wait, a barrier).
    begun: Vec<bool>,
    woken: Vec<bool>,
    locks: [Option<usize>; 3],
    writers: [Option<usize>; 2],
    readers: [u32; 2],
    level: u32,
    /// Arrivals at the barrier, by thread and in all.
    rounds: Vec<usize>,
    arrived: usize,
}

impl Run<'_> {
    fn op(&self, t: usize) -> (u64, Op) {
        self.program[t][self.next[t]]
    }

    fn can(&self, t: usize) -> bool {
        match self.op(t).1 {
            Op::Lock(lock) => self.locks[lock as usize].is_none(),
            Op::Read(lock) => self.writers[lock as usize].is_none(),
            Op::Write(lock) => {
                self.writers[lock as usize].is_none() && self.readers[lock as usize] == 0
            }
            Op::Down => self.level > 0,
            Op::CondWait if self.begun[t] => self.woken[t] && self.locks[0].is_none(),
            Op::Barrier if self.begun[t] => self.arrived >= self.rounds[t] * self.program.len(),
            _ => true,
        }
    }

    /// Nobody can go on, so a wait ends in vain.
    fn give_up(&mut self, t: usize) {
        let (work, op) = self.op(t);
        if op == Op::Down {
            self.recording.push(t, work, EventKind::SemTryWait, SEM).result = -1;
        } else {
            assert_eq!(op, Op::CondWait, "only the semaphore and the condition are waited for");
            let aux = self.recording.tickets(COND);
            let end = self.recording.push_timed(t, 0, EventKind::CondWaitEnd, LOCK, work + 5);
            (end.value, end.aux, end.result) = (COND, aux, 110);
            self.locks[0] = Some(t);
            self.begun[t] = false;
        }
        self.next[t] += 1;
    }

    fn step(&mut self, t: usize) {
        let (work, op) = self.op(t);
        let r = &mut self.recording;
        match op {
            Op::Lock(lock) => {
                self.locks[lock as usize] = Some(t);
                r.push(t, work, EventKind::MutexLock, LOCK + 64 * lock);
            }
            Op::Unlock(lock) => {
                self.locks[lock as usize] = None;
                r.push(t, work, EventKind::MutexUnlock, LOCK + 64 * lock);
            }
            Op::Try(lock) => {
                let free = self.locks[lock as usize].is_none();
                let event = r.push(t, work, EventKind::MutexTryLock, LOCK + 64 * lock);
                event.result = if free { 0 } else { 16 };
                if free {
                    r.push(t, work / 2, EventKind::MutexUnlock, LOCK + 64 * lock);
                }
            }
            Op::Read(lock) => {
                self.readers[lock as usize] += 1;
                r.push(t, work, EventKind::ReadLock, RW + 64 * lock);
            }
            Op::Write(lock) => {
                self.writers[lock as usize] = Some(t);
                r.push(t, work, EventKind::WriteLock, RW + 64 * lock);
            }
            Op::RwUnlock(lock) => {
                if self.writers[lock as usize].take().is_none() {
                    self.readers[lock as usize] -= 1;
                }
                r.push(t, work, EventKind::RwUnlock, RW + 64 * lock);
            }
            Op::Atomic(word) => {
                r.push(t, work, EventKind::Atomic, ATOMIC + 64 * word);
            }
            Op::Sleep(time) => r.push_timed(t, work, EventKind::Syscall, 1, time).nr = 35,
            Op::Post => {
                self.level += 1;
                r.push(t, work, EventKind::SemPost, SEM);
            }
            Op::Down => {
                self.level -= 1;
                r.push(t, work, EventKind::SemWait, SEM);
            }
            Op::Signal => {
                let waits = |&t: &usize| self.begun[t] && !self.woken[t] && self.op_is_wait(t);
                if let Some(t) = (0..self.next.len()).find(waits) {
                    self.woken[t] = true;
                }
                self.recording.push(t, work, EventKind::CondSignal, COND);
            }
            Op::Broadcast => {
                self.woken.fill(true);
                r.push(t, work, EventKind::CondBroadcast, COND);
            }
            Op::CondWait => return self.cond_wait(t, work),
            Op::Barrier => return self.barrier(t, work),
        }
        self.next[t] += 1;
    }

    fn op_is_wait(&self, t: usize) -> bool {
        self.program[t].get(self.next[t]).is_some_and(|(_, op)| *op == Op::CondWait)
    }

    fn cond_wait(&mut self, t: usize, work: u64) {
        if self.begun[t] {
            let aux = self.recording.tickets(COND);
            let end = self.recording.push(t, 0, EventKind::CondWaitEnd, LOCK);
            (end.value, end.aux) = (COND, aux);
            self.locks[0] = Some(t);
            self.next[t] += 1;
        } else {
            self.recording.push(t, work, EventKind::CondWaitBegin, LOCK).value = COND;
            self.locks[0] = None;
            self.woken[t] = false;
        }
        self.begun[t] = !self.begun[t];
    }

    fn barrier(&mut self, t: usize, work: u64) {
        if self.begun[t] {
            self.recording.push(t, 0, EventKind::BarrierLeave, BARRIER);
            self.next[t] += 1;
        } else {
            self.recording.push(t, work, EventKind::BarrierArrive, BARRIER);
            self.rounds[t] += 1;
            self.arrived += 1;
        }
        self.begun[t] = !self.begun[t];
    }
}
