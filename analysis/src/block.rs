//! The accesses that still count of an aligned piece of memory: 64 cells.
//!
//! What is near in memory has mostly been accessed by few instructions in few epochs. So a block keeps
//! each [`Stamp`] once, and a cell has *entries*: the numbers of its stamps, each with the bytes for
//! which it counts. A cell has room for two entries (three bytes each). Where memory is read by several
//! threads, or its bytes are accessed one by one, cells have further ones, all as many, in one list of the
//! block's.
//!
//! Nobody counts the uses of a stamp. When there is no room for another one, those that no entry
//! names are dropped, and if more than half are left, there is twice as much room. So there are never
//! more than twice as many stamps as entries (or eight), and dropping costs each new stamp a
//! constant.

use crate::cell::{END_OF_BLOCK, FREE, Fault, Stamp};
use crate::clock::VectorClock;
use std::ops::Range;

/// Cells of a block.
pub(crate) const CELLS: u64 = 64;
/// Entries of a cell that have room in it: what was written, and read after that.
const NEAR: usize = 2;
/// As many further ones at first.
const FURTHER: usize = 2;
/// As many stamps as there is room for at first.
const FEW: usize = 4;
/// As many of the last stamps as are looked at, to find one again.
const RECENT: usize = 8;
/// As many stamps as an entry can tell apart. What is accessed beyond is not kept.
const MOST: usize = 1 << 16;

/// The cells of an aligned piece of memory. What most accesses look at is in one line of the processor's
/// cache, with the block's lock, and in the line of the cell.
#[repr(C)]
pub(crate) struct Block {
    /// Which bytes they count for stands in the entries.
    stamps: Vec<Stamp>,
    /// A bit for each word that synchronizes, if any does.
    words: Option<Box<u128>>,
    /// A bit for each cell that has entries in `rest`.
    full: u64,
    /// A bit for each cell that may have been accessed.
    used: u64,
    near: [[Entry; NEAR]; CELLS as usize],
    /// Further entries: so many of each cell that `full` names, ascending.
    rest: Vec<Entry>,
    further: usize,
}

/// The number of a stamp in two bytes, and the bytes of a cell that it counts for: none in an entry
/// that is free.
#[derive(Clone, Copy, Default)]
struct Entry([u8; 3]);

impl Entry {
    fn new(stamp: u16, mask: u8) -> Entry {
        let [low, high] = stamp.to_le_bytes();
        Entry([low, high, mask])
    }

    fn number(self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]])
    }

    fn stamp(self) -> usize {
        self.number().into()
    }

    fn mask(self) -> u8 {
        self.0[2]
    }

    fn set_mask(&mut self, mask: u8) {
        self.0[2] = mask;
    }
}

impl Block {
    /// Memory that nobody has accessed, in which these words synchronize.
    pub(crate) fn new(words: u128) -> Block {
        Block {
            near: [Default::default(); CELLS as usize],
            rest: Vec::new(),
            further: FURTHER,
            full: 0,
            stamps: Vec::new(),
            used: 0,
            words: (words != 0).then(|| Box::new(words)),
        }
    }

    /// Where the stamps are that are found first.
    #[inline]
    pub(crate) fn last_stamps(&self) -> usize {
        self.stamps.last().map_or(0, |last| std::ptr::from_ref(last).addr())
    }

    /// A bit for each cell that may have been accessed.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Takes an access of the cell with this number, counted from address 0, by a thread for which
    /// `clock` has happened, and shows the earlier ones that it races with, and those that freed the
    /// memory before.
    pub(crate) fn access(
        &mut self,
        number: u64,
        now: Stamp,
        clock: &VectorClock,
        found: &mut dyn FnMut(Stamp, Fault),
    ) {
        let cell = (number % CELLS) as usize;
        self.used |= 1 << cell;
        let further = self.further(cell);
        let Block { near, rest, stamps, .. } = self;
        let rest = if further.is_empty() { &mut [] } else { &mut rest[further] };
        let number = recent(stamps, now);
        let mut keep = now.mask;
        let (mut same, mut free) = (None, None);
        for entry in near[cell].iter_mut().chain(rest) {
            if entry.mask() == 0 {
                free = free.or(Some(entry));
                continue;
            }
            if entry.mask() & now.mask != 0 {
                let earlier = Stamp { mask: entry.mask(), ..stamps[entry.stamp()] };
                let own = earlier.thread == now.thread;
                let ordered = own || earlier.clock <= clock.of(earlier.thread);
                if let Some(fault) = fault(earlier, now, ordered) {
                    found(earlier, fault);
                }
                if now.replaces(earlier, ordered) {
                    entry.set_mask(earlier.mask & !now.mask);
                } else if earlier.same_epoch(now) && earlier.writes() && !earlier.is_atomic() {
                    keep &= !earlier.mask;
                }
            }
            if number == Some(entry.number()) {
                same = Some(entry);
            } else if entry.mask() == 0 {
                free = free.or(Some(entry));
            }
        }
        match (same, free) {
            _ if keep == 0 => {}
            (Some(same), _) => same.set_mask(same.mask() | keep),
            (_, Some(free)) if let Some(number) = number => *free = Entry::new(number, keep),
            _ => self.keep(cell, Stamp { mask: keep, ..now }),
        }
    }

