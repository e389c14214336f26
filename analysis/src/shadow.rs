//! Which cell belongs to which address: blocks of cells, found through a directory.
//!
//! A block has a lock of its own, so threads that work on different memory do not meet. Each
//! thread keeps the regions that it used last at hand ([`Blocks`]): finding a block again is a compare.

use crate::block::{self, Block, CELLS};
use crate::prefetch::prefetch;
use refrain_trace::fixed::FixedMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a cell.
pub(crate) const CELL: u64 = 8;
/// Bytes of the words that synchronize: an address stands for the word that it lies in.
const WORD: u64 = 4;
/// Bytes of a block.
pub(crate) const BLOCK: u64 = CELL * CELLS;
const SHARDS: usize = 64;
/// Regions that a thread has at hand: 16 MiB of memory.
const WAYS: usize = 1024;

/// Bytes of a line of the processor's caches.
const LINE: usize = 64;

/// Blocks of a region, which are found together.
const REGION: u64 = 32;

type Region = [OnceLock<Box<Slot>>; REGION as usize];
type Shard = Mutex<FixedMap<u64, Arc<Region>>>;

/// A block, and what may be looked at without its lock.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Where the block's last stamps were ([`Slot::remember`]).
    stamps: AtomicUsize,
    block: Mutex<Block>,
}

impl Slot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Block> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to fetch besides the block when it is needed next.
    #[inline]
    pub(crate) fn remember(&self, block: &Block) {
        self.stamps.store(block.last_stamps(), Ordering::Relaxed);
    }
}

/// The blocks of all touched memory.
pub(crate) struct Shadow {
    /// By region.
    shards: Vec<Shard>,
    /// By block: the words that synchronize.
    words: FixedMap<u64, u128>,
}

/// The word that an address lies in, as an address.
pub(crate) fn word_of(address: u64) -> u64 {
    address & !(WORD - 1)
}

impl Shadow {
    /// Of memory in which these words synchronize.
    pub(crate) fn new(addresses: impl IntoIterator<Item = u64>) -> Shadow {
        let mut words = FixedMap::default();
        for address in addresses {
            *words.entry(address / BLOCK).or_insert(0) |= 1u128 << (address % BLOCK / WORD);
        }
        Shadow { shards: (0..SHARDS).map(|_| Shard::default()).collect(), words }
    }

    /// The memory in this range is new, up to the end of its last cell: nobody has touched it.
    pub(crate) fn forget(&self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let cells = range.start / CELL..range.end.div_ceil(CELL);
        self.visit(&range, |number, block| {
            let first = number * CELLS;
            let mut block = block.lock();
            block.forget(cells.start.max(first)..cells.end.min(first + CELLS));
        });
    }

    /// The parts of a range that somebody may have touched: pieces, ascending.
    pub(crate) fn touched(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        self.visit(range, |number, block| {
            let mut left = block.lock().used();
            while left != 0 {
                let first = left.trailing_zeros();
                let count = (left >> first).trailing_ones();
                let start = number * BLOCK + u64::from(first) * CELL;
                let end = start + u64::from(count) * CELL;
                pieces.push(start.max(range.start)..end.min(range.end));
                left &= !block::bits(first.into()..u64::from(first + count));
            }
        });
        pieces.retain(|piece| !piece.is_empty());
        pieces.sort_unstable_by_key(|piece| piece.start);
        pieces
    }

    /// Shows the blocks of a range that are there, with their numbers.
    fn visit(&self, range: &Range<u64>, mut show: impl FnMut(u64, &Slot)) {
        if range.is_empty() {
            return;
        }
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let regions = blocks.start / REGION..blocks.end.div_ceil(REGION);
        let mut of_region = |number: u64, region: &Region| {
            let first = number * REGION;
            for at in blocks.start.max(first)..blocks.end.min(first + REGION) {
                if let Some(block) = region[(at % REGION) as usize].get() {
                    show(at, block);
                }
            }
        };
        // Looked up one by one if they are few.
        if regions.end - regions.start <= self.regions() {
            for number in regions {
                let region = self.shard(number).get(&number).cloned();
                if let Some(region) = region {
                    of_region(number, &region);
                }
            }
            return;
        }
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let there = shard.iter().filter(|(number, _)| regions.contains(number));
            there.for_each(|(number, region)| of_region(*number, region));
        }
    }

    /// About so many regions have been touched, and looked up one by one as fast as all are looked through.
    fn regions(&self) -> u64 {
        let one = self.shards[0].lock().unwrap_or_else(PoisonError::into_inner);
        (one.len() as u64 + 1) * SHARDS as u64
    }

    fn shard(&self, region: u64) -> MutexGuard<'_, FixedMap<u64, Arc<Region>>> {
        self.shards[shard_of(region)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn region(&self, region: u64) -> Arc<Region> {
        let fresh = || Arc::new(std::array::from_fn(|_| OnceLock::new()));
        self.shard(region).entry(region).or_insert_with(fresh).clone()
    }

    /// A block that nobody has accessed.
    #[cold]
    fn fresh(&self, number: u64) -> Box<Slot> {
        let words = self.words.get(&number).copied().unwrap_or(0);
        Box::new(Slot { stamps: AtomicUsize::new(0), block: Mutex::new(Block::new(words)) })
    }
}

