//! Where translations lie, by guest address and variant.
//!
//! A block is looked up several times while it and its neighbours are translated, and the tables of a
//! program that executes much code are in no cache. So a page of guest code has a table of its own, in
//! the order of its addresses: nothing is searched, blocks that are near each other share cache lines,
//! and nothing is moved when there are more.

use super::desc::Variant;
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_vm::layout::{CODE_CACHE, PAGE};
use std::cell::Cell;

/// There is seldom more than one block to so many bytes.
const BYTES: u64 = 8;
/// Entries of a page.
const ENTRIES: usize = (PAGE / BYTES) as usize;
/// Bits of a number in an entry; above them is which of the bytes it belongs to.
const BITS: u32 = u32::BITS - BYTES.trailing_zeros();
/// Numbers are below.
const END: u32 = (1 << BITS) - 2;
// An entry has room for all places of translated code.
const _: () = assert!(CODE_CACHE.end - CODE_CACHE.start <= END as u64);

/// A map from guest addresses to numbers below [`END`].
struct Table {
    /// Where the entries of a page begin.
    starts: FixedMap<u64, usize>,
    /// The page that was asked for last, and where its entries begin.
    last: Cell<Option<(u64, usize)>>,
    /// Of each page, one behind the other.
    entries: Vec<Entry>,
    /// What found another address in its entry.
    others: FixedMap<u64, u32>,
}

/// What a [`Table`] has for some bytes: nothing (0), or one of them and its number plus 1.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u32);

impl Entry {
    const NOTHING: Entry = Entry(0);
    /// The address that was here is gone; another one of the same entry may still be in `others`.
    const REMOVED: Entry = Entry(u32::MAX);

    fn new(pc: u64, number: u32) -> Entry {
        assert!(number < END, "a number is a place in the code cache, or that of a block");
        Entry(((pc % BYTES) as u32) << BITS | (number + 1))
    }

    fn is_of(self, pc: u64) -> bool {
        self != Entry::NOTHING && self != Entry::REMOVED && u64::from(self.0 >> BITS) == pc % BYTES
    }

    fn number(self) -> u32 {
        (self.0 & ((1 << BITS) - 1)) - 1
    }
}

impl Default for Table {
    fn default() -> Table {
        Table {
            starts: FixedMap::default(),
            last: Cell::new(None),
            entries: Vec::new(),
            others: FixedMap::default(),
        }
    }
}

impl Table {
    /// With room for so many pages, so that few are moved.
    fn with_room(pages: usize) -> Table {
        Table { entries: Vec::with_capacity(pages * ENTRIES), ..Table::default() }
    }

    /// Where the entry of an address is, if its page has any.
    #[inline]
    fn at(&self, pc: u64) -> Option<usize> {
        let (page, inside) = (pc / PAGE, (pc % PAGE / BYTES) as usize);
        if let Some((_, start)) = self.last.get().filter(|&(last, _)| last == page) {
            return Some(start + inside);
        }
        let start = *self.starts.get(&page)?;
        self.last.set(Some((page, start)));
        Some(start + inside)
    }

    #[inline]
    fn get(&self, pc: u64) -> Option<u32> {
        let entry = self.entries[self.at(pc)?];
        if entry.is_of(pc) {
            Some(entry.number())
        } else if entry == Entry::NOTHING {
            None
        } else {
            self.others.get(&pc).copied()
        }
    }

    fn insert(&mut self, pc: u64, number: u32) {
        let at = self.at(pc).unwrap_or_else(|| {
            let start = self.entries.len();
            self.entries.resize(start + ENTRIES, Entry::NOTHING);
            self.starts.insert(pc / PAGE, start);
            start + (pc % PAGE / BYTES) as usize
        });
        let entry = &mut self.entries[at];
        if *entry == Entry::NOTHING || entry.is_of(pc) {
            *entry = Entry::new(pc, number);
        } else {
            self.others.insert(pc, number);
        }
    }

    fn remove(&mut self, pc: u64) -> Option<u32> {
        let at = self.at(pc)?;
        let entry = &mut self.entries[at];
        if entry.is_of(pc) {
            return Some(std::mem::replace(entry, Entry::REMOVED).number());
        }
        self.others.remove(&pc)
    }

