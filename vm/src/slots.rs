//! Order slots at run time: giving out tickets, and honouring them.

use crate::host;
use refrain_trace::order;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set in a counter while its holder executes the instruction that the ticket is for.
const HELD: u64 = 1 << 63;

/// The recorder's counters.
pub(crate) struct Tickets {
    counters: Box<[AtomicU64]>,
}

impl Tickets {
    pub(crate) fn new() -> Tickets {
        Tickets { counters: (0..order::SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Takes the next ticket of `slot`.
    #[inline]
    pub(crate) fn take(&self, slot: usize) -> u64 {
        self.advance(slot, |now| now + 1)
    }

    /// Takes the next ticket and keeps everybody else from taking one until [`Self::release`].
    pub(crate) fn hold(&self, slot: usize) -> u64 {
        self.advance(slot, |now| now | HELD)
    }

    /// Gives `slot` its next state once nobody holds it; returns the ticket it stood at.
    #[inline]
    fn advance(&self, slot: usize, next: impl Fn(u64) -> u64) -> u64 {
        let counter = &self.counters[slot];
        let mut patience = Patience::default();
        loop {
            let now = counter.load(Ordering::Relaxed);
            if now & HELD == 0
                && counter
                    .compare_exchange_weak(now, next(now), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                return now;
            }
            patience.wait();
        }
    }

    /// Ends what [`Self::hold`] began.
    pub(crate) fn release(&self, slot: usize, ticket: u64) {
        self.counters[slot].store(ticket + 1, Ordering::Release);
    }

    /// Frees what threads held that are not in this process.
    pub(crate) fn release_all(&self) {
        for counter in &self.counters {
            counter.fetch_and(!HELD, Ordering::Relaxed);
        }
    }

    /// Tickets given out so far.
    pub(crate) fn given(&self, slot: usize) -> u64 {
        self.counters[slot].load(Ordering::Acquire) & !HELD
    }

    /// The same, but the one that somebody holds counts too: its instruction may have been
    /// executed already.
    pub(crate) fn begun(&self, slot: usize) -> u64 {
        let counter = self.counters[slot].load(Ordering::Acquire);
        (counter & !HELD) + (counter >> 63)
    }
}

/// Spins for a moment, then lets others run: the holder may have been preempted.
#[derive(Default)]
pub(crate) struct Patience {
    rounds: u32,
}

impl Patience {
    pub(crate) fn wait(&mut self) {
        self.rounds += 1;
        if self.rounds < 64 {
            std::hint::spin_loop();
        } else {
            host::yield_now();
        }
    }
}
