//! What one thread has accessed in its present epoch: notes that keep repetitions out of the log.
//!
//! A race detector has no use for an access to bytes that the thread has accessed in the same way
//! since its last synchronization (FastTrack, the rules of the same epoch), and nearly all accesses
//! are such. Translated code looks here before it logs an access, and notes here what it logs. The
//! detector says when an epoch begins.
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
//! cells have such words is known beforehand ([`SameEpoch::new`]); they are never noted, so that
//! each access to one is logged. A detector that drops what was logged begins an epoch, too.

use refrain_trace::Access;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a granule.
pub const GRANULE: u64 = 512;
/// Bytes that share a byte of notes.
pub const CELL: u64 = 8;
/// Granules that are noted at a time: 64 MiB.
pub const GRANULES: u64 = 1 << 17;
/// Cells that are noted at a time.
pub const CELLS: u64 = GRANULES * CELLS_PER_GRANULE;
/// Larger accesses are not noted.
pub const LARGEST: u64 = 32;
/// The lowest bit of an epoch's number in a tag, above all addresses.
pub const EPOCH_SHIFT: u32 = 48;
/// An epoch of which there are no notes.
pub const NEVER: u64 = 0;

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
    synchronizing: [AtomicU8; CELLS as usize + OVERLAP],
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
            let at = (word / CELL % CELLS) as usize;
            for at in [Some(at), (at < OVERLAP).then_some(CELLS as usize + at)] {
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

    /// Nothing of this memory has been accessed.
    pub fn forget(&self, range: Range<u64>) {
        /// In more granules, a new number is cheaper.
        const MANY: u64 = 1 << 12;
        let granules = range.start / GRANULE..range.end.div_ceil(GRANULE);
        if granules.end.saturating_sub(granules.start) > MANY {
            return self.next_epoch();
        }
        for granule in granules {
            let address = granule * GRANULE;
            if self.tag(address).load(Ordering::Relaxed) == self.tag_now(address) {
                self.tag(address).store(NEVER << EPOCH_SHIFT, Ordering::Relaxed);
            }
        }
    }

    /// Whether an access is to bytes that have been accessed (if it writes: written) in this epoch.
    pub fn knows(&self, access: &Access) -> bool {
        let notes = if writes(access) { &self.written } else { &self.accessed };
        let is_noted = |(cell, bytes): (u64, u8)| {
            bytes & !notes[(cell % CELLS) as usize].load(Ordering::Relaxed) == 0
        };
        is_in_a_granule(access)
            && self.tag(access.address).load(Ordering::Relaxed) == self.tag_now(access.address)
            && parts(access).all(is_noted)
    }

    /// Notes an access, as translated code does where it logs one. `None` if it may begin an epoch.
    pub fn note(&self, access: &Access) -> Option<()> {
        let synchronizes = |(cell, _): (u64, u8)| {
            self.synchronizing[(cell % CELLS) as usize].load(Ordering::Relaxed) != 0
        };
        let is_small = (1..=LARGEST).contains(&access.size.into());
        if !is_small || parts(access).any(synchronizes) {
            return (!writes(access)).then_some(());
        }
        if is_in_a_granule(access) {
            if self.tag(access.address).load(Ordering::Relaxed) != self.tag_now(access.address) {
                self.begin(access.address);
            }
            for (cell, bytes) in parts(access) {
                let cell = (cell % CELLS) as usize;
                self.accessed[cell].fetch_or(bytes, Ordering::Relaxed);
                let written = if writes(access) { bytes } else { 0 };
                self.written[cell].fetch_or(written, Ordering::Relaxed);
            }
        }
        Some(())
    }

    /// Begins to note the granule of an address.
    fn begin(&self, address: u64) {
        let first = (address / GRANULE * CELLS_PER_GRANULE % CELLS) as usize;
        let cells = first..first + CELLS_PER_GRANULE as usize;
        for note in self.accessed[cells.clone()].iter().chain(&self.written[cells]) {
            note.store(0, Ordering::Relaxed);
        }
        self.tag(address).store(self.tag_now(address), Ordering::Relaxed);
    }

    fn tag(&self, address: u64) -> &AtomicU64 {
        &self.tags[(address / GRANULE % GRANULES) as usize]
    }

    fn tag_now(&self, address: u64) -> u64 {
        (address & !(GRANULE - 1)) | self.epoch()
    }
}

