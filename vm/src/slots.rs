//! Order slots at run time: giving out tickets, and honouring them.

use crate::zeroed::Zeroed;
use crossbeam::utils::Backoff;
use refrain_trace::order;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Set in a counter while its holder executes the instruction that the ticket is for.
pub(crate) const HELD: u64 = 1 << 63;
/// Set beside [`HELD`] where the ticket will be given back.
pub(crate) const LENT: u64 = 1 << 62;
/// The rest of a counter.
const COUNT: u64 = !(HELD | LENT);
/// What taking a ticket adds to a counter.
const TAKEN: u64 = 1;

/// The recorder's counters.
pub(crate) struct Tickets {
    counters: Zeroed<[AtomicU64; order::SLOTS]>,
}

impl Tickets {
    pub(crate) fn new() -> Tickets {
        // SAFETY: zero is a value of a counter, and counters need no `Drop`.
        Tickets { counters: unsafe { Zeroed::new() } }
    }

    /// Takes the next ticket of `slot`.
    #[inline]
    pub(crate) fn take(&self, slot: usize) -> u64 {
        self.insist(slot, TAKEN)
    }

    /// A ticket of this slot will be wanted soon.
    #[inline]
    pub(crate) fn prefetch(&self, slot: usize) {
        crate::host::prefetch_to_write(&raw const self.counters[slot]);
    }

    /// Takes the next ticket and keeps everybody else from taking one until [`Self::release`].
    pub(crate) fn hold(&self, slot: usize) -> u64 {
        self.insist(slot, HELD)
    }

    /// Takes the next ticket, or holds it, unless somebody holds the slot for long.
    pub(crate) fn try_take(&self, slot: usize, holds: bool) -> Option<u64> {
        self.attempt(slot, if holds { HELD } else { TAKEN })
    }

    /// Keeps everybody else from taking a ticket until [`Self::give_back`], unless somebody holds the slot
    /// for long.
    pub(crate) fn try_borrow(&self, slot: usize) -> Option<u64> {
        self.attempt(slot, HELD | LENT)
    }

    #[inline]
    fn attempt(&self, slot: usize, step: u64) -> Option<u64> {
        const ATTEMPTS: u32 = 16;
        /// Each attempt takes the counter away from the processor of who holds the slot. Meanwhile that one
        /// gets through several instructions.
        const PAUSES: u32 = 32;
        (0..ATTEMPTS).find_map(|_| {
            let ticket = self.advance(slot, step);
            if ticket.is_none() {
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
            }
            ticket
        })
    }

    /// [`Self::advance`], once nobody holds the slot.
    #[inline]
    fn insist(&self, slot: usize, step: u64) -> u64 {
        let backoff = Backoff::new();
        loop {
            if let Some(ticket) = self.advance(slot, step) {
                return ticket;
            }
            match backoff.is_completed() {
                true => crate::host::let_others_go_on(),
                false => backoff.snooze(),
            }
        }
    }

    /// Adds `step` to the counter of `slot`, unless somebody holds it or is faster; the ticket that it
    /// stood at.
    #[inline]
    fn advance(&self, slot: usize, step: u64) -> Option<u64> {
        let counter = &self.counters[slot];
        let now = counter.load(Ordering::Relaxed);
        let advance =
            || counter.compare_exchange_weak(now, now + step, Ordering::SeqCst, Ordering::Relaxed);
        (now & HELD == 0).then(advance)?.ok()
    }

    /// Waits for a moment at which nobody holds the slot. A thread that holds the slot later sees what the caller
    /// has stored before.
    pub(crate) fn await_holder(&self, slot: usize) {
        while self.counters[slot].load(Ordering::SeqCst) & HELD != 0 {
            crate::host::let_others_go_on();
        }
    }

    /// Undoes what [`Self::hold`] or [`Self::try_borrow`] did.
    pub(crate) fn give_back(&self, slot: usize, ticket: u64) {
        self.counters[slot].store(ticket, Ordering::Release);
    }

    /// Ends what [`Self::hold`] began.
    pub(crate) fn release(&self, slot: usize, ticket: u64) {
        self.counters[slot].store(ticket + 1, Ordering::Release);
    }

