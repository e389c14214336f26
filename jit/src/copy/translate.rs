//! Making a block: copying instructions, and what ends it.

use super::classify::Action;
use super::desc::{Desc, Kind, MAX_BLOCK, Variant};
use super::emit::{self, Code, RCX};
use super::faults::Fix;
use super::generated::Look;
use super::ordered::{Window, is_load, is_locked};
use super::plain;
use super::text::{FIRST, Text};
use super::translator::{Failure, Following, Translator};
use crate::accesses::fits_register;
use crate::common::LONGEST_INSTRUCTION;
use crate::moved::operand_at;
use iced_x86::{
    ConstantOffsets, Decoder, DecoderError, DecoderOptions, Encoder, Instruction,
    InstructionInfoFactory, MemoryOperand, Mnemonic, Register,
};
use refrain_vm::{Cause, Count};

/// Guest code that is looked at for one block: the block and what the ordering looks ahead at.
const WINDOW: usize = 1024;
/// The same where there is no ordering.
const SHORT_WINDOW: usize = 256;
/// Translated code behind which no further block is put in line.
const MAX_RUN: u64 = 4096;
const MAX_INSTRUCTION: u64 = LONGEST_INSTRUCTION as u64;
const PAGE_SHIFT: u32 = refrain_vm::layout::PAGE.trailing_zeros();

/// Whether a block ends at an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockEnd {
    /// The block goes on.
    None,
    /// The instruction ends it.
    After,
    /// The block ends before the instruction, which is not executed in it.
    Before,
}

/// An instruction of the guest, and where it stands in its block.
#[derive(Clone, Copy)]
pub(super) struct Original<'a> {
    pub(super) instruction: &'a Instruction,
    pub(super) bytes: &'a [u8],
    /// Of an instruction with an operand relative to its address.
    pub(super) offsets: ConstantOffsets,
    /// Instructions of the block before it.
    pub(super) index: usize,
    pub(super) variant: Variant,
}

impl Translator {
    /// Emits the block at `pc` and returns its address. If it ends with a call, the block that the
    /// call returns to follows in line, and so on; then the blocks that are executed next in any case:
    /// threads need not come out for them.
    pub(super) fn translate(
        &mut self,
        pc: u64,
        variant: Variant,
        with_entry: bool,
    ) -> Result<u64, Failure> {
        let start = self.hot.here();
        self.next.clear();
        let body = self.block(pc, variant, with_entry)?;
        self.continuations(start);
        while let Some(Following { field, target, variant }) = self.next.pop() {
            let known = self.bodies.get(target, variant).or_else(|| {
                let may_follow = self.may_follow(start, target, variant);
                let body = may_follow.then(|| self.block(target, variant, false).ok()).flatten();
                self.continuations(start);
                body
            });
            if let Some(body) = known.filter(|_| self.may_link()) {
                self.hot.set32(field, emit::displacement(field, body));
            }
        }
        Ok(body)
    }

    /// Emits the blocks that the last call returns to, and the stubs of the calls so far.
    fn continuations(&mut self, start: u64) {
        while let Some((pc, variant)) = self.continuation.take() {
            let goes_on = self.may_follow(start, pc, variant)
                && !self.bodies.contains(pc, variant)
                && self.block(pc, variant, false).is_ok();
            if !goes_on {
                self.chain(pc, variant);
            }
        }
        self.call_stubs();
    }

    /// Whether a block may be emitted behind what was emitted from `start` on.
    fn may_follow(&self, start: u64, pc: u64, variant: Variant) -> bool {
        self.hot.here() - start < MAX_RUN && !(variant.observed() && self.hooks.contains(pc))
    }

