//! What recording adds to a program's time, as far as the trace does not say it.
//!
//! A trace notes translation as overhead of the next event, but not what it costs to make an event
//! itself: the recorder comes to the call before it takes the time, and from that time until the program
//! goes on it takes a ticket, appends the event and returns. That is part of the work around it,
//! and as long as a short critical section. It is about the same everywhere, since it is the same
//! code, so it can be taken out. Likewise the way out of translated code, before a system call.
//!
//! What stand-ins take is measured at the beginning of each recording ([`Locking`]), since it differs between
//! machines by a factor of two. The other numbers are the fifth percentiles of the work in sections and
//! between them that recordings of `corpus/pairs` show, less the native work: what is measured in a hurry
//! is longer because of caches and cores that are shared, and then so is the work beside it.

use crate::config::ticks;
use refrain_trace::{Event, EventKind, Locking, OWN_ORDER, linux};

/// What the recorder adds on one machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorder {
    /// Around a lock that is taken by a stand-in in translated code, and around one that is given back.
    acquires: Around,
    releases: Around,
    ticks_per_second: u64,
}

/// Nanoseconds that the recorder takes around the time that it notes.
#[derive(Clone, Copy, Debug)]
struct Around {
    before: u64,
    after: u64,
}

/// What stand-ins take on a common machine.
const USUAL: Locking = Locking { native_ns: 18, held_ns: 26, free_ns: 14 };
/// Nanoseconds after a call for which translated code is left.
const CALL: u64 = 105;
/// Nanoseconds that the recorder takes around a watched load, in line.
const LOAD: u64 = 15;
/// Nanoseconds that the recorder takes around an atomic instruction or a watched store, in line.
const STORE: u64 = 45;
/// Nanoseconds from a system call's instruction to the recorder, and as many back.
const SYSCALL: u64 = 100;
/// Nanoseconds that a call takes which the program makes without the kernel when it is not recorded.
const WITHOUT_KERNEL: u64 = 25;

impl Recorder {
    /// As it was measured on the machine that recorded.
    pub(crate) fn new(locking: Option<Locking>, ticks_per_second: u64) -> Recorder {
        // What the program's own lock takes is charged by the modelled machine. Nothing tells where in these
        // times one call ends and the other begins, nor does it matter much.
        let Locking { held_ns: held, free_ns: free, .. } = locking.unwrap_or(USUAL);
        let acquires = Around { before: free / 2, after: held.div_ceil(2) };
        let releases = Around { before: held / 2, after: free.div_ceil(2) };
        Recorder { acquires, releases, ticks_per_second }
    }

    /// What a stand-in takes, if one has answered the call.
    fn stand_in(&self, event: &Event) -> Option<Around> {
        use EventKind::*;
        match event.kind() {
            // Locks of the program's own are made of instructions.
            _ if event.flags & OWN_ORDER != 0 => None,
            MutexLock | MutexTryLock | SpinLock | SpinTryLock => Some(self.acquires),
            MutexUnlock | SpinUnlock => Some(self.releases),
            // These stand-ins do not wait: if one has answered the call, the event ends when it begins.
            _ if event.begin != event.end => None,
            MutexTimedLock | ReadLock | WriteLock | SemWait | SemTryWait => Some(self.acquires),
            RwUnlock | SemPost | CondSignal | CondBroadcast => Some(self.releases),
            _ => None,
        }
    }

    /// How long the recorder worked before an event, since the program came to it, in ticks.
    pub(crate) fn head(&self, event: &Event) -> u64 {
        let nanoseconds = match self.stand_in(event) {
            Some(around) => around.before,
            None if event.kind() == EventKind::Syscall => SYSCALL,
            None => 0,
        };
        self.ticks(nanoseconds)
    }

    /// How long an event lasts when the program is not recorded, waiting included, in ticks.
    pub(crate) fn took(&self, event: &Event) -> u64 {
        let recorded = event.end.saturating_sub(event.begin);
        match event.kind() {
            EventKind::Syscall if linux::needs_no_kernel(event.nr) => {
                recorded.min(self.ticks(WITHOUT_KERNEL))
            }
            _ => recorded,
        }
    }

    /// How long the recorder worked after an event, until the program went on, in ticks.
    pub(crate) fn tail(&self, event: &Event) -> u64 {
        use EventKind::*;
        let made = event.flags & OWN_ORDER != 0;
        let without_stand_in = || match event.kind() {
            Rdtsc if made => LOAD,
            _ if made => STORE,
            SyncLoad => LOAD,
            Atomic | SyncStore | Contended => STORE,
            Syscall => SYSCALL,
            ThreadStart | ThreadExit => 0,
            _ => CALL,
        };
        self.ticks(self.stand_in(event).map_or_else(without_stand_in, |around| around.after))
    }

    fn ticks(&self, nanoseconds: u64) -> u64 {
        ticks(nanoseconds, self.ticks_per_second)
    }
}