    /// Where the entries of a cell are in `rest`.
    #[inline]
    fn further(&self, cell: usize) -> Range<usize> {
        if self.full >> cell & 1 == 0 {
            return 0..0;
        }
        let start = self.place(cell);
        start..start + self.further
    }

    /// Where they belong.
    #[inline]
    fn place(&self, cell: usize) -> usize {
        (self.full & !(u64::MAX << cell)).count_ones() as usize * self.further
    }

    /// Adds a stamp, and an entry for it.
    fn keep(&mut self, cell: usize, now: Stamp) {
        let Some(stamp) = self.number(now) else { return };
        let new = Entry::new(stamp, now.mask);
        let further = self.further(cell);
        let mut there = self.near[cell].iter_mut().chain(&mut self.rest[further]);
        if let Some(free) = there.find(|entry| entry.mask() == 0) {
            *free = new;
            return;
        }
        let added = if self.full >> cell & 1 == 0 {
            let place = self.place(cell);
            self.full |= 1 << cell;
            self.rest.splice(place..place, vec![Entry::default(); self.further]);
            place
        } else {
            let cells = self.rest.chunks(self.further);
            let added = vec![Entry::default(); self.further];
            self.rest = cells.flat_map(|entries| entries.iter().chain(&added)).copied().collect();
            self.further *= 2;
            self.place(cell) + self.further / 2
        };
        self.rest[added] = new;
    }

    /// Of the cells with these bits, `rest` has no entries any more.
    fn drop_further(&mut self, cells: u64) {
        let (full, further) = (self.full, self.further);
        let mut at = 0;
        let mut left = full;
        self.rest.retain(|_| {
            let cell = left.trailing_zeros();
            at += 1;
            if at == further {
                at = 0;
                left &= left - 1;
            }
            cells >> cell & 1 == 0
        });
        self.full &= !cells;
        if self.full == 0 {
            self.further = FURTHER;
        }
    }

    /// The number of a stamp. `None` if there are too many.
    fn number(&mut self, stamp: Stamp) -> Option<u16> {
        if let Some(there) = recent(&self.stamps, stamp) {
            return Some(there);
        }
        if self.stamps.len() == self.stamps.capacity() {
            self.drop_unused();
            if self.stamps.len() == MOST {
                return None;
            }
        }
        self.stamps.push(stamp);
        Some((self.stamps.len() - 1) as u16)
    }

    /// Makes room for stamps.
    #[cold]
    fn drop_unused(&mut self) {
        const UNUSED: u32 = u32::MAX;
        let empty = |cell: &usize| {
            self.full >> cell & 1 != 0
                && self.rest[self.further(*cell)].iter().all(|entry| entry.mask() == 0)
        };
        let empty = (0..CELLS as usize).filter(empty).fold(0, |cells, cell| cells | 1 << cell);
        self.drop_further(empty);
        let mut numbers = vec![UNUSED; self.stamps.len()];
        let mut used = Vec::with_capacity(self.stamps.capacity());
        let entries = self.near.iter_mut().flatten().chain(&mut self.rest);
        for entry in entries.filter(|entry| entry.mask() != 0) {
            let number = &mut numbers[entry.stamp()];
            if *number == UNUSED {
                *number = used.len() as u32;
                used.push(self.stamps[entry.stamp()]);
            }
            *entry = Entry::new(*number as u16, entry.mask());
        }
        if used.len() > used.capacity() / 2 || used.capacity() == 0 {
            let room = (2 * used.capacity()).clamp(FEW, MOST);
            used.reserve_exact(room - used.len());
        }
        self.stamps = used;
    }

