//! Eight bytes of memory: who touched them last (FastTrack, Figure 5).
//!
//! FastTrack keeps for a variable x the epoch of its last write, Wx, and either the epoch of its
//! last read or a vector clock of reads, Rx. Here a variable is a byte, but bytes that are touched
//! together share their entries: a cell is a set of *stamps*, each an access with a mask of the
//! bytes for which it still counts. For each byte
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
//!    access, nor of an atomic one that is not ordered before it.

use crate::clock::VectorClock;
use refrain_trace::Access;

pub(crate) const READ: u8 = Access::READ as u8;
pub(crate) const WRITE: u8 = Access::WRITE as u8;
/// Does not race with other such accesses.
pub(crate) const ATOMIC: u8 = 4;
/// By the kernel, on behalf of the thread.
pub(crate) const KERNEL: u8 = 8;
/// A plain store to a word that synchronizes, which counts as [`ATOMIC`].
pub(crate) const STORE: u8 = 16;
/// Of a function of the library's, which returns to the instruction that is named.
pub(crate) const CALL: u8 = 32;
/// The memory, or whatever else it is, is given back.
pub(crate) const FREE: u8 = 64;

/// A block of the heap is given back.
const END_OF_BLOCK: u8 = CALL | FREE;

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
    fn writes(self) -> bool {
        self.kind & WRITE != 0
    }

    fn is_atomic(self) -> bool {
        self.kind & ATOMIC != 0
    }

    fn same_epoch(self, other: Stamp) -> bool {
        (self.thread, self.clock) == (other.thread, other.clock)
    }

    fn conflicts_with(self, other: Stamp) -> bool {
        (self.writes() || other.writes()) && !(self.is_atomic() && other.is_atomic())
    }

    /// Whether this access takes the place of an earlier one: whatever races with that, from now
    /// on, races with this too, or a race was found.
    fn replaces(self, earlier: Stamp, ordered: bool) -> bool {
        if ordered {
            (self.writes() || !earlier.writes()) && (earlier.is_atomic() || !self.is_atomic())
        } else {
            self.writes() && self.conflicts_with(earlier)
        }
    }
}

/// The accesses of eight bytes that still count.
#[derive(Default)]
pub(crate) struct Cell {
    near: [Stamp; 2],
    rest: Option<Box<Rest>>,
}

/// Stamps that found no room in the cell.
struct Rest(Vec<Stamp>);

impl Cell {
    /// Takes an access by a thread for which `clock` has happened, and shows the earlier ones
    /// that it races with, and those that freed the memory before.
    pub(crate) fn access(
        &mut self,
        now: Stamp,
        clock: &VectorClock,
        found: &mut dyn FnMut(Stamp, Fault),
    ) {
        let mut keep = now;
        for earlier in self.stamps().filter(|stamp| stamp.mask & now.mask != 0) {
            let own = earlier.thread == now.thread;
            let ordered = own || earlier.clock <= clock.of(earlier.thread);
            if !ordered && earlier.conflicts_with(now) {
                found(*earlier, Fault::Race);
            } else if ordered && earlier.kind & END_OF_BLOCK == END_OF_BLOCK && now.kind & FREE == 0
            {
                found(*earlier, Fault::AfterEnd);
            }
            if now.replaces(*earlier, ordered) {
                earlier.mask &= !now.mask;
            } else if earlier.same_epoch(now) && earlier.writes() && !earlier.is_atomic() {
                keep.mask &= !earlier.mask;
            }
        }
        if keep.mask != 0 {
            self.keep(keep);
        }
    }

    fn stamps(&mut self) -> impl Iterator<Item = &mut Stamp> {
        self.near.iter_mut().chain(self.rest.iter_mut().flat_map(|rest| &mut rest.0))
    }

    fn keep(&mut self, now: Stamp) {
        let mut free = None;
        for stamp in self.stamps() {
            if stamp.mask == 0 {
                free = free.or(Some(stamp));
            } else if (Stamp { mask: now.mask, ..*stamp }) == now {
                stamp.mask |= now.mask;
                return;
            }
        }
        match free {
            Some(free) => *free = now,
            None => self.rest.get_or_insert_with(|| Box::new(Rest(Vec::new()))).0.push(now),
        }
    }
}
