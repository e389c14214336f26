//! Bit tests, scans and counts, byte swaps.

use super::{Lifter, UpdatedOperand, int, is_integer};
use crate::cranelift::vars::{AF, CF, OF, PF, SF, ZF};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use iced_x86::{Instruction, Mnemonic, OpKind};

pub(super) fn lifts(i: &Instruction) -> bool {
    use Mnemonic::*;
    match i.mnemonic() {
        // A register as bit offset reaches beyond a memory operand; that form runs natively.
        Bt | Bts | Btr | Btc => {
            !i.has_lock_prefix()
                && is_integer(i)
                && (i.op0_kind() == OpKind::Register || i.op1_kind() == OpKind::Immediate8)
        }
        Bsf | Bsr | Tzcnt | Popcnt => is_integer(i) && Lifter::operand_size(i, 0) > 2,
        Bswap => i.op0_register().size() > 2,
        _ => false,
    }
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    use Mnemonic::*;
    if !lifts(i) {
        return false;
    }
    let ty = int(Lifter::operand_size(i, 0));
    match i.mnemonic() {
        Bt | Bts | Btr | Btc => test(l, i, ty),
        Bsf | Bsr => scan(l, i, ty),
        Tzcnt => {
            let a = l.read(i, 1, ty);
            let result = l.b.ins().ctz(a);
            l.clear_flags(1 << OF | 1 << SF | 1 << AF | 1 << PF);
            let zero = l.icmp_imm(IntCC::Equal, result, 0);
            l.set_flag(ZF, zero);
            let none = l.icmp_imm(IntCC::Equal, a, 0);
            l.set_flag(CF, none);
            l.write(i, 0, result);
        }
        Popcnt => {
            let a = l.read(i, 1, ty);
            let result = l.b.ins().popcnt(a);
            l.clear_flags(0x3f & !(1 << ZF));
            let zero = l.icmp_imm(IntCC::Equal, a, 0);
            l.set_flag(ZF, zero);
            l.write(i, 0, result);
        }
        _ => {
            let a = l.read(i, 0, ty);
            let result = l.b.ins().bswap(a);
            l.write(i, 0, result);
        }
    }
    true
}

fn test(l: &mut Lifter<'_>, i: &Instruction, ty: Type) {
    let bits = u64::from(ty.bits());
    let index = if i.op1_kind() == OpKind::Immediate8 {
        l.iconst(I8, u64::from(i.immediate8()) & (bits - 1))
    } else {
        let index = l.read(i, 1, ty);
        let index = l.resize(index, I8);
        l.and_imm(index, bits - 1)
    };
    let place = l.place(i, 0);
    let only_reads = i.mnemonic() == Mnemonic::Bt;
    let a = match place {
        UpdatedOperand::Memory(address, size) if only_reads => l.load(ty, address, size),
        _ => l.read_place(place, ty),
    };
    let shifted = l.b.ins().ushr(a, index);
    let bit = l.resize(shifted, I8);
    let bit = l.and_imm(bit, 1);
    if !only_reads {
        let one = l.iconst(ty, 1);
        let mask = l.b.ins().ishl(one, index);
        let result = match i.mnemonic() {
            Mnemonic::Bts => l.b.ins().bor(a, mask),
            Mnemonic::Btc => l.b.ins().bxor(a, mask),
            _ => {
                let kept = l.b.ins().bnot(mask);
                l.b.ins().band(a, kept)
            }
        };
        l.write_back(place, result);
    }
    l.set_flag(CF, bit);
}

/// `bsf` and `bsr`: of zero they leave the destination as it is.
fn scan(l: &mut Lifter<'_>, i: &Instruction, ty: Type) {
    let a = l.read(i, 1, ty);
    let full = i.op0_register().full_register();
    let old = l.gpr(full);
    let found = if i.mnemonic() == Mnemonic::Bsf {
        l.b.ins().ctz(a)
    } else {
        let zeros = l.b.ins().clz(a);
        let top = l.iconst(ty, u64::from(ty.bits()) - 1);
        l.b.ins().bxor(zeros, top)
    };
    let zero = l.icmp_imm(IntCC::Equal, a, 0);
    l.clear_flags(0x3f & !(1 << ZF));
    l.set_flag(ZF, zero);
    let found: Value = l.resize(found, I64);
    let result = l.b.ins().select(zero, old, found);
    l.set_gpr(full, result);
}
