//! From places in translated code back to guest instructions.

use super::state::ThreadState;
use refrain_vm::{Context, reg};
use std::sync::atomic::Ordering;

/// What else must be undone when an instruction faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fix {
    /// Nothing.
    None,
    /// rcx is in its slot.
    Rcx,
    /// rcx is in its slot, and rdx in the scratch slot.
    RcxAndRdx,
    /// The same; what faulted is the look at the note of the guest address in rdx.
    Note,
    /// This register is in the scratch slot.
    Scratch(u8),
    /// rcx is in its slot; the instruction is a return, complete but for the lookup of its
    /// target, which is in its slot.
    Return,
}

/// From here on (up to the next mark) code belongs to this guest instruction.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Offset in the translated block.
    host: u16,
    /// Offset in the guest's block.
    guest: u16,
    /// Instructions before it in the block.
    done: u8,
    /// Accesses that the block has made when it has been executed, if it has counted them all.
    accesses: u8,
    fix: Fix,
}

/// One translated block.
#[derive(Clone, Debug)]
struct Block {
    /// Translated code lies below 2 GiB.
    start: u32,
    end: u32,
    pc: u64,
    /// Instructions that the block counts when it is entered.
    counted: u8,
    /// Accesses that it counts at its first one.
    accesses: u8,
    /// Its marks begin here.
    first_mark: u32,
}

/// The map of all blocks, in ascending order of host addresses.
#[derive(Default)]
pub(super) struct FaultMap {
    blocks: Vec<Block>,
    marks: Vec<Mark>,
    /// What [`Self::count_accesses`] said last of the block under construction.
    accesses: u8,
}

impl FaultMap {
    /// A block begins at the host address `start`.
    pub(super) fn begin(&mut self, start: u64, pc: u64) {
        let first_mark = self.marks.len() as u32;
        let start = start as u32;
        self.blocks.push(Block { start, end: start, pc, counted: 0, accesses: 0, first_mark });
        self.accesses = 0;
    }

    /// The block counts its accesses at once, and has made so many of them when the instruction has
    /// been executed that code belongs to from here on.
    pub(super) fn count_accesses(&mut self, made: usize) {
        self.accesses = made as u8;
    }

    /// Code at `host` belongs to the instruction at `guest`, before which `done` are complete.
    pub(super) fn mark(&mut self, host: u64, guest: u64, done: usize, fix: Fix) {
        let block = self.blocks.last().expect("a block was begun");
        self.marks.push(Mark {
            host: (host as u32 - block.start) as u16,
            guest: (guest - block.pc) as u16,
            done: done as u8,
            accesses: self.accesses,
            fix,
        });
    }

    /// The block ends.
    pub(super) fn end(&mut self, end: u64, counted: usize) {
        let block = self.blocks.last_mut().expect("a block was begun");
        block.end = end as u32;
        block.counted = counted as u8;
        block.accesses = self.accesses;
    }

    /// Makes the state that was saved at a fault at `host` that of the guest before the
    /// faulting instruction, and says what was to be undone. `None` if `host` is in no block.
    pub(super) fn restore(
        &self,
        host: u64,
        state: &mut ThreadState,
        context: &mut Context,
        recorded: bool,
    ) -> Option<Fix> {
        let index = self.blocks.partition_point(|block| u64::from(block.start) <= host);
        let block = &self.blocks[index.checked_sub(1)?];
        let next = self.blocks.get(index).map_or(self.marks.len(), |b| b.first_mark as usize);
        let marks = &self.marks[block.first_mark as usize..next];
        let offset = host - u64::from(block.start);
        let mark = marks.partition_point(|mark| u64::from(mark.host) <= offset);
        let mark = marks[mark.checked_sub(1)?];
        if host >= u64::from(block.end) {
            return None;
        }
        match mark.fix {
            Fix::None => {}
            Fix::Rcx => context.gpr[reg::RCX] = state.rcx,
            Fix::RcxAndRdx => {
                context.gpr[reg::RCX] = state.rcx;
                context.gpr[reg::RDX] = state.scratch;
            }
            Fix::Note => {
                state.area.fault_address = context.gpr[reg::RDX];
                context.gpr[reg::RCX] = state.rcx;
                context.gpr[reg::RDX] = state.scratch;
            }
            Fix::Return => {
                context.gpr[reg::RCX] = state.rcx;
                context.gpr[reg::RSP] += 8;
            }
            Fix::Scratch(register) => context.gpr[usize::from(register)] = state.scratch,
        }
        context.rip = block.pc + u64::from(mark.guest);
        if mark.accesses > 0 {
            let (ahead, count) = (u64::from(block.accesses - mark.accesses), &state.count);
            let before = match recorded {
                true => count.load(Ordering::Relaxed).wrapping_sub(ahead),
                false => count.load(Ordering::Relaxed).wrapping_add(ahead),
            };
            count.store(before, Ordering::Release);
        }
        state.retired =
            state.retired.wrapping_sub(u64::from(block.counted.saturating_sub(mark.done)));
        Some(mark.fix)
    }
}
