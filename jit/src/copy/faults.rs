//! From places in translated code back to guest instructions.

use super::rows::rows;
use super::state::ThreadState;
use crate::memory::FilePart;
use refrain_vm::{Context, reg};
use std::cell::OnceCell;
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
    /// The same, and xmm0 is in its slot.
    RcxRdxAndVector,
    /// rcx is in its slot, and rdx in the scratch slot. This is the look at the note of an address that the instruction is about to access, and the
    /// instruction is executed without its log ([`FaultMap::without_log`]).
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
    /// That of an earlier recording.
    taken: Option<Box<Taken>>,
}

/// A map in [numbers](FaultMap::rows): faults are rare.
struct Taken {
    end: u64,
    blocks: FilePart,
    marks: FilePart,
    map: OnceCell<FaultMap>,
}

impl Taken {
    /// How many marks there are.
    fn marks(&self) -> u32 {
        rows::<2>(self.marks.bytes()).len() as u32
    }

    fn map(&self) -> &FaultMap {
        self.map.get_or_init(|| {
            let blocks = rows(self.blocks.bytes()).map(Block::of_row).collect();
            let marks = rows(self.marks.bytes()).map(Mark::of_row).collect();
            FaultMap { blocks, marks, ..FaultMap::default() }
        })
    }
}

impl Block {
    /// In numbers, behind so many marks.
    fn row(&self, before: u32) -> [u32; 5] {
        let counts = u32::from_le_bytes([self.counted, self.accesses, 0, 0]);
        [self.start, self.end, self.pc as u32, counts, self.first_mark + before]
    }

    fn of_row([start, end, pc, counts, first_mark]: [u32; 5]) -> Block {
        let [counted, accesses, ..] = counts.to_le_bytes();
        Block { start, end, pc: pc.into(), counted, accesses, first_mark }
    }
}

impl Mark {
    fn row(&self) -> [u32; 2] {
        let (fix, register) = match self.fix {
            Fix::None => (0, 0),
            Fix::Rcx => (1, 0),
            Fix::RcxAndRdx => (2, 0),
            Fix::Note => (3, 0),
            Fix::Return => (4, 0),
            Fix::Scratch(register) => (5, register),
            Fix::RcxRdxAndVector => (6, 0),
        };
        let place = u32::from(self.host) | u32::from(self.guest) << 16;
        [place, u32::from_le_bytes([self.done, self.accesses, fix, register])]
    }

    fn of_row([place, rest]: [u32; 2]) -> Mark {
        let [done, accesses, fix, register] = rest.to_le_bytes();
        let fix = match fix {
            0 => Fix::None,
            1 => Fix::Rcx,
            2 => Fix::RcxAndRdx,
            3 => Fix::Note,
            4 => Fix::Return,
            5 => Fix::Scratch(register),
            _ => Fix::RcxRdxAndVector,
        };
        Mark { host: place as u16, guest: (place >> 16) as u16, done, accesses, fix }
    }
}

impl FaultMap {
    /// How many blocks and marks there are that were not [taken](Self::take).
    pub(super) fn lengths(&self) -> [usize; 2] {
        [self.blocks.len(), self.marks.len()]
    }

    /// The first so many of these, in numbers, behind what was taken.
    pub(super) fn rows(&self, [blocks, marks]: [usize; 2]) -> (Vec<[u32; 5]>, Vec<[u32; 2]>) {
        let before = self.taken.as_ref().map_or(0, |taken| taken.marks());
        let (blocks, marks) = (&self.blocks[..blocks], &self.marks[..marks]);
        let blocks = blocks.iter().map(|block| block.row(before));
        (blocks.collect(), marks.iter().map(Mark::row).collect())
    }

    /// Takes in the map of an earlier recording, in [numbers](Self::rows). Its blocks lie below `end`, and
    /// all that are added lie behind.
    pub(super) fn take(&mut self, end: u64, [blocks, marks]: [FilePart; 2]) {
        self.taken = Some(Box::new(Taken { end, blocks, marks, map: OnceCell::new() }));
    }

    /// A block begins at the host address `start`.
    pub(super) fn begin(&mut self, start: u64, pc: u64) {
        let first_mark = self.marks.len() as u32;
        let start = start as u32;
        self.blocks.push(Block { start, end: start, pc, counted: 0, accesses: 0, first_mark });
        self.accesses = 0;
    }

    /// The block that was begun last is none: the next one may begin before it.
    pub(super) fn forget_last(&mut self) {
        let block = self.blocks.pop().expect("a block was begun");
        self.marks.truncate(block.first_mark as usize);
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

    /// The block at `host`, and its marks from the one on that `host` belongs to.
    fn find(&self, host: u64) -> Option<(&Block, &[Mark])> {
        if let Some(taken) = self.taken.as_ref().filter(|taken| host < taken.end) {
            return taken.map().find(host);
        }
        let index = self.blocks.partition_point(|block| u64::from(block.start) <= host);
        let block = &self.blocks[index.checked_sub(1)?];
        let next = self.blocks.get(index).map_or(self.marks.len(), |b| b.first_mark as usize);
        let marks = &self.marks[block.first_mark as usize..next];
        let offset = host - u64::from(block.start);
        let mark = marks.partition_point(|mark| u64::from(mark.host) <= offset);
        let marks = &marks[mark.checked_sub(1)?..];
        (host < u64::from(block.end)).then_some((block, marks))
    }

    /// If what faulted at `host` is the look at a note, makes the registers that were saved there the guest's,
    /// and says where the instruction begins behind its log. Nobody notes such an address, so the instruction
    /// faults, too: where accesses are counted, when it has been counted as it was in the recording.
    pub(super) fn without_log(
        &self,
        host: u64,
        state: &ThreadState,
        context: &mut Context,
    ) -> Option<u64> {
        let (block, marks) = self.find(host)?;
        if marks[0].fix != Fix::Note {
            return None;
        }
        let behind = marks.iter().find(|mark| mark.fix != Fix::Note);
        let behind = behind.expect("a log ends with a mark of its instruction");
        context.gpr[reg::RCX] = state.rcx;
        context.gpr[reg::RDX] = state.scratch;
        Some(u64::from(block.start) + u64::from(behind.host))
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
        let (block, marks) = self.find(host)?;
        let mark = marks[0];
        match mark.fix {
            Fix::None => {}
            Fix::Rcx => context.gpr[reg::RCX] = state.rcx,
            Fix::RcxAndRdx | Fix::Note => {
                context.gpr[reg::RCX] = state.rcx;
                context.gpr[reg::RDX] = state.scratch;
            }
            Fix::RcxRdxAndVector => {
                context.gpr[reg::RCX] = state.rcx;
                context.gpr[reg::RDX] = state.scratch;
                context.xmm[0] = state.vector;
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
