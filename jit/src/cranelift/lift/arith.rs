//! Addition, subtraction, comparison, logic.

use super::{Lifter, int, is_integer};
use crate::cranelift::vars::{CF, OF};
use cranelift_codegen::ir::InstBuilder;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Type, Value};
use iced_x86::{Instruction, Mnemonic, OpKind};

pub(super) fn lifts(i: &Instruction) -> bool {
    use Mnemonic::*;
    // Locked forms run natively.
    !i.has_lock_prefix()
        && is_integer(i)
        && matches!(
            i.mnemonic(),
            Add | Sub | Adc | Sbb | And | Or | Xor | Not | Neg | Inc | Dec | Cmp | Test
        )
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    use Mnemonic::*;
    if !lifts(i) {
        return false;
    }
    let ty = int(Lifter::operand_size(i, 0));
    match i.mnemonic() {
        Cmp | Test => {
            let a = l.read(i, 0, ty);
            let b = l.read(i, 1, ty);
            if i.mnemonic() == Cmp {
                let result = l.b.ins().isub(a, b);
                l.flags_sub(a, b, result);
            } else {
                let result = if a == b { a } else { l.b.ins().band(a, b) };
                l.flags_logic(result);
            }
        }
        Not | Neg | Inc | Dec => unary(l, i, ty),
        Xor | Sub if is_same(i) => {
            let zero = l.iconst(ty, 0);
            l.write(i, 0, zero);
            l.flags_logic(zero);
        }
        _ => {
            let b = (i.op1_kind() == OpKind::Memory || i.op1_kind() == OpKind::Register)
                .then(|| l.read(i, 1, ty));
            let place = l.place(i, 0);
            let a = l.read_place(place, ty);
            let b = b.unwrap_or_else(|| l.iconst(ty, i.immediate(1)));
            let result = binary(l, i.mnemonic(), a, b);
            l.write_back(place, result);
        }
    }
    true
}

fn is_same(i: &Instruction) -> bool {
    i.op0_kind() == OpKind::Register
        && i.op1_kind() == OpKind::Register
        && i.op0_register() == i.op1_register()
}

fn unary(l: &mut Lifter<'_>, i: &Instruction, ty: Type) {
    let place = l.place(i, 0);
    let a = l.read_place(place, ty);
    let one = l.iconst(ty, 1);
    let result = match i.mnemonic() {
        Mnemonic::Not => l.b.ins().bnot(a),
        Mnemonic::Neg => {
            let zero = l.iconst(ty, 0);
            let result = l.b.ins().isub(zero, a);
            l.flags_sub(zero, a, result);
            result
        }
        Mnemonic::Inc => {
            let result = l.b.ins().iadd(a, one);
            l.flags_result(result);
            l.flags_overflow(a, one, result, false);
            result
        }
        _ => {
            let result = l.b.ins().isub(a, one);
            l.flags_result(result);
            l.flags_overflow(a, one, result, true);
            result
        }
    };
    l.write_back(place, result);
}

fn binary(l: &mut Lifter<'_>, mnemonic: Mnemonic, a: Value, b: Value) -> Value {
    match mnemonic {
        Mnemonic::Add => {
            let result = l.b.ins().iadd(a, b);
            l.flags_add(a, b, result);
            result
        }
        Mnemonic::Sub => {
            let result = l.b.ins().isub(a, b);
            l.flags_sub(a, b, result);
            result
        }
        Mnemonic::Adc | Mnemonic::Sbb => carrying(l, a, b, mnemonic == Mnemonic::Sbb),
        _ => {
            let result = match mnemonic {
                Mnemonic::And => l.b.ins().band(a, b),
                Mnemonic::Or => l.b.ins().bor(a, b),
                _ => l.b.ins().bxor(a, b),
            };
            l.flags_logic(result);
            result
        }
    }
}

fn carrying(l: &mut Lifter<'_>, a: Value, b: Value, subtract: bool) -> Value {
    let ty = l.ty(a);
    let carry = l.flag(CF);
    let carry = l.resize(carry, ty);
    // Two steps, each of which may carry, but not both.
    let (partial, result, first, second) = if subtract {
        let partial = l.b.ins().isub(a, b);
        let result = l.b.ins().isub(partial, carry);
        let first = l.b.ins().icmp(IntCC::UnsignedLessThan, a, b);
        let second = l.b.ins().icmp(IntCC::UnsignedLessThan, partial, carry);
        (partial, result, first, second)
    } else {
        let partial = l.b.ins().iadd(a, b);
        let result = l.b.ins().iadd(partial, carry);
        let first = l.b.ins().icmp(IntCC::UnsignedLessThan, partial, a);
        let second = l.b.ins().icmp(IntCC::UnsignedLessThan, result, partial);
        (partial, result, first, second)
    };
    let _ = partial;
    let carried = l.b.ins().bor(first, second);
    let (x, y) = if subtract {
        (l.b.ins().bxor(a, b), l.b.ins().bxor(a, result))
    } else {
        (l.b.ins().bxor(a, result), l.b.ins().bxor(b, result))
    };
    let both = l.b.ins().band(x, y);
    let overflow = l.icmp_imm(IntCC::SignedLessThan, both, 0);
    l.flags_result(result);
    l.flags_overflow(a, b, result, subtract);
    l.set_flag(CF, carried);
    l.set_flag(OF, overflow);
    result
}
