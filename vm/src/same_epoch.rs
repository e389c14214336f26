//! What one thread has accessed in its present epoch: notes that keep repetitions out of the log.
//!
//! A race detector has no use for an access to bytes that the thread has accessed in the same way
//! since its last synchronization (FastTrack, the rules of the same epoch), and nearly all accesses
//! are such. The detector notes here what it has taken; translated code looks here before it logs.
//! It only reads notes, so a note never says more than the detector does.
//!
//! Guest memory is divided into *granules*. The tables have room for [`GRANULES`] of them at a time,
//! by the lower digits of their addresses; a granule's tag has its address and the epoch in which
//! it was noted, so a new epoch forgets everything by a new number ([`SameEpoch::next_epoch`]).
//! A granule has two bits per byte: the thread has read or written the byte, and it has written it.
//!
//! # Invariant
//! What an access that is left out would have been noted in, and what the detector's epoch is by
//! then, are the same. The detector learns of accesses late, when the log is taken. So where a
//! logged access may begin an epoch (a plain store to a word that synchronizes, or a call of an
//! allocator), translated code stops looking here at once, until the log has been taken. Which
//! cells have such words is known beforehand ([`SameEpoch::new`]); a store to one is always logged,
//! since the detector does not note it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a granule.
pub const GRANULE: u64 = 512;
/// Bytes that share a byte of notes.
pub const CELL: u64 = 8;
/// Granules that are noted at a time: 64 MiB.
pub const GRANULES: u64 = 1 << 17;
/// Entries of the table of cells with words that synchronize.
pub const SYNCHRONIZING: u64 = 1 << 18;
/// The lowest bit of an epoch's number in a tag, above all addresses.
pub const EPOCH_SHIFT: u32 = 48;
/// An epoch of which there are no notes.
pub const NEVER: u64 = 0;

const CELLS: u64 = GRANULES * CELLS_PER_GRANULE;
const CELLS_PER_GRANULE: u64 = GRANULE / CELL;
/// Translated code reads up to eight entries at once.
const OVERLAP: usize = 8;

/// The notes of one thread. Only the thread itself uses them.
#[repr(C)]
pub struct SameEpoch {
    /// The address of a granule, and the epoch it was noted in.
    tags: [AtomicU64; GRANULES as usize],
    /// A bit for each byte that was accessed.
    accessed: [AtomicU8; CELLS as usize + OVERLAP],
    /// A bit for each byte that was written.
    written: [AtomicU8; CELLS as usize + OVERLAP],
    /// Not zero where a cell with these lower digits has a word that synchronizes. The first entries
    /// stand behind the last ones once more.
    synchronizing: [AtomicU8; SYNCHRONIZING as usize + OVERLAP],
    /// The present epoch, shifted as in a tag.
    epoch: AtomicU64,
}

/// Where translated code finds the notes' parts.
pub mod offset {
    use super::SameEpoch;
    use std::mem::offset_of;

    /// The tags.
    pub const TAGS: i32 = offset_of!(SameEpoch, tags) as i32;
    /// Bytes that were accessed.
    pub const ACCESSED: i32 = offset_of!(SameEpoch, accessed) as i32;
    /// Bytes that were written.
    pub const WRITTEN: i32 = offset_of!(SameEpoch, written) as i32;
    /// Cells with words that synchronize.
    pub const SYNCHRONIZING: i32 = offset_of!(SameEpoch, synchronizing) as i32;
}

impl SameEpoch {
    /// Empty notes, for a program that synchronizes through `words`.
    pub fn new(words: impl IntoIterator<Item = u64>) -> Arc<SameEpoch> {
        // SAFETY: atomic integers, for which all bits zero is a value.
        let notes: Arc<SameEpoch> = unsafe { Arc::<SameEpoch>::new_zeroed().assume_init() };
        for word in words {
            let at = (word / CELL % SYNCHRONIZING) as usize;
            for at in [Some(at), (at < OVERLAP).then_some(SYNCHRONIZING as usize + at)] {
                at.iter().for_each(|&at| notes.synchronizing[at].store(1, Ordering::Relaxed));
            }
        }
        notes.epoch.store((NEVER + 1) << EPOCH_SHIFT, Ordering::Relaxed);
        notes
    }

