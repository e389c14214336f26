//! Shifts and rotates. Those through the carry run natively.

use super::{Lifter, UpdatedOperand, int, is_integer};
use crate::cranelift::vars::{AF, CF, FLAG, OF, PF, SF, ZF};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use iced_x86::{Instruction, Mnemonic, OpKind};

pub(super) fn lifts(i: &Instruction) -> bool {
    use Mnemonic::*;
    match i.mnemonic() {
        Shl | Sal | Shr | Sar | Rol | Ror => is_integer(i),
        Shld | Shrd => {
            is_integer(i) && Lifter::operand_size(i, 0) > 2 && i.op2_kind() == OpKind::Immediate8
        }
        _ => false,
    }
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    if !lifts(i) {
        return false;
    }
    let ty = int(Lifter::operand_size(i, 0));
    let place = l.place(i, 0);
    if i.op_count() == 3 {
        double(l, i, place, ty);
    } else if i.op1_kind() == OpKind::Immediate8 {
        let mask = if ty == I64 { 63 } else { 31 };
        by_constant(l, i.mnemonic(), place, ty, u32::from(i.immediate8()) & mask);
    } else {
        by_register(l, i, place, ty);
    }
    true
}

fn is_rotate(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Rol | Mnemonic::Ror)
}

fn by_constant(
    l: &mut Lifter<'_>,
    mnemonic: Mnemonic,
    place: UpdatedOperand,
    ty: Type,
    count: u32,
) {
    let bits = ty.bits();
    let a = l.read_place(place, ty);
    if count == 0 {
        return l.write_back(place, a);
    }
    if is_rotate(mnemonic) {
        let turns = l.iconst(I8, u64::from(count % bits));
        let result = if mnemonic == Mnemonic::Rol {
            l.b.ins().rotl(a, turns)
        } else {
            l.b.ins().rotr(a, turns)
        };
        let carry = rotated_carry(l, mnemonic, result);
        l.set_flag(CF, carry);
        if l.live >> OF & 1 != 0 {
            let overflow = rotated_overflow(l, mnemonic, result);
            l.set_flag(OF, overflow);
        } else {
            l.clear_flags(1 << OF);
        }
        return l.write_back(place, result);
    }
    // Narrow operands are shifted in 32 bits, since their count may exceed their width.
    let (wide, result) = shifted(l, mnemonic, a, u64::from(count));
    let carry_of = |l: &mut Lifter<'_>| match mnemonic {
        Mnemonic::Shr | Mnemonic::Sar => {
            let last = l.shift(mnemonic, wide, u64::from(count) - 1);
            let last = l.resize(last, I8);
            l.and_imm(last, 1)
        }
        _ if count > bits => l.iconst(I8, 0),
        _ => {
            let last = l.shr_imm(wide, bits - count);
            let last = l.resize(last, I8);
            l.and_imm(last, 1)
        }
    };
    finish(l, mnemonic, a, result, carry_of);
    l.write_back(place, result);
}

/// Sets the flags of a shift whose count is not zero.
fn finish(
    l: &mut Lifter<'_>,
    mnemonic: Mnemonic,
    a: Value,
    result: Value,
    carry: impl Fn(&mut Lifter<'_>) -> Value,
) {
    l.flags_result(result);
    l.clear_flags(1 << AF);
    if l.live >> CF & 1 != 0 || mnemonic != Mnemonic::Sar && l.live >> OF & 1 != 0 {
        let carry = carry(l);
        let overflow = match mnemonic {
            Mnemonic::Sar => l.iconst(I8, 0),
            // Defined for a count of 1 only.
            Mnemonic::Shr => l.icmp_imm(IntCC::SignedLessThan, a, 0),
            _ => {
                let sign = l.icmp_imm(IntCC::SignedLessThan, result, 0);
                l.b.ins().bxor(sign, carry)
            }
        };
        l.set_flag(CF, carry);
        l.set_flag(OF, overflow);
    } else {
        l.clear_flags(1 << CF | 1 << OF);
    }
}

fn rotated_carry(l: &mut Lifter<'_>, mnemonic: Mnemonic, result: Value) -> Value {
    if mnemonic == Mnemonic::Rol {
        let low = l.resize(result, I8);
        l.and_imm(low, 1)
    } else {
        l.icmp_imm(IntCC::SignedLessThan, result, 0)
    }
}

/// OF of a rotate by 1 (for other counts it is undefined).
fn rotated_overflow(l: &mut Lifter<'_>, mnemonic: Mnemonic, result: Value) -> Value {
    let bits = l.ty(result).bits();
    let sign = l.icmp_imm(IntCC::SignedLessThan, result, 0);
    let other = if mnemonic == Mnemonic::Rol { 0 } else { bits - 2 };
    let other = l.shr_imm(result, other);
    let other = l.resize(other, I8);
    let other = l.and_imm(other, 1);
    l.b.ins().bxor(sign, other)
}

/// The operand extended to at least 32 bits as the shift wants it, and the result in its type.
fn shifted(l: &mut Lifter<'_>, mnemonic: Mnemonic, a: Value, count: u64) -> (Value, Value) {
    let ty = l.ty(a);
    let wide = widened(l, mnemonic, a);
    let result = l.shift(mnemonic, wide, count);
    let result = l.resize(result, ty);
    (wide, result)
}

fn widened(l: &mut Lifter<'_>, mnemonic: Mnemonic, a: Value) -> Value {
    let ty = l.ty(a);
    match (ty.bits() < 32, mnemonic) {
        (false, _) => a,
        (true, Mnemonic::Sar) => l.sign_extend(a, I32),
        (true, _) => l.resize(a, I32),
    }
}

impl Lifter<'_> {
    fn shift(&mut self, mnemonic: Mnemonic, a: Value, count: u64) -> Value {
        let count = self.iconst(I8, count);
        self.shift_by(mnemonic, a, count)
    }

    fn shift_by(&mut self, mnemonic: Mnemonic, a: Value, count: Value) -> Value {
        match mnemonic {
            Mnemonic::Shr => self.b.ins().ushr(a, count),
            Mnemonic::Sar => self.b.ins().sshr(a, count),
            _ => self.b.ins().ishl(a, count),
        }
    }
}

