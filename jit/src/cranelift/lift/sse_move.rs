//! SSE moves between registers and memory, shuffles of whole lanes.

use super::{Lifter, float, int, is_sse};
use cranelift_codegen::ir::types::{F32X4, F64X2, I8X16, I16X8, I32X4, I64, I64X2};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value};
use iced_x86::{Instruction, Mnemonic, OpKind};

pub(super) fn lifts(i: &Instruction) -> bool {
    use Mnemonic::*;
    if !is_sse(i) {
        return false;
    }
    match i.mnemonic() {
        Movups | Movupd | Movdqu | Lddqu | Movaps | Movapd | Movdqa | Movntdq | Movntps
        | Movntpd => true,
        Movd | Movq | Movss | Movhps | Movlps | Movhpd | Movlpd | Movhlps | Movlhps => true,
        Movsd => !i.is_string_instruction(),
        Pshufd | Shufps | Shufpd | Pshuflw | Pshufhw => {
            i.op1_kind() == OpKind::Register || i.op_count() == 3
        }
        Unpcklps | Unpckhps | Unpcklpd | Unpckhpd => true,
        Punpcklbw | Punpcklwd | Punpckldq | Punpcklqdq | Punpckhbw | Punpckhwd | Punpckhdq
        | Punpckhqdq => true,
        Movmskps | Movmskpd | Pmovmskb => true,
        Movnti => true,
        _ => false,
    }
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    use Mnemonic::*;
    if !lifts(i) {
        return false;
    }
    match i.mnemonic() {
        Movups | Movupd | Movdqu | Lddqu | Movaps | Movapd | Movdqa | Movntdq | Movntps
        | Movntpd => {
            let value = l.read_xmm(i, 1);
            l.write_xmm(i, 0, value);
        }
        Movnti => {
            let value = l.gpr(i.op1_register());
            l.write(i, 0, value);
        }
        Movd | Movq => move_word(l, i),
        Movss | Movsd => move_scalar(l, i),
        Movhps | Movhpd | Movlps | Movlpd => move_half(l, i),
        Movhlps | Movlhps => {
            let (to, from) = (l.lanes(i, 0, I64X2), l.lanes(i, 1, I64X2));
            let (source, target) = if i.mnemonic() == Movhlps { (1, 0) } else { (0, 1) };
            let half = l.b.ins().extractlane(from, source);
            let value = l.b.ins().insertlane(to, half, target);
            l.set_xmm(i.op0_register(), value);
        }
        Movmskps => mask(l, i, I32X4),
        Movmskpd => mask(l, i, I64X2),
        Pmovmskb => mask(l, i, I8X16),
        _ => shuffle(l, i),
    }
    true
}

fn mask(l: &mut Lifter<'_>, i: &Instruction, ty: Type) {
    let value = l.lanes(i, 1, ty);
    let bits = l.b.ins().vhigh_bits(int(i.op0_register().size()), value);
    l.set_gpr(i.op0_register(), bits);
}

fn move_word(l: &mut Lifter<'_>, i: &Instruction) {
    let size = if i.mnemonic() == Mnemonic::Movd { 4 } else { 8 };
    let size = match (i.op0_kind(), i.op1_kind()) {
        // The 64-bit forms of movd are called movq, but sizes tell anyway.
        (OpKind::Register, _) if i.op0_register().is_gpr() => i.op0_register().size(),
        (_, OpKind::Register) if i.op1_register().is_gpr() => i.op1_register().size(),
        _ => size,
    };
    let ty = int(size);
    let lanes = if size == 4 { I32X4 } else { I64X2 };
    let value = if i.op1_kind() == OpKind::Register && i.op1_register().is_xmm() {
        let vector = l.xmm(i.op1_register());
        let vector = l.cast(vector, lanes);
        l.b.ins().extractlane(vector, 0)
    } else {
        l.read(i, 1, ty)
    };
    if i.op0_kind() == OpKind::Register && i.op0_register().is_xmm() {
        let vector = l.b.ins().scalar_to_vector(lanes, value);
        l.set_xmm(i.op0_register(), vector);
    } else {
        l.write(i, 0, value);
    }
}

/// `movss`, `movsd`: from memory they clear the rest, between registers they keep it.
fn move_scalar(l: &mut Lifter<'_>, i: &Instruction) {
    let size = if i.mnemonic() == Mnemonic::Movss { 4 } else { 8 };
    let ty = float(size);
    let lanes = if size == 4 { F32X4 } else { F64X2 };
    if i.op0_kind() == OpKind::Memory {
        let vector = l.lanes(i, 1, lanes);
        let value = l.b.ins().extractlane(vector, 0);
        let address = l.address(i);
        l.store(address, value, size);
    } else if i.op1_kind() == OpKind::Memory {
        let address = l.address(i);
        let value = l.load(ty, address, size);
        let vector = l.b.ins().scalar_to_vector(lanes, value);
        l.set_xmm(i.op0_register(), vector);
    } else {
        let (to, from) = (l.lanes(i, 0, lanes), l.lanes(i, 1, lanes));
        let value = l.b.ins().extractlane(from, 0);
        let vector = l.b.ins().insertlane(to, value, 0);
        l.set_xmm(i.op0_register(), vector);
    }
}

