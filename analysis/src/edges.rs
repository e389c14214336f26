//! Which event orders what.

use crate::channels::Channels;
use crate::heap::OneStep;
use crate::objects::Object;
use crate::tasks::{Calls, Tasking};
use refrain_trace::payload::SyscallRecord;
use refrain_trace::{Event, EventKind, common, linux, order};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// `EOWNERDEAD`: a robust mutex was granted, its last owner having died.
const OWNER_DEAD: i32 = 130;

/// What counts as ordered (see the crate's documentation).
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "a search has one")]
pub enum Relation {
    /// What a replay keeps.
    Kept,
    /// What the program orders.
    Program(Code),
}

/// What accesses of atomic variables order: a recording does not know which memory orders the source
/// asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Atomics {
    /// Nothing, as if all were relaxed.
    Relaxed,
    /// What comes before a store or an update, before what comes after whoever reads it.
    #[default]
    AcquireRelease,
    /// What comes before an access, before what comes after the next one of the same variable, also if
    /// that only stores, or if this only loads: as if who comes first were no accident.
    SequentiallyConsistent,
}

impl Atomics {
    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Atomics::Relaxed => "relaxed",
            Atomics::AcquireRelease => "acq-rel",
            Atomics::SequentiallyConsistent => "seq-cst",
        }
    }
}

/// What has to be known of a program's code to tell what the program orders.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Code {
    /// Locked instructions whose results nobody uses: they acquire nothing.
    pub unused: BTreeSet<u64>,
    /// Instructions that read and write memory without being atomic. A watched store by one of them is
    /// no release, unless its word is [polled](Code::polled) or the code [trusted](Code::trusted).
    pub updates: BTreeSet<u64>,
    /// Watched instructions that only load, though some have a place among their word's stores
    /// ([`EventKind::Atomic`]): they release nothing.
    pub loads: BTreeSet<u64>,
    /// Loads that are executed again between an exchange that has failed and the next attempt: their words
    /// are atomics.
    pub retried: BTreeSet<u64>,
    /// Words that loops poll: the head of a ticket lock, which only its holder advances.
    pub polled: BTreeSet<u64>,
    /// Words that are data, though stores to them were watched: nobody else looks out for these.
    pub plain: BTreeSet<u64>,
    /// Modules whose atomics, locks and memory are their own business: what they do orders nothing, and
    /// what they free was their own. The C library's.
    pub silent: Vec<Range<u64>>,
    /// Code whose watched loads are of atomics, whatever they are watched for.
    pub trusted: Vec<Range<u64>>,
    /// Functions whose calls are one step each, by their first instructions.
    pub one_step: BTreeMap<u64, OneStep>,
    /// What functions do with tasks, by their first instructions.
    pub tasking: BTreeMap<u64, Tasking>,
    /// Libraries that execute tasks.
    pub runtimes: Vec<(Range<u64>, Calls)>,
    /// Instructions by which they call the bodies of tasks.
    pub bodies: BTreeMap<u64, Calls>,
    /// How much is local to each thread, below its thread pointer.
    pub local: u64,
    /// Code of allocators, whose accesses are none, whoever calls it: the end of a thread, say.
    pub allocator_code: Vec<Range<u64>>,
    /// Tables of virtual functions, ascending. To store the address of one where it is already changes nothing.
    pub tables: Vec<Range<u64>>,
    /// Words that have such an address.
    pub table_words: BTreeSet<u64>,
    /// What accesses of atomic variables order.
    pub atomics: Atomics,
}

impl Code {
    /// Whether there are functions of which the calls are wanted.
    pub(crate) fn names_calls(&self) -> bool {
        !self.one_step.is_empty() || !self.tasking.is_empty()
    }

    /// Whether a watched store is a plain update.
    pub(crate) fn is_update(&self, store: &Event) -> bool {
        store.kind() == EventKind::SyncStore
            && self.updates.contains(&store.pc)
            && self.is_plain(store.pc, store.object)
    }

    /// Whether a watched store is one like any other.
    pub(crate) fn is_plain_store(&self, store: &Event) -> bool {
        store.kind() == EventKind::SyncStore
            && self.plain.contains(&crate::shadow::word_of(store.object))
    }

    /// Whether an update by the code at `pc` is no atomic: not if a loop polls the word at the address,
    /// nor if a library mixes both under its own lock.
    pub(crate) fn is_plain(&self, pc: u64, address: u64) -> bool {
        !self.polled.contains(&crate::shadow::word_of(address))
            && !self.trusted.iter().any(|code| code.contains(&pc))
    }

    /// Whether an address is in a table of virtual functions.
    pub fn is_table(&self, address: u64) -> bool {
        let before = self.tables.partition_point(|table| table.start <= address);
        before > 0 && self.tables[before - 1].contains(&address)
    }

