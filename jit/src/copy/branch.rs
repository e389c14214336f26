//! Control flow: chaining, lookups, and returns that the processor predicts.
//!
//! # Calls and returns
//! A guest call is a host call, so that the processor's return stack follows the guest's:
//!
//! ```text
//!       call S                    pushes the host address H
//!    H: rcx = rcx slot            a return to G arrives here
//!       mov [rsp-8], G            undoes what the return wrote
//!       translation of G
//!    S: mov [rsp], G              the guest sees its own return address
//!       jmp translation of the callee
//! ```
//!
//! A guest `ret` looks the host address up, puts it on the stack, and executes `ret`. The guest's
//! stack holds the guest's values at all points where the guest can look, below the stack pointer
//! too. Where the return table cannot be used (`tables`), the lookup is by the low 16 bits of the
//! return address, and at H comes first a comparison that finds lookups that were wrong.
//!
//! Of naive Fibonacci numbers (a call every 2.5 ns natively) this takes 1.4 times the native time
//! on a Zen 3; with the comparison always, and a jump to the translation of G, it took twice.

use super::desc::{Kind, Variant};
use super::emit::{self, RCX, REACH};
use super::faults::Fix;
use super::image::What;
use super::tables::{ReturnTable, Use};
use super::translate::{Original, memory_operand};
use super::translator::{Following, PendingCall, Translator};
use iced_x86::{Code as Opcode, ConstantOffsets, Instruction, OpKind, Register};
use refrain_trace::Access;
use refrain_vm::FastPath;

impl Translator {
    /// Emits a jump to the block at `target`, by way of an exit until it is translated.
    pub(super) fn chain(&mut self, target: u64, variant: Variant) {
        if variant.steps() {
            self.leave_here(Kind::Stepped, target, true);
            return;
        }
        self.linked(&[0xe9], target, variant);
    }

    /// The same, where threads that come here go on there in any case: unless it is translated, it is
    /// next. What is far away or generated is left to who looks at it first.
    pub(super) fn go_on_at(&mut self, target: u64, variant: Variant) {
        self.chain(target, variant);
        let variant = variant.next();
        let near = target < REACH && !self.is_generated(target);
        if near && !variant.steps() && !self.bodies.contains(target, variant) {
            let field = self.hot.here() - 4;
            self.next.push(Following { field, target, variant });
        }
    }

    /// Emits a conditional jump likewise.
    pub(super) fn branch(&mut self, condition: u8, target: u64, variant: Variant) {
        self.linked(&[0x0f, 0x80 | condition], target, variant);
    }

    #[inline]
    fn linked(&mut self, opcode: &[u8], target: u64, variant: Variant) {
        let variant = variant.next();
        self.hot.align_field(opcode.len() as u64);
        self.hot.put(opcode);
        let field = self.hot.here();
        let exit = self.cold.here();
        self.cold.spill(emit::RCX_SLOT, RCX);
        self.leave_cold(Kind::Link { field: field as u32, variant }, target);
        self.links.push((field as u32, exit as u32));
        self.note_link(field, exit, target, variant);
        let known = self.bodies.get(target, variant);
        let to = known.filter(|_| self.may_link()).unwrap_or(exit);
        self.hot.rel32(to);
    }

    /// Emits a jump to the block at `target` among the rare exits.
    pub(super) fn chain_cold(&mut self, target: u64, variant: Variant) {
        self.cold.align_field(1);
        self.cold.put(&[0xe9]);
        let field = self.cold.here();
        let exit = field + 4;
        let known = self.bodies.get(target, variant);
        self.cold.rel32(known.filter(|_| self.may_link()).unwrap_or(exit));
        self.cold.spill(emit::RCX_SLOT, RCX);
        self.leave_cold(Kind::Link { field: field as u32, variant }, target);
        self.links.push((field as u32, exit as u32));
        self.note_link(field, exit, target, variant);
    }

    /// Emits `loop` and its like, which jump over the jump to the next instruction.
    pub(super) fn short_branch(&mut self, original: Original, target: u64) {
        let (&_, opcode) = original.bytes.split_last().expect("the displacement is the last byte");
        self.hot.put(opcode);
        let displacement = self.hot.here();
        self.hot.put(&[0]);
        self.chain(original.instruction.next_ip(), original.variant);
        let distance = self.hot.here() - displacement - 1;
        self.hot.set8(displacement, distance as u8);
        self.chain(target, original.variant);
    }

    /// Emits an indirect jump.
    pub(super) fn jump_indirect(&mut self, original: Original) {
        self.load_target(original);
        self.jump_to_target(original.variant);
    }

    /// Emits the lookup of the target, which rcx holds.
    fn jump_to_target(&mut self, variant: Variant) {
        let table = self.table(Use::Jump, variant.next());
        self.hot.hash_rcx();
        self.hot.jump_through_table(table);
    }

    /// Emits the loading of an indirect branch's operand into rcx and the thread's target.
    fn load_target(&mut self, original: Original) {
        self.mark(original, Fix::None);
        self.hot.spill(emit::RCX_SLOT, RCX);
        let instruction = original.instruction;
        if instruction.op0_kind() == OpKind::Register {
            self.hot.copy_to_rcx(instruction.op0_register().number() as u8);
        } else if instruction.is_ip_rel_memory_operand() {
            self.load_ip_relative(original);
        } else if !self.hot.load_operand_of_branch(original.bytes) {
            let memory = memory_operand(instruction);
            let load = Instruction::with2(Opcode::Mov_r64_rm64, Register::RCX, memory)
                .expect("the operands fit the instruction");
            assert!(self.encode(&load), "an operand that was decoded can be encoded");
        }
        self.mark(original, Fix::Rcx);
        self.hot.spill(emit::TARGET, RCX);
        if self.closes_window {
            self.hot.set_byte(emit::WINDOW, 0);
        }
    }

