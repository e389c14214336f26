//! How far each thread has come in recorded time.
//!
//! A thread that has arrived at an event has made every store that it made in the recording before
//! the end of that event, because the guest executes nothing while an event happens. So once all other
//! threads have arrived at events that end after some time, all plain stores before that time have been
//! made, and a thread that waits for one of them need not know which thread makes it.

use crossbeam::utils::CachePadded;
use refrain_trace::ThreadId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Not created yet, or at its end: nobody waits for such a thread.
const NOWHERE: u64 = u64::MAX;

/// See the module's documentation.
pub(crate) struct Arrivals {
    times: Box<[CachePadded<AtomicU64>]>,
}

impl Arrivals {
    /// Places for so many threads.
    pub(crate) fn new(threads: u32) -> Arrivals {
        Arrivals { times: (0..threads).map(|_| CachePadded::new(NOWHERE.into())).collect() }
    }

    /// The thread is about to run.
    pub(crate) fn begin(&self, thread: ThreadId) {
        self.arrive(thread, 0);
    }

    /// The thread has come to an event that ended at this time.
    pub(crate) fn arrive(&self, thread: ThreadId, time: u64) {
        if let Some(mine) = self.times.get(thread.index()) {
            mine.store(time, Ordering::Release);
        }
    }

    /// When the last event ended at which this thread has arrived.
    pub(crate) fn of(&self, thread: ThreadId) -> u64 {
        self.times.get(thread.index()).map_or(NOWHERE, |time| time.load(Ordering::Relaxed))
    }

    /// Whether the thread has begun and not ended.
    pub(crate) fn runs(&self, thread: ThreadId) -> bool {
        self.of(thread) != NOWHERE
    }

    /// A number that is another one when threads have arrived anywhere.
    pub(crate) fn sum(&self) -> u64 {
        let times = self.times.iter().map(|time| time.load(Ordering::Relaxed));
        times.fold(0, u64::wrapping_add)
    }

    /// The thread runs no more.
    pub(crate) fn end(&self, thread: ThreadId) {
        self.arrive(thread, NOWHERE);
    }

    /// Whether all other threads have arrived at this time or later.
    pub(crate) fn all_past(&self, thread: ThreadId, time: u64) -> bool {
        self.times
            .iter()
            .enumerate()
            .all(|(other, at)| other == thread.index() || at.load(Ordering::Acquire) >= time)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, ThreadId};

    #[test]
    fn only_threads_that_run_are_waited_for() {
        let arrivals = Arrivals::new(3);
        let [a, b, c] = [0, 1, 2].map(ThreadId);
        arrivals.begin(a);
        assert!(arrivals.all_past(a, 100));
        arrivals.begin(b);
        assert!(!arrivals.all_past(a, 100));
        arrivals.arrive(b, 100);
        assert!(arrivals.all_past(a, 100) && !arrivals.all_past(a, 101));
        arrivals.end(b);
        assert!(arrivals.all_past(a, 101) && !arrivals.all_past(c, 1));
    }
}
