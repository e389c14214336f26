//! Every access: translated code that looks whether its thread may make an access by itself, and
//! counts it ([`refrain_vm::EngineConfig::every_access`]).
//!
//! In a recording, a block counts all of its accesses where the first one is, opens one window for
//! them, and looks up what they access ([`super::plan`]):
//!
//! ```text
//!       mov [rcx slot], rcx
//!       mov [window], 1
//!       rcx = [count] + accesses, [count] = rcx
//!       lea rcx, [operand]         for each look
//!       pext rcx, rcx, [line mask] the line's index; changes no flag
//!       movzx ecx, [rcx + table]   1 if the thread may
//!       jrcxz may not
//!       mov rcx, [rcx slot]
//!       instructions, with further looks where they need registers that change
//!       the last access
//!       mov [window], 0
//! ```
//!
//! A thread that takes a line over reads the count while the window is closed, so the count has no
//! access that is still to be made.
//!
//! Where a look fails, the rest of the accesses are not counted after all, the window is closed, and
//! the rest of the block is executed *carefully*, access by access ([`super::careful`]): a
//! translation that is only made for those blocks that need it, and leads back to others where the
//! block ends. Of code that the guest generates, that translation looks at the rest of the block once
//! more, as any block of such code does at its start ([`super::generated`]); its branches are counted
//! like accesses.
//!
//! In a replay a block counts its accesses down likewise, and is executed carefully if fewer are left
//! before the thread's next event.

use super::careful::full_address;
use super::desc::Variant;
use super::emit::{self, Code, RCX, SHORT, Slot};
use super::plan::Look;
use super::translate::{BlockEnd, Original};
use super::translator::Translator;
use crate::accesses::{Memory, constant_address};
use iced_x86::{Encoder, FlowControl, Instruction, Register};
use refrain_vm::{OrderedKind, line_index};
use std::mem::take;

/// Bytes of a look at most.
const LOOK: u64 = 72;
/// Bytes of a `jmp`.
const JUMP: u64 = 5;

impl Translator {
    /// Plans the accesses of a block.
    pub(super) fn plan(&mut self, pc: u64, code: &[u8], variant: Variant) {
        let mut every = take(&mut self.every);
        every.made = 0;
        let readable_end = pc + code.len() as u64;
        every.plan.make(code, pc, self.config.processor, |at, index| {
            self.must_split(at, index, readable_end, variant)
        });
        self.every = every;
    }

    /// Emits an instruction of a block whose accesses are looked at and counted.
    pub(super) fn every_access(&mut self, original: Original) -> BlockEnd {
        let block_end = self.access_or_other(original);
        self.every.rcx_is_saved &= !self.every.plan.changes_rcx(original.index);
        block_end
    }

    /// Emits the spilling of rcx, unless the block has spilled it before and not changed it since. (If a block
    /// loaded rcx from the slot and stored it there again, the processor's next load would wait for the store.)
    pub(super) fn save_rcx(&mut self) {
        if !std::mem::replace(&mut self.every.rcx_is_saved, true) {
            self.hot.spill(emit::RCX_SLOT, RCX);
        }
    }

    fn access_or_other(&mut self, original: Original) -> BlockEnd {
        let Some(memory) = self.every.plan.memory(original.index) else {
            return self.careful_access(original);
        };
        let instruction = original.instruction;
        match memory {
            Memory::Operand(kind, _) => self.access_of_block(original, kind),
            _ => {
                if let Some(block_end) = self.log_counted(original) {
                    return block_end;
                }
                if self.is_counted_branch(instruction) {
                    self.branch_of_block(original);
                }
                self.make_room_for(instruction);
                self.instruction(original)
            }
        }
    }

    /// Completes a block that ends at `end`.
    pub(super) fn end_accesses(&mut self, end: u64) {
        self.arrive();
        let made = self.every.made;
        for (cold, field, sign, before) in take(&mut self.every.counts) {
            let code = if cold { &mut self.cold } else { &mut self.hot };
            code.set32(field, (sign * (made - before) as i32) as u32);
        }
        for pc in take(&mut self.every.careful) {
            let known = self.careful_ends.entry(pc).or_insert(end);
            *known = end.max(*known);
        }
    }

    /// Emits an access of the block.
    fn access_of_block(&mut self, original: Original, kind: OrderedKind) -> BlockEnd {
        let recorded = self.records();
        let opens = self.every.made == 0;
        if opens || recorded && self.every.plan.looks_at(original.index).next().is_some() {
            self.save_rcx();
            if opens {
                self.count_all(original);
            }
            if recorded {
                self.looks(original);
            }
            self.hot.reload(RCX, emit::RCX_SLOT);
        }
        if let Some(block_end) = self.log_counted(original) {
            return block_end;
        }
        self.make_room_for(original.instruction);
        self.every.made += 1;
        self.faults.count_accesses(self.every.made);
        let is_last = self.every.made == self.every.plan.accesses();
        if kind == OrderedKind::Target {
            self.closes_window = recorded;
            let block_end = self.instruction(original);
            self.closes_window = false;
            return block_end;
        }
        let block_end = self.instruction(original);
        if recorded && is_last && block_end == BlockEnd::None {
            self.hot.set_byte(emit::WINDOW, 0);
        }
        block_end
    }

    /// Counts the branch that ends the block with its accesses, or by itself if there are none.
    fn branch_of_block(&mut self, original: Original) {
        if self.every.made == 0 {
            self.counted_branch(original);
        } else {
            self.every.made += 1;
            self.faults.count_accesses(self.every.made);
        }
    }

