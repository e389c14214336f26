//! When the writer is at work.
//!
//! The writer wants a core now and then. Where all cores are taken, it takes one from a guest thread, whose
//! work then seems to take some tens of microseconds, perhaps with a lock in its hands. So of work that
//! takes long, the time in which the writer was at work counts as the recorder's.

use crate::host;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set while the writer is at work; the rest is then when it would have begun if it had never stopped.
const IS: u64 = 1 << 63;

/// Work that is shorter, in ticks, has not lost its core to the writer.
const LONG: u64 = 1 << 13;

/// For how long the writer has been at work. Alone in its cache lines: threads read it at each event.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct AtWork(AtomicU64);

impl AtWork {
    /// The writer alone calls this, and [`Self::end`] after it.
    pub(super) fn begin(&self) {
        let so_far = self.0.load(Ordering::Relaxed);
        self.0.store(host::ticks().wrapping_sub(so_far) | IS, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.0.store(self.until(host::ticks()), Ordering::Relaxed);
    }

    /// For how long it had been at work at a moment that has just been, in ticks.
    #[inline]
    fn until(&self, now: u64) -> u64 {
        let value = self.0.load(Ordering::Relaxed);
        if value & IS == 0 { value } else { now.wrapping_sub(value & !IS) & !IS }
    }

    /// How much of a thread's work, from one event to the next, the writer may have had the core. `seen` is what
    /// this has noted at the event before.
    #[inline]
    pub(super) fn during(&self, from: u64, to: u64, seen: &mut u64) -> u64 {
        let until = self.until(to);
        let during = until.saturating_sub(std::mem::replace(seen, until));
        let took = to.saturating_sub(from);
        if took > LONG { during.min(took) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_has_lost_what_the_writer_had() {
        let at_work = AtWork::default();
        let mut seen = 0;
        assert_eq!(at_work.during(0, 1_000_000, &mut seen), 0, "it has not begun");
        let from = host::ticks();
        at_work.begin();
        let to = host::ticks().max(from + 2 * LONG);
        let had = at_work.during(from, to, &mut seen);
        assert!(had > 0 && had <= to - from, "{had}");
        assert_eq!(at_work.during(to, to + 1, &mut seen), 0, "short work goes on");
        at_work.end();
        let after = at_work.until(u64::MAX);
        assert_eq!(after, at_work.until(0), "it has stopped");
        at_work.during(0, 0, &mut seen);
        assert_eq!(at_work.during(0, 1_000_000, &mut seen), 0);
        at_work.begin();
        assert!(at_work.until(host::ticks()) >= after, "it goes on counting");
    }
}
