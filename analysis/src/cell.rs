//! Eight bytes of memory: who touched them last (FastTrack, Figure 5).
//!
//! FastTrack keeps for a variable x the epoch of its last write, Wx, and either the epoch of its
//! last read or a vector clock of reads, Rx. Here a variable is a byte, but bytes that are touched
//! together share their entries: a cell has a set of *stamps*, each an access with a mask of the
//! bytes for which it still counts ([`crate::block`] keeps them). For each byte
//!
//! - at most one stamp that writes counts, the last one (Wx);
//! - the stamps that only read are those since that write of which none happens before another
//!   (Rx: one of them is the epoch, several are the vector clock).
//!
//! # Deviations from the paper
//! 1. Reads that are concurrent are a set of epochs, not a vector clock, so that each keeps the
//!    instruction that it is reported by.
//! 2. Every write empties Rx, not only [FT WRITE SHARED]. What races with a read that happens
//!    before a write races with the write too.
//! 3. A read after a write of the same epoch is not kept: what races with it races with the write.
//! 4. Atomic accesses do not race with each other, so one does not take the place of a plain
//!    access, nor of an atomic one that is not ordered before it. A plain store to a word that
//!    synchronizes ([`STORE`]) is between the two.

use refrain_trace::Access;

pub(crate) const READ: u8 = Access::READ as u8;
pub(crate) const WRITE: u8 = Access::WRITE as u8;
/// Does not race with other such accesses.
pub(crate) const ATOMIC: u8 = 4;
/// By the kernel, on behalf of the thread.
pub(crate) const KERNEL: u8 = 8;
/// A plain store to a word that synchronizes. To the program it counts as [`ATOMIC`]. To a replay it
/// does not, since nothing holds it back if it is not watched: what an atomic update leaves depends on
/// which of them comes first. (What an atomic load reads does not: the load has its recorded value.)
pub(crate) const STORE: u8 = 16;
/// Of a function of the library's, which returns to the instruction that is named.
pub(crate) const CALL: u8 = 32;
/// The memory, or whatever else it is, is given back.
pub(crate) const FREE: u8 = 64;

/// A block of the heap is given back.
pub(crate) const END_OF_BLOCK: u8 = CALL | FREE;

/// What is wrong with two accesses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Fault {
    /// Nothing orders them.
    Race,
    /// The earlier one has freed the memory, and the later one comes after it.
    AfterEnd,
}

/// An access of some of the bytes of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamp {
    /// The epoch: this clock of this thread.
    pub(crate) clock: u32,
    pub(crate) thread: u16,
    /// The bytes; zero if there is no access here.
    pub(crate) mask: u8,
    /// [`READ`], [`WRITE`] and the rest.
    pub(crate) kind: u8,
    pub(crate) pc: u32,
    /// The thread's last event by then.
    pub(crate) event: u32,
}

impl Stamp {
    #[inline]
    pub(crate) fn writes(self) -> bool {
        self.kind & WRITE != 0
    }

    #[inline]
    pub(crate) fn is_atomic(self) -> bool {
        self.kind & ATOMIC != 0
    }

    /// The same access, of other bytes perhaps.
    #[inline]
    pub(crate) fn is_like(self, other: Stamp) -> bool {
        // The instruction differs most often.
        self.pc == other.pc && Stamp { mask: other.mask, ..self } == other
    }

    #[inline]
    pub(crate) fn same_epoch(self, other: Stamp) -> bool {
        (self.thread, self.clock) == (other.thread, other.clock)
    }

    /// How much it conflicts with: what conflicts with an access of a lower rank conflicts with one of a
    /// higher rank too, if both write.
    #[inline]
    fn rank(self) -> u8 {
        match self.kind & (ATOMIC | STORE) {
            0 => 2,
            STORE => 1,
            _ => 0,
        }
    }

    /// Whether it is a store that nothing holds back, and the other one an atomic load.
    #[inline]
    fn is_stored_before_load(self, other: Stamp) -> bool {
        self.rank() == 1 && other.is_atomic() && !other.writes()
    }

    #[inline]
    pub(crate) fn conflicts_with(self, other: Stamp) -> bool {
        (self.writes() || other.writes())
            && !(self.is_atomic() && other.is_atomic())
            && !self.is_stored_before_load(other)
            && !other.is_stored_before_load(self)
    }

    /// Whether this access takes the place of an earlier one: whatever races with that, from now
    /// on, races with this too, or a race was found.
    #[inline]
    pub(crate) fn replaces(self, earlier: Stamp, ordered: bool) -> bool {
        if ordered {
            (self.writes() || !earlier.writes()) && self.rank() >= earlier.rank()
        } else {
            self.writes() && self.conflicts_with(earlier)
        }
    }
}