    /// Whether the code at `pc` minds its own business.
    pub(crate) fn is_silent(&self, pc: u64) -> bool {
        self.silent.iter().any(|code| code.contains(&pc))
    }

    /// Whether the code at `pc` is an allocator's.
    pub(crate) fn is_allocator(&self, pc: u64) -> bool {
        self.allocator_code.iter().any(|code| code.contains(&pc))
    }
}

impl Relation {
    /// Whether an event is of an atomic, or of a lock, that is its library's own business: of code that
    /// minds its own, or in its memory.
    pub(crate) fn silences(&self, event: &Event) -> bool {
        use EventKind::{Atomic, SyncLoad, SyncStore};
        match self {
            Relation::Kept => false,
            Relation::Program(code) => match event.kind() {
                Atomic | SyncLoad | SyncStore => code.is_silent(event.pc),
                _ => uses(event).is_some() && code.is_silent(event.object),
            },
        }
    }

    /// What is known of the code, where that matters.
    pub(crate) fn code(&self) -> Option<&Code> {
        match self {
            Relation::Kept => None,
            Relation::Program(code) => Some(code),
        }
    }
}

/// What an event acquires and then releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Edges {
    pub(crate) acquires: [Option<Object>; 2],
    pub(crate) releases: [Option<Object>; 2],
}

fn acquires(objects: [Option<Object>; 2]) -> Edges {
    Edges { acquires: objects, ..Edges::default() }
}

fn releases(objects: [Option<Object>; 2]) -> Edges {
    Edges { releases: objects, ..Edges::default() }
}

/// The edges of an event. `slot` is the one that its ticket comes from; `writing` tells whether
/// the thread holds the read-write lock for writing.
///
/// # Threads
/// The library gives the stack of a thread that has ended to a new one once the kernel has cleared
/// a word; so, for a replay, the end of a thread happens before the next creation of one. For the
/// program, a stack that is used again is new memory; where it is not known how far it reaches, the end
/// of its thread happens before the creation of the next one ([`Object::Stack`]). The call that
/// creates a thread releases it; see [`crate::Watcher::enter`].
///
/// # Read-write locks
/// A reader acquires what writers released; a writer, what both did.
///
/// # Barriers, semaphores, condition variables
/// Who leaves, is granted or woken acquires what anybody released up to then: a replay keeps the
/// order of all events of one object, so nothing that it leaves open is taken for ordered. To the
/// program, a barrier orders its rounds ([`Object::Round`]; [`crate::Watcher::event`] knows them), and a signal of a condition variable orders nothing (FastTrack, section 4): who waits may come
/// back without one, so what it goes on with is ordered by the mutex or by nothing.
pub(crate) fn of(event: &Event, slot: Option<usize>, writing: bool, relation: &Relation) -> Edges {
    use EventKind::*;
    if let Relation::Program(code) = relation {
        match event.kind() {
            SyncStore if code.is_update(event) || code.is_plain_store(event) => {
                return Edges::default();
            }
            ThreadCreate | Syscall => return Edges::default(),
            ThreadExit => return releases([Some(Object::At(event.object)), None]),
            Signal => return acquires([Some(Object::Signals), None]),
            CondSignal | CondBroadcast => return Edges::default(),
            CondWaitEnd => return acquires([Some(Object::At(event.object)), None]),
            Atomic | SyncStore | SyncLoad if code.atomics == Atomics::Relaxed => {
                return Edges::default();
            }
            Atomic | SyncLoad if code.atomics == Atomics::SequentiallyConsistent => {
                return Edges { acquires: [word(event), None], releases: [word(event), None] };
            }
            Atomic if code.loads.contains(&event.pc) => return acquires([word(event), None]),
            Atomic if code.unused.contains(&event.pc) => return releases([word(event), None]),
            _ => {}
        }
    }
    let at = Some(Object::At(event.object));
    let readers = Some(Object::Readers(event.object));
    let ended = Some(Object::At(order::THREADS));
    let granted = event.result == 0 || event.result == OWNER_DEAD;
    match event.kind() {
        ThreadStart | BarrierLeave => acquires([at, None]),
        ThreadCreate => acquires([ended, None]),
        ThreadExit => releases([at, ended]),
        MutexLock | MutexTryLock | MutexTimedLock | SpinLock | SpinTryLock | ReadLock
        | ReadTryLock | ReadTimedLock | SemWait | SemTryWait | SemTimedWait | ThreadJoin
            if granted =>
        {
            acquires([at, None])
        }
        WriteLock | WriteTryLock | WriteTimedLock if granted => acquires([at, readers]),
        RwUnlock if granted && !writing => releases([readers, None]),
        MutexUnlock | SpinUnlock | RwUnlock | SemPost if granted => releases([at, None]),
        CondWaitBegin | CondSignal | CondBroadcast | BarrierArrive => releases([at, None]),
        CondWaitEnd => {
            let condition = (event.result == 0).then_some(Object::At(event.value));
            acquires([at, condition])
        }
        OnceRun => Edges { acquires: [word(event), None], releases: [word(event), None] },
        Atomic | SyncStore => {
            Edges { acquires: [word(event), None], releases: [word(event), None] }
        }
        Common if event.has_ticket() && event.nr == common::ACCESS => {
            Edges { acquires: [word(event), None], releases: [word(event), None] }
        }
        OnceDone | SyncLoad => acquires([word(event), None]),
        Syscall if slot == Some(order::MEMORY_SLOT) => {
            let memory = Some(Object::Memory);
            Edges { acquires: [memory, None], releases: [memory, None] }
        }
        // The entry has released it.
        Syscall if slot.is_some() => acquires([Some(Object::Calls), None]),
        _ => Edges::default(),
    }
}

