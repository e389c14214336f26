//! Emitting what watches instructions that are ordered against other threads.
//!
//! A load that goes through the filter:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       lea rcx, [operand]
//!       movzx ecx, cx
//!       movzx ecx, byte [rcx + filter]
//!       jrcxz L
//!       jmp exit                  among the rare ones
//!    L: mov rcx, [rcx slot]
//!       the load
//! ```

use super::desc::{Desc, Doubt, GoOn, Kind, Operand};
use super::emit::{self, Code, RCX};
use super::functions::Findings;
use super::ordered::{Watch, Window, constant_address, is_load, is_store, operand};
use super::translate::{Flow, Place, can_encode, encode, memory_operand, slot_load};
use super::translator::Translator;
use iced_x86::{Code as Opcode, Encoder, Instruction, Register};
use refrain_vm::OrderedKind;
use std::sync::Arc;

/// Bytes of the jump to a rare exit.
const JUMP: u8 = 5;

impl Translator {
    /// What was found in the function around `pc`, if it is known. A replay has no use for it.
    pub(super) fn findings_around(&mut self, pc: u64) -> Option<Arc<Findings>> {
        let wanted = self.config.order_atomics && self.config.ordered_loads.is_none();
        if wanted { self.functions.findings(pc) } else { None }
    }

    /// Emits an instruction of code whose ordered instructions are watched.
    pub(super) fn watched(
        &mut self,
        place: Place,
        window: &mut Window,
        findings: Option<&Findings>,
    ) -> Flow {
        let watch = self.watch(window, place.index, place.instruction, findings);
        if let Some(Watch::Always(operand) | Watch::Filtered(operand)) = watch
            && operand.kind != OrderedKind::ReadModifyWrite
        {
            let offset = place.instruction.ip() - window.start();
            self.watched_loads.push(offset as u16);
        }
        if let Some(findings) = findings
            && !matches!(watch, Some(Watch::Always(_)))
            && findings.suspects.binary_search(&place.instruction.ip()).is_ok()
        {
            let tracked = !findings.locked.is_empty() || findings.calls_locked;
            self.suspect_exit(place, tracked);
        }
        match watch {
            None => self.instruction(place),
            Some(Watch::Always(operand)) => {
                self.hot.spill(emit::RCX_SLOT, RCX);
                operand_address(&mut self.encoder, &mut self.hot, place.instruction);
                self.hot.spill(emit::OPERAND, RCX);
                if self.stays_in_line(operand, place) {
                    return self.in_line(place, operand);
                }
                let kind = Kind::Ordered { operand, go_on: None };
                self.leave_here(kind, place.instruction.ip(), false);
                Flow::EndBefore
            }
            Some(Watch::Filtered(operand)) => {
                self.filter(place);
                if self.stays_in_line(operand, place) {
                    return self.in_line_if_known(place, operand);
                }
                let kind = Kind::Ordered { operand, go_on: None };
                self.leave_cold(kind, place.instruction.ip());
                let flow = self.instruction(place);
                if flow == Flow::Next && self.counts(place.variant) {
                    // The exit takes back the count of one instruction, so it must be the last.
                    self.chain(place.instruction.next_ip(), place.variant);
                    return Flow::End;
                }
                flow
            }
        }
    }

    /// Whether the machine is asked about an ordered instruction instead of being left for. (A
    /// block counts all of itself where it begins, so one that counts is left.)
    fn stays_in_line(&mut self, operand: Operand, place: Place) -> bool {
        let load = place.instruction;
        self.ordered_leaf.is_some()
            && !self.counts(place.variant)
            && !operand.fs
            && operand.bit_register.is_none()
            && (operand.kind != OrderedKind::Load
                || is_load(load) && can_encode(&mut self.encoder, &slot_load(load)))
    }

    /// Emits an instruction that is always ordered; its address is in the thread's `operand`.
    fn in_line(&mut self, place: Place, operand: Operand) -> Flow {
        let field = Self::call_machine(&mut self.hot, self.machine_gate);
        let ordered = self.hot.here() as u32;
        let flow = match operand.kind {
            OrderedKind::Load => self.copy_with_slot(place.instruction),
            _ => self.performed(place),
        };
        let desc = self.ordered_in_line(place, operand, GoOn { plain: ordered, ordered });
        self.hot.set64(field, desc);
        flow
    }

    /// Emits an instruction that is ordered if the filter knows its operand; the rare code has it
    /// in the thread's `operand`.
    fn in_line_if_known(&mut self, place: Place, operand: Operand) -> Flow {
        let field = Self::call_machine(&mut self.cold, self.machine_gate);
        let plain = self.hot.here() as u32;
        let (flow, ordered) = match operand.kind {
            OrderedKind::Load => {
                let ordered = self.cold.here() as u32;
                std::mem::swap(&mut self.hot, &mut self.cold);
                self.copy_with_slot(place.instruction);
                std::mem::swap(&mut self.hot, &mut self.cold);
                let flow = self.instruction(place);
                self.cold.jmp(self.hot.here());
                (flow, ordered)
            }
            _ => {
                self.instruction(place);
                self.hot.jmp(0);
                let over = self.hot.here() - 4;
                let ordered = self.hot.here() as u32;
                let flow = self.performed(place);
                self.hot.set32(over, emit::displacement(over, self.hot.here()));
                (flow, ordered)
            }
        };
        let desc = self.ordered_in_line(place, operand, GoOn { plain, ordered });
        self.cold.set64(field, desc);
        flow
    }