    fn clear(&mut self) {
        self.starts.clear();
        self.last.set(None);
        self.entries.clear();
        self.others.clear();
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Places([Table; Variant::COUNT as usize]);

impl Places {
    /// With room for so many pages of observed code.
    pub(super) fn with_room(pages: usize) -> Places {
        let mut all = Places::default();
        all.0[Variant::Observed as usize] = Table::with_room(pages);
        all
    }

    pub(super) fn get(&self, pc: u64, variant: Variant) -> Option<u64> {
        self.0[variant as usize].get(pc).map(|number| CODE_CACHE.start + u64::from(number))
    }

    pub(super) fn contains(&self, pc: u64, variant: Variant) -> bool {
        self.get(pc, variant).is_some()
    }

    /// All places are in the code cache.
    pub(super) fn insert(&mut self, pc: u64, variant: Variant, place: u64) {
        assert!(CODE_CACHE.contains(&place), "translated code lies in the code cache");
        self.0[variant as usize].insert(pc, (place - CODE_CACHE.start) as u32);
    }

    pub(super) fn remove(&mut self, pc: u64, variant: Variant) -> Option<u64> {
        self.0[variant as usize].remove(pc).map(|number| CODE_CACHE.start + u64::from(number))
    }

    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(Table::clear);
    }
}

/// Blocks that were kept before: the digests of their code.
#[derive(Default)]
pub(super) struct KeptBefore {
    /// The number of the first one at an address; nearly all have no other.
    first: Table,
    /// By number.
    digests: Vec<u64>,
    others: FixedSet<(u64, u64)>,
}

impl KeptBefore {
    /// With room for so many pages.
    pub(super) fn with_room(pages: usize) -> KeptBefore {
        KeptBefore { first: Table::with_room(pages), ..KeptBefore::default() }
    }

    /// Adds a block; whether it is new.
    pub(super) fn insert(&mut self, pc: u64, digest: u64) -> bool {
        if let Some(first) = self.first.get(pc) {
            return self.digests[first as usize] != digest && self.others.insert((pc, digest));
        }
        if self.digests.len() as u64 == u64::from(END) {
            // No code memory holds so many at a time, but in time there may be more.
            return self.others.insert((pc, digest));
        }
        self.first.insert(pc, self.digests.len() as u32);
        self.digests.push(digest);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again() {
        const HIGH: u64 = 1 << 40;
        const PLACE: u64 = CODE_CACHE.start;
        let mut places = Places::with_room(4);
        // Of eight bytes one or two.
        let all = || (0..5000).map(|n| n * 5).flat_map(|pc| [pc, HIGH + pc]);
        for pc in all() {
            places.insert(pc, Variant::Observed, PLACE + pc % HIGH);
            places.insert(pc, Variant::Opaque, CODE_CACHE.end - 1 - pc % HIGH);
        }
        for pc in all() {
            assert_eq!(places.get(pc, Variant::Observed), Some(PLACE + pc % HIGH));
            assert_eq!(places.get(pc, Variant::Opaque), Some(CODE_CACHE.end - 1 - pc % HIGH));
            assert!(!places.contains(pc + 1, Variant::Observed));
            assert!(!places.contains(pc, Variant::Resumed));
        }
        // What is removed leaves the others of its bytes alone, and may come again.
        for pc in all().step_by(3) {
            assert_eq!(places.remove(pc, Variant::Observed), Some(PLACE + pc % HIGH));
            assert_eq!(places.remove(pc, Variant::Observed), None);
        }
        for (n, pc) in all().enumerate() {
            let place = (n % 3 != 0).then_some(PLACE + pc % HIGH);
            assert_eq!(places.get(pc, Variant::Observed), place);
            places.insert(pc, Variant::Observed, PLACE + 7);
            assert_eq!(places.get(pc, Variant::Observed), Some(PLACE + 7));
        }
        places.clear();
        assert!(all().all(|pc| !places.contains(pc, Variant::Opaque)));
    }

    #[test]
    fn versions_of_a_block_are_new_once() {
        let mut kept = KeptBefore::with_room(1);
        let new = [(1, 10), (1, 10), (1, 11), (2, 10), (1, 11), (1, 10), (1, 12)];
        let new = new.map(|(pc, digest)| kept.insert(pc, digest));
        assert_eq!(new, [true, false, true, true, false, false, true]);
    }
}