/// What a system call releases when it is entered, to the program: what it hands to others.
pub(crate) fn handed_over(
    call: &Event,
    record: &SyscallRecord,
    (channels, code): (&Channels, &Code),
) -> [Option<Object>; 2] {
    match call.nr {
        // The library's own lock, which is no order whether or not somebody slept for it.
        linux::FUTEX if code.is_silent(record.args[0]) => [None, None],
        linux::FUTEX if !linux::futex_waits(record.args[1]) => {
            [Some(Object::Futex(record.args[0])), None]
        }
        nr if linux::sends(nr) => channels.released(call, record),
        nr if linux::sends_signals(nr) || linux::prepares_signals(nr) => {
            [Some(Object::Signals), None]
        }
        _ => [None, None],
    }
}

/// What a system call acquires when it returns, to the program.
pub(crate) fn taken_over(
    call: &Event,
    record: &SyscallRecord,
    (channels, code): (&Channels, &Code),
) -> Option<Object> {
    match call.nr {
        linux::FUTEX if code.is_silent(record.args[0]) => None,
        linux::FUTEX if linux::futex_waits(record.args[1]) => Some(Object::Futex(record.args[0])),
        // One that failed has received nothing.
        nr if linux::receives(nr) && call.value as i64 >= 0 => {
            Some(channels.acquired(call, record))
        }
        linux::RT_SIGTIMEDWAIT => Some(Object::Signals),
        _ => None,
    }
}

fn word(event: &Event) -> Option<Object> {
    Some(Object::Word(crate::shadow::word_of(event.object)))
}

/// Whether an event takes (or, released, gives back) a read-write lock for writing.
pub(crate) fn holds_for_writing(event: &Event) -> Option<bool> {
    use EventKind::*;
    match event.kind() {
        WriteLock | WriteTryLock | WriteTimedLock if event.result == 0 => Some(true),
        RwUnlock if event.result == 0 => Some(false),
        _ => None,
    }
}

/// The lock that an event takes (and whether others are kept out) or gives back.
pub(crate) fn holds(event: &Event) -> Option<(u64, Option<bool>)> {
    use EventKind::*;
    let granted = event.result == 0 || event.result == OWNER_DEAD;
    match event.kind() {
        MutexLock | MutexTryLock | MutexTimedLock | SpinLock | SpinTryLock | WriteLock
        | WriteTryLock | WriteTimedLock
            if granted =>
        {
            Some((event.object, Some(true)))
        }
        ReadLock | ReadTryLock | ReadTimedLock if granted => Some((event.object, Some(false))),
        CondWaitEnd => Some((event.object, Some(true))),
        MutexUnlock | SpinUnlock | RwUnlock if event.result == 0 => Some((event.object, None)),
        CondWaitBegin => Some((event.object, None)),
        _ => None,
    }
}

/// What an event does with a lock, a condition variable, a barrier or a semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// As it is meant to.
    Works,
    /// Ends it.
    Destroys,
}

/// The objects of the library that an event uses, by their addresses, and what for.
///
/// Who comes from a barrier or from a wait on a condition variable no longer touches it: it may be
/// destroyed by then.
pub(crate) fn uses(event: &Event) -> Option<(Use, [Option<u64>; 2])> {
    use EventKind::*;
    let one = [Some(event.object), None];
    match event.kind() {
        MutexLock | MutexTryLock | MutexTimedLock | MutexUnlock | MutexConsistent | ReadLock
        | ReadTryLock | ReadTimedLock | WriteLock | WriteTryLock | WriteTimedLock | RwUnlock
        | SpinLock | SpinTryLock | SpinUnlock | CondWaitEnd | CondSignal | CondBroadcast
        | BarrierArrive | SemWait | SemTryWait | SemTimedWait | SemPost | SemGetValue => {
            Some((Use::Works, one))
        }
        CondWaitBegin => Some((Use::Works, [Some(event.object), Some(event.value)])),
        MutexDestroy | RwDestroy | CondDestroy | BarrierDestroy if event.result == 0 => {
            Some((Use::Destroys, one))
        }
        _ => None,
    }
}
