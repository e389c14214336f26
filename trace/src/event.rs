//! Events: everything that replay cannot recompute, one record at each point where it happened.
//!
//! An event is a fixed-size record, so that the recorder appends one with a few stores and the
//! replayer reads one without parsing. What does not fit (a system call's arguments and the
//! bytes that the kernel wrote) is the event's *payload*, see [`crate::payload`].
//!
//! # Order
//! The order between threads is kept by *tickets*. Every object that orders threads (a mutex, a
//! word that locked instructions touch) has a counter, its [`crate::order::slot`]; an event takes
//! the counter's value and bumps it at a moment when the event's place in the object's order is
//! already certain: after an acquisition, before a release. A replay in which each event waits
//! for its ticket performs the events of each object in the recorded order, and it cannot
//! deadlock, because the recorded run itself is a real-time order that satisfies every ticket.

use std::fmt;

macro_rules! event_kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $class:ident;)*) => {
        /// What happened. The text form writes the name after the variant.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum EventKind { $($(#[$doc])* $name = $code,)* }

        impl EventKind {
            /// Every kind, in the order of the codes.
            pub const ALL: &'static [EventKind] = &[$(EventKind::$name,)*];

            /// The kind with this code, or `None` for a code of a newer format.
            pub fn from_code(code: u8) -> Option<EventKind> {
                match code { $($code => Some(EventKind::$name),)* _ => None }
            }

            /// The name in the text form.
            pub fn name(self) -> &'static str {
                match self { $(EventKind::$name => $text,)* }
            }

            /// What the event does to the order of threads.
            pub fn class(self) -> EventClass {
                match self { $(EventKind::$name => EventClass::$class,)* }
            }
        }
    };
}

impl EventKind {
    /// Whether such an event belongs to an access under [`crate::Order::Stride`], and not to
    /// something that the program does beside.
    pub fn is_of_access(self) -> bool {
        matches!(self, EventKind::Handover | EventKind::Takeover | EventKind::Contended)
    }

    /// Whether such an event is of a signal: a handler begins, or the program ends.
    pub fn is_of_signal(self) -> bool {
        matches!(self, EventKind::Signal | EventKind::Killed)
    }

    /// Whether such an event acquires a lock of the library's, or tries to. A semaphore is one, and so
    /// is the mutex that a wait for a condition returns with.
    pub fn acquires_lock(self) -> bool {
        use EventKind::*;
        matches!(
            self,
            MutexLock
                | MutexTryLock
                | MutexTimedLock
                | WriteLock
                | WriteTryLock
                | WriteTimedLock
                | ReadLock
                | ReadTryLock
                | ReadTimedLock
                | SpinLock
                | SpinTryLock
                | CondWaitEnd
                | SemWait
                | SemTryWait
                | SemTimedWait
        )
    }

    /// Whether such an event releases a lock of the library's.
    pub fn releases_lock(self) -> bool {
        use EventKind::*;
        matches!(self, MutexUnlock | RwUnlock | SpinUnlock | CondWaitBegin | SemPost)
    }
}

/// What an event does to the order of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventClass {
    /// May wait; the ticket is taken once the wait is over. `result` tells whether it was granted.
    Acquire,
    /// Never waits; the ticket is taken before the effect.
    Release,
    /// Orders threads like a release and an acquisition at once (an atomic instruction).
    Both,
    /// Concerns its thread alone.
    Local,
}

