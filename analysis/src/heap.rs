//! The heap: which memory an allocator has given to whom.

use refrain_trace::ThreadId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A function whose calls are one step each: the accesses and the synchronization inside such a call do
/// not count. The variants say what the function does with its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OneStep {
    /// Allocates as many bytes as its first argument says: `malloc`.
    Size,
    /// As many as the second one says: `aligned_alloc`.
    SecondSize,
    /// As many as the third one says, and leaves the address where the first one says:
    /// `posix_memalign`.
    ThirdSize,
    /// As many as the product of the first two: `calloc`.
    Product,
    /// Frees the first argument, and allocates as many bytes as the second one says: `realloc`.
    Again,
    /// The same, with the product of the second and the third: `reallocarray`.
    AgainProduct,
    /// Frees the first argument.
    Free,
    /// Nothing: it says who of several threads does which part of the work. That they take turns there
    /// is no order of the program's.
    Shares,
}

impl OneStep {
    /// What is freed, if anything.
    pub(crate) fn frees(self, [first, ..]: [u64; 3]) -> Option<u64> {
        let frees = matches!(self, OneStep::Again | OneStep::AgainProduct | OneStep::Free);
        Some(first).filter(|&address| frees && address != 0)
    }

    /// How much is allocated.
    pub fn size(self, [first, second, third]: [u64; 3]) -> Option<u64> {
        match self {
            OneStep::Size => Some(first),
            OneStep::SecondSize | OneStep::Again => Some(second),
            OneStep::ThirdSize => Some(third),
            OneStep::Product => first.checked_mul(second),
            OneStep::AgainProduct => second.checked_mul(third),
            OneStep::Free | OneStep::Shares => None,
        }
    }
}

/// A block of the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Its first byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Who allocated it.
    pub thread: ThreadId,
    /// How many blocks that thread had allocated before.
    pub number: u64,
}

/// A block, from its allocation until its memory is in another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    block: Block,
    is_freed: bool,
}

impl Known {
    fn end(&self) -> u64 {
        self.block.start.saturating_add(self.block.size.max(1))
    }
}

/// All blocks, by their addresses.
#[derive(Default)]
pub(crate) struct Heap {
    blocks: Mutex<BTreeMap<u64, Known>>,
}

impl Heap {
    /// A new block.
    pub(crate) fn allocate(&self, block: Block) {
        let new = Known { block, is_freed: false };
        let mut blocks = self.blocks();
        let below = |blocks: &BTreeMap<u64, Known>| {
            let (&start, known) = blocks.range(..new.end()).next_back()?;
            (known.end() > block.start).then_some(start)
        };
        while let Some(other) = below(&blocks) {
            blocks.remove(&other);
        }
        blocks.insert(block.start, new);
    }

    /// The block here is no longer used: its size, if there is one.
    pub(crate) fn free(&self, start: u64) -> Option<u64> {
        let mut blocks = self.blocks();
        let known = blocks.get_mut(&start).filter(|known| !known.is_freed)?;
        known.is_freed = true;
        Some(known.block.size)
    }

    /// The block here is still used: it could not be made larger.
    pub(crate) fn keep(&self, start: u64) {
        if let Some(known) = self.blocks().get_mut(&start) {
            known.is_freed = false;
        }
    }

    /// The block that an address lies in, or has lain in last.
    pub(crate) fn at(&self, address: u64) -> Option<Block> {
        self.known_at(address).map(|known| known.block)
    }

    /// The block that an address has lain in last, if it is freed.
    pub(crate) fn freed_at(&self, address: u64) -> Option<Block> {
        self.known_at(address).filter(|known| known.is_freed).map(|known| known.block)
    }

    /// Where the block is that an address lies in, if it is used.
    pub(crate) fn live_at(&self, address: u64) -> Option<Range<u64>> {
        let known = self.known_at(address).filter(|known| !known.is_freed)?;
        Some(known.block.start..known.end())
    }

    fn known_at(&self, address: u64) -> Option<Known> {
        let blocks = self.blocks();
        let (_, &known) = blocks.range(..=address).next_back()?;
        (address < known.end()).then_some(known)
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(start: u64, size: u64) -> Block {
        Block { start, size, thread: ThreadId(1), number: 7 }
    }

    #[test]
    fn a_block_is_freed_once() {
        let heap = Heap::default();
        heap.allocate(block(0x1000, 24));
        assert_eq!(heap.free(0x1008), None);
        assert_eq!(heap.free(0x1000), Some(24));
        assert_eq!(heap.free(0x1000), None);
        heap.allocate(block(0x1000, 0));
        assert_eq!(heap.free(0x1000), Some(0));
    }

    #[test]
    fn memory_is_freed_until_it_is_in_another_block() {
        let heap = Heap::default();
        heap.allocate(block(0x1000, 24));
        assert_eq!(heap.freed_at(0x1008), None);
        heap.free(0x1000);
        assert_eq!(heap.freed_at(0x1017), Some(block(0x1000, 24)));
        assert_eq!(heap.freed_at(0x1018), None);
        heap.keep(0x1000);
        assert_eq!(heap.freed_at(0x1008), None, "what could not be made larger is still there");
        heap.free(0x1000);
        heap.allocate(block(0x1010, 8));
        assert_eq!(heap.freed_at(0x1010), None);
    }

    #[test]
    fn a_block_takes_the_place_of_those_in_its_memory() {
        let heap = Heap::default();
        for start in [0x1000, 0x1020, 0x1040, 0x1060] {
            heap.allocate(block(start, 0x20));
        }
        heap.allocate(block(0x1030, 0x20));
        assert_eq!(heap.at(0x104f), Some(block(0x1030, 0x20)));
        assert_eq!(heap.at(0x1050), None);
        let left = [0x1000, 0x1020, 0x1030, 0x1040, 0x1060].map(|start| heap.free(start));
        assert_eq!(left, [Some(0x20), None, Some(0x20), None, Some(0x20)]);
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        assert_eq!(OneStep::Product.size([u64::MAX, 2, 0]), None);
        assert_eq!(OneStep::Product.size([3, 2, 0]), Some(6));
        assert_eq!(OneStep::Again.frees([0, 2, 0]), None);
        assert_eq!(OneStep::Size.frees([5, 2, 0]), None);
    }
}
