//! SSE floating point: arithmetic, comparison, conversion.
//!
//! Rounding and exceptions follow MXCSR, which is the guest's while translated code runs: the
//! same processor instructions do the work.

use super::{Lifter, int, is_sse};
use crate::cranelift::frame;
use crate::cranelift::vars::{AF, CF, OF, PF, SF, ZF};
use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::immediates::Ieee32;
use cranelift_codegen::ir::types::{F32, F32X4, F64, F64X2, I32X4};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use iced_x86::{Instruction, Mnemonic, OpKind};

/// Arithmetic: its operation, the scalar type, whether all lanes take part.
fn arithmetic(mnemonic: Mnemonic) -> Option<(Mnemonic, Type, bool)> {
    use Mnemonic::*;
    Some(match mnemonic {
        Addss => (Add, F32, false),
        Addsd => (Add, F64, false),
        Addps => (Add, F32, true),
        Addpd => (Add, F64, true),
        Subss => (Sub, F32, false),
        Subsd => (Sub, F64, false),
        Subps => (Sub, F32, true),
        Subpd => (Sub, F64, true),
        Mulss => (Mul, F32, false),
        Mulsd => (Mul, F64, false),
        Mulps => (Mul, F32, true),
        Mulpd => (Mul, F64, true),
        Divss => (Div, F32, false),
        Divsd => (Div, F64, false),
        Divps => (Div, F32, true),
        Divpd => (Div, F64, true),
        Sqrtss => (Sqrtss, F32, false),
        Sqrtsd => (Sqrtss, F64, false),
        Sqrtps => (Sqrtss, F32, true),
        Sqrtpd => (Sqrtss, F64, true),
        _ => return None,
    })
}

pub(super) fn lifts(i: &Instruction) -> bool {
    use Mnemonic::*;
    if !is_sse(i) {
        return false;
    }
    match i.mnemonic() {
        Ucomiss | Ucomisd | Comiss | Comisd => true,
        Cvtsi2ss | Cvtsi2sd | Cvtss2sd | Cvtsd2ss | Cvtdq2ps => true,
        mnemonic => arithmetic(mnemonic).is_some(),
    }
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    use Mnemonic::*;
    if !lifts(i) {
        return false;
    }
    match i.mnemonic() {
        Ucomiss | Comiss => compare(l, i, F32),
        Ucomisd | Comisd => compare(l, i, F64),
        Cvtsi2ss | Cvtsi2sd => {
            let size = if i.op1_kind() == OpKind::Register {
                i.op1_register().size()
            } else {
                i.memory_size().size()
            };
            let value = l.read(i, 1, int(size));
            let ty = if i.mnemonic() == Cvtsi2ss { F32 } else { F64 };
            let value = l.b.ins().fcvt_from_sint(ty, value);
            l.set_scalar(i, value);
        }
        Cvtss2sd => {
            let value = l.scalar(i, 1, F32);
            let value = l.b.ins().fpromote(F64, value);
            l.set_scalar(i, value);
        }
        Cvtsd2ss => {
            let value = l.scalar(i, 1, F64);
            let value = l.b.ins().fdemote(F32, value);
            l.set_scalar(i, value);
        }
        Cvtdq2ps => {
            let value = l.lanes(i, 1, I32X4);
            let value = l.b.ins().fcvt_from_sint(F32X4, value);
            l.set_xmm(i.op0_register(), value);
        }
        mnemonic => {
            if let Some((operation, ty, packed)) = arithmetic(mnemonic) {
                compute(l, i, operation, ty, packed);
            }
        }
    }
    true
}

fn compute(l: &mut Lifter<'_>, i: &Instruction, operation: Mnemonic, ty: Type, packed: bool) {
    let lanes = if ty == F32 { F32X4 } else { F64X2 };
    let b = if packed { l.lanes(i, 1, lanes) } else { l.scalar(i, 1, ty) };
    let value = if operation == Mnemonic::Sqrtss {
        l.b.ins().sqrt(b)
    } else {
        let a = if packed { l.lanes(i, 0, lanes) } else { l.scalar(i, 0, ty) };
        apply(l, operation, a, b)
    };
    if packed {
        l.set_xmm(i.op0_register(), value);
    } else {
        l.set_scalar(i, value);
    }
}

fn apply(l: &mut Lifter<'_>, operation: Mnemonic, a: Value, b: Value) -> Value {
    match operation {
        Mnemonic::Add => l.b.ins().fadd(a, b),
        Mnemonic::Sub => l.b.ins().fsub(a, b),
        Mnemonic::Mul => l.b.ins().fmul(a, b),
        _ => l.b.ins().fdiv(a, b),
    }
}

/// ZF, PF and CF tell equal, unordered and less; the others are cleared.
fn compare(l: &mut Lifter<'_>, i: &Instruction, ty: Type) {
    let b = l.scalar(i, 1, ty);
    let a = l.scalar(i, 0, ty);
    let less = l.b.ins().fcmp(FloatCC::UnorderedOrLessThan, a, b);
    let equal = l.b.ins().fcmp(FloatCC::UnorderedOrEqual, a, b);
    let unordered = l.b.ins().fcmp(FloatCC::Unordered, a, b);
    if matches!(i.mnemonic(), Mnemonic::Comiss | Mnemonic::Comisd) {
        raise_invalid(l, unordered);
    }
    l.clear_flags(1 << OF | 1 << SF | 1 << AF);
    l.set_flag(CF, less);
    l.set_flag(ZF, equal);
    l.set_flag(PF, unordered);
}

/// Cranelift compares quietly. `comiss` and `comisd` say "invalid" of quiet NaNs too: an addition
/// of a signalling one does.
fn raise_invalid(l: &mut Lifter<'_>, unordered: Value) {
    let (raise, on) = (l.b.create_block(), l.b.create_block());
    l.b.ins().brif(unordered, raise, &[], on, &[]);
    l.b.set_cold_block(raise);
    l.b.switch_to_block(raise);
    let signalling = l.b.ins().f32const(Ieee32::with_bits(0x7fa0_0000));
    let sum = l.b.ins().fadd(signalling, signalling);
    l.frame_store(sum, frame::OFF_DETAIL);
    l.b.ins().jump(on, &[]);
    l.b.switch_to_block(on);
}
