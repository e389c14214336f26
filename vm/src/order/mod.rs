//! The order of shared memory.
//!
//! # The rule
//! An access is *watched* if and only if its instruction is in the set of watched sites, which is
//! fixed before the instruction is first executed. A watched store, or a locked instruction,
//! takes the next version of its word: the ticket of the word's slot. A watched load records its
//! *linkage*: how many versions it may have read at most, and the value. Where the load reads at
//! the version that its thread met there last, and the value that the thread met there, the trace
//! has only a count: the replay knows both.
//!
//! A load that checks whether what was loaded before it is whole ([`crate::OrderedKind::Check`]) takes a
//! ticket, too, so that stores that follow wait for it.
//!
//! A replay performs the stores of a slot in the order of their tickets; a load waits until the
//! versions that it may have read are there, and takes its value from the trace or from what the
//! thread met last. As long as one thread alone accesses a word, it owns the word, and its stores
//! there are only counted, too ([`owners`]). It follows that a replay is exact if every data race of
//! the run is between watched sites: every watched load has its recorded value, and everything that
//! happened before the store that it read has happened before it. A race of other accesses may show
//! another value; the next recorded event then differs, and the replay names the pair.
//!
//! Who is watched is decided once for both sides: the engine that records finds the idioms in the
//! code (`jit::copy`'s `idioms`) and adds the sites that were learned from earlier replays
//! ([`crate::RecordOptions::learned`]); the trace holds the set; the replaying engine takes it from
//! there. As long as a program has one thread, nothing is watched: there is nobody to race with.
//!
//! With [`refrain_trace::Order::Stride`], every access is ordered instead, by lines: see [`lines`].
//!
//! The page `docs/memory-order.md` has the proofs.
//!
//! # Source
//! Zhou, Xiao, Zhang: "Stride: search-based deterministic replay in polynomial time via bounded
//! linkage" (ICSE 2012), III and V. Deviations:
//! 1. The paper records the value of each write and the bound of each read. Here a write computes
//!    its value again, and a read records value and bound together.
//! 2. The paper omits what a read shares with the read before of the same thread by run lengths;
//!    here a table per thread keeps what the thread met last, for more than one word.
//! 3. Words are grouped by slots ([`refrain_trace::order::slot`]), and only the slot has versions: a
//!    store to another word of the slot may cost an event, and the replay stays exact.

mod aliases;
pub(crate) mod alone;
mod filter;
pub(crate) mod in_progress;
pub(crate) mod lines;
pub(crate) mod owners;
pub(crate) mod record;
mod record_alone;
mod record_stride;
pub(crate) mod replay;
mod replay_stride;
mod runs;

pub use filter::{ENTRIES, Filter, INDEX_MASK, Span, Table as LineTable, index as line_index};
pub use owners::OwnWords;

use crate::barrier::Barrier;
use crate::{Feature, Processor, Zeroed};
use std::sync::atomic::AtomicU64;

/// Whether this machine can record with [`refrain_trace::Order::Stride`]: translated code needs an
/// instruction of BMI2, and the recorder `membarrier`.
#[must_use]
pub fn can_order_every_access() -> bool {
    Processor::host().has(Feature::Bmi2) && Barrier::new().is_asymmetric()
}

/// What a thread met last at words of its watched accesses. Translated code reads and counts here,
/// so the layout is fixed. Only the thread itself uses it while it runs guest code.
#[repr(C, align(64))]
pub struct LastMet {
    /// In a recording: how many watched accesses needed no event so far. In a replay: how many of
    /// them come before the next event, but for what the machine keeps back.
    pub unrecorded: AtomicU64,
    /// In a recording: where a load that loops poll has looked last, with nothing new. A second look
    /// at the same word is the machine's affair: the thread waits.
    pub polled: AtomicU64,
    /// Not 0 if the thread is alone (`alone`): watched loads of words that it has met since are counted,
    /// whatever they read.
    pub alone: AtomicU64,
    /// In a recording: not 0 while the thread executes and counts such a load.
    pub window: AtomicU64,
    /// In a recording: where the owners of words stand ([`OwnWords`]), if translated code may execute the
    /// thread's stores to its own words by itself; else 0.
    pub owners: AtomicU64,
    /// In a recording: what stands there of the thread's own words.
    pub own: AtomicU64,
    /// In a recording: where the thread keeps what it met at the word that such a store is writing to; or 0.
    pub storing: AtomicU64,
    _pad: [u64; 1],
    entries: [Met; LastMet::ENTRIES + LastMet::SIZES - 1],
}

/// What a thread met at a word.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    /// Address and size ([`Met::tag`]); 0 if there is nothing.
    pub tag: u64,
    /// Address of the counter of the word's slot. (Recording.)
    pub counter: u64,
    /// What the counter stood at; in a replay, what was in memory.
    pub version: u64,
    /// The value, in the low bytes.
    pub value: u64,
}

impl Met {
    /// The tag of an operand of 1, 2, 4 or 8 bytes.
    pub const fn tag(address: u64, size: u8) -> u64 {
        address ^ (size as u64) << Met::SIZE_SHIFT
    }

