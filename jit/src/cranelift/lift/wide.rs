//! Multiplication. Divisions run natively: they fault, and the processor knows when.

use super::{Lifter, int, is_integer};
use crate::cranelift::vars::{AF, CF, OF, PF, SF, ZF};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use iced_x86::{Instruction, Mnemonic, Register};

pub(super) fn lifts(i: &Instruction) -> bool {
    use Mnemonic::*;
    match i.mnemonic() {
        Imul | Mul => is_integer(i) && Lifter::operand_size(i, 0) > 1,
        _ => false,
    }
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    if !lifts(i) {
        return false;
    }
    let ty = int(Lifter::operand_size(i, 0));
    if i.op_count() == 1 {
        full(l, i, ty);
    } else {
        truncated(l, i, ty);
    }
    true
}

/// `imul` with two or three operands.
fn truncated(l: &mut Lifter<'_>, i: &Instruction, ty: Type) {
    let (a, b) = if i.op_count() == 2 {
        (l.read(i, 0, ty), l.read(i, 1, ty))
    } else {
        (l.read(i, 1, ty), l.iconst(ty, i.immediate(2)))
    };
    let result = l.b.ins().imul(a, b);
    if l.live & (1 << CF | 1 << OF) != 0 {
        let high = l.b.ins().smulhi(a, b);
        let sign = l.sign_word(result);
        let overflow = l.b.ins().icmp(IntCC::NotEqual, high, sign);
        set_flags(l, result, overflow);
    } else {
        l.clear_flags(0x3f);
    }
    l.write(i, 0, result);
}

/// ZF, SF, AF and PF are undefined; real processors keep or compute them, we clear them.
fn set_flags(l: &mut Lifter<'_>, _result: Value, overflow: Value) {
    l.clear_flags(1 << ZF | 1 << SF | 1 << AF | 1 << PF);
    l.set_flag(CF, overflow);
    l.set_flag(OF, overflow);
}

/// `mul` and `imul` into rdx:rax.
fn full(l: &mut Lifter<'_>, i: &Instruction, ty: Type) {
    let (low_register, high_register) = match ty {
        I16 => (Register::AX, Register::DX),
        I32 => (Register::EAX, Register::EDX),
        _ => (Register::RAX, Register::RDX),
    };
    let b = l.read(i, 0, ty);
    let a = l.gpr(low_register);
    let signed = i.mnemonic() == Mnemonic::Imul;
    let (low, high) = if ty == I64 {
        let high = if signed { l.b.ins().smulhi(a, b) } else { l.b.ins().umulhi(a, b) };
        (l.b.ins().imul(a, b), high)
    } else {
        let wide =
            |l: &mut Lifter<'_>, v| if signed { l.sign_extend(v, I64) } else { l.resize(v, I64) };
        let (a, b) = (wide(l, a), wide(l, b));
        let product = l.b.ins().imul(a, b);
        let high = l.shr_imm(product, ty.bits());
        (l.resize(product, ty), l.resize(high, ty))
    };
    if l.live & (1 << CF | 1 << OF) != 0 {
        let expected = if signed { l.sign_word(low) } else { l.iconst(ty, 0) };
        let overflow = l.b.ins().icmp(IntCC::NotEqual, high, expected);
        set_flags(l, low, overflow);
    } else {
        l.clear_flags(0x3f);
    }
    l.set_gpr(low_register, low);
    l.set_gpr(high_register, high);
}

impl Lifter<'_> {
    /// All bits as the sign.
    fn sign_word(&mut self, value: Value) -> Value {
        let count = u64::from(self.ty(value).bits() - 1);
        let count = self.iconst(cranelift_codegen::ir::types::I8, count);
        self.b.ins().sshr(value, count)
    }
}