    /// Emits the counting of the block's accesses. rcx is in its slot.
    fn count_all(&mut self, original: Original) {
        let recorded = self.records();
        if recorded {
            self.hot.set_byte(emit::WINDOW, 1);
        }
        self.hot.reload(RCX, emit::COUNT);
        self.hot.add_to_rcx(0);
        let sign = if recorded { 1 } else { -1 };
        self.every.counts.push((false, self.hot.here() - 4, sign, 0));
        self.hot.spill(emit::COUNT, RCX);
        if recorded {
            return;
        }
        self.hot.load_sign(emit::COUNT);
        self.hot.skip_if_rcx_zero(JUMP as u8);
        let carefully = self.carefully(original);
        self.hot.jmp(carefully);
    }

    /// Emits the looks that are made before an instruction. rcx is in its slot.
    fn looks(&mut self, original: Original) {
        let looks: Vec<Look> = self.every.plan.looks_at(original.index).collect();
        let mut failure = None;
        for look in looks {
            self.make_room(LOOK);
            let (lines, pairs) = match look.write {
                true => (emit::WRITABLE, emit::WRITABLE_PAIRS),
                false => (emit::READABLE, emit::READABLE_PAIRS),
            };
            let in_one_line = look.in_one_line();
            line_of(&mut self.encoder, &mut self.hot, &look, 0);
            self.hot.read_entry(if in_one_line { lines } else { pairs });
            let field = self.hot.forward_if_rcx_zero();
            let may = self.hot.here();
            let careful = *failure.get_or_insert_with(|| self.carefully(original));
            let target = match in_one_line {
                true => careful,
                false => self.both_lines(&look, lines, may, careful),
            };
            self.every.jumps.push((field, target));
        }
    }

    /// Emits, among the rare exits, what looks up the lines of the first and the last byte.
    fn both_lines(&mut self, look: &Look, lines: Slot, may: u64, careful: u64) -> u64 {
        let start = self.cold.here();
        for offset in [0, i32::from(look.len) - 1] {
            line_of(&mut self.encoder, &mut self.cold, look, offset);
            self.cold.look_up(lines);
            self.cold.skip_if_rcx_zero(JUMP as u8);
            self.cold.jmp(careful);
        }
        self.cold.jmp(may);
        start
    }

    /// Emits, among the rare exits, what executes the block carefully from an instruction on. rcx is
    /// in its slot.
    fn carefully(&mut self, original: Original) -> u64 {
        let (start, pc) = (self.cold.here(), original.instruction.ip());
        let recorded = self.records();
        self.cold.reload(RCX, emit::COUNT);
        self.cold.add_to_rcx(0);
        let sign = if recorded { -1 } else { 1 };
        self.every.counts.push((true, self.cold.here() - 4, sign, self.every.made));
        self.cold.spill(emit::COUNT, RCX);
        if recorded {
            self.cold.set_byte(emit::WINDOW, 0);
        }
        if self.counts(original.variant) {
            self.cold.reload(RCX, emit::RETIRED);
            self.cold.add_to_rcx(0);
            self.rests.push((self.cold.here() - 4, original.index, -1));
            self.cold.spill(emit::RETIRED, RCX);
        }
        self.cold.reload(RCX, emit::RCX_SLOT);
        self.chain_cold(pc, Variant::Careful);
        self.every.careful.push(pc);
        start
    }

    /// Lets the short jumps so far arrive, if they could not reach behind the code of an instruction.
    pub(super) fn make_room_for(&mut self, instruction: &Instruction) {
        const BRANCH: u64 = 64;
        const COPY: u64 = 64;
        const RETURN: u64 = 96;
        self.make_room(match instruction.flow_control() {
            FlowControl::Next => COPY,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => BRANCH,
            FlowControl::Return => RETURN,
            _ => SHORT,
        });
    }

    /// The same, of so many bytes.
    pub(super) fn make_room(&mut self, bytes: u64) {
        let Some(&(oldest, _)) = self.every.jumps.first() else { return };
        let islands = 2 + self.every.jumps.len() as u64 * JUMP;
        if self.hot.here() + islands + bytes > oldest + SHORT {
            let over = self.hot.forward();
            self.arrive();
            self.hot.arrive8(over);
        }
    }

    /// Emits what the short jumps so far lead to.
    fn arrive(&mut self) {
        for (field, target) in self.every.jumps.drain(..) {
            self.hot.arrive8(field);
            self.hot.jmp(target);
        }
    }
}

/// Emits, into rcx, the index of the line of a byte of what is looked up. rcx is in its slot.
fn line_of(encoder: &mut Encoder, code: &mut Code, look: &Look, offset: i32) {
    if let Some(address) = look.address() {
        code.load_constant(RCX, line_index(address.wrapping_add(offset as u64)) as u64);
        return;
    }
    let instruction = &look.instruction;
    let of_thread = instruction.segment_prefix() == Register::FS;
    match (constant_address(instruction), i32::try_from(look.start)) {
        (Some(_), Ok(start)) if of_thread => {
            code.load_fs_base();
            code.add_to_rcx(start);
        }
        _ => {
            let named = [instruction.memory_base(), instruction.memory_index()];
            if named.iter().any(|register| register.full_register() == Register::RCX) {
                code.reload(RCX, emit::RCX_SLOT);
            }
            let mut operand = *instruction;
            operand.set_memory_displacement64(look.start as u64);
            if operand.memory_base() != Register::None {
                // The shortest that it fits.
                operand.set_memory_displ_size(1);
            }
            full_address(encoder, code, &operand);
        }
    }
    if offset != 0 {
        code.add_to_rcx(offset);
    }
    code.line_of_rcx();
}
