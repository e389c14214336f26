//! The observer that looks where threads are: an exact replay passes the moments that a search for
//! races has named, and keeps the calls that the thread is in there, and the locks that it holds.
//!
//! # The calls under way
//! A `call` leaves its return address in a slot on the stack, and a `ret` takes it from there, so a
//! thread is in the calls whose slots are not below its stack pointer. What is left in another way
//! (`longjmp`, exceptions) is out of the list with the next call or event. A program that changes
//! stacks itself has the calls of one stack only.

use super::races::{Running, answer};
use refrain_analysis::Code;
use refrain_trace::{Access, Event, EventId, EventKind, ThreadId};
use refrain_vm::{Answer, Interest, Observer, ThreadObserver};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Far below the innermost call there are no local variables.
const FRAME: u64 = 1 << 20;

/// No stack is taken for larger.
const STACK: u64 = 8 << 20;

/// So many of the innermost calls are told.
const DEEPEST: usize = 100;

/// A moment of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    /// The thread.
    pub thread: ThreadId,
    /// What it does then.
    pub moment: Moment,
}

/// What the thread does then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Moment {
    /// The thread's first access by this instruction to this address, after this event and before the
    /// thread's next one.
    Access {
        /// The event before.
        event: EventId,
        /// The instruction.
        pc: u64,
        /// First byte.
        address: u64,
    },
    /// The thread's first call, or system call, that returns to this instruction, likewise.
    Call {
        /// The event before.
        event: EventId,
        /// The instruction after the call.
        pc: u64,
    },
    /// This event.
    Event(EventId),
    /// The allocation with this number.
    Allocation(u64),
}

/// Where a thread is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The call instructions of the calls that it is in, innermost first.
    pub calls: Vec<u64>,
    /// The locks that it holds.
    pub held: Vec<Held>,
    /// An instruction of the function that the address is a local variable of, if it is one of this
    /// thread's.
    pub local: Option<u64>,
}

/// A lock that is held.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The lock.
    pub address: u64,
    /// It excludes all others.
    pub writing: bool,
    /// The call instructions of the calls that the thread was in when it took the lock, innermost
    /// first.
    pub calls: Vec<u64>,
}

/// What a replay has passed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// By the position of their points.
    pub snapshots: Vec<Option<Snapshot>>,
    /// Threads, and the slots of their outermost calls: the ends of their stacks, ascending.
    pub stacks: Vec<(u64, ThreadId)>,
}

impl Seen {
    /// Whose stack an address is on, if it is on one.
    pub(crate) fn owner(&self, address: u64) -> Option<ThreadId> {
        let &(end, thread) = self.stacks.get(self.stacks.partition_point(|it| it.0 <= address))?;
        (end - address < STACK).then_some(thread)
    }
}

type Taken = Arc<Mutex<Seen>>;

/// Looks out for points.
pub(super) struct Stacks {
    points: Vec<Point>,
    code: Code,
    taken: Taken,
    running: Arc<Running>,
}

impl Stacks {
    /// An observer of these points, in a program with this code.
    pub(super) fn new(points: Vec<Point>, code: Code) -> Stacks {
        let seen = Seen { snapshots: vec![None; points.len()], stacks: Vec::new() };
        Stacks { points, code, taken: Arc::new(Mutex::new(seen)), running: Arc::default() }
    }

    /// What was seen once the threads have stopped.
    pub(super) fn wait(&self) -> Seen {
        self.running.wait();
        let mut seen = self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        seen.stacks.sort_unstable();
        seen
    }
}

impl Observer for Stacks {
    fn interest(&self) -> Interest {
        Interest { accesses: true, calls: true }
    }

    fn functions(&self) -> Arc<BTreeMap<u64, Answer>> {
        let answers = self.code.one_step.iter().map(|(&pc, &function)| (pc, answer(function)));
        Arc::new(answers.collect())
    }

    fn thread(&self, thread: ThreadId) -> Box<dyn ThreadObserver> {
        self.running.begin();
        let mut on = OnThread {
            thread,
            is_known: false,
            calls: Calls::default(),
            held: Vec::new(),
            wanted: BTreeMap::new(),
            events: BTreeMap::new(),
            allocations: BTreeMap::new(),
            active: Vec::new(),
            allocating: None,
            allocated: 0,
            last: Access::default(),
            code: self.code.clone(),
            taken: self.taken.clone(),
            running: self.running.clone(),
        };
        for (at, point) in self.points.iter().enumerate().filter(|(_, it)| it.thread == thread) {
            match point.moment {
                Moment::Access { event, pc, address } => {
                    let wanted = Wanted { at, pc, address: Some(address) };
                    on.wanted.entry(event).or_default().push(wanted);
                }
                Moment::Call { event, pc } => {
                    let wanted = Wanted { at, pc, address: None };
                    on.wanted.entry(event).or_default().push(wanted);
                }
                Moment::Event(event) => on.events.entry(event).or_default().push(at),
                Moment::Allocation(number) => on.allocations.entry(number).or_default().push(at),
            }
        }
        // Before its first event, a thread has had none.
        on.active = on.wanted.get(&EventId(0)).cloned().unwrap_or_default();
        Box::new(on)
    }
}