    /// Nobody has accessed these cells, which are some of the block's.
    pub(crate) fn forget(&mut self, cells: Range<u64>) {
        let forgotten = self.used & bits(cells);
        self.used &= !forgotten;
        let mut left = forgotten;
        while left != 0 {
            self.near[left.trailing_zeros() as usize] = Default::default();
            left &= left - 1;
        }
        if self.full & forgotten != 0 {
            self.drop_further(forgotten);
        }
        if self.used == 0 {
            self.stamps.clear();
        }
    }

    /// Whether any word in it synchronizes.
    #[inline]
    pub(crate) fn synchronizes(&self) -> bool {
        self.words.is_some()
    }

    /// Those of the two words of a cell that synchronize and have bytes in `mask`: the low bit is
    /// the lower one.
    pub(crate) fn words(&self, number: u64, mask: u8) -> u8 {
        let Some(words) = self.words.as_deref() else { return 0 };
        let words = (words >> (2 * (number % CELLS))) as u8;
        let touched = u8::from(mask & 0xf != 0) | u8::from(mask & 0xf0 != 0) << 1;
        words & touched
    }
}

/// The number of a stamp, if it is one of the last.
#[inline]
fn recent(stamps: &[Stamp], stamp: Stamp) -> Option<u16> {
    let first = stamps.len().saturating_sub(RECENT);
    let there = stamps[first..].iter().rposition(|it| it.is_like(stamp))?;
    Some((first + there) as u16)
}

/// What is wrong with an access and an earlier one of the same byte.
#[inline]
fn fault(earlier: Stamp, now: Stamp, ordered: bool) -> Option<Fault> {
    let is_freed = earlier.kind & END_OF_BLOCK == END_OF_BLOCK && now.kind & FREE == 0;
    match ordered {
        false => earlier.conflicts_with(now).then_some(Fault::Race),
        true => is_freed.then_some(Fault::AfterEnd),
    }
}

/// Where in a block the entries of a cell begin.
#[inline]
pub(crate) fn offset_of_cell(number: u64) -> usize {
    let cell = (number % CELLS) as usize;
    std::mem::offset_of!(Block, near) + cell * size_of::<[Entry; NEAR]>()
}

/// A bit for each of some cells of one block.
pub(crate) fn bits(cells: Range<u64>) -> u64 {
    match cells.end - cells.start {
        0 => 0,
        count => (u64::MAX >> (CELLS - count)) << (cells.start % CELLS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{READ, WRITE};

    /// The stamps that an access after everything, by a thread that nothing is ordered before, races with.
    fn kept(block: &mut Block, cell: u64) -> Vec<Stamp> {
        let all = Stamp { clock: 1, thread: 9, mask: 0xff, kind: WRITE, pc: 9, event: 0 };
        let mut kept = Vec::new();
        block.access(cell, all, &VectorClock::default(), &mut |earlier, _| kept.push(earlier));
        kept.sort_unstable_by_key(|it| (it.mask, it.thread));
        kept
    }

    #[test]
    fn each_byte_of_a_block_keeps_its_own_readers() {
        let mut block = Block::new(0);
        let stamp = |cell: u64, byte: u32, thread| {
            let (clock, pc) = (cell as u32 + 1, byte);
            Stamp { clock, thread, mask: 1 << byte, kind: READ, pc, event: clock }
        };
        for (thread, byte) in (1..4).flat_map(|thread| (0..8).map(move |byte| (thread, byte))) {
            for cell in 0..CELLS {
                block.access(
                    cell,
                    stamp(cell, byte, thread),
                    &VectorClock::default(),
                    &mut |_, _| panic!("reads do not race"),
                );
            }
        }
        for cell in 0..CELLS {
            let all = (0..8).flat_map(|byte| (1..4).map(move |thread| stamp(cell, byte, thread)));
            assert_eq!(kept(&mut block, cell), all.collect::<Vec<_>>());
        }
    }

    #[test]
    fn stamps_that_count_no_more_leave_room() {
        let mut block = Block::new(0);
        for clock in 1..100_000 {
            for cell in 0..3 {
                let now = Stamp { clock, thread: 1, mask: 0xff, kind: WRITE, pc: clock, event: 0 };
                block.access(cell, now, &VectorClock::default(), &mut |_, _| panic!("one thread"));
            }
        }
        assert!(block.stamps.capacity() <= 8, "{}", block.stamps.capacity());
        assert_eq!(kept(&mut block, 2).len(), 1);
    }
}