fn shard_of(region: u64) -> usize {
    (region ^ region >> 6) as usize % SHARDS
}

/// Where one thread's last accesses were.
pub(crate) struct Blocks {
    ways: Vec<Option<(u64, Arc<Region>)>>,
}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks { ways: vec![None; WAYS] }
    }

    /// The block of the cell with this number.
    #[inline]
    pub(crate) fn of(&mut self, cell: u64, shadow: &Shadow) -> &Slot {
        let number = cell / CELLS;
        let region = number / REGION;
        let way = &mut self.ways[way_of(region)];
        if way.as_ref().is_none_or(|(there, _)| *there != region) {
            *way = None;
        }
        let (_, blocks) = way.get_or_insert_with(|| (region, shadow.region(region)));
        blocks[(number % REGION) as usize].get_or_init(|| shadow.fresh(number))
    }

    /// The block of a cell, if it is at hand.
    #[inline]
    pub(crate) fn at_hand(&self, cell: u64) -> Option<&Slot> {
        let number = cell / CELLS;
        let (region, blocks) = self.ways[way_of(number / REGION)].as_ref()?;
        let slot = blocks[(number % REGION) as usize].get()?;
        (*region == number / REGION).then_some(slot)
    }

    /// Has the processor fetch what leads to the block of a cell.
    #[inline]
    pub(crate) fn prefetch_slot(&self, cell: u64) {
        let number = cell / CELLS;
        if let Some((_, blocks)) = &self.ways[way_of(number / REGION)] {
            prefetch(std::ptr::from_ref(&blocks[(number % REGION) as usize]).addr());
        }
    }

    /// Has the processor fetch the lines that hold a block's lock and the entries of a cell.
    #[inline]
    pub(crate) fn prefetch(&self, cell: u64) {
        if let Some(slot) = self.at_hand(cell) {
            let address = std::ptr::from_ref(slot).addr();
            prefetch(address);
            const BLOCK: usize =
                std::mem::offset_of!(Slot, block) + size_of::<Mutex<Block>>() - size_of::<Block>();
            prefetch(address + BLOCK + block::offset_of_cell(cell));
        }
    }

    /// Has the processor fetch the block's last stamps. [`Self::prefetch`] should have fetched where they are.
    #[inline]
    pub(crate) fn prefetch_stamps(&self, cell: u64) {
        if let Some(slot) = self.at_hand(cell) {
            let last = slot.stamps.load(Ordering::Relaxed);
            prefetch(last);
            prefetch(last.wrapping_sub(LINE));
        }
    }
}

fn way_of(region: u64) -> usize {
    // Upper bits take part, so that memory at round distances does not evict each other.
    region.wrapping_add((region >> 10) * 67) as usize % WAYS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Stamp, WRITE};
    use crate::clock::VectorClock;

    /// Which of these cells have been accessed by somebody.
    fn used(shadow: &Shadow, cells: Range<u64>) -> Vec<u64> {
        let mut used = Vec::new();
        shadow.visit(&(cells.start * CELL..cells.end * CELL), |number, block| {
            let block = block.lock();
            let of_it = (0..CELLS).filter(|at| block.used() >> at & 1 != 0);
            used.extend(of_it.map(|at| number * CELLS + at).filter(|cell| cells.contains(cell)));
        });
        used.sort_unstable();
        used
    }

    #[test]
    fn what_is_forgotten_is_as_new() {
        const ALL: Range<u64> = 0..1 << 40;
        let shadow = Shadow::new([]);
        let mut blocks = Blocks::new();
        let access = |cell: u64| {
            let now = Stamp { clock: 1, mask: 1, kind: WRITE, ..Stamp::default() };
            let (block, clock) = (blocks.of(cell, &shadow), VectorClock::default());
            block.lock().access(cell, now, &clock, &mut |_, _| ());
        };
        let cells = [3, 63, 64, 127, 128, 5000, 100_000, 1 << 30];
        cells.into_iter().for_each(access);
        assert_eq!(used(&shadow, ALL), cells);
        assert_eq!(used(&shadow, 63..128), [63, 64, 127]);
        let touched = shadow.touched(&(4..127 * CELL + 3));
        assert_eq!(touched, [3 * CELL..4 * CELL, 504..512, 512..520, 1016..1019]);
        // A part of one block, and a whole one.
        shadow.forget(63 * CELL..127 * CELL + 1);
        assert_eq!(used(&shadow, ALL), [3, 128, 5000, 100_000, 1 << 30]);
        shadow.forget(128 * CELL..128 * CELL);
        assert_eq!(used(&shadow, ALL), [3, 128, 5000, 100_000, 1 << 30]);
        shadow.forget(100 * CELL..1 << 33);
        assert_eq!(used(&shadow, ALL), [3, 1 << 30]);
        shadow.forget(0..u64::MAX - BLOCK);
        assert_eq!(used(&shadow, ALL), []);
    }
}
