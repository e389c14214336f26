//! SSE integer arithmetic, logic, comparison and shifts.

use super::sse_move::int_lanes;
use super::{Lifter, is_sse};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8X16, I16X8, I32X4, I64, I64X2};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use iced_x86::{Instruction, Mnemonic, OpKind};

/// Two-operand instructions: what they do to lanes of a type.
#[derive(Clone, Copy)]
enum Op {
    And,
    AndNot,
    Or,
    Xor,
    Add,
    Sub,
    AddUnsigned,
    AddSigned,
    SubUnsigned,
    SubSigned,
    Equal,
    Greater,
    MinSigned,
    MinUnsigned,
    MaxSigned,
    MaxUnsigned,
    Average,
    Mul,
    MulAdd,
    PackSigned,
    PackUnsigned,
    ShuffleBytes,
    MulEven,
}

fn operation(mnemonic: Mnemonic) -> Option<(Op, Type)> {
    use Mnemonic::*;
    Some(match mnemonic {
        Pand | Andps | Andpd => (Op::And, I8X16),
        Pandn | Andnps | Andnpd => (Op::AndNot, I8X16),
        Por | Orps | Orpd => (Op::Or, I8X16),
        Pxor | Xorps | Xorpd => (Op::Xor, I8X16),
        Paddb => (Op::Add, I8X16),
        Paddw => (Op::Add, I16X8),
        Paddd => (Op::Add, I32X4),
        Paddq => (Op::Add, I64X2),
        Psubb => (Op::Sub, I8X16),
        Psubw => (Op::Sub, I16X8),
        Psubd => (Op::Sub, I32X4),
        Psubq => (Op::Sub, I64X2),
        Paddusb => (Op::AddUnsigned, I8X16),
        Paddusw => (Op::AddUnsigned, I16X8),
        Paddsb => (Op::AddSigned, I8X16),
        Paddsw => (Op::AddSigned, I16X8),
        Psubusb => (Op::SubUnsigned, I8X16),
        Psubusw => (Op::SubUnsigned, I16X8),
        Psubsb => (Op::SubSigned, I8X16),
        Psubsw => (Op::SubSigned, I16X8),
        Pcmpeqb => (Op::Equal, I8X16),
        Pcmpeqw => (Op::Equal, I16X8),
        Pcmpeqd => (Op::Equal, I32X4),
        Pcmpeqq => (Op::Equal, I64X2),
        Pcmpgtb => (Op::Greater, I8X16),
        Pcmpgtw => (Op::Greater, I16X8),
        Pcmpgtd => (Op::Greater, I32X4),
        Pcmpgtq => (Op::Greater, I64X2),
        Pminub => (Op::MinUnsigned, I8X16),
        Pminuw => (Op::MinUnsigned, I16X8),
        Pminud => (Op::MinUnsigned, I32X4),
        Pminsb => (Op::MinSigned, I8X16),
        Pminsw => (Op::MinSigned, I16X8),
        Pminsd => (Op::MinSigned, I32X4),
        Pmaxub => (Op::MaxUnsigned, I8X16),
        Pmaxuw => (Op::MaxUnsigned, I16X8),
        Pmaxud => (Op::MaxUnsigned, I32X4),
        Pmaxsb => (Op::MaxSigned, I8X16),
        Pmaxsw => (Op::MaxSigned, I16X8),
        Pmaxsd => (Op::MaxSigned, I32X4),
        Pavgb => (Op::Average, I8X16),
        Pavgw => (Op::Average, I16X8),
        Pmullw => (Op::Mul, I16X8),
        Pmulld => (Op::Mul, I32X4),
        Pmuludq => (Op::MulEven, I64X2),
        Pmaddwd => (Op::MulAdd, I16X8),
        Packsswb => (Op::PackSigned, I16X8),
        Packssdw => (Op::PackSigned, I32X4),
        Packuswb => (Op::PackUnsigned, I16X8),
        Packusdw => (Op::PackUnsigned, I32X4),
        Pshufb => (Op::ShuffleBytes, I8X16),
        _ => return None,
    })
}