fn move_half(l: &mut Lifter<'_>, i: &Instruction) {
    use Mnemonic::*;
    let lane = u8::from(matches!(i.mnemonic(), Movhps | Movhpd));
    let address = l.address(i);
    if i.op0_kind() == OpKind::Memory {
        let vector = l.lanes(i, 1, I64X2);
        let value = l.b.ins().extractlane(vector, lane);
        l.store(address, value, 8);
    } else {
        let value = l.load(I64, address, 8);
        let old = l.lanes(i, 0, I64X2);
        let vector = l.b.ins().insertlane(old, value, lane);
        l.set_xmm(i.op0_register(), vector);
    }
}

/// Shuffles and interleavings, as a choice of bytes from both operands.
fn shuffle(l: &mut Lifter<'_>, i: &Instruction) {
    use Mnemonic::*;
    let control = |n: u8| usize::from(i.immediate8() >> n);
    let one_source = matches!(i.mnemonic(), Pshufd | Pshuflw | Pshufhw);
    let b = l.read_xmm(i, 1);
    let a = if one_source { b } else { l.xmm(i.op0_register()) };
    // Which lane of `size` bytes (0.. from a, then from b) goes to each place.
    let (size, lanes): (usize, Vec<usize>) = match i.mnemonic() {
        Pshufd => (4, (0..4).map(|n| control(2 * n) & 3).collect()),
        Pshuflw => (2, (0..8).map(|n| if n < 4 { control(2 * n as u8) & 3 } else { n }).collect()),
        Pshufhw => (
            2,
            (0..8).map(|n| if n < 4 { n } else { 4 + (control(2 * (n as u8 - 4)) & 3) }).collect(),
        ),
        Shufps => (4, (0..4).map(|n| (control(2 * n) & 3) + if n < 2 { 0 } else { 4 }).collect()),
        Shufpd => (8, (0..2).map(|n| (control(n) & 1) + 2 * usize::from(n)).collect()),
        Unpcklps | Punpckldq => (4, vec![0, 4, 1, 5]),
        Unpckhps | Punpckhdq => (4, vec![2, 6, 3, 7]),
        Unpcklpd | Punpcklqdq => (8, vec![0, 2]),
        Unpckhpd | Punpckhqdq => (8, vec![1, 3]),
        Punpcklbw => (1, (0..16).map(|n| n / 2 + 16 * (n % 2)).collect()),
        Punpckhbw => (1, (0..16).map(|n| 8 + n / 2 + 16 * (n % 2)).collect()),
        Punpcklwd => (2, (0..8).map(|n| n / 2 + 8 * (n % 2)).collect()),
        _ => (2, (0..8).map(|n| 4 + n / 2 + 8 * (n % 2)).collect()),
    };
    let bytes: Vec<u8> =
        lanes.iter().flat_map(|&lane| (0..size).map(move |k| (lane * size + k) as u8)).collect();
    let choice = l.b.func.dfg.immediates.push(bytes.as_slice().into());
    let value = l.b.ins().shuffle(a, b, choice);
    l.set_xmm(i.op0_register(), value);
}

impl Lifter<'_> {
    /// Operand `n` as 16 bytes, from a register or memory.
    pub(super) fn read_xmm(&mut self, i: &Instruction, n: u32) -> Value {
        match i.op_kind(n) {
            OpKind::Register => self.xmm(i.op_register(n)),
            _ => {
                let address = self.address(i);
                let flags = alignment(i);
                let value = self.b.ins().load(I8X16, flags, address, 0);
                self.log(address, 16, refrain_trace::Access::READ);
                value
            }
        }
    }

    fn write_xmm(&mut self, i: &Instruction, n: u32, value: Value) {
        match i.op_kind(n) {
            OpKind::Register => self.set_xmm(i.op_register(n), value),
            _ => {
                let address = self.address(i);
                self.store(address, value, 16);
            }
        }
    }

    /// Register or memory operand `n` as a vector of type `ty`.
    pub(super) fn lanes(&mut self, i: &Instruction, n: u32, ty: Type) -> Value {
        let value = self.read_xmm(i, n);
        self.cast(value, ty)
    }

    /// Operand `n` as a scalar of type `ty`: the lowest lane of a register, or just that in memory.
    pub(super) fn scalar(&mut self, i: &Instruction, n: u32, ty: Type) -> Value {
        match i.op_kind(n) {
            OpKind::Register => {
                let vector = self.xmm(i.op_register(n));
                let lanes = ty.by(16 / ty.bytes()).expect("four floats or two doubles");
                let vector = self.cast(vector, lanes);
                self.b.ins().extractlane(vector, 0)
            }
            _ => {
                let address = self.address(i);
                self.load(ty, address, ty.bytes() as usize)
            }
        }
    }

    /// Replaces the lowest lane of an SSE register.
    pub(super) fn set_scalar(&mut self, i: &Instruction, value: Value) {
        let ty = self.ty(value);
        let lanes = ty.by(16 / ty.bytes()).expect("four floats or two doubles");
        let old = self.xmm(i.op0_register());
        let old = self.cast(old, lanes);
        let vector = self.b.ins().insertlane(old, value, 0);
        self.set_xmm(i.op0_register(), vector);
    }
}

/// Operands that the instruction requires to be aligned fault otherwise; the lifted load does not
/// check that, since a program that runs natively does not fault there.
fn alignment(_i: &Instruction) -> MemFlagsData {
    MemFlagsData::new()
}

/// Lane types by size, for the integer instructions.
pub(super) fn int_lanes(size: usize) -> Type {
    match size {
        1 => I8X16,
        2 => I16X8,
        4 => I32X4,
        _ => I64X2,
    }
}