    /// Emits one block.
    fn block(&mut self, pc: u64, variant: Variant, with_entry: bool) -> Result<u64, Failure> {
        let generated = self.is_generated(pc);
        let ahead = generated || self.orders(variant);
        let most = if ahead { WINDOW } else { SHORT_WINDOW };
        let text = Text::at(pc, most, self.executable_end(pc));
        let hooked = variant == Variant::Observed && self.hooks.contains(pc);
        if with_entry {
            self.jump_entry(pc, variant);
        }
        let body = self.hot.here();
        self.bodies.insert(pc, variant, body);
        self.every.rcx_is_saved = false;
        if generated {
            self.note_unkept();
            self.look_at_code(pc, text.all(), variant);
        }
        self.faults.begin(self.hot.here(), pc);
        if hooked {
            match self.fast_paths.get(&pc) {
                Some(&fast_path) => self.call_fast_path(pc, fast_path, variant),
                None => self.leave_here(Kind::Hook, pc, true),
            }
            self.note_unkept();
            self.finish(pc, pc, 0);
            return Ok(body);
        }
        if self.is_place(pc, variant) {
            self.leave_at_count(pc);
        }
        if self.logs(variant) {
            self.look_for_room(pc);
            self.log_named_call(pc, variant);
        }
        let counter = self.count_placeholder(variant);
        let (end, count) = self.instructions(&text, variant)?;
        self.end_accesses(end);
        if self.config.keep_blocks && variant.is_kept_in_traces() && end > pc {
            self.keep(pc, &text.first()[..(end - pc) as usize]);
        }
        // What is no instruction, the code that follows says.
        if end > pc {
            self.note_block(pc, variant, body, &text.first()[..(end - pc) as usize]);
        } else {
            self.note_unkept();
        }
        self.finish(pc, end, if self.counts(variant) { count } else { 0 });
        if let Some(field) = counter {
            self.hot.set32(field, count as u32);
        }
        self.fill_in(variant, count);
        Ok(body)
    }

    /// Fills in what depends on how many instructions the block has, where there is such.
    fn fill_in(&mut self, variant: Variant, count: usize) {
        if self.exits.is_empty() && self.rests.is_empty() {
            return;
        }
        let mut exits = std::mem::take(&mut self.exits);
        for (field, desc, before) in exits.drain(..) {
            let rest = if self.counts(variant) { (count - before) as u32 } else { 0 };
            let desc = self.arena.keep(Desc { rest, ..desc });
            self.hot.set64(field, desc);
        }
        self.exits = exits;
        for (field, before, sign) in self.rests.drain(..) {
            self.cold.set32(field, (sign * (count - before) as i32) as u32);
        }
    }

    /// Whether accesses of such code are ordered.
    fn orders(&self, variant: Variant) -> bool {
        self.config.order_atomics && self.several && variant.observed()
    }