fn writes(access: &Access) -> bool {
    access.kind & Access::WRITE != 0
}

fn is_in_a_granule(access: &Access) -> bool {
    let last = access.address + u64::from(access.size).saturating_sub(1);
    (1..=LARGEST).contains(&access.size.into()) && access.address / GRANULE == last / GRANULE
}

/// The cells of an access, counted from address 0, each with a bit for each of its bytes that are
/// accessed.
fn parts(access: &Access) -> impl Iterator<Item = (u64, u8)> {
    let (address, end) = (access.address, access.address + u64::from(access.size));
    (address / CELL..end.div_ceil(CELL)).map(move |cell| {
        let from = address.max(cell * CELL) % CELL;
        let to = end.min((cell + 1) * CELL) - cell * CELL;
        (cell, (u8::MAX >> (CELL - (to - from))) << from)
    })
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

impl EpochWords {
    /// Whether the notes tell which accesses are new.
    pub fn tell(&self) -> bool {
        self.notes != 0 && self.epoch != NEVER << EPOCH_SHIFT
    }

    /// What is noted does not count any more, until the log has been taken.
    pub fn end(&mut self) {
        self.epoch = NEVER << EPOCH_SHIFT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Access(Access),
        Forget(Range<u64>),
        Epoch,
    }

    fn access(address: u64, size: u16, writes: bool) -> Access {
        let kind = if writes { Access::WRITE } else { Access::READ };
        Access { address, size, kind, ..Access::default() }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Bytes that share a granule, a table's entry, or neither.
        let address = (0..3u64, 0..3u64, 0..40u64)
            .prop_map(|(far, granule, byte)| far * GRANULES * GRANULE + granule * GRANULE + byte);
        let access = (address.clone(), 0..40u16, any::<bool>())
            .prop_map(|(address, size, writes)| Step::Access(access(address, size, writes)));
        let forget = (address, prop_oneof![Just(0), Just(8), Just(GRANULE), Just(GRANULE << 13)])
            .prop_map(|(start, len)| Step::Forget(start..start + len));
        let step = prop_oneof![16 => access, 1 => forget, 1 => Just(Step::Epoch)];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// What is known was noted in this epoch, and what was noted last is known.
        #[test]
        fn nothing_is_known_that_was_not_noted(steps in steps()) {
            let notes = SameEpoch::new([]);
            let mut truth: BTreeSet<(u64, bool)> = BTreeSet::new();
            for step in steps {
                let access = match step {
                    Step::Access(access) => access,
                    Step::Forget(range) => {
                        notes.forget(range.clone());
                        truth.retain(|(byte, _)| !range.contains(byte));
                        continue;
                    }
                    Step::Epoch => {
                        notes.next_epoch();
                        truth.clear();
                        continue;
                    }
                };
                let bytes = access.address..access.address + u64::from(access.size);
                let writes = writes(&access);
                let is_true = bytes.clone().all(|byte| truth.contains(&(byte, writes)));
                prop_assert!(!notes.knows(&access) || is_true);
                let is_large = access.size == 0 || u64::from(access.size) > LARGEST;
                prop_assert_eq!(notes.note(&access).is_none(), writes && is_large);
                prop_assert_eq!(notes.knows(&access), !is_large && is_in_a_granule(&access));
                truth.extend(bytes.flat_map(|byte| [(byte, false), (byte, writes)]));
            }
        }
    }

    #[test]
    fn words_that_synchronize_are_not_noted() {
        let notes = SameEpoch::new([GRANULE + 8]);
        for (size, is_noted) in [(8, true), (9, false), (32, false)] {
            assert_eq!(notes.note(&access(GRANULE, size, false)), Some(()));
            assert_eq!(notes.knows(&access(GRANULE, size, false)), is_noted);
            assert_eq!(notes.note(&access(GRANULE, size, true)).is_some(), is_noted);
        }
    }

    #[test]
    fn epochs_that_are_numbered_anew_know_nothing() {
        let notes = SameEpoch::new([]);
        let (write, read) = (access(56, 8, true), access(56, 1, false));
        assert_eq!(notes.note(&write), Some(()));
        let first = notes.epoch();
        notes.next_epoch();
        while notes.epoch() != first {
            assert!(!notes.knows(&read));
            notes.next_epoch();
        }
        assert!(!notes.knows(&read));
    }
}