event_kinds! {
    /// The thread's first event; `object` is the thread itself.
    ThreadStart = 0, "start", Acquire;
    /// The thread's last event; `object` is the thread itself.
    ThreadExit = 1, "exit", Release;
    /// `pthread_create` was called; `object` is [`crate::order::THREADS`], and the `clone` that
    /// follows names the child.
    ThreadCreate = 2, "create", Release;
    /// `pthread_join` and its timed forms; `object` is the thread joined.
    ThreadJoin = 3, "join", Acquire;
    /// `pthread_detach`; `object` is the thread detached.
    ThreadDetach = 4, "detach", Release;
    /// `pthread_cancel`; `object` is the library's name for the thread. What becomes of it is a
    /// [`EventKind::Signal`] of that thread.
    ThreadCancel = 5, "cancel", Local;

    /// `pthread_mutex_lock`.
    MutexLock = 8, "mutex.lock", Acquire;
    /// `pthread_mutex_trylock`.
    MutexTryLock = 9, "mutex.trylock", Acquire;
    /// `pthread_mutex_timedlock`, `pthread_mutex_clocklock`.
    MutexTimedLock = 10, "mutex.timedlock", Acquire;
    /// `pthread_mutex_unlock`.
    MutexUnlock = 11, "mutex.unlock", Release;
    /// `pthread_mutex_consistent`: of a robust mutex whose owner ended.
    MutexConsistent = 13, "mutex.consistent", Release;
    /// `pthread_mutex_destroy`.
    MutexDestroy = 12, "mutex.destroy", Release;

    /// `pthread_rwlock_rdlock`.
    ReadLock = 16, "rwlock.rdlock", Acquire;
    /// `pthread_rwlock_tryrdlock`.
    ReadTryLock = 17, "rwlock.tryrdlock", Acquire;
    /// `pthread_rwlock_timedrdlock`, `pthread_rwlock_clockrdlock`.
    ReadTimedLock = 18, "rwlock.timedrdlock", Acquire;
    /// `pthread_rwlock_wrlock`.
    WriteLock = 19, "rwlock.wrlock", Acquire;
    /// `pthread_rwlock_trywrlock`.
    WriteTryLock = 20, "rwlock.trywrlock", Acquire;
    /// `pthread_rwlock_timedwrlock`, `pthread_rwlock_clockwrlock`.
    WriteTimedLock = 21, "rwlock.timedwrlock", Acquire;
    /// `pthread_rwlock_unlock`, of a reader or the writer.
    RwUnlock = 22, "rwlock.unlock", Release;
    /// `pthread_rwlock_destroy`.
    RwDestroy = 23, "rwlock.destroy", Release;

    /// `pthread_spin_lock`.
    SpinLock = 24, "spin.lock", Acquire;
    /// `pthread_spin_trylock`.
    SpinTryLock = 25, "spin.trylock", Acquire;
    /// `pthread_spin_unlock`.
    SpinUnlock = 26, "spin.unlock", Release;

    /// A wait on a condition variable begins: `object` is the mutex, which is released here;
    /// `value` is the condition variable.
    CondWaitBegin = 32, "cond.wait", Release;
    /// The wait ends: `object` is the mutex, held again; `value` is the condition variable, and
    /// `aux` the number of its tickets given out by then (a lower bound that replay waits for).
    CondWaitEnd = 33, "cond.wake", Acquire;
    /// `pthread_cond_signal`; `object` is the condition variable.
    CondSignal = 34, "cond.signal", Release;
    /// `pthread_cond_broadcast`; `object` is the condition variable.
    CondBroadcast = 35, "cond.broadcast", Release;
    /// `pthread_cond_destroy`.
    CondDestroy = 36, "cond.destroy", Release;

    /// A thread arrives at a barrier.
    BarrierArrive = 40, "barrier.arrive", Release;
    /// It leaves; `result` is -1 for the serial thread.
    BarrierLeave = 41, "barrier.leave", Acquire;
    /// `pthread_barrier_destroy`.
    BarrierDestroy = 42, "barrier.destroy", Release;
    /// `pthread_barrier_init`, whose body follows; `value` is the number of threads of a round.
    BarrierInit = 43, "barrier.init", Release;

    /// `sem_wait`.
    SemWait = 48, "sem.wait", Acquire;
    /// `sem_trywait`.
    SemTryWait = 49, "sem.trywait", Acquire;
    /// `sem_timedwait`, `sem_clockwait`.
    SemTimedWait = 50, "sem.timedwait", Acquire;
    /// `sem_post`.
    SemPost = 51, "sem.post", Release;
    /// `sem_getvalue`; `value` is what it stored.
    SemGetValue = 52, "sem.getvalue", Acquire;

    /// `pthread_once` by the thread that runs the routine.
    OnceRun = 56, "once.run", Both;
    /// `pthread_once` by a thread that finds the routine done, perhaps after waiting for it. No
    /// ticket: that it is done is all there is to wait for.
    OnceDone = 57, "once.done", Acquire;

    /// A locked instruction: `object` is the address, `nr` the operand's size in bytes, `value`
    /// what the operand held before (the low 8 bytes).
    Atomic = 64, "atomic", Both;
    /// A watched load: `object` is the address, `nr` the operand's size, `value` what it read, and
    /// `ticket` the number of tickets of its slot that were given out by then (a lower bound as
    /// in `aux` of [`EventKind::CondWaitEnd`]). If `aux` is 1, a loop has polled the word since
    /// `begin`.
    SyncLoad = 65, "load", Acquire;
    /// A watched store: fields as for [`EventKind::Atomic`].
    SyncStore = 66, "store", Both;
    /// The thread has made all accesses up to here that others wait for; `object` stands for its
    /// accesses ([`crate::order::accesses_object`]).
    Handover = 67, "handover", Release;
    /// The thread is about to access what others have accessed (with [`crate::Order::Stride`] a line,
    /// else a word that another thread has owned): `object` stands for the accesses of one of them, and
    /// `ticket` is the number of tickets of its slot that were given out by then (a lower bound as for
    /// [`EventKind::SyncLoad`]). `nr` says which access it is ([`crate::accessed`]). Of a word that had
    /// an owner, `value` says what the owner stored there last without an event
    /// ([`crate::own_store`]).
    Takeover = 68, "takeover", Acquire;
    /// An access to a line that many threads change: `object` is the line's address. Unless `nr` is
    /// [`crate::accessed::AHEAD`], the thread keeps the line's turn until the access is over.
    Contended = 69, "contended", Both;

    /// A system call: `nr` its number, `value` its result, `object` the digest of its arguments,
    /// `ticket` its place among the entries of system calls (0 and `aux` 0 for thread-local
    /// ones), `aux` the number of entries made by any thread before it returned.
    Syscall = 72, "syscall", Both;
    /// `rdtsc`, `rdtscp`: `value` is what it returned.
    Rdtsc = 73, "rdtsc", Local;
    /// `rdrand`, `rdseed`: `value` is what it returned, `result` 1 if the carry flag was set.
    Rdrand = 74, "rdrand", Local;
    /// The guest was ended by a signal: `value` is the signal, `pc` where it struck.
    Killed = 75, "killed", Local;
    /// A signal is delivered to a handler of the guest's: `value` is the signal, `object` the
    /// handler, `aux` the address of the frame that the payload holds, `pc` where the thread was
    /// interrupted, and `nr` says what that place is ([`crate::delivery`]); `ticket` may belong to
    /// that. The handler begins after as many entries of system calls as the payload says.
    Signal = 76, "signal", Local;
    /// Memory in common with other processes, which are not recorded: `nr` says what of it
    /// ([`crate::common`]), and the payload's writes have the bytes.
    Common = 77, "common", Both;
}

