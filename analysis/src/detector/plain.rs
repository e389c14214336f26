//! Most accesses: of a few bytes in memory that synchronizes nothing, by code that is no allocator's.
//!
//! What is known of memory is far larger than the processor's caches, and what is new in an epoch is where
//! the thread has not been for long. So the loop asks for what it needs some accesses before it needs it:
//! first the place that leads to a block, then the block, then its stamps.

use super::{SameEpoch, Watcher, ahead, cells};
use crate::cell::{READ, Stamp, WRITE};
use crate::findings::Whole;
use crate::shadow::{BLOCK, Blocks, CELL};
use refrain_trace::Access;

/// So many accesses are between one thing that is asked for and the next.
const AHEAD: usize = 8;

impl Watcher {
    /// Checks accesses of this batch up to the first one that is not such, and says how many it has
    /// checked.
    pub(super) fn plain_accesses(&mut self, batch: &[Access]) -> usize {
        let told = matches!(self.same_epoch, SameEpoch::Told(_));
        if !told || self.is_one_step() || !self.detector.may_race() {
            return 0;
        }
        let clock = self.clock.of(self.id);
        let Watcher { detector, id, event, blocks, found, clock: all, working, .. } = self;
        let (id, event) = (*id, *event);
        let allocators = detector.relation.code().map_or(&[][..], |code| &code.allocator_code);
        let is_in = |access: &Access, number: u64| {
            let last = access.address.checked_add(u64::from(access.size).wrapping_sub(1));
            access.address / BLOCK == number && last.is_some_and(|last| last / BLOCK == number)
        };
        let is_plain = |access: &Access| {
            access.kind as u8 & (READ | WRITE) != 0
                && (1..ahead::VECTOR).contains(&access.size.into())
                && !allocators.iter().any(|code| code.contains(&access.pc.into()))
        };
        let mut at = 0;
        while let Some(first) = batch.get(at) {
            blocks.of(first.address / CELL, &detector.shadow);
            let Some(slot) = blocks.at_hand(first.address / CELL) else { break };
            let mut block = slot.lock();
            if block.synchronizes() {
                break;
            }
            let (number, before) = (first.address / BLOCK, at);
            while let Some(access) = batch.get(at).filter(|it| is_in(it, number) && is_plain(it)) {
                look_ahead(blocks, &batch[at..]);
                let &Access { address, pc, size, kind } = access;
                let (kind, whole) =
                    (kind as u8 & (READ | WRITE), Whole { address, size: size.into() });
                for (cell, mask) in cells(address..address + whole.size) {
                    let now = Stamp { clock, thread: id, mask, kind, pc, event };
                    block.access(cell, now, all, &mut |earlier, fault| {
                        let whose = (&*all, &*working);
                        detector.take_fault((earlier, now, fault), cell, whole, whose, found);
                    });
                }
                at += 1;
            }
            slot.remember(&block);
            if at == before {
                break;
            }
        }
        at
    }
}

/// Asks for what the accesses after the first one need.
#[inline]
fn look_ahead(blocks: &Blocks, batch: &[Access]) {
    let cell = |further: usize| batch.get(further).map(|access| access.address / CELL);
    cell(3 * AHEAD).into_iter().for_each(|cell| blocks.prefetch_slot(cell));
    cell(2 * AHEAD).into_iter().for_each(|cell| blocks.prefetch(cell));
    cell(AHEAD).into_iter().for_each(|cell| blocks.prefetch_stamps(cell));
}