/// A shift by CL: all flags stay if the masked count is zero.
fn by_register(l: &mut Lifter<'_>, i: &Instruction, place: UpdatedOperand, ty: Type) {
    let mnemonic = i.mnemonic();
    let bits = ty.bits();
    let raw = l.read(i, 1, I8);
    let count = l.and_imm(raw, if ty == I64 { 63 } else { 31 });
    let a = l.read_place(place, ty);
    let rotate = is_rotate(mnemonic);
    let result = if rotate {
        let turns = l.and_imm(count, u64::from(bits - 1));
        if mnemonic == Mnemonic::Rol { l.b.ins().rotl(a, turns) } else { l.b.ins().rotr(a, turns) }
    } else {
        let wide = widened(l, mnemonic, a);
        let result = l.shift_by(mnemonic, wide, count);
        l.resize(result, ty)
    };
    let mask = if rotate { 1 << CF | 1 << OF } else { 0x3f };
    let wanted = mask & l.live;
    if wanted == 0 {
        return l.write_back(place, result);
    }
    let old: Vec<_> = (0..6).filter(|f| wanted >> f & 1 != 0).map(|f| (f, l.flag(f))).collect();
    let zero = l.icmp_imm(IntCC::Equal, count, 0);
    let (carry, overflow) = if rotate {
        (rotated_carry(l, mnemonic, result), rotated_overflow(l, mnemonic, result))
    } else {
        carry_and_overflow(l, mnemonic, a, result, count)
    };
    for (flag, old) in old {
        let new = match flag {
            CF => carry,
            OF => overflow,
            ZF => l.icmp_imm(IntCC::Equal, result, 0),
            SF => l.icmp_imm(IntCC::SignedLessThan, result, 0),
            PF => parity(l, result),
            _ => l.iconst(I8, 0),
        };
        let value = l.b.ins().select(zero, old, new);
        l.set_flag(flag, value);
    }
    // What nobody reads still counts as written.
    l.state.dirty = l.state.dirty.or(crate::cranelift::vars::VarSet(u64::from(mask) << FLAG));
    l.write_back(place, result);
}

fn parity(l: &mut Lifter<'_>, result: Value) -> Value {
    let low = l.resize(result, I8);
    let ones = l.b.ins().popcnt(low);
    let odd = l.and_imm(ones, 1);
    l.icmp_imm(IntCC::Equal, odd, 0)
}

/// Flags of a shift by a variable count, right if it is not zero.
fn carry_and_overflow(
    l: &mut Lifter<'_>,
    mnemonic: Mnemonic,
    a: Value,
    result: Value,
    count: Value,
) -> (Value, Value) {
    let ty = l.ty(a);
    let less_one = l.add_imm(count, -1);
    let wide = widened(l, mnemonic, a);
    let before = l.shift_by(mnemonic, wide, less_one);
    let before = l.resize(before, ty);
    match mnemonic {
        Mnemonic::Shr | Mnemonic::Sar => {
            let carry = l.resize(before, I8);
            let carry = l.and_imm(carry, 1);
            let overflow = if mnemonic == Mnemonic::Sar {
                l.iconst(I8, 0)
            } else {
                l.icmp_imm(IntCC::SignedLessThan, a, 0)
            };
            (carry, overflow)
        }
        _ => {
            let carry = l.icmp_imm(IntCC::SignedLessThan, before, 0);
            let sign = l.icmp_imm(IntCC::SignedLessThan, result, 0);
            (carry, l.b.ins().bxor(sign, carry))
        }
    }
}

/// `shld` and `shrd` of 32 or 64 bits by a constant.
fn double(l: &mut Lifter<'_>, i: &Instruction, place: UpdatedOperand, ty: Type) {
    let bits = ty.bits();
    let count = u32::from(i.immediate8()) & (bits - 1);
    let filler = l.read(i, 1, ty);
    let a = l.read_place(place, ty);
    if count == 0 {
        return l.write_back(place, a);
    }
    let left = i.mnemonic() == Mnemonic::Shld;
    let (kept, filled, carry) = if left {
        (l.shl_imm(a, count), l.shr_imm(filler, bits - count), l.shr_imm(a, bits - count))
    } else {
        (l.shr_imm(a, count), l.shl_imm(filler, bits - count), l.shr_imm(a, count - 1))
    };
    let result = l.b.ins().bor(kept, filled);
    let carry = l.resize(carry, I8);
    let carry = l.and_imm(carry, 1);
    let changed = l.b.ins().bxor(a, result);
    let overflow = l.icmp_imm(IntCC::SignedLessThan, changed, 0);
    l.flags_result(result);
    l.clear_flags(1 << AF);
    l.set_flag(CF, carry);
    l.set_flag(OF, overflow);
    l.write_back(place, result);
}