    /// What `read` reads of the slot's words, and how many tickets had been given out when it read. The number
    /// is exact if no thread takes a ticket meanwhile. If threads keep taking tickets, the number is the one after
    /// the reading, with the ticket that a thread holds; then it may count tickets that came after the reading.
    pub(crate) fn among<T>(&self, slot: usize, mut read: impl FnMut() -> T) -> (T, u64) {
        const ATTEMPTS: u32 = 16;
        let counter = &self.counters[slot];
        for _ in 0..ATTEMPTS {
            let before = counter.load(Ordering::Acquire);
            if before & HELD == 0 {
                let value = read();
                fence(Ordering::SeqCst);
                if counter.load(Ordering::Acquire) == before {
                    return (value, before);
                }
            }
            std::hint::spin_loop();
        }
        let value = read();
        // The number must count every ticket whose effect was read.
        fence(Ordering::SeqCst);
        (value, self.begun(slot))
    }

    /// Address of a slot's counter, for translated code.
    pub(crate) fn counter(&self, slot: usize) -> u64 {
        &raw const self.counters[slot] as u64
    }

    /// Frees what threads held that are not in this process.
    pub(crate) fn release_all(&self) {
        // Of a table that is hardly used, no page is written.
        for counter in self.counters.iter().filter(|c| c.load(Ordering::Relaxed) & HELD != 0) {
            counter.fetch_and(COUNT, Ordering::Relaxed);
        }
    }

    /// Ends what threads hold that will not go on.
    pub(crate) fn end_all(&self) {
        for counter in self.counters.iter() {
            let now = counter.load(Ordering::Relaxed);
            if now & HELD != 0 {
                let next = begun(now);
                let _ = counter.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Tickets given out so far.
    pub(crate) fn given(&self, slot: usize) -> u64 {
        self.counters[slot].load(Ordering::Acquire) & COUNT
    }

    fn begun(&self, slot: usize) -> u64 {
        begun(self.counters[slot].load(Ordering::Acquire))
    }
}

/// Tickets given out so far, one that somebody holds included: its instruction may have been
/// executed already. (Not if that one will be given back: then the instruction has no place among the
/// others, since its word is no other thread's.)
fn begun(counter: u64) -> u64 {
    (counter & COUNT) + u64::from(counter & (HELD | LENT) == HELD)
}

#[cfg(test)]
mod tests {
    use super::Tickets;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const SLOT: usize = 11;

    /// A word that is written under each ticket says how many there were.
    #[test]
    fn reading_among_tickets() {
        const ROUNDS: u64 = 20_000;
        let (tickets, word, over) = (Tickets::new(), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let ticket = tickets.hold(SLOT);
                    assert_eq!(ticket, round);
                    word.store(ticket + 1, Ordering::SeqCst);
                    tickets.release(SLOT, ticket);
                }
                over.store(true, Ordering::SeqCst);
            });
            while !over.load(Ordering::SeqCst) {
                let (value, count) = tickets.among(SLOT, || word.load(Ordering::SeqCst));
                assert!(value <= count, "{value} was written under a ticket that is not counted");
            }
        });
        assert_eq!(tickets.among(SLOT, || word.load(Ordering::SeqCst)), (ROUNDS, ROUNDS));
    }

    /// One that is held all the while counts: its effect may be in what was read.
    #[test]
    fn a_ticket_that_is_held_counts() {
        let tickets = Tickets::new();
        let ticket = tickets.hold(SLOT);
        assert_eq!(tickets.among(SLOT, || ()), ((), 1));
        tickets.release(SLOT, ticket);
        assert_eq!(tickets.take(SLOT), 1);
    }

    /// In a replay, a load of another word of the slot waits for as many tickets as were counted here. If a
    /// ticket that is given back were counted, it would wait forever.
    #[test]
    fn a_ticket_that_is_given_back_does_not_count() {
        let tickets = Tickets::new();
        let ticket = tickets.try_borrow(SLOT).expect("nobody holds the slot");
        assert_eq!(tickets.among(SLOT, || ()), ((), 0));
        assert_eq!((tickets.given(SLOT), tickets.try_take(SLOT, false)), (0, None));
        tickets.give_back(SLOT, ticket);
        assert_eq!(tickets.take(SLOT), 0);
        for end in [Tickets::release_all, Tickets::end_all] {
            tickets.try_borrow(SLOT).expect("nobody holds the slot");
            end(&tickets);
            assert_eq!(tickets.among(SLOT, || ()), ((), 1));
        }
    }
}
