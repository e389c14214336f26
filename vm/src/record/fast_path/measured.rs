//! What the recorder adds to a lock, measured on the machine that records.
//!
//! A short critical section costs less than its two events. An analysis has to take the recorder's part out of the
//! times in a trace, and how large that is differs between machines by a factor of two. So the functions
//! that lock and unlock a mutex are called a few times before the program begins, and the times of their events
//! tell.

use super::{FastPathState, Mutex, mutex_lock, mutex_unlock};
use crate::context::Context;
use crate::host;
use crate::record::log::Log;
use crate::record::presence::Presence;
use crate::slots::Tickets;
use refrain_trace::{Locking, ThreadId};
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::mem::zeroed;

/// So often the mutex is locked and unlocked.
const ROUNDS: usize = 64;
/// Batches of the same without the recorder, of which the quickest counts.
const BATCHES: usize = 4;
/// What translated code takes on the way from a function that locks to one that unlocks, and back, in nanoseconds:
/// it keeps the program's registers. The functions are called without that here. (The difference between
/// these numbers and those that the trace of a loop shows which does nothing else.)
const WAY: [u64; 2] = [16, 12];

/// Measures. The numbers are whole nanoseconds, of a clock with so many ticks per second.
pub(crate) fn measure(ticks_per_second: u64) -> Option<Locking> {
    let (tickets, log) = (Tickets::new(), Log::unread());
    let stream = log.unlisted(ThreadId(0), Presence::default(), 2 * ROUNDS);
    let context = Context::default();
    // SAFETY: zero is what the library initializes a mutex of the normal kind to.
    let mutex: UnsafeCell<Mutex> = UnsafeCell::new(unsafe { zeroed() });
    let mut state = FastPathState {
        tickets: &raw const tickets,
        log: &raw const *stream,
        context: &raw const context,
        tid: 1,
        ..FastPathState::default()
    };
    let (object, data) = (mutex.get() as u64, &raw mut state as u64);
    let stack = 0u64;
    let sp = &raw const stack as u64;
    for _ in 0..ROUNDS {
        // SAFETY: the state is armed above with what lives longer, and is used by this thread alone; at the stack
        // pointer lies a word, and the object is a mutex.
        let answers = unsafe { [mutex_lock(object, sp, data), mutex_unlock(object, sp, data)] };
        if answers != [0; 2] {
            return None;
        }
    }
    let times = stream.times();
    let usual = |from: usize| {
        let pairs = times[from..].windows(2).step_by(2);
        let mut took: Vec<u64> = pairs.map(|pair| pair[1].saturating_sub(pair[0])).collect();
        took.sort_unstable();
        took.get(took.len() / 4).copied()
    };
    let ns = |ticks: u64| {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(ticks_per_second.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    let native = (0..BATCHES).map(|_| without_recorder()).min()? / ROUNDS as u64;
    let [held, free] = WAY;
    let (held_ns, free_ns) = (ns(usual(0)?) + held, ns(usual(1)?) + free);
    Some(Locking { native_ns: ns(native), held_ns, free_ns })
}

/// How long it takes to lock and unlock a mutex [`ROUNDS`] times, as the library does it.
fn without_recorder() -> u64 {
    #[inline(never)]
    fn lock(mutex: &Mutex) -> bool {
        let Some(kind) = mutex.kind() else { return false };
        let had = mutex.try_lock();
        mutex.held_by(1, kind);
        had
    }
    #[inline(never)]
    fn unlock(mutex: &Mutex) -> bool {
        mutex.kind().is_some_and(|kind| mutex.unlock(kind))
    }
    // SAFETY: as above.
    let mutex: Mutex = unsafe { zeroed() };
    let from = host::ticks();
    for _ in 0..ROUNDS {
        black_box(lock(black_box(&mutex)));
        black_box(unlock(black_box(&mutex)));
    }
    host::ticks().saturating_sub(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorder_takes_longer_than_the_library() {
        let Locking { native_ns, held_ns, free_ns } =
            measure(1_000_000_000).expect("nobody else wants the mutex");
        assert!(native_ns > 0 && held_ns > WAY[0] && free_ns > WAY[1]);
        assert!(held_ns + free_ns > native_ns, "{held_ns} + {free_ns} for {native_ns}");
    }
}
