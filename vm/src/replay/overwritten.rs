//! Which words have been overwritten by ordered instructions that come after a load.
//!
//! A recorded load waits until its word holds what it read. If another thread was faster than in
//! the recording and has overwritten the word already, the load would wait in vain. All stores before
//! that thread's instruction have been made by then, so the load need not wait.

use refrain_trace::order;
use std::sync::atomic::{AtomicU64, Ordering};

/// The last ordered instruction of a slot.
#[derive(Default)]
struct Last {
    /// 0 while it changes: no object lies there.
    object: AtomicU64,
    ticket: AtomicU64,
}

/// See the module's documentation.
pub(crate) struct Overwritten {
    slots: Box<[Last]>,
}

impl Default for Overwritten {
    fn default() -> Overwritten {
        Overwritten { slots: (0..order::SLOTS).map(|_| Last::default()).collect() }
    }
}

impl Overwritten {
    /// An instruction has its turn, and found in its word what it found in the recording.
    pub(crate) fn note(&self, object: u64, ticket: u64) {
        let last = &self.slots[order::slot(object)];
        // Whoever reads the same object before and after it has read a ticket has read one of that
        // object's. Nobody else writes here: this thread has the slot's turn.
        last.object.store(0, Ordering::Release);
        last.ticket.store(ticket, Ordering::Release);
        last.object.store(object, Ordering::Release);
    }

    /// Whether an instruction on `object` whose ticket is not among the first `count` is under
    /// way or over. (It may be that it is, and this is `false`, if another object is in its slot.)
    pub(crate) fn since(&self, object: u64, count: u64) -> bool {
        let last = &self.slots[order::slot(object)];
        let is_object = || last.object.load(Ordering::Acquire) == object;
        is_object() && last.ticket.load(Ordering::Acquire) >= count && is_object()
    }
}

#[cfg(test)]
mod tests {
    use super::Overwritten;

    #[test]
    fn only_later_instructions_on_the_same_word_count() {
        let overwritten = Overwritten::default();
        let (word, other) = (0x1000_0040, 0x1000_0080);
        assert!(!overwritten.since(word, 0));
        overwritten.note(word, 6);
        assert!(overwritten.since(word, 6), "the seventh is not among the first six");
        assert!(!overwritten.since(word, 7));
        assert!(!overwritten.since(other, 0));
    }
}
