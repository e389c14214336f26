//! Emitting what watches instructions that are ordered against other threads.

use super::desc::{Desc, Kind, Operand};
use super::emit::{self, Code, RCX};
use super::idioms::Idioms;
use super::ordered::{Window, is_load};
use super::translate::{Flow, Place, can_encode, encode, memory_operand, slot_load};
use super::translator::Translator;
use crate::accesses::constant_address;
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
        place: Place,
        window: &mut Window,
        idioms: Option<&Idioms>,
    ) -> Flow {
        let instruction = place.instruction;
        let Some(operand) = self.watch(window, place.index, instruction, idioms) else {
            return self.instruction(place);
        };
        if operand.kind != OrderedKind::ReadModifyWrite {
            self.watched_loads.push((instruction.ip() - window.start()) as u16);
        }
        self.hot.spill(emit::RCX_SLOT, RCX);
        operand_address(&mut self.encoder, &mut self.hot, instruction);
        self.hot.spill(emit::OPERAND, RCX);
        if self.stays_in_line(operand, place) {
            return self.in_line(place, operand);
        }
        self.leave_here(Kind::Ordered(operand), instruction.ip(), false);
        Flow::EndBefore
    }

    /// Whether the machine is asked about an ordered instruction instead of being left for. (A
    /// block counts all of itself where it begins, so one that counts is left.)
    fn stays_in_line(&mut self, operand: Operand, place: Place) -> bool {
        let load = place.instruction;
        self.ordered_leaf.is_some()
            && !self.counts(place.variant)
            && !operand.fs
            && operand.bit_register.is_none()
            && (!operand.kind.is_load()
                || is_load(load) && can_encode(&mut self.encoder, &slot_load(load)))
    }

    /// Emits an ordered instruction; its address is in the thread's `operand`.
    fn in_line(&mut self, place: Place, operand: Operand) -> Flow {
        let gate = match operand.kind {
            OrderedKind::Load => self.load_gates[operand.size.trailing_zeros() as usize],
            // Only a recording knows what loops poll.
            OrderedKind::Poll => self.poll_gates[operand.size.trailing_zeros() as usize],
            _ => self.machine_gate,
        };
        let field = Self::call_machine(&mut self.hot, gate);
        let go_on = self.hot.here();
        let flow = match operand.kind.is_load() {
            true => self.copy_with_slot(place.instruction),
            false => self.performed(place),
        };
        let (kind, pc) = (Kind::Ordered(operand), place.instruction.ip());
        let desc = self.arena.keep(Desc { go_on, ..Desc::new(kind, pc) });
        self.hot.set64(field, desc);
        flow
    }

    /// Emits an instruction that is executed in its place in the order, and what tells of it.
    pub(super) fn performed(&mut self, place: Place) -> Flow {
        let flow = self.instruction(place);
        if flow == Flow::Next {
            self.hot.spill(emit::RCX_SLOT, RCX);
            let field = Self::call_machine(&mut self.hot, self.machine_gate);
            let kind = Kind::Performed { resume: self.hot.here() as u32 };
            let desc = self.arena.keep(Desc::new(kind, place.instruction.next_ip()));
            self.hot.set64(field, desc);
        }
        flow
    }
}

/// Emits the computation of an operand's address, FS base not included, into rcx. All registers
/// are the guest's still.
pub(super) fn operand_address(encoder: &mut Encoder, code: &mut Code, instruction: &Instruction) {
    if let Some(address) = constant_address(instruction) {
        code.load_constant(RCX, address);
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
    let lea = Instruction::with2(Opcode::Lea_r64_m, Register::RCX, memory)
        .expect("the operands fit the instruction");
    assert!(encode(encoder, code, &lea), "an operand that was decoded can be encoded");
}
