//! The library's synchronization objects: who holds what in a replay that decides the order anew.
//!
//! Bodies of library functions do not run in a replay, so the mutexes, condition variables and
//! barriers of the guest have their state here. Semaphores keep it in guest memory, where
//! `sem_init` puts it: nothing else tells that one was made anew. Try-locks have their recorded
//! outcome: a failed one does nothing, a successful one waits until it can succeed.
//!
//! This is a model and nothing else: it says which operation is possible, and what it changes. Who
//! asks, waits and is granted what is for [`super::grants`].

use crate::mutex;
use refrain_trace::{Event, EventKind, ThreadId, linux, order};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a thread wants of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    /// To hold it alone.
    Lock { object: u64 },
    /// To hold it with other readers.
    Read { object: u64 },
    /// To let go of it.
    Unlock { object: u64 },
    /// To let go of the mutex and wait on a condition variable; on none if the wait timed out.
    Wait { mutex: u64, condition: Option<u64> },
    /// To hold the mutex as often as before the wait, once it is signalled.
    Relock { mutex: u64 },
    /// To wake one thread, or all, that wait on a condition variable.
    Signal { condition: u64, all: bool },
    /// To come to a barrier.
    Arrive { barrier: u64 },
    /// To leave it, once all have come.
    Leave { barrier: u64 },
    /// To take a semaphore down.
    Take { semaphore: u64 },
    /// To take it up.
    Post { semaphore: u64 },
    /// To let a thread begin.
    Create { thread: ThreadId },
    /// To wait until a thread has come to its exit.
    Join { thread: ThreadId },
    /// To exit.
    Exit,
}

impl Operation {
    /// Whether it competes with others, so that every scheduler decides on it.
    pub(crate) fn competes(self) -> bool {
        use Operation::{Lock, Read, Relock, Take};
        matches!(self, Lock { .. } | Read { .. } | Relock { .. } | Take { .. })
    }

    /// Whether a scheduler that decides on all operations decides on it. A join only waits.
    pub(crate) fn acts(self) -> bool {
        !matches!(self, Operation::Join { .. })
    }

    /// The object that may keep it from being possible; 0 if none does.
    pub(crate) fn object(self) -> u64 {
        match self {
            Operation::Lock { object: at }
            | Operation::Read { object: at }
            | Operation::Unlock { object: at }
            | Operation::Wait { mutex: at, .. }
            | Operation::Relock { mutex: at }
            | Operation::Arrive { barrier: at }
            | Operation::Leave { barrier: at }
            | Operation::Take { semaphore: at }
            | Operation::Post { semaphore: at } => at,
            Operation::Join { thread } => order::thread_object(thread),
            Operation::Signal { .. } | Operation::Create { .. } | Operation::Exit => 0,
        }
    }
}

/// Whether an event takes a turn under a scheduler that decides on every operation.
pub(super) fn takes_turns(event: &Event) -> bool {
    use EventKind::*;
    match event.kind() {
        CondWaitBegin | CondWaitEnd | ThreadExit => true,
        Syscall => linux::creates_threads(event.nr) && event.value as i64 > 0,
        _ => operation(event).is_some(),
    }
}

/// What an event does to an object of the library, if it has one. Failed attempts do nothing, and
/// a wait on a condition variable is two operations at its second event, which has its outcome.
pub(super) fn operation(event: &Event) -> Option<Operation> {
    use EventKind::*;
    let object = event.object;
    let operation = match event.kind() {
        MutexLock | MutexTryLock | MutexTimedLock => Operation::Lock { object },
        WriteLock | WriteTryLock | WriteTimedLock => Operation::Lock { object },
        SpinLock | SpinTryLock => Operation::Lock { object },
        ReadLock | ReadTryLock | ReadTimedLock => Operation::Read { object },
        MutexUnlock | RwUnlock | SpinUnlock => Operation::Unlock { object },
        CondSignal => Operation::Signal { condition: object, all: false },
        CondBroadcast => Operation::Signal { condition: object, all: true },
        BarrierArrive => return Some(Operation::Arrive { barrier: object }),
        BarrierLeave => return Some(Operation::Leave { barrier: object }),
        SemWait | SemTryWait | SemTimedWait => Operation::Take { semaphore: object },
        SemPost => Operation::Post { semaphore: object },
        _ => return None,
    };
    (event.result == 0 || event.result == OWNER_DEAD).then_some(operation)
}

