//! What recording adds to a program's time, as far as the trace does not say it.
//!
//! A trace notes translation as overhead of the next event, but not what it costs to make an event
//! itself: the recorder comes to the call before it takes the time, and from that time until the program
//! goes on it takes a ticket, appends the event and returns. That is part of the work around it,
//! and as long as a short critical section. It is about the same everywhere, since it is the same
//! code, so it can be taken out. Likewise the way out of translated code, before a system call.
//!
//! The numbers of stand-ins are those of a loop that locks and unlocks a mutex that nobody else wants: in
//! its recording the times of a lock and its unlock are 30 ns apart, those of an unlock and the next lock
//! 18 ns; natively both are some 3.5 ns. The others are the fifth percentiles of the work in sections and
//! between them that recordings of `corpus/pairs` show, less the native work: what is measured in a hurry
//! is longer because of caches and cores that are shared, and then so is the work beside it.

use crate::config::ticks;
use refrain_trace::{Event, EventKind, OWN_ORDER, linux};

/// Nanoseconds that the recorder takes around the time that it notes.
#[derive(Clone, Copy)]
struct Around {
    before: u64,
    after: u64,
}

/// Around a lock that is taken by a stand-in in translated code: it notes the time first.
const ACQUIRES: Around = Around { before: 6, after: 13 };
/// Around a lock that a stand-in gives back: it notes the time last, since others wait no longer then.
const RELEASES: Around = Around { before: 13, after: 8 };
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

/// What a stand-in takes, if one has answered the call.
fn stand_in(event: &Event) -> Option<Around> {
    use EventKind::*;
    match event.kind() {
        // Locks of the program's own are made of instructions.
        _ if event.flags & OWN_ORDER != 0 => None,
        MutexLock | MutexTryLock | SpinLock | SpinTryLock => Some(ACQUIRES),
        MutexUnlock | SpinUnlock => Some(RELEASES),
        // These stand-ins do not wait: if one has answered the call, the event ends when it begins.
        _ if event.begin != event.end => None,
        MutexTimedLock | ReadLock | WriteLock | SemWait | SemTryWait => Some(ACQUIRES),
        RwUnlock | SemPost | CondSignal | CondBroadcast => Some(RELEASES),
        _ => None,
    }
}

/// How long the recorder worked before an event, since the program came to it, in ticks.
pub(crate) fn head(event: &Event, ticks_per_second: u64) -> u64 {
    let nanoseconds = match stand_in(event) {
        Some(around) => around.before,
        None if event.kind() == EventKind::Syscall => SYSCALL,
        None => 0,
    };
    ticks(nanoseconds, ticks_per_second)
}

/// How long an event lasts when the program is not recorded, waiting included, in ticks.
pub(crate) fn took(event: &Event, ticks_per_second: u64) -> u64 {
    let recorded = event.end.saturating_sub(event.begin);
    match event.kind() {
        EventKind::Syscall if linux::needs_no_kernel(event.nr) => {
            recorded.min(ticks(WITHOUT_KERNEL, ticks_per_second))
        }
        _ => recorded,
    }
}

/// How long the recorder worked after an event, until the program went on, in ticks.
pub(crate) fn tail(event: &Event, ticks_per_second: u64) -> u64 {
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
    let nanoseconds = stand_in(event).map_or_else(without_stand_in, |around| around.after);
    ticks(nanoseconds, ticks_per_second)
}