/// What an event of the kind [`EventKind::Common`] is: its `nr`.
pub mod common {
    /// The instruction at `pc` accesses such memory, from `object` on: these are its operands there, at most
    /// `aux` bytes of each if it is repeated, as they are before. If it orders threads, it has a ticket.
    pub const ACCESS: u16 = 0;
    /// So does the system call that comes next: this is what it reads there.
    pub const CALL: u16 = 1;
    /// From here on, this is all memory of that kind: the payload's writes are addresses, each with two
    /// words, the stretch's length and its protection. These events are numbered from one on, in `object`;
    /// `aux` has [`LEFT_OUT`], [`STOOD_STILL`] and [`UNWATCHED`]. Their tickets are among those of calls that change the
    /// address space.
    pub const AREAS: u16 = 2;
    /// From here on, that holds which another thread's event [`AREAS`] with the number `object` says.
    pub const OTHERS: u16 = 3;
    /// No such memory: the instruction at `pc` faults, since the address space does not let it access `object`.
    /// The ticket is among those of calls that change the address space. The signal is the next event.
    pub const FAULT: u16 = 4;
    /// There is more of it than what is named, which could not be kept from the program.
    pub const LEFT_OUT: u64 = 1;
    /// All other threads were behind an event, or in one.
    pub const STOOD_STILL: u64 = 2;
    /// The program has mapped what other processes may have mapped, too, and is not kept from it, since no
    /// process was known that does so.
    pub const UNWATCHED: u64 = 4;
}