/// What the objects need of guest memory: words of 32 bits.
pub(crate) trait Words: Send {
    fn load(&self, address: u64) -> u32;
    fn store(&mut self, address: u64, word: u32);
}

/// Offset in glibc's `pthread_barrier_t`, which is part of its ABI.
pub(super) const BARRIER_COUNT: u64 = 8;
/// The last owner of a robust mutex has died; it is held all the same.
const OWNER_DEAD: i32 = libc::EOWNERDEAD;

/// A lock, or a barrier.
#[derive(Default, Debug)]
struct LockState {
    holder: Option<ThreadId>,
    depth: u32,
    readers: Vec<ThreadId>,
    /// Threads that have come to the barrier in this round, and how many rounds are over.
    arrived: u32,
    rounds: u64,
    /// The recorded places of acquisitions so far lie below this.
    granted: u64,
}

/// A wait on a condition variable.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    depth: u32,
    /// The condition variable, until it is signalled.
    condition: Option<u64>,
}

/// All objects.
pub(crate) struct Objects<W> {
    words: W,
    all: BTreeMap<u64, LockState>,
    /// Waits on condition variables, and who waits on each, in the order in which they came.
    sleeps: BTreeMap<ThreadId, Sleep>,
    sleepers: BTreeMap<u64, VecDeque<ThreadId>>,
    /// The round in which a thread came to a barrier.
    rounds: BTreeMap<(ThreadId, u64), u64>,
    exited: BTreeSet<ThreadId>,
    reordered: BTreeSet<u64>,
}

impl<W: Words> Objects<W> {
    pub(crate) fn new(words: W) -> Objects<W> {
        Objects {
            words,
            all: BTreeMap::new(),
            sleeps: BTreeMap::new(),
            sleepers: BTreeMap::new(),
            rounds: BTreeMap::new(),
            exited: BTreeSet::new(),
            reordered: BTreeSet::new(),
        }
    }

    /// Whether a thread could perform the operation now.
    pub(crate) fn allow(&self, thread: ThreadId, wanted: Operation) -> bool {
        let free = |object: u64, alone: bool| match self.all.get(&object) {
            None => true,
            Some(object) => object.holder.is_none() && (!alone || object.readers.is_empty()),
        };
        match wanted {
            Operation::Lock { object } => {
                let kind = || self.words.load(object + mutex::KIND);
                let again = self.all.get(&object).is_some_and(|o| o.holder == Some(thread));
                free(object, true) || again && mutex::is_recursive(kind())
            }
            Operation::Relock { mutex } => self.sleeps_on(thread).is_none() && free(mutex, true),
            Operation::Read { object } => free(object, false),
            Operation::Take { semaphore } => self.words.load(semaphore) > 0,
            Operation::Leave { barrier } => {
                let round = self.rounds.get(&(thread, barrier));
                let over = self.all.get(&barrier).map_or(0, |object| object.rounds);
                round.is_none_or(|&round| round < over)
            }
            Operation::Join { thread } => self.exited.contains(&thread),
            _ => true,
        }
    }