    /// Emits `mov rcx, [operand]` for a RIP-relative operand.
    fn load_ip_relative(&mut self, original: Original) {
        let address = original.instruction.ip_rel_memory_address();
        let fs = original.instruction.segment_prefix() == Register::FS;
        let prefix: &[u8] = if fs { &[0x64] } else { &[] };
        if address < REACH {
            // mov rcx, [disp32]: all of the low 2 GiB.
            self.hot.put(prefix);
            self.hot.put(&[0x48, 0x8b, 0x0c, 0x25]);
            self.hot.put(&(address as u32).to_le_bytes());
        } else {
            self.hot.load_constant(RCX, address);
            self.mark(original, Fix::Rcx);
            self.hot.put(prefix);
            self.hot.put(&[0x48, 0x8b, 0x09]);
        }
    }

    /// Emits a call, to where the thread's target says if `target` is `None`. Unless the call
    /// was translated before, the translation of what it returns to is to follow.
    pub(super) fn call(
        &mut self,
        original: Original,
        target: Option<u64>,
    ) -> Option<(u64, Variant)> {
        let variant = original.variant.next();
        let site = original.instruction.ip();
        // A call that the guest has generated may have become another one.
        let before = self.call_sites.get(site, variant);
        if let Some(code) = before.filter(|_| !self.is_generated(site)) {
            self.note_jump(self.hot.here(), code);
            self.hot.jmp(code);
            return None;
        }
        self.call_sites.insert(site, variant, self.hot.here());
        self.note_entry(What::Call, site, variant, self.hot.here());
        match target {
            Some(target) => {
                self.log_call(original, target);
                self.mark(original, Fix::None);
            }
            None => {
                self.load_target(original);
                self.log_transfer(original, Access::CALL);
            }
        }
        self.hot.call(0);
        let returned = self.hot.here();
        let return_address = original.instruction.next_ip();
        self.return_entry(return_address, variant);
        self.return_entries.insert(return_address, variant, returned);
        self.note_entry(What::Return, return_address, variant, returned);
        self.pending_returns.push((return_address, variant, returned));
        self.calls.push(PendingCall { field: returned - 4, return_address, target, variant });
        Some((return_address, variant))
    }

    /// Emits the stubs of the calls so far.
    pub(super) fn call_stubs(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let mut calls = std::mem::take(&mut self.calls);
        for call in calls.drain(..) {
            let stub = self.hot.here();
            self.hot.set32(call.field, emit::displacement(call.field, stub));
            self.hot.store_on_stack(0, call.return_address);
            match call.target {
                Some(target) => self.go_on_at(target, call.variant),
                None => self.jump_to_target(call.variant),
            }
        }
        self.calls = calls;
    }

    /// Emits the hooked function at `pc`: the call of the machine's stand-in and the return.
    pub(super) fn call_fast_path(&mut self, pc: u64, fast_path: FastPath, variant: Variant) {
        self.fast_path(pc, fast_path);
        let mut instruction = Instruction::default();
        instruction.set_ip(pc);
        let offsets = ConstantOffsets::default();
        let original =
            Original { instruction: &instruction, bytes: &[], offsets, index: 0, variant };
        self.ret(original, 0);
    }

    /// Emits a return that pops `extra` bytes more.
    pub(super) fn ret(&mut self, original: Original, extra: u16) {
        let variant = original.variant.next();
        let popped = 8 + i32::from(extra);
        self.hot.spill(emit::RCX_SLOT, RCX);
        if variant == Variant::Opaque {
            self.leave_if_watched(popped);
        }
        self.mark(original, if variant == Variant::Opaque { Fix::Rcx } else { Fix::None });
        self.hot.load_return_address();
        self.hot.spill(emit::TARGET, RCX);
        self.log_transfer(original, Access::RETURN);
        if extra != 0 {
            // The processor's return stack loses its place here; such returns are rare.
            self.hot.pop_bytes(popped);
            self.jump_to_target(variant);
            return;
        }
        if self.exact_returns(variant) {
            self.faults.mark(
                self.hot.here(),
                original.instruction.ip(),
                original.index + 1,
                Fix::Return,
            );
            self.hot.load_from_dense_table(ReturnTable::BASE);
        } else {
            self.hot.low_half_of_ecx();
            let table = self.table(Use::Return, variant);
            self.hot.load_from_table(table);
        }
        self.hot.store_rcx_on_stack(0);
        self.hot.ret();
    }

    /// Emits the exit for a return of the watched function.
    fn leave_if_watched(&mut self, popped: i32) {
        const SHORT_JUMP: u8 = 2;
        const JUMP: u8 = 5;
        self.hot.reload(RCX, emit::MINUS_WATCHED);
        self.hot.add_rsp_to_rcx();
        self.hot.skip_if_rcx_zero(SHORT_JUMP);
        self.hot.put(&[0xeb, JUMP]);
        let exit = self.cold.here();
        self.hot.jmp(exit);
        self.cold.load_return_address();
        self.cold.spill(emit::TARGET, RCX);
        self.cold.pop_bytes(popped);
        self.leave_cold(Kind::Return, 0);
    }
}