    /// Emits an instruction that is executed in its place in the order, and what tells of it.
    fn performed(&mut self, place: Place) -> Flow {
        let flow = self.instruction(place);
        if flow == Flow::Next {
            self.hot.spill(emit::RCX_SLOT, RCX);
            let field = Self::call_machine(&mut self.hot, self.machine_gate);
            let kind = Kind::Performed { resume: self.hot.here() as u32 };
            let desc = self.arena.keep(Desc { kind, pc: place.instruction.next_ip() });
            self.hot.set64(field, desc);
        }
        flow
    }

    fn ordered_in_line(&mut self, place: Place, operand: Operand, go_on: GoOn) -> u64 {
        let kind = Kind::Ordered { operand, go_on: Some(go_on) };
        self.arena.keep(Desc { kind, pc: place.instruction.ip() })
    }

    /// Emits the exit before a load or store that `suspects` may want to see.
    fn suspect_exit(&mut self, place: Place, tracked: bool) {
        let instruction = place.instruction;
        self.hot.align_field(1);
        self.hot.put(&[0xe9]);
        let field = self.hot.here();
        let resume = field + 4;
        let counts = self.counts(place.variant);
        let again = if counts { self.cold.here() } else { resume };
        if counts {
            self.cold.spill(emit::RCX_SLOT, RCX);
            self.count_rest(place, 1);
            self.cold.reload(RCX, emit::RCX_SLOT);
            self.cold.jmp(resume);
        }
        let exit = self.cold.here();
        let wanted = self.suspects.add(instruction.ip(), field, exit);
        self.hot.rel32(if wanted { exit } else { resume });
        let kind = if is_store(instruction) { OrderedKind::Store } else { OrderedKind::Load };
        let operand = Operand { doubt: Doubt::Polled, ..operand(instruction, kind) };
        self.cold.spill(emit::RCX_SLOT, RCX);
        if counts {
            self.count_rest(place, -1);
            self.cold.reload(RCX, emit::RCX_SLOT);
        }
        operand_address(&mut self.encoder, &mut self.cold, instruction);
        self.cold.spill(emit::OPERAND, RCX);
        let kind = Kind::Suspect { operand, tracked, resume: again as u32 };
        self.leave_cold(kind, instruction.ip());
    }

    /// Emits, among the rare exits, the counting of what the block has from here on, `sign` times;
    /// rcx is in its slot. A block counts all of itself where it begins.
    fn count_rest(&mut self, place: Place, sign: i32) {
        self.cold.reload(RCX, emit::RETIRED);
        self.cold.add_to_rcx(0);
        self.rests.push((self.cold.here() - 4, place.index, sign));
        self.cold.spill(emit::RETIRED, RCX);
    }

    /// Emits the filter's question before a load or store; what is done if it knows the operand is
    /// to follow among the rare exits, where the address is in the thread's `operand`.
    fn filter(&mut self, place: Place) {
        let load = place.instruction;
        let filter = self.tables.filter();
        self.hot.spill(emit::RCX_SLOT, RCX);
        match constant_address(load) {
            Some(address) => self.hot.load_byte(filter + u32::from(address as u16)),
            None => {
                operand_address(&mut self.encoder, &mut self.hot, load);
                self.hot.low_half_of_ecx();
                self.hot.load_byte_from_table(filter);
            }
        }
        self.hot.skip_if_rcx_zero(JUMP);
        self.hot.jmp(self.cold.here());
        self.hot.reload(RCX, emit::RCX_SLOT);

        if self.counts(place.variant) {
            self.cold.reload(RCX, emit::RETIRED);
            self.cold.add_to_rcx(-1);
            self.cold.spill(emit::RETIRED, RCX);
        }
        self.cold.reload(RCX, emit::RCX_SLOT);
        operand_address(&mut self.encoder, &mut self.cold, load);
        self.cold.spill(emit::OPERAND, RCX);
    }
}

/// Emits the computation of an operand's address, FS base not included, into rcx. All registers
/// are the guest's still.
fn operand_address(encoder: &mut Encoder, code: &mut Code, instruction: &Instruction) {
    if let Some(address) = constant_address(instruction) {
        code.load_constant(RCX, address);
        return;
    }
    let mut memory = memory_operand(instruction);
    memory.segment_prefix = Register::None;
    let lea = Instruction::with2(Opcode::Lea_r64_m, Register::RCX, memory)
        .expect("the operands fit the instruction");
    assert!(encode(encoder, code, &lea), "an operand that was decoded can be encoded");
}