    /// Performs an operation that is possible, whose recorded place among those of its object's
    /// slot is `ticket`.
    pub(crate) fn perform(&mut self, thread: ThreadId, wanted: Operation, ticket: u64) {
        match wanted {
            Operation::Lock { object: at } => self.lock(thread, at, 1, ticket),
            Operation::Relock { mutex: at } => {
                let depth = self.sleeps.remove(&thread).map_or(1, |sleep| sleep.depth);
                self.lock(thread, at, depth, ticket);
            }
            Operation::Read { object: at } => {
                self.object(at).readers.push(thread);
                self.note(at, ticket);
            }
            Operation::Unlock { object } => self.unlock(thread, object),
            Operation::Take { semaphore: at } => {
                let count = self.words.load(at);
                self.words.store(at, count.saturating_sub(1));
                self.note(at, ticket);
            }
            Operation::Post { semaphore: at } => {
                let count = self.words.load(at);
                self.words.store(at, count.saturating_add(1));
            }
            Operation::Wait { mutex, condition } => {
                let object = self.object(mutex);
                let depth = std::mem::take(&mut object.depth).max(1);
                object.holder = None;
                self.sleeps.insert(thread, Sleep { depth, condition });
                if let Some(condition) = condition {
                    self.sleepers.entry(condition).or_default().push_back(thread);
                }
            }
            Operation::Signal { condition, all } => self.signal(condition, all),
            Operation::Arrive { barrier } => self.arrive(thread, barrier),
            Operation::Leave { barrier } => {
                self.rounds.remove(&(thread, barrier));
            }
            Operation::Exit => {
                self.exited.insert(thread);
            }
            Operation::Create { .. } | Operation::Join { .. } => {}
        }
    }

    /// Objects whose acquisitions came in another order than recorded. `too_soon` tells of an
    /// object whether one of its events has come before an earlier one.
    pub(crate) fn reordered(&self, too_soon: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
        let objects = self.all.keys().copied();
        objects.filter(move |at| self.reordered.contains(at) || too_soon(*at))
    }

    /// The condition variable that a thread waits on.
    pub(crate) fn sleeps_on(&self, thread: ThreadId) -> Option<u64> {
        self.sleeps.get(&thread)?.condition
    }

    /// Who holds an object.
    pub(crate) fn holders(&self, address: u64) -> Vec<ThreadId> {
        let object = self.all.get(&address);
        object.map_or_else(Vec::new, |o| o.holder.iter().chain(&o.readers).copied().collect())
    }

    #[cfg(test)]
    pub(super) fn word(&self, address: u64) -> u32 {
        self.words.load(address)
    }

    fn object(&mut self, address: u64) -> &mut LockState {
        self.all.entry(address).or_default()
    }

    fn lock(&mut self, thread: ThreadId, at: u64, depth: u32, ticket: u64) {
        let object = self.object(at);
        object.holder = Some(thread);
        object.depth += depth;
        self.note(at, ticket);
    }

    /// An acquisition has come, which has this place in the recording.
    fn note(&mut self, at: u64, ticket: u64) {
        let object = self.object(at);
        if ticket < object.granted {
            self.reordered.insert(at);
        } else {
            object.granted = ticket;
        }
    }

    fn unlock(&mut self, thread: ThreadId, address: u64) {
        let object = self.object(address);
        if object.holder.is_some() {
            object.depth = object.depth.saturating_sub(1);
            if object.depth == 0 {
                object.holder = None;
            }
        } else if let Some(reader) = object.readers.iter().position(|&reader| reader == thread) {
            object.readers.swap_remove(reader);
        }
    }

    fn signal(&mut self, condition: u64, all: bool) {
        let Some(sleepers) = self.sleepers.get_mut(&condition) else { return };
        let woken = if all { sleepers.len() } else { sleepers.len().min(1) };
        for thread in sleepers.drain(..woken) {
            if let Some(sleep) = self.sleeps.get_mut(&thread) {
                sleep.condition = None;
            }
        }
    }

    fn arrive(&mut self, thread: ThreadId, barrier: u64) {
        let needed = self.words.load(barrier + BARRIER_COUNT).max(1);
        let object = self.object(barrier);
        let round = object.rounds;
        object.arrived += 1;
        if object.arrived >= needed {
            object.arrived = 0;
            object.rounds += 1;
        }
        self.rounds.insert((thread, barrier), round);
    }
}