    /// The present epoch as it is in tags.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Nothing has been accessed in the epoch that begins.
    pub fn next_epoch(&self) {
        let next = self.epoch().wrapping_add(1 << EPOCH_SHIFT);
        if next >> EPOCH_SHIFT != NEVER {
            return self.epoch.store(next, Ordering::Relaxed);
        }
        // Numbers begin anew.
        self.tags.iter().for_each(|tag| tag.store(0, Ordering::Relaxed));
        self.epoch.store((NEVER + 1) << EPOCH_SHIFT, Ordering::Relaxed);
    }

    /// Whether the bytes of a cell with these bits have been accessed (`writes`: written) in this
    /// epoch. Cells are counted from address 0.
    pub fn knows(&self, cell: u64, bytes: u8, writes: bool) -> bool {
        let notes = if writes { &self.written } else { &self.accessed };
        self.tag(cell).load(Ordering::Relaxed) == self.tag_now(cell)
            && bytes & !notes[(cell % CELLS) as usize].load(Ordering::Relaxed) == 0
    }

    /// These bytes of a cell have been accessed.
    pub fn note(&self, cell: u64, bytes: u8, writes: bool) {
        if self.tag(cell).load(Ordering::Relaxed) != self.tag_now(cell) {
            self.begin(cell);
        }
        let add = |note: &AtomicU8| {
            note.store(note.load(Ordering::Relaxed) | bytes, Ordering::Relaxed);
        };
        add(&self.accessed[(cell % CELLS) as usize]);
        if writes {
            add(&self.written[(cell % CELLS) as usize]);
        }
    }

    /// Begins to note a granule.
    #[cold]
    fn begin(&self, cell: u64) {
        let first = (cell % CELLS / CELLS_PER_GRANULE * CELLS_PER_GRANULE) as usize;
        let cells = first..first + CELLS_PER_GRANULE as usize;
        for note in self.accessed[cells.clone()].iter().chain(&self.written[cells]) {
            note.store(0, Ordering::Relaxed);
        }
        self.tag(cell).store(self.tag_now(cell), Ordering::Relaxed);
    }

    fn tag(&self, cell: u64) -> &AtomicU64 {
        &self.tags[(cell / CELLS_PER_GRANULE % GRANULES) as usize]
    }

    fn tag_now(&self, cell: u64) -> u64 {
        ((cell * CELL) & !(GRANULE - 1)) | self.epoch()
    }
}

/// What a thread's translated code needs of its notes. All zero: it logs everything.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EpochWords {
    /// The address of the [`SameEpoch`].
    pub notes: u64,
    /// The present epoch as it is in tags; [`NEVER`] from an access on that may begin another one
    /// until the log has been taken.
    pub epoch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Access { cell: u64, bytes: u8, writes: bool },
        Epoch,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Cells that share a granule, a table's entry, or neither.
        let cell = (0..3u64, 0..3u64, 0..4u64)
            .prop_map(|(far, granule, cell)| far * CELLS + granule * CELLS_PER_GRANULE + cell);
        let access = (cell, any::<u8>(), any::<bool>())
            .prop_map(|(cell, bytes, writes)| Step::Access { cell, bytes, writes });
        prop::collection::vec(prop_oneof![8 => access, 1 => Just(Step::Epoch)], 0..200)
    }

    proptest! {
        /// What is known was noted in this epoch, and what was noted last is known.
        #[test]
        fn nothing_is_known_that_was_not_noted(steps in steps()) {
            let notes = SameEpoch::new([]);
            let mut truth: BTreeMap<u64, (u8, u8)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Epoch => {
                        notes.next_epoch();
                        truth.clear();
                    }
                    Step::Access { cell, bytes, writes } => {
                        let (accessed, written) = truth.entry(cell).or_default();
                        let there = if writes { *written } else { *accessed };
                        prop_assert!(!notes.knows(cell, bytes, writes) || bytes & !there == 0);
                        notes.note(cell, bytes, writes);
                        *accessed |= bytes;
                        *written |= if writes { bytes } else { 0 };
                        prop_assert!(notes.knows(cell, bytes, writes));
                    }
                }
            }
        }
    }

    #[test]
    fn epochs_that_are_numbered_anew_know_nothing() {
        let notes = SameEpoch::new([]);
        notes.note(7, 0xff, true);
        let first = notes.epoch();
        notes.next_epoch();
        while notes.epoch() != first {
            assert!(!notes.knows(7, 1, false));
            notes.next_epoch();
        }
        assert!(!notes.knows(7, 1, false));
    }
}