/// Which access the events [`EventKind::Handover`], [`EventKind::Takeover`] and
/// [`EventKind::Contended`] are of: their `nr`.
pub mod accessed {
    /// That of the instruction at `pc`, which comes next.
    pub const NEXT: u16 = 0;
    /// What a system call has written, or of a branch that reads where it goes to: it is made later.
    pub const AHEAD: u16 = 1;
    /// The reading of the instructions themselves, from `pc` on, which the guest has generated. The first such
    /// event waits for nobody: its `result` says how many bytes of code the thread compares with what it was.
    pub const CODE: u16 = 2;
    /// What the system call reads that comes next, or the word that the kernel clears at the thread's end.
    pub const CALL: u16 = 3;
    /// That of a watched instruction, which comes next: a word had an owner. (Of handovers, too.)
    pub const WORD: u16 = 4;
    /// All up to here: the thread is in no guest code, but in what its next event is of.
    pub const AWAY: u16 = 5;
    /// That of a watched instruction, which comes next: from here on no other thread is in guest code. Of a
    /// handover: up to here.
    pub const ALONE: u16 = 6;
    /// All that come: the thread is back in guest code, where another one was alone.
    pub const BACK: u16 = 7;
    /// Those of [`crate::Order::Sync`].
    pub const OF_WORDS: [u16; 4] = [WORD, AWAY, ALONE, BACK];
}

/// By which instruction the owner of a word has stored there last without an event: the `value` of
/// [`EventKind::Takeover`].
pub mod own_store {
    /// Set if the instruction is a locked one.
    const LOCKED: u32 = 1 << 31;

    /// That value. Of the address, the low 31 bits count.
    #[must_use]
    pub fn encode(pc: u64, locked: bool) -> u32 {
        pc as u32 & !LOCKED | if locked { LOCKED } else { 0 }
    }

    /// The instruction's address, and whether it is a locked one, given such a value.
    #[must_use]
    pub fn decode(value: u64) -> Option<(u64, bool)> {
        let value = value as u32;
        (value != 0).then_some(((value & !LOCKED).into(), value & LOCKED != 0))
    }
}

/// Where a signal is delivered: `nr` of an event of the kind [`EventKind::Signal`] or
/// [`EventKind::Killed`].
pub mod delivery {
    /// Right after the event before.
    pub const AFTER_EVENT: u16 = 0;
    /// Instead of the instruction at `pc`, which faults.
    pub const FAULT: u16 = 1;
    /// While the body of a library function waits, whose event follows.
    pub const IN_BODY: u16 = 2;
    /// Between two instructions, at `pc`, when the thread has executed as many of them as `ticket`
    /// says: since it began, or since it came from its last system call or fault.
    pub const AT_COUNT: u16 = 3;
    /// Right after a `sched_yield`, which is no event: at `pc`, when the thread has yielded as often
    /// as `ticket` says since it began, or since it came from its last system call or fault.
    pub const AT_YIELD: u16 = 4;
}