    /// Emits the instructions of a block; returns where the last one ends and how many are
    /// executed.
    fn instructions(&mut self, text: &Text, variant: Variant) -> Result<(u64, usize), Failure> {
        let pc = text.pc;
        let mut window = Window::new(text);
        let ordered = self.orders(variant);
        let every = ordered && self.config.every_access;
        let careful = variant == Variant::Careful;
        let planned = every && !careful;
        if planned {
            self.plan(pc, text.all(), variant);
        }
        let mut code = text.first();
        let mut decoder = None;
        let careful_end = self.careful_ends.get(&pc).copied().filter(|_| careful);
        let idioms = if ordered && !every { self.idioms_around(pc) } else { None };
        let plain = !ordered && !self.logs(variant) && !variant.steps();
        self.watched_loads.clear();
        let mut instruction = Instruction::default();
        let mut index = 0;
        let mut at = pc;
        // Plain instructions are put together: what is behind this address has not been put.
        let mut done = pc;
        loop {
            if at + MAX_INSTRUCTION > pc + code.len() as u64 && code.len() == FIRST {
                self.hot.put(&code[(done - pc) as usize..(at - pc) as usize]);
                done = at;
                code = text.all();
                decoder = None;
            }
            let readable_end = pc + code.len() as u64;
            let splits = index > 0 && self.must_split(at, index, readable_end, variant);
            let rest = &code[(at - pc) as usize..];
            let length = (plain && !splits).then(|| plain::length(rest)).flatten();
            if let Some(length) = length {
                self.faults.mark(self.hot.here() + (at - done), at, index, Fix::None);
                at += length as u64;
                index += 1;
                continue;
            }
            let plain = &code[(done - pc) as usize..];
            let len = (at - done) as usize;
            match plain.first_chunk() {
                Some(first) if len <= emit::SOME => self.hot.put_some(first, len),
                _ => self.hot.put(&plain[..len]),
            }
            if splits {
                self.go_on_at(at, variant);
                return Ok((at, index));
            }
            if index > 0 && careful_end.is_some_and(|end| at >= end) {
                self.chain(at, variant);
                return Ok((at, index));
            }
            let decoder =
                decoder.get_or_insert_with(|| Decoder::with_ip(64, code, pc, DecoderOptions::NONE));
            if decoder.ip() != at {
                let position = decoder.set_position((at - pc) as usize);
                position.expect("a block's instructions lie in the code that it is made of");
                decoder.set_ip(at);
            }
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                self.undecodable(at, index, decoder.last_error(), readable_end, variant)?;
                return Ok((at, index));
            }
            let end = decoder.ip();
            // Nobody asks for the others'.
            let offsets = match instruction.is_ip_rel_memory_operand() {
                true => decoder.get_constant_offsets(&instruction),
                false => ConstantOffsets::default(),
            };
            let original = Original {
                instruction: &instruction,
                bytes: &rest[..(end - at) as usize],
                offsets,
                index,
                variant,
            };
            self.log_value(original);
            let block_end = if planned {
                self.every_access(original)
            } else if every {
                self.careful_access(original)
            } else if ordered {
                self.watched(original, &mut window, idioms.as_deref())
            } else {
                self.unordered(original)
            };
            index += usize::from(block_end != BlockEnd::Before);
            if block_end != BlockEnd::None {
                return Ok((end, index));
            }
            (at, done) = (end, end);
        }
    }

    /// Emits what happens at bytes that are no instruction.
    fn undecodable(
        &mut self,
        at: u64,
        index: usize,
        error: DecoderError,
        readable_end: u64,
        variant: Variant,
    ) -> Result<(), Failure> {
        if index > 0 {
            self.chain(at, variant);
        } else if error == DecoderError::NoMoreBytes {
            self.forget_block(at, variant);
            return Err(Failure::Fault(self.fault_of_fetch(readable_end)));
        } else {
            self.leave_here(Kind::Trap(Cause::ILLEGAL), at, true);
        }
        Ok(())
    }

    /// Whether a block must not run on to the instruction at `at`.
    pub(super) fn must_split(
        &self,
        at: u64,
        index: usize,
        readable_end: u64,
        variant: Variant,
    ) -> bool {
        variant.steps()
            || index >= MAX_BLOCK
            || at >= readable_end
            || index > 8 && at + MAX_INSTRUCTION > readable_end
            || variant.observed() && self.hooks.contains(at)
            || self.is_place(at, variant)
            || self.names(at, variant)
            || self.look(at, variant) == Look::Asked
    }

    /// Whether threads may have to leave before the instruction at `pc`.
    fn is_place(&self, pc: u64, variant: Variant) -> bool {
        variant.observed() && self.config.places.contains(&pc)
    }

    /// Emits the exit before the block at `pc` for a thread that has executed as many instructions
    /// as it should.
    fn leave_at_count(&mut self, pc: u64) {
        const SHORT_JUMP: u8 = 2;
        const JUMP: u8 = 5;
        self.hot.spill(emit::RCX_SLOT, RCX);
        self.hot.spill(emit::SCRATCH, emit::RDX);
        self.hot.reload(RCX, emit::RETIRED);
        self.hot.reload(emit::RDX, emit::MINUS_LEAVE_AT);
        self.hot.add_rdx_to_rcx();
        self.hot.reload(emit::RDX, emit::SCRATCH);
        self.hot.skip_if_rcx_zero(SHORT_JUMP);
        self.hot.put(&[0xeb, JUMP]);
        self.hot.jmp(self.cold.here());
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.leave_cold(Kind::Interrupted, pc);
    }

    /// Completes the bookkeeping of a block that covers `pc..end`.
    fn finish(&mut self, pc: u64, end: u64, counted: usize) {
        self.faults.end(self.hot.here(), counted);
        // What changes is noticed by itself.
        if !self.is_generated(pc) {
            self.add_pages(pc, end);
        }
    }

    /// There is a block that covers `pc..end`.
    pub(super) fn add_pages(&mut self, pc: u64, end: u64) {
        for page in pc >> PAGE_SHIFT..=(end.max(pc + 1) - 1) >> PAGE_SHIFT {
            if self.last_page != Some(page) {
                self.last_page = Some(page);
                self.pages.insert(page);
            }
        }
    }

    /// Whether instructions are counted: not in functions that count as one event.
    pub(super) fn counts(&self, variant: Variant) -> bool {
        self.config.count == Count::Instructions && variant != Variant::Opaque
    }

    /// Emits the counting of the block's instructions, if it is asked for; returns where
    /// the number is to be filled in.
    fn count_placeholder(&mut self, variant: Variant) -> Option<u64> {
        self.counts(variant).then(|| {
            self.hot.spill(emit::RCX_SLOT, RCX);
            self.hot.reload(RCX, emit::RETIRED);
            self.hot.add_to_rcx(0);
            let field = self.hot.here() - 4;
            self.hot.spill(emit::RETIRED, RCX);
            self.hot.reload(RCX, emit::RCX_SLOT);
            field
        })
    }

    /// Emits one instruction.
    pub(super) fn instruction(&mut self, original: Original) -> BlockEnd {
        let instruction = original.instruction;
        let next = instruction.next_ip();
        let action = self.copied.classify(instruction, self.config.processor);
        if original.variant.steps() && action != Action::Copy {
            // Only ordered instructions are stepped over, and those are copied.
            self.leave_here(Kind::Trap(Cause::ILLEGAL), instruction.ip(), true);
            return BlockEnd::Before;
        }
        match action {
            Action::Copy => return self.copy(original),
            Action::Jump(target) => self.go_on_at(target, original.variant),
            Action::Branch(condition, target) => {
                self.branch(condition, target, original.variant);
                self.chain(next, original.variant);
            }
            Action::ShortBranch(target) => self.short_branch(original, target),
            Action::JumpIndirect => self.jump_indirect(original),
            Action::Call(target) => self.continuation = self.call(original, Some(target)),
            Action::CallIndirect => self.continuation = self.call(original, None),
            Action::Return(extra) => {
                self.log_ends(original);
                self.ret(original, extra);
            }
            Action::AbortTransaction(target) => {
                self.hot.load_constant(0, 0);
                self.chain(target, original.variant);
            }
            Action::LeaveAfter(kind) => self.leave_here(kind, next, true),
            Action::LeaveBefore(kind) => {
                self.leave_here(kind, instruction.ip(), true);
                return BlockEnd::Before;
            }
            Action::Unsupported => return self.leave_unsupported(instruction),
        }
        BlockEnd::After
    }

    pub(super) fn leave_unsupported(&mut self, instruction: &Instruction) -> BlockEnd {
        let name = self.name(instruction.mnemonic());
        self.leave_here(Kind::Unsupported(name), instruction.ip(), true);
        BlockEnd::Before
    }

    /// Notes that code from here on belongs to the instruction.
    pub(super) fn mark(&mut self, original: Original, fix: Fix) {
        self.faults.mark(self.hot.here(), original.instruction.ip(), original.index, fix);
    }

    /// Emits an instruction that is no branch.
    fn copy(&mut self, original: Original) -> BlockEnd {
        self.mark(original, Fix::None);
        if original.variant == Variant::StepLoad {
            return self.copy_with_slot(original.instruction);
        }
        if original.variant == Variant::StepMoved {
            return match self.copy_moved(original) {
                true => BlockEnd::None,
                false => self.leave_unsupported(original.instruction),
            };
        }
        if !original.instruction.is_ip_rel_memory_operand() {
            self.hot.put(original.bytes);
            return BlockEnd::None;
        }
        let target = original.instruction.ip_rel_memory_address();
        let end = self.hot.here() + original.bytes.len() as u64;
        let displacement = target.wrapping_sub(end);
        // EIP-relative addresses wrap at 4 GiB, and so everything is in reach.
        let wraps = original.instruction.memory_base() == Register::EIP;
        if wraps || i32::try_from(displacement as i64).is_ok() {
            let start = self.hot.here();
            self.hot.put(original.bytes);
            let field = start + original.offsets.displacement_offset() as u64;
            self.hot.set32(field, displacement as u32);
            return BlockEnd::None;
        }
        if !self.copy_far(original, target) {
            return self.leave_unsupported(original.instruction);
        }
        BlockEnd::None
    }

    /// Emits a load or a locked instruction with the thread's `operand` in place of its memory operand.
    pub(super) fn copy_with_slot(&mut self, instruction: &Instruction) -> BlockEnd {
        let fits = is_load(instruction) || is_locked(instruction) && fits_register(instruction);
        if fits && self.encode(&slot_load(instruction)) {
            BlockEnd::None
        } else {
            self.leave_unsupported(instruction)
        }
    }

    /// Emits an instruction whose RIP-relative operand is out of reach, with a register instead.
    fn copy_far(&mut self, original: Original, target: u64) -> bool {
        let instruction = original.instruction;
        if instruction.mnemonic() == Mnemonic::Lea && instruction.op0_register().size() == 8 {
            self.hot.load_constant(instruction.op0_register().number() as u8, target);
            return true;
        }
        self.copy_by_register(original, |code, number| code.load_constant(number, target))
    }

    /// Emits an instruction with its memory operand where the thread's `operand` says.
    fn copy_moved(&mut self, original: Original) -> bool {
        self.copy_by_register(original, |code, number| code.reload(number, emit::OPERAND))
    }

    /// Emits an instruction with its memory operand where a register points to, which `load` loads.
    fn copy_by_register(&mut self, original: Original, load: impl Fn(&mut Code, u8)) -> bool {
        let Some(scratch) = unused_register(original.instruction) else {
            return false;
        };
        let number = scratch.number() as u8;
        let instruction = operand_at(original.instruction, scratch);
        self.hot.spill(emit::SCRATCH, number);
        load(&mut self.hot, number);
        self.mark(original, Fix::Scratch(number));
        let done = self.encode(&instruction);
        self.hot.reload(number, emit::SCRATCH);
        done
    }

    /// Emits an instruction in iced's form.
    pub(super) fn encode(&mut self, instruction: &Instruction) -> bool {
        encode(&mut self.encoder, &mut self.hot, instruction)
    }
}