    const SIZE_SHIFT: u32 = 56;
    /// The bits of a guest's address.
    const ADDRESS: u64 = (1 << Met::SIZE_SHIFT) - 1;
}

impl LastMet {
    /// Number of words that a thread remembers: 1 MiB, of which only what is used takes memory.
    pub const ENTRIES: usize = 1 << 15;
    /// The place of a word is `address * FACTOR >> SHIFT`, modulo the number of entries.
    pub const FACTOR: u32 = 0x1e37_79b1;
    /// See [`Self::FACTOR`].
    pub const SHIFT: u32 = 20;
    /// Sizes of operands that are remembered.
    const SIZES: usize = 4;

    /// Offset of the entry of the first place for operands of this size. Operands of other sizes at one
    /// address have their entries side by side: flags are looked at as a byte here and as a word there.
    pub const fn first(size: u8) -> usize {
        std::mem::offset_of!(LastMet, entries) + Self::nth(size) * size_of::<Met>()
    }

    /// Which of the entries side by side is for operands of this size.
    const fn nth(size: u8) -> usize {
        Self::SIZES - 1 - size.trailing_zeros() as usize % Self::SIZES
    }

    /// Nothing met so far.
    pub fn new() -> Zeroed<LastMet> {
        // SAFETY: all of its fields are integers.
        unsafe { Zeroed::new() }
    }

    /// If a store to an own word has left translated code before it was over: the word's address and size, and
    /// the ticket of the slot that the thread still holds.
    pub(crate) fn left_storing(&mut self) -> Option<((u64, u8), u64)> {
        let at = std::mem::take(self.storing.get_mut());
        let first = self.entries.as_ptr().addr() as u64;
        let entry = at.checked_sub(first)? as usize / size_of::<Met>();
        let Met { tag, version, .. } = *self.entries.get(entry)?;
        Some(((tag & Met::ADDRESS, (tag >> Met::SIZE_SHIFT) as u8), version))
    }

    /// The thread has met nothing: its next load of each word has an event.
    pub(crate) fn forget(&mut self) {
        self.entries.iter_mut().filter(|met| met.tag != 0).for_each(|met| met.tag = 0);
    }

    fn place(address: u64, size: u8) -> usize {
        let product = address.wrapping_mul(u64::from(Self::FACTOR));
        Self::nth(size) + (product >> Self::SHIFT) as usize % Self::ENTRIES
    }

    /// What the thread met at an operand.
    pub fn at(&self, address: u64, size: u8) -> Option<&Met> {
        let met = &self.entries[Self::place(address, size)];
        (met.tag == Met::tag(address, size)).then_some(met)
    }

    /// The thread meets a value. The counter of the word's slot, at that address, stood at `version`
    /// after that.
    pub fn meet(&mut self, (address, size): (u64, u8), value: u64, counter: u64, version: u64) {
        if matches!(size, 1 | 2 | 4 | 8) {
            let tag = Met::tag(address, size);
            self.entries[Self::place(address, size)] = Met { tag, counter, version, value };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LastMet, Met};

    #[test]
    fn a_word_is_met_by_address_and_size() {
        let mut met = LastMet::new();
        assert!(met.at(0, 0).is_some(), "nothing has the tag 0, which no operand has");
        assert!(met.at(0x1000, 4).is_none());
        met.meet((0x1000, 4), 7, 0, 3);
        assert_eq!(met.at(0x1000, 4).map(|met| (met.version, met.value)), Some((3, 7)));
        assert!(met.at(0x1000, 8).is_none() && met.at(0x1004, 4).is_none());
        met.meet((0x1000, 8), 9, 0, 4);
        met.meet((0x1000, 1), 8, 0, 4);
        let values = [1, 4, 8].map(|size| met.at(0x1000, size).map(|met| met.value));
        assert_eq!(values, [Some(8), Some(7), Some(9)], "each size has its entry");
        let other = (1..)
            .map(|n| 0x1000 + 8 * n)
            .find(|&it| LastMet::place(it, 4) == LastMet::place(0x1000, 4));
        met.meet((other.expect("there are more words than places"), 4), 1, 0, 4);
        assert!(met.at(0x1000, 4).is_none(), "one place, one operand");
    }

    #[test]
    fn a_store_that_was_not_over_is_told_once() {
        let mut met = LastMet::new();
        met.meet((0x1000, 2), 7, 0, 3);
        assert_eq!(met.left_storing(), None);
        let at = &raw const met.entries[LastMet::place(0x1000, 2)];
        met.storing.store(at as u64, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(met.left_storing(), Some(((0x1000, 2), 3)));
        assert_eq!(met.left_storing(), None);
    }

    #[test]
    fn operands_of_sixteen_bytes_are_not_remembered() {
        let mut met = LastMet::new();
        met.meet((0x1000, 16), 7, 0, 3);
        assert_ne!(met.entries[LastMet::place(0x1000, 16)].tag, Met::tag(0x1000, 16));
    }
}
