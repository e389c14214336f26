//! Which cell belongs to which address: blocks of cells, found through a directory.
//!
//! A block has a lock of its own, so threads that work on different memory do not meet. Each
//! thread keeps the blocks that it used last at hand ([`Blocks`]): finding one again is a compare.

use crate::cell::Cell;
use refrain_trace::fixed::FixedMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a cell.
pub(crate) const CELL: u64 = 8;
/// Cells of a block.
const CELLS: u64 = 64;
/// Bytes of the words that synchronize: an address stands for the word that it lies in.
const WORD: u64 = 4;
const BLOCK: u64 = CELL * CELLS;
const SHARDS: usize = 64;
/// Blocks that a thread has at hand.
const WAYS: usize = 1024;

/// The cells of an aligned piece of memory.
pub(crate) struct Block {
    cells: [Cell; CELLS as usize],
    /// A bit for each word that synchronizes.
    words: u128,
}

impl Block {
    /// The cell with this number, counted from address 0.
    pub(crate) fn cell(&mut self, number: u64) -> &mut Cell {
        &mut self.cells[(number % CELLS) as usize]
    }

    /// Those of the two words of a cell that synchronize and have bytes in `mask`: the low bit is
    /// the lower one.
    pub(crate) fn words(&self, number: u64, mask: u8) -> u8 {
        let words = (self.words >> (2 * (number % CELLS))) as u8;
        let touched = u8::from(mask & 0xf != 0) | u8::from(mask & 0xf0 != 0) << 1;
        words & touched
    }
}

type Shard = Mutex<FixedMap<u64, Arc<Mutex<Block>>>>;

/// The blocks of all touched memory.
pub(crate) struct Shadow {
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
            let mut block = block.lock().unwrap_or_else(PoisonError::into_inner);
            for cell in cells.start.max(first)..cells.end.min(first + CELLS) {
                *block.cell(cell) = Cell::default();
            }
        });
    }

    /// The parts of a range that somebody may have touched: pieces, ascending.
    pub(crate) fn touched(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        self.visit(range, |number, _| {
            let (start, end) = (number * BLOCK, (number + 1) * BLOCK);
            pieces.push(start.max(range.start)..end.min(range.end));
        });
        pieces.sort_unstable_by_key(|piece| piece.start);
        pieces
    }

    /// Shows the blocks of a range that are there, with their numbers.
    fn visit(&self, range: &Range<u64>, mut show: impl FnMut(u64, &Mutex<Block>)) {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        // Looked up one by one if they are few.
        if blocks.end.saturating_sub(blocks.start) <= SHARDS as u64 {
            for number in blocks {
                let shard = &self.shards[shard_of(number)];
                let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(block) = shard.get(&number) {
                    show(number, block);
                }
            }
            return;
        }
        for (at, shard) in self.shards.iter().enumerate() {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            // Whichever are fewer.
            if (blocks.end - blocks.start) / SHARDS as u64 > shard.len() as u64 {
                let there = shard.iter().filter(|(number, _)| blocks.contains(number));
                there.for_each(|(number, block)| show(*number, block));
            } else {
                let mine = blocks.clone().filter(|number| shard_of(*number) == at);
                let there = mine.filter_map(|number| shard.get_key_value(&number));
                there.for_each(|(number, block)| show(*number, block));
            }
        }
    }

    fn block(&self, number: u64) -> Arc<Mutex<Block>> {
        let shard = &self.shards[shard_of(number)];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || {
            let words = self.words.get(&number).copied().unwrap_or(0);
            Arc::new(Mutex::new(Block { cells: std::array::from_fn(|_| Cell::default()), words }))
        };
        shard.entry(number).or_insert_with(fresh).clone()
    }
}

fn shard_of(block: u64) -> usize {
    (block ^ block >> 6) as usize % SHARDS
}

/// The blocks that one thread used last.
pub(crate) struct Blocks {
    ways: Vec<Option<(u64, Arc<Mutex<Block>>)>>,
}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks { ways: vec![None; WAYS] }
    }

    /// The block of the cell with this number.
    pub(crate) fn of(&mut self, cell: u64, shadow: &Shadow) -> &Mutex<Block> {
        let number = cell / CELLS;
        // Upper bits take part, so that regions at round distances do not evict each other.
        let way = &mut self.ways[number.wrapping_add((number >> 10) * 67) as usize % WAYS];
        if way.as_ref().is_none_or(|(there, _)| *there != number) {
            *way = None;
        }
        &way.get_or_insert_with(|| (number, shadow.block(number))).1
    }
}
