//! The heap: which memory an allocator has given to whom.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a function of an allocator does with its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Allocator {
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
}

impl Allocator {
    /// What is freed, if anything.
    pub(crate) fn frees(self, [first, ..]: [u64; 3]) -> Option<u64> {
        let frees = matches!(self, Allocator::Again | Allocator::AgainProduct | Allocator::Free);
        Some(first).filter(|&address| frees && address != 0)
    }

    /// How much is allocated.
    pub(crate) fn size(self, [first, second, third]: [u64; 3]) -> Option<u64> {
        match self {
            Allocator::Size => Some(first),
            Allocator::SecondSize | Allocator::Again => Some(second),
            Allocator::ThirdSize => Some(third),
            Allocator::Product => first.checked_mul(second),
            Allocator::AgainProduct => second.checked_mul(third),
            Allocator::Free => None,
        }
    }
}

/// A block, from its allocation until its memory is in another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    size: u64,
    is_freed: bool,
}

/// All blocks, by their addresses.
#[derive(Default)]
pub(crate) struct Heap {
    blocks: Mutex<BTreeMap<u64, Block>>,
}

impl Heap {
    /// A new block.
    pub(crate) fn allocate(&self, start: u64, size: u64) {
        let mut blocks = self.blocks();
        let end = start.saturating_add(size.max(1));
        while let Some((&other, _)) =
            blocks.range(..end).next_back().filter(|(other, it)| *other + it.size.max(1) > start)
        {
            blocks.remove(&other);
        }
        blocks.insert(start, Block { size, is_freed: false });
    }

    /// The block here is no longer used: its size, if there is one.
    pub(crate) fn free(&self, start: u64) -> Option<u64> {
        let mut blocks = self.blocks();
        let block = blocks.get_mut(&start).filter(|block| !block.is_freed)?;
        block.is_freed = true;
        Some(block.size)
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_freed_once() {
        let heap = Heap::default();
        heap.allocate(0x1000, 24);
        assert_eq!(heap.free(0x1008), None);
        assert_eq!(heap.free(0x1000), Some(24));
        assert_eq!(heap.free(0x1000), None);
        heap.allocate(0x1000, 0);
        assert_eq!(heap.free(0x1000), Some(0));
    }

    #[test]
    fn a_block_takes_the_place_of_those_in_its_memory() {
        let heap = Heap::default();
        for start in [0x1000, 0x1020, 0x1040, 0x1060] {
            heap.allocate(start, 0x20);
        }
        heap.allocate(0x1030, 0x20);
        let left = [0x1000, 0x1020, 0x1030, 0x1040, 0x1060].map(|start| heap.free(start));
        assert_eq!(left, [Some(0x20), None, Some(0x20), None, Some(0x20)]);
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        assert_eq!(Allocator::Product.size([u64::MAX, 2, 0]), None);
        assert_eq!(Allocator::Product.size([3, 2, 0]), Some(6));
        assert_eq!(Allocator::Again.frees([0, 2, 0]), None);
        assert_eq!(Allocator::Size.frees([5, 2, 0]), None);
    }
}
