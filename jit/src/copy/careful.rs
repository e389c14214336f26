//! Access by access: how a block is executed in which a look has failed, or an event comes
//! ([`super::every`]).
//!
//! In a recording, an access becomes this:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       lea rcx, [operand]
//!       pext rcx, rcx, [line mask]     the line's index; changes no flag
//!       mov [window], 1
//!       movzx ecx, [rcx + table]       1 if the thread may; the same for the last byte's line
//!       lea ecx, [rcx - 1]
//!       jrcxz may
//!       ...                            asks the machine, makes the access, tells the machine
//!       jmp done
//! may:  rcx = [count] + 1, [count] = rcx
//!       mov rcx, [rcx slot]
//!       the instruction
//!       mov [window], 0
//! done:
//! ```
//!
//! In a replay the look is whether accesses are left before the thread's next event, which the
//! machine performs in the access' place:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       mov rcx, [count]
//!       jrcxz event
//!       [count] = rcx - 1
//!       mov rcx, [rcx slot]
//!       the instruction
//!       jmp done
//! event: asks the machine, makes the access, tells the machine
//! done:
//! ```

use super::desc::{Desc, Kind, Operand, Strings};
use super::emit::{self, Code, RCX, RDX, SHORT};
use super::plan::is_within_a_line;
use super::translate::{BlockEnd, Original};
use super::translator::Translator;
use super::watch::operand_address;
use crate::accesses::{Memory, is_repeated, memory_of, moves_strings, transfers_control};
use iced_x86::{Encoder, Instruction, OpKind, Register};
use refrain_vm::OrderedKind;

impl Translator {
    /// Emits an instruction whose access is looked at and counted by itself.
    pub(super) fn careful_access(&mut self, original: Original) -> BlockEnd {
        let instruction = original.instruction;
        self.every.rcx_is_saved = false;
        let memory = memory_of(instruction);
        // What the machine executes by itself it logs.
        if memory != Memory::Spans
            && let Some(block_end) = self.log_counted(original)
        {
            return block_end;
        }
        match memory {
            Memory::None => {
                if self.is_counted_branch(instruction) {
                    self.counted_branch(original);
                }
                self.instruction(original)
            }
            Memory::Spans => {
                self.make_room(SHORT);
                self.hot.spill(emit::RCX_SLOT, RCX);
                match strings(instruction).filter(|_| !self.logs(original.variant)) {
                    Some(strings) => self.strings_in_line(original, strings),
                    None => {
                        self.leave_here(Kind::Spans, instruction.ip(), false);
                        BlockEnd::Before
                    }
                }
            }
            Memory::Operand(kind, size) => {
                let operand = Operand { size, kind, fs: false, bit_register: None, found: None };
                match self.records() {
                    true => self.looked_up(original, operand),
                    false => self.counted_down(original, operand),
                }
            }
        }
    }

    /// Whether an instruction without an access is counted like one: a branch that the guest has
    /// generated. Between two looks at the same code there is a branch or an access, so that the count
    /// tells them apart.
    pub(super) fn is_counted_branch(&self, instruction: &Instruction) -> bool {
        transfers_control(instruction) && self.is_generated(instruction.ip())
    }

    /// Emits the counting of such a branch.
    pub(super) fn counted_branch(&mut self, original: Original) {
        self.save_rcx();
        self.hot.reload(RCX, emit::COUNT);
        if self.records() {
            self.hot.add_to_rcx(1);
        } else {
            let more = self.hot.forward_unless_rcx_zero();
            let operand = Operand {
                size: 0,
                kind: OrderedKind::Target,
                fs: false,
                bit_register: None,
                found: None,
            };
            self.leave_for(original, operand);
            self.hot.arrive8(more);
            self.hot.add_to_rcx(-1);
        }
        self.hot.spill(emit::COUNT, RCX);
        self.hot.reload(RCX, emit::RCX_SLOT);
    }

    /// Emits the exit for what comes before a branch of a replay. rcx is in its slot.
    fn leave_for(&mut self, original: Original, operand: Operand) {
        let field = Self::call_machine(&mut self.hot, self.leave);
        let desc = Desc::new(Kind::Ordered(operand), original.instruction.ip());
        self.exits.push((field, desc, original.index));
    }