/// Set in [`Event::flags`] when the event owns the next payload of its chunk.
pub const HAS_PAYLOAD: u8 = 1;
/// Set in [`Event::flags`] when the event takes no ticket: replay does not wait for one.
pub const NO_TICKET: u8 = 2;

/// Set in [`Event::flags`] of a system call that had not returned when the recording ended: the
/// thread's last event. It has its ticket, but no result.
pub const UNFINISHED: u8 = 4;

/// Set in [`Event::flags`] by who shows an event as something else than it is, never in a trace: the
/// ticket counts events of this object alone, and not those of its slot.
pub const OWN_ORDER: u8 = 8;

/// One record of a thread's stream.
///
/// All numbers are as the guest saw them: addresses are guest addresses (equal to host
/// addresses), times are ticks of the time-stamp counter.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Event {
    /// The code of an [`EventKind`]; [`Event::kind`] reads it.
    pub code: u8,
    /// [`HAS_PAYLOAD`], [`NO_TICKET`], [`UNFINISHED`].
    pub flags: u8,
    /// System-call number or operand size, by kind.
    pub nr: u16,
    /// What a library function returned.
    pub result: i32,
    /// Where: the return address of the library call, or the address of the instruction.
    pub pc: u64,
    /// The stack pointer there.
    pub sp: u64,
    /// The object that the event orders.
    pub object: u64,
    /// The event's place in the order of the object's slot.
    pub ticket: u64,
    /// By kind.
    pub value: u64,
    /// By kind.
    pub aux: u64,
    /// When the thread came to the event.
    pub begin: u64,
    /// When it went on.
    pub end: u64,
    /// Of the time since the previous event's `end`, how much was the recorder's own work
    /// (translation, bookkeeping); `begin - previous.end - overhead` is the program's.
    pub overhead: u64,
    /// Of `overhead`, for how long the thread had a core and did not wait for another one's
    /// translation, as far as the recorder can tell.
    pub busy: u64,
    /// Watched accesses of the thread since its previous event that had no event of their own: loads,
    /// each of which read what the thread had read or written at the same word before, and stores to
    /// words that no other thread had accessed. With [`crate::Order::Stride`]: all accesses since the
    /// previous event.
    pub unrecorded: u64,
}

impl Event {
    /// The event's kind.
    ///
    /// # Panics
    /// If `code` is no kind's. Every reader of this crate refuses such an event, so one in hand
    /// is a broken invariant.
    pub fn kind(&self) -> EventKind {
        EventKind::from_code(self.code).expect("readers refuse unknown event kinds")
    }

    /// Whether another thread has put the event into this thread's stream: it takes over a word, or with
    /// [`crate::Order::Stride`] a line, that this thread has owned. The event has neither a time nor a place of
    /// its own.
    pub fn is_from_another_thread(&self) -> bool {
        self.kind() == EventKind::Handover && self.pc == 0
    }

    /// Whether the instruction at `pc` has caused the signal that the event is of.
    pub fn is_of_fault_at(&self, pc: u64) -> bool {
        self.kind().is_of_signal() && (self.nr, self.pc) == (delivery::FAULT, pc)
    }

    /// Whether the event's payload is the next one in its chunk.
    pub fn has_payload(&self) -> bool {
        self.flags & HAS_PAYLOAD != 0
    }

    /// Whether the event is a signal that interrupts a computation: `pc` and `ticket` say where.
    pub fn interrupts(&self) -> bool {
        self.kind().is_of_signal() && self.nr == delivery::AT_COUNT
    }

    /// Whether the event has a place in the order of its object.
    pub fn has_ticket(&self) -> bool {
        self.flags & NO_TICKET == 0 && self.kind().class() != EventClass::Local
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = EventKind::from_code(self.code).map_or("?", EventKind::name);
        write!(
            f,
            "{name}({:#x}) pc={:#x} sp={:#x} ticket={} nr={} result={} value={:#x} aux={}",
            self.object, self.pc, self.sp, self.ticket, self.nr, self.result, self.value, self.aux
        )
    }
}
