//! What recording adds to a program's time, as far as the trace does not say it.
//!
//! A trace notes translation as overhead of the next event, but not what it costs to make an event
//! itself: from the moment that the event ends (its time stamp) until the program goes on, the
//! recorder takes a ticket, appends the event and returns. That is part of the work that follows,
//! and as long as a short critical section. It is about the same everywhere, since it is the same
//! code, so it can be taken out. Likewise the way out of translated code, before a system call.
//!
//! The numbers are the fifth percentiles of the work in sections and between them that recordings
//! of `corpus/pairs` show, less the native work: what is measured in a hurry is longer because of
//! caches and cores that are shared, and then so is the work beside it.

use crate::config::ticks;
use refrain_trace::{Event, EventKind, OWN_ORDER, linux};

/// Nanoseconds after an event whose function has a stand-in in translated code.
const STAND_IN: u64 = 25;
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

/// How long the recorder worked before an event, since the program came to it, in ticks.
pub(crate) fn head(event: &Event, ticks_per_second: u64) -> u64 {
    let nanoseconds = if event.kind() == EventKind::Syscall { SYSCALL } else { 0 };
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
    // Locks of the program's own are made of instructions.
    let made = event.flags & OWN_ORDER != 0;
    let nanoseconds = match event.kind() {
        Rdtsc if made => LOAD,
        _ if made => STORE,
        MutexLock | MutexTryLock | MutexUnlock | SpinLock | SpinTryLock | SpinUnlock => STAND_IN,
        // These stand-ins do not wait: if one has executed the call, the event ends when it begins.
        MutexTimedLock | ReadLock | WriteLock | RwUnlock | SemWait | SemTryWait | SemPost
        | CondSignal | CondBroadcast
            if event.begin == event.end =>
        {
            STAND_IN
        }
        SyncLoad => LOAD,
        Atomic | SyncStore | Contended => STORE,
        Syscall => SYSCALL,
        ThreadStart | ThreadExit => 0,
        _ => CALL,
    };
    ticks(nanoseconds, ticks_per_second)
}
