//! Emitting what watches instructions that are ordered against other threads.

use super::desc::{Desc, Kind, Operand};
use super::emit::{self, Code, RCX};
use super::idioms::Idioms;
use super::limits::is_look_at_limit;
use super::ordered::{Window, is_load, is_locked, is_store, may_have_partner, operand};
use super::translate::{BlockEnd, Original, can_encode, encode, memory_operand, slot_load};
use super::translator::Translator;
use crate::accesses::{constant_address, is_wide};
use iced_x86::{Code as Opcode, Encoder, Instruction, Register};
use refrain_vm::OrderedKind;
use std::sync::Arc;

impl Translator {
    /// The idioms of the function around `pc`, if it is known. A replay has no use for them.
    pub(super) fn idioms_around(&mut self, pc: u64) -> Option<Arc<Idioms>> {
        if self.records() { self.functions.idioms(pc) } else { None }
    }

    /// Emits an instruction of code whose ordered instructions are watched.
    pub(super) fn watched(
        &mut self,
        original: Original,
        window: &mut Window,
        idioms: Option<&Idioms>,
    ) -> BlockEnd {
        let instruction = original.instruction;
        let Some(operand) = self.watch(window, original.index, instruction, idioms) else {
            return self.unordered(original);
        };
        self.make_room_for(instruction);
        if !is_locked(instruction) {
            self.watched_loads.push((instruction.ip() - window.start()) as u16);
        }
        self.hot.spill(emit::RCX_SLOT, RCX);
        operand_address(&mut self.encoder, &mut self.hot, instruction, Register::RCX);
        self.hot.spill(emit::OPERAND, RCX);
        if self.stays_in_line(operand, original) {
            return self.in_line(original, operand);
        }
        self.leave_here(Kind::Ordered(operand), instruction.ip(), false);
        BlockEnd::Before
    }

    /// The operand of `instruction`, the `index`th of the window, if it is to be ordered. `idioms`
    /// are those of the function, if one is known.
    fn watch(
        &self,
        window: &mut Window,
        index: usize,
        instruction: &Instruction,
        idioms: Option<&Idioms>,
    ) -> Option<Operand> {
        if is_locked(instruction) {
            return Some(operand(instruction, OrderedKind::ReadModifyWrite));
        }
        let pc = instruction.ip();
        let listed = match (&self.config.watched, idioms) {
            (Some(watched), _) => watched.contains(&pc),
            (None, None) => {
                let has_partner =
                    may_have_partner(instruction) && window.has_partner(index, instruction);
                has_partner || self.is_known(instruction)
            }
            (None, Some(idioms)) => {
                if idioms.checks.binary_search(&pc).is_ok() && is_load(instruction) {
                    return Some(operand(instruction, OrderedKind::Check));
                }
                if idioms.polls.binary_search(&pc).is_ok() && is_load(instruction) {
                    return Some(operand(instruction, OrderedKind::Poll));
                }
                idioms.sites.binary_search(&pc).is_ok() || self.is_known(instruction)
            }
        };
        if !listed {
            return None;
        }
        if is_store(instruction) {
            return Some(operand(instruction, OrderedKind::Store));
        }
        if is_load(instruction) {
            return Some(operand(instruction, OrderedKind::Load));
        }
        is_wide(instruction).then(|| operand(instruction, OrderedKind::ReadModifyWrite))
    }

    /// Whether an instruction is watched for its own sake, whichever instructions stand beside it.
    fn is_known(&self, instruction: &Instruction) -> bool {
        is_look_at_limit(instruction) || self.learned.contains(instruction)
    }

    /// Whether the machine is asked about an ordered instruction instead of being left for. (A
    /// block counts all of itself where it begins, so one that counts is left.)
    fn stays_in_line(&mut self, operand: Operand, original: Original) -> bool {
        let load = original.instruction;
        self.ordered_fast_path.is_some()
            && !self.counts(original.variant)
            && !operand.fs
            && operand.bit_register.is_none()
            && (!operand.kind.is_load()
                || is_load(load) && can_encode(&mut self.encoder, &slot_load(load)))
    }

    /// Emits an ordered instruction; its address is in the thread's `operand`.
    fn in_line(&mut self, original: Original, operand: Operand) -> BlockEnd {
        let size = operand.size.trailing_zeros() as usize;
        let has_gates = matches!(operand.size, 1 | 2 | 4 | 8);
        let [stores, updates, done] = self.own_gates.map(|gates| has_gates.then(|| gates[size]));
        let (gate, done) = match operand.kind {
            OrderedKind::Load => (Some(self.load_gates[size]), None),
            // Only a recording knows what loops poll.
            OrderedKind::Poll => (Some(self.poll_gates[size]), None),
            OrderedKind::Store => (stores, done),
            OrderedKind::ReadModifyWrite => (updates, done),
            _ => (None, None),
        };
        let gate = gate.unwrap_or(self.machine_gate);
        let field = Self::call_machine(&mut self.hot, gate);
        let go_on = self.hot.here();
        let block_end = match operand.kind.is_load() {
            true => self.copy_with_slot(original.instruction),
            false => self.performed(original, operand.found, done.unwrap_or(self.machine_gate)),
        };
        let (kind, pc) = (Kind::Ordered(operand), original.instruction.ip());
        let desc = self.arena.keep(Desc { go_on, ..Desc::new(kind, pc) });
        self.hot.set64(field, desc);
        block_end
    }

    /// Emits an instruction that is executed in its place in the order, and what tells of it, and of
    /// what it has found, if a register holds that, through a gate.
    pub(super) fn performed(
        &mut self,
        original: Original,
        found: Option<u8>,
        gate: u64,
    ) -> BlockEnd {
        let block_end = self.instruction(original);
        if block_end == BlockEnd::None {
            if let Some(register) = found {
                self.hot.spill(emit::OPERAND, register);
            }
            self.hot.spill(emit::RCX_SLOT, RCX);
            let field = Self::call_machine(&mut self.hot, gate);
            let kind = Kind::Performed { resume: self.hot.here() as u32 };
            let desc = self.arena.keep(Desc::new(kind, original.instruction.next_ip()));
            self.hot.set64(field, desc);
        }
        block_end
    }
}

/// Emits the computation of an operand's address, FS base not included, into rcx or rdx. All registers
/// are the guest's still. (Of `xlat`, rcx is clobbered in any case.)
pub(super) fn operand_address(
    encoder: &mut Encoder,
    code: &mut Code,
    instruction: &Instruction,
    to: Register,
) {
    if let Some(address) = constant_address(instruction) {
        code.load_constant(to.number() as u8, address);
        return;
    }
    let mut memory = memory_operand(instruction);
    memory.segment_prefix = Register::None;
    // The index of `xlat` is al, which no other instruction can have as an index.
    if memory.index == Register::AL {
        let index = Instruction::with2(Opcode::Movzx_r32_rm8, Register::ECX, Register::AL);
        let index = index.expect("the operands fit the instruction");
        assert!(encode(encoder, code, &index), "movzx of two registers can be encoded");
        memory.index = if memory.base.is_gpr32() { Register::ECX } else { Register::RCX };
    }
    let lea = Instruction::with2(Opcode::Lea_r64_m, to, memory)
        .expect("the operands fit the instruction");
    assert!(encode(encoder, code, &lea), "an operand that was decoded can be encoded");
}
