//! How long a thread waits at the gate before it sleeps.
//!
//! To sleep and be woken takes much longer than most hand-overs of a lock, above all where an idle
//! core is given back to a hypervisor. A program that hands a lock over 10,000 times in a second
//! would take twice its time if each of them woke a thread. So a thread waits awake while every
//! thread that is awake may have a core to itself, if its waits of late were short: where other
//! programs want the cores, waits are long, and whoever sleeps leaves them the core.

use super::Condition;
use super::sync::atomic::{AtomicU64, Ordering};
use crossbeam::utils::CachePadded;
use refrain_trace::ThreadId;
use std::time::Duration;

/// Pauses of the processor before a thread gives its core away to others that want it. Hand-overs
/// between running threads take less.
const PAUSES: u32 = if cfg!(test) { 1 } else { 500 };
/// The same for those who wait for a policy's decision: that is, for a thread that needs a core.
const PAUSES_FOR_NEWS: u32 = if cfg!(test) { 1 } else { 20 };
/// Pauses between two looks at most.
const MOST: u64 = 64;
/// Waits shorter than this are better spent awake.
const SHORT: Duration = Duration::from_micros(if cfg!(test) { 0 } else { 100 });
/// The average of a thread's waits moves by one part in so many with each of them.
const MEMORY: u64 = 8;

/// What the gate knows of the waits of each thread.
pub(super) struct Patience {
    /// Nanoseconds of a wait, on average.
    averages: Box<[CachePadded<AtomicU64>]>,
}

impl Patience {
    pub(super) fn new(threads: u32) -> Patience {
        Patience { averages: (0..threads).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// How long this thread should wait awake if nobody wants its core.
    pub(super) fn of(&self, thread: ThreadId) -> Duration {
        let average = self.averages[thread.index()].load(Ordering::Relaxed);
        if u128::from(average) < SHORT.as_nanos() { 2 * SHORT } else { Duration::ZERO }
    }

    /// The thread has waited so long.
    pub(super) fn learn(&self, thread: ThreadId, waited: Duration) {
        // No more than it takes to be told apart, so that it is not remembered for long.
        let waited = waited.min(4 * SHORT).as_nanos() as u64;
        let average = &self.averages[thread.index()];
        let before = average.load(Ordering::Relaxed);
        average.store(before - before / MEMORY + waited / MEMORY, Ordering::Relaxed);
    }
}

/// A few looks in a row.
pub(super) struct Looks {
    left: u32,
}

impl Looks {
    pub(super) fn for_condition(condition: Condition) -> Looks {
        let news = matches!(condition, Condition::News { .. });
        Looks { left: if news { PAUSES_FOR_NEWS } else { PAUSES } }
    }

    /// Pauses before the next look, given how many events must come before; false if there have
    /// been looks enough. To look takes the word's cache line from whoever is busy with those
    /// events.
    pub(super) fn pause(&mut self, distance: u64) -> bool {
        if self.left == 0 {
            return false;
        }
        let pauses = (2 * distance.min(MOST)).clamp(1, MOST).min(self.left.into()) as u32;
        (0..pauses).for_each(|_| std::hint::spin_loop());
        self.left -= pauses;
        true
    }
}