/// Appends an instruction in iced's form to `code`.
pub(super) fn encode(encoder: &mut Encoder, code: &mut Code, instruction: &Instruction) -> bool {
    let done = encoder.encode(instruction, code.here()).is_ok();
    let mut bytes = encoder.take_buffer();
    if done {
        code.put(&bytes);
    }
    bytes.clear();
    encoder.set_buffer(bytes);
    done
}

/// A load with the thread's `operand` in place of its memory operand.
pub(super) fn slot_load(instruction: &Instruction) -> Instruction {
    const WIDE: u32 = 8;
    let mut load = operand_at(instruction, Register::None);
    load.set_segment_prefix(Register::GS);
    load.set_memory_displacement64(emit::OPERAND.offset());
    load.set_memory_displ_size(WIDE);
    load
}

/// Whether an instruction in iced's form can be encoded.
pub(super) fn can_encode(encoder: &mut Encoder, instruction: &Instruction) -> bool {
    encode(encoder, &mut Code::default(), instruction)
}

/// The memory operand of an instruction, for another one.
pub(super) fn memory_operand(instruction: &Instruction) -> MemoryOperand {
    MemoryOperand::new(
        instruction.memory_base(),
        instruction.memory_index(),
        instruction.memory_index_scale(),
        instruction.memory_displacement64() as i64,
        instruction.memory_displ_size(),
        false,
        instruction.segment_prefix(),
    )
}

/// A general register that the instruction neither reads nor writes. The first ones can be
/// combined with any other register, `ah` to `bh` included.
fn unused_register(instruction: &Instruction) -> Option<Register> {
    use Register::*;
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers();
    let is_used = |register| used.iter().any(|u| u.register().full_register() == register);
    [RSI, RDI, RBP, RBX, RDX, RAX, RCX, R8, R9, R10]
        .into_iter()
        .find(|&register| !is_used(register))
}