/// What is looked for.
#[derive(Clone, Copy)]
struct Wanted {
    at: usize,
    pc: u64,
    /// Of an access.
    address: Option<u64>,
}

/// A call of an allocator's function.
struct Allocating {
    arguments: Vec<u64>,
    pc: u64,
    seen: Option<Snapshot>,
}

struct OnThread {
    thread: ThreadId,
    /// Where its stack ends has been told.
    is_known: bool,
    calls: Calls,
    held: Vec<Held>,
    wanted: BTreeMap<EventId, Vec<Wanted>>,
    /// Positions of points.
    events: BTreeMap<EventId, Vec<usize>>,
    allocations: BTreeMap<u64, Vec<usize>>,
    /// Those after the last event.
    active: Vec<Wanted>,
    allocating: Option<Allocating>,
    allocated: u64,
    last: Access,
    code: Code,
    taken: Taken,
    running: Arc<Running>,
}

impl OnThread {
    fn keep(&self, at: usize, snapshot: Snapshot) {
        let mut seen = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        seen.snapshots[at].get_or_insert(snapshot);
    }

    fn here(&self) -> Snapshot {
        Snapshot { calls: self.calls.now(), held: self.held.clone(), local: None }
    }

    /// Keeps where the thread is for those that look out for this instruction: for an access of these
    /// bytes, or for a call that returns to it.
    fn pass(&mut self, pc: u64, bytes: Option<(u64, u64)>) {
        let is_it = |wanted: &Wanted| match (wanted.address, bytes) {
            (Some(address), Some((first, len))) => {
                wanted.pc == pc && address.wrapping_sub(first) < len
            }
            (None, None) => wanted.pc == pc,
            _ => false,
        };
        while let Some(at) = self.active.iter().position(is_it) {
            let Wanted { at, address, .. } = self.active.swap_remove(at);
            let local = address.and_then(|address| self.calls.function_of(address, pc));
            self.keep(at, Snapshot { local, ..self.here() });
        }
    }

    fn record(&mut self, access: &Access) {
        match access.kind {
            Access::CALL => {
                // The record before is that of the return address.
                self.calls.enter(access.pc, self.last.address);
                if !self.is_known {
                    self.is_known = true;
                    let mut seen = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.stacks.push((self.last.address, self.thread));
                }
            }
            Access::RETURN => self.calls.leave(self.last.address.wrapping_add(1)),
            Access::CALLED => {
                let wanted = self.allocations.contains_key(&self.allocated);
                let seen = wanted.then(|| self.here());
                let (arguments, pc) = (vec![access.address], access.pc.into());
                self.allocating = Some(Allocating { arguments, pc, seen });
            }
            Access::ARGUMENT => {
                let Some(allocating) = &mut self.allocating else { return };
                allocating.arguments.push(access.address);
                if allocating.arguments.len() == 4 {
                    self.pass(access.address, None);
                }
            }
            Access::ANSWERED => {
                let Some(Allocating { arguments, pc, seen }) = self.allocating.take() else {
                    return;
                };
                let function = self.code.one_step.get(&pc);
                let given = [0, 1, 2].map(|at| arguments.get(at).copied().unwrap_or(0));
                if access.address != 0 && function.is_some_and(|it| it.size(given).is_some()) {
                    let points = self.allocations.remove(&self.allocated).unwrap_or_default();
                    for at in points {
                        self.keep(at, seen.clone().unwrap_or_default());
                    }
                    self.allocated += 1;
                }
            }
            _ if !self.active.is_empty() && self.allocating.is_none() => {
                self.pass(access.pc.into(), Some((access.address, access.size.into())));
            }
            _ => {}
        }
    }

    /// Takes and gives back the locks of an event.
    fn lock(&mut self, event: &Event) {
        use EventKind::*;
        let took = match event.kind() {
            MutexLock | MutexTryLock | MutexTimedLock | SpinLock | SpinTryLock | WriteLock
            | WriteTryLock | WriteTimedLock | CondWaitEnd => Some(true),
            ReadLock | ReadTryLock | ReadTimedLock => Some(false),
            _ => None,
        };
        let granted = event.result == 0 || event.kind() == CondWaitEnd;
        if let Some(writing) = took.filter(|_| granted) {
            let calls = self.calls.now();
            self.held.push(Held { address: event.object, writing, calls });
        } else if matches!(event.kind(), MutexUnlock | SpinUnlock | RwUnlock | CondWaitBegin)
            && let Some(at) = self.held.iter().rposition(|held| held.address == event.object)
        {
            self.held.remove(at);
        }
    }
}

impl ThreadObserver for OnThread {
    fn accesses(&mut self, batch: &[Access]) {
        for access in batch {
            self.record(access);
            self.last = *access;
        }
    }