    /// Emits an access of a recording.
    fn looked_up(&mut self, original: Original, operand: Operand) -> BlockEnd {
        let table = match operand.kind {
            OrderedKind::Write => emit::WRITABLE,
            _ => emit::READABLE,
        };
        self.hot.spill(emit::RCX_SLOT, RCX);
        full_address(&mut self.encoder, &mut self.hot, original.instruction);
        self.hot.set_byte(emit::WINDOW, 1);
        let may = if is_within_a_line(original.instruction, operand.size) {
            self.hot.line_of_rcx();
            self.hot.look_up(table);
            self.hot.forward_if_rcx_zero()
        } else {
            self.hot.spill(emit::OPERAND, RCX);
            self.hot.line_of_rcx();
            self.hot.look_up(table);
            let may_first = self.hot.forward_if_rcx_zero();
            let not_first = self.hot.forward();
            self.hot.arrive8(may_first);
            self.hot.reload(RCX, emit::OPERAND);
            self.hot.add_to_rcx(i32::from(operand.size) - 1);
            self.hot.line_of_rcx();
            self.hot.look_up(table);
            let may = self.hot.forward_if_rcx_zero();
            self.hot.arrive8(not_first);
            may
        };
        self.hot.reload(RCX, emit::RCX_SLOT);
        full_address(&mut self.encoder, &mut self.hot, original.instruction);
        self.hot.spill(emit::OPERAND, RCX);
        let done = self.asked(original, operand);
        self.hot.arrive8(may);
        self.hot.reload(RCX, emit::COUNT);
        self.hot.add_to_rcx(1);
        self.hot.spill(emit::COUNT, RCX);
        self.hot.reload(RCX, emit::RCX_SLOT);
        if operand.kind == OrderedKind::Target {
            self.hot.arrive8(done);
            self.closes_window = true;
            let block_end = self.instruction(original);
            self.closes_window = false;
            return block_end;
        }
        let block_end = self.instruction(original);
        if block_end == BlockEnd::None {
            self.hot.set_byte(emit::WINDOW, 0);
            self.hot.arrive8(done);
        }
        block_end
    }

    /// Emits what asks the machine for an access and makes it; the jump to where it is over.
    fn asked(&mut self, original: Original, operand: Operand) -> u64 {
        let field = Self::call_machine(&mut self.hot, self.machine_gate);
        let go_on = self.hot.here();
        if operand.kind != OrderedKind::Target {
            self.performed(original, None, self.machine_gate);
        }
        let done = self.hot.forward();
        let desc = Desc::new(Kind::Ordered(operand), original.instruction.ip());
        self.exits.push((field, Desc { go_on, ..desc }, original.index));
        done
    }

    /// Emits a string instruction, which the machine is asked for. rcx is in its slot.
    fn strings_in_line(&mut self, original: Original, strings: Strings) -> BlockEnd {
        let field = Self::call_machine(&mut self.hot, self.machine_gate);
        let go_on = self.hot.here();
        let block_end = self.performed(original, None, self.machine_gate);
        let desc = Desc::new(Kind::Strings(strings), original.instruction.ip());
        self.exits.push((field, Desc { go_on, ..desc }, original.index));
        block_end
    }

    /// Emits an access of a replay.
    fn counted_down(&mut self, original: Original, operand: Operand) -> BlockEnd {
        self.hot.spill(emit::RCX_SLOT, RCX);
        self.hot.reload(RCX, emit::COUNT);
        let more = self.hot.forward_unless_rcx_zero();
        self.hot.reload(RCX, emit::RCX_SLOT);
        full_address(&mut self.encoder, &mut self.hot, original.instruction);
        self.hot.spill(emit::OPERAND, RCX);
        let done = if operand.kind == OrderedKind::Target {
            self.leave_for(original, operand);
            None
        } else {
            Some(self.asked(original, operand))
        };
        self.hot.arrive8(more);
        self.hot.add_to_rcx(-1);
        self.hot.spill(emit::COUNT, RCX);
        self.hot.reload(RCX, emit::RCX_SLOT);
        let block_end = self.instruction(original);
        if let (BlockEnd::None, Some(done)) = (block_end, done) {
            self.hot.arrive8(done);
        }
        block_end
    }
}

/// Emits the computation of an operand's address, FS base included, into rcx. All registers are the
/// guest's.
pub(super) fn full_address(encoder: &mut Encoder, code: &mut Code, instruction: &Instruction) {
    operand_address(encoder, code, instruction, Register::RCX);
    if instruction.segment_prefix() == Register::FS {
        code.spill(emit::SCRATCH, RDX);
        code.read_fs_base_to_rdx();
        code.add_rdx_to_rcx();
        code.reload(RDX, emit::SCRATCH);
    }
}

/// What a string instruction accesses, if it only moves, stores or loads.
fn strings(instruction: &Instruction) -> Option<Strings> {
    if !moves_strings(instruction) || instruction.segment_prefix() != Register::None {
        return None;
    }
    let mut strings = Strings {
        size: instruction.memory_size().size() as u8,
        reads: false,
        writes: false,
        repeats: is_repeated(instruction),
    };
    for kind in instruction.op_kinds() {
        match kind {
            OpKind::MemorySegRSI => strings.reads = true,
            OpKind::MemoryESRDI => strings.writes = true,
            OpKind::Register => {}
            // Addresses of 32 bits are rare.
            _ => return None,
        }
    }
    Some(strings)
}