/// Shifts: direction, arithmetic or not, lanes.
fn shift(mnemonic: Mnemonic) -> Option<(bool, bool, usize)> {
    use Mnemonic::*;
    Some(match mnemonic {
        Psllw => (true, false, 2),
        Pslld => (true, false, 4),
        Psllq => (true, false, 8),
        Psrlw => (false, false, 2),
        Psrld => (false, false, 4),
        Psrlq => (false, false, 8),
        Psraw => (false, true, 2),
        Psrad => (false, true, 4),
        _ => return None,
    })
}

pub(super) fn lifts(i: &Instruction) -> bool {
    if !is_sse(i) {
        return false;
    }
    if shift(i.mnemonic()).is_some() || matches!(i.mnemonic(), Mnemonic::Pslldq | Mnemonic::Psrldq)
    {
        return i.op1_kind() == OpKind::Immediate8;
    }
    operation(i.mnemonic()).is_some()
        || matches!(
            i.mnemonic(),
            Mnemonic::Pinsrw
                | Mnemonic::Pinsrd
                | Mnemonic::Pinsrq
                | Mnemonic::Pinsrb
                | Mnemonic::Pextrw
                | Mnemonic::Pextrd
                | Mnemonic::Pextrq
                | Mnemonic::Pextrb
        )
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    use Mnemonic::*;
    if !lifts(i) {
        return false;
    }
    match i.mnemonic() {
        Pslldq | Psrldq => shift_bytes(l, i),
        Pinsrw | Pinsrd | Pinsrq | Pinsrb => insert(l, i),
        Pextrw | Pextrd | Pextrq | Pextrb => extract(l, i),
        Pxor | Xorps | Xorpd
            if i.op1_kind() == OpKind::Register && i.op0_register() == i.op1_register() =>
        {
            let zero = zero(l);
            l.set_xmm(i.op0_register(), zero);
        }
        mnemonic => {
            if let Some((left, arithmetic, size)) = shift(mnemonic) {
                shift_lanes(l, i, left, arithmetic, size);
            } else if let Some((op, ty)) = operation(mnemonic) {
                let b = l.lanes(i, 1, ty);
                let a = l.lanes(i, 0, ty);
                let value = apply(l, op, ty, a, b);
                l.set_xmm(i.op0_register(), value);
            }
        }
    }
    true
}

fn zero(l: &mut Lifter<'_>) -> Value {
    let zero = l.b.func.dfg.constants.insert([0u8; 16].as_slice().into());
    l.b.ins().vconst(I8X16, zero)
}

fn apply(l: &mut Lifter<'_>, op: Op, ty: Type, a: Value, b: Value) -> Value {
    match op {
        Op::And => l.b.ins().band(a, b),
        Op::AndNot => {
            let kept = l.b.ins().bnot(a);
            l.b.ins().band(kept, b)
        }
        Op::Or => l.b.ins().bor(a, b),
        Op::Xor => l.b.ins().bxor(a, b),
        Op::Add => l.b.ins().iadd(a, b),
        Op::Sub => l.b.ins().isub(a, b),
        Op::AddUnsigned => l.b.ins().uadd_sat(a, b),
        Op::AddSigned => l.b.ins().sadd_sat(a, b),
        Op::SubUnsigned => l.b.ins().usub_sat(a, b),
        Op::SubSigned => l.b.ins().ssub_sat(a, b),
        Op::Equal => l.b.ins().icmp(IntCC::Equal, a, b),
        Op::Greater => l.b.ins().icmp(IntCC::SignedGreaterThan, a, b),
        Op::MinSigned => l.b.ins().smin(a, b),
        Op::MinUnsigned => l.b.ins().umin(a, b),
        Op::MaxSigned => l.b.ins().smax(a, b),
        Op::MaxUnsigned => l.b.ins().umax(a, b),
        Op::Average => l.b.ins().avg_round(a, b),
        Op::Mul => l.b.ins().imul(a, b),
        Op::MulAdd => {
            let (al, ah) = (l.b.ins().swiden_low(a), l.b.ins().swiden_high(a));
            let (bl, bh) = (l.b.ins().swiden_low(b), l.b.ins().swiden_high(b));
            let (low, high) = (l.b.ins().imul(al, bl), l.b.ins().imul(ah, bh));
            l.b.ins().iadd_pairwise(low, high)
        }
        Op::PackSigned => l.b.ins().snarrow(a, b),
        Op::PackUnsigned => l.b.ins().unarrow(a, b),
        Op::ShuffleBytes => l.b.ins().x86_pshufb(a, b),
        Op::MulEven => {
            let low = l.b.func.dfg.constants.insert(
                [255u8, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]
                    .as_slice()
                    .into(),
            );
            let low = l.b.ins().vconst(ty, low);
            let (a, b) = (l.b.ins().band(a, low), l.b.ins().band(b, low));
            l.b.ins().imul(a, b)
        }
    }
}