    fn enter(&mut self, _: EventId, call: &Event) {
        self.calls.leave(call.sp);
        if !self.active.is_empty() && self.allocating.is_none() {
            self.pass(call.pc, None);
        }
    }

    fn event(&mut self, id: EventId, event: &Event, _: u64) {
        self.calls.leave(event.sp);
        self.active = self.wanted.remove(&id).unwrap_or_default();
        if !self.active.is_empty() {
            use EventKind::{Atomic, SyncLoad, SyncStore};
            let is_access = matches!(event.kind(), Atomic | SyncLoad | SyncStore);
            self.pass(event.pc, is_access.then(|| (event.object, event.nr.into())));
        }
        for at in self.events.remove(&id).unwrap_or_default() {
            self.keep(at, self.here());
        }
        self.lock(event);
        if returns_at_once(event.kind()) {
            self.calls.leave(event.sp.wrapping_add(1));
        }
    }

    fn own(&mut self, _: EventId, event: &Event) {
        self.calls.leave(event.sp);
        if !self.active.is_empty() {
            self.pass(event.pc, Some((event.object, event.nr.into())));
        }
    }

    fn finish(&mut self) {
        self.running.end();
    }
}

/// Whether a replay has the function of an event return without a `ret`.
fn returns_at_once(kind: EventKind) -> bool {
    use EventKind::*;
    let locks = (MutexLock as u8..=SpinUnlock as u8).contains(&(kind as u8));
    let others = (CondWaitEnd as u8..=SemGetValue as u8).contains(&(kind as u8));
    (locks || others) && kind != BarrierArrive
}

/// The calls that a thread is in.
#[derive(Default)]
struct Calls {
    /// Call instructions and the slots of their return addresses, outermost first; slots descend.
    frames: Vec<(u32, u64)>,
}

impl Calls {
    fn enter(&mut self, call: u32, slot: u64) {
        self.leave(slot.wrapping_add(1));
        self.frames.push((call, slot));
    }

    /// The stack pointer is here: what lies below is no longer there.
    fn leave(&mut self, sp: u64) {
        while self.frames.last().is_some_and(|&(_, slot)| slot < sp) {
            self.frames.pop();
        }
    }

    /// The call instructions, innermost first.
    fn now(&self) -> Vec<u64> {
        self.frames.iter().rev().take(DEEPEST).map(|&(call, _)| call.into()).collect()
    }

    /// An instruction of the function that has this address among its local variables, if one has: they
    /// lie below the slot of the call that led to it, and above those of its own. The thread is at `pc`.
    fn function_of(&self, address: u64, pc: u64) -> Option<u64> {
        let (&(_, outermost), &(_, innermost)) = (self.frames.first()?, self.frames.last()?);
        if address >= outermost || address < innermost.saturating_sub(FRAME) {
            return None;
        }
        let within = self.frames.partition_point(|&(_, slot)| slot > address);
        Some(self.frames.get(within).map_or(pc, |&(call, _)| call.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_were_left_otherwise_are_gone_with_the_next() {
        let mut calls = Calls::default();
        calls.enter(0x100, 0x8000);
        calls.enter(0x200, 0x7f00);
        calls.enter(0x300, 0x7e00);
        assert_eq!(calls.now(), [0x300, 0x200, 0x100]);
        calls.leave(0x7e00 + 1);
        assert_eq!(calls.now(), [0x200, 0x100], "returned");
        calls.enter(0x210, 0x7f80);
        assert_eq!(calls.now(), [0x210, 0x100], "as after a longjmp");
        calls.leave(0x7f80);
        assert_eq!(calls.now(), [0x210, 0x100], "at the first instruction");
    }

    #[test]
    fn a_stack_ends_at_its_outermost_call() {
        let stacks = vec![(0x200_0000, ThreadId(1)), (0x300_0000, ThreadId(0))];
        let seen = Seen { snapshots: Vec::new(), stacks };
        assert_eq!(seen.owner(0x1ff_fff8), Some(ThreadId(1)));
        assert_eq!(seen.owner(0x200_0000), None, "too far below the other's");
        assert_eq!(seen.owner(0x2ff_0000), Some(ThreadId(0)));
        assert_eq!(seen.owner(0x300_0000), None);
    }

    #[test]
    fn a_local_variable_is_its_function_s() {
        let mut calls = Calls::default();
        calls.enter(0x100, 0x80_8000); // main is called
        calls.enter(0x200, 0x80_7f00); // main calls work
        let of = |address| calls.function_of(address, 0x300);
        assert_eq!(of(0x80_7f80), Some(0x200), "main's, which is at its call");
        assert_eq!(of(0x80_7e80), Some(0x300), "work's, where the thread is");
        assert_eq!(of(0x80_8000), None);
        assert_eq!(of(0x1000_0000), None);
        assert_eq!(of(0x80_7f00 - FRAME - 1), None);
    }
}