fn shift_lanes(l: &mut Lifter<'_>, i: &Instruction, left: bool, arithmetic: bool, size: usize) {
    let ty = int_lanes(size);
    let bits = 8 * size as u64;
    let count = u64::from(i.immediate8());
    let a = l.lanes(i, 0, ty);
    let value = if count >= bits && !arithmetic {
        zero(l)
    } else {
        let count = l.iconst(cranelift_codegen::ir::types::I32, count.min(bits - 1));
        match (left, arithmetic) {
            (true, _) => l.b.ins().ishl(a, count),
            (false, false) => l.b.ins().ushr(a, count),
            (false, true) => l.b.ins().sshr(a, count),
        }
    };
    l.set_xmm(i.op0_register(), value);
}

fn shift_bytes(l: &mut Lifter<'_>, i: &Instruction) {
    let count = usize::from(i.immediate8()).min(16);
    let a = l.xmm(i.op0_register());
    let zero = zero(l);
    let left = i.mnemonic() == Mnemonic::Pslldq;
    let bytes: Vec<u8> = (0..16)
        .map(|n| {
            let from = if left { n as isize - count as isize } else { (n + count) as isize };
            if (0..16).contains(&from) { from as u8 } else { 16 }
        })
        .collect();
    let choice = l.b.func.dfg.immediates.push(bytes.as_slice().into());
    let value = l.b.ins().shuffle(a, zero, choice);
    l.set_xmm(i.op0_register(), value);
}

fn lane_size(i: &Instruction) -> usize {
    match i.mnemonic() {
        Mnemonic::Pinsrb | Mnemonic::Pextrb => 1,
        Mnemonic::Pinsrw | Mnemonic::Pextrw => 2,
        Mnemonic::Pinsrd | Mnemonic::Pextrd => 4,
        _ => 8,
    }
}

fn insert(l: &mut Lifter<'_>, i: &Instruction) {
    let size = lane_size(i);
    let ty = super::int(size);
    let value = match i.op1_kind() {
        OpKind::Register => {
            let value = l.gpr(i.op1_register());
            l.resize(value, ty)
        }
        _ => {
            let address = l.address(i);
            l.load(ty, address, size)
        }
    };
    let lane = i.immediate8() & (16 / size as u8 - 1);
    let old = l.lanes(i, 0, int_lanes(size));
    let vector = l.b.ins().insertlane(old, value, lane);
    l.set_xmm(i.op0_register(), vector);
}

fn extract(l: &mut Lifter<'_>, i: &Instruction) {
    let size = lane_size(i);
    let lane = i.immediate8() & (16 / size as u8 - 1);
    let vector = l.lanes(i, 1, int_lanes(size));
    let value = l.b.ins().extractlane(vector, lane);
    if i.op0_kind() == OpKind::Memory {
        let address = l.address(i);
        l.store(address, value, size);
    } else {
        let wide = l.resize(value, I64);
        l.set_gpr(i.op0_register().full_register(), wide);
    }
}
