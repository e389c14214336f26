//! String instructions that are not repeated. Repeated ones run natively; where accesses are
//! logged, `rep` drives them in pieces.

use super::{Lifter, int};
use crate::accesses::moves_strings;
use crate::cranelift::frame;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, Value};
use iced_x86::{Instruction, Mnemonic, Register};
use refrain_vm::reg::{RDI, RSI};

pub(super) fn lifts(i: &Instruction) -> bool {
    // Addresses of 32 bits and segments are too rare to lift.
    moves_strings(i)
        && !i.has_rep_prefix()
        && !i.has_repne_prefix()
        && i.segment_prefix() == Register::None
        && !is_narrow(i)
}

/// Whether the instruction addresses memory through esi or edi.
pub(in super::super) fn is_narrow(i: &Instruction) -> bool {
    use iced_x86::OpKind::*;
    (0..i.op_count()).any(|n| {
        matches!(
            i.op_kind(n),
            MemorySegSI | MemorySegDI | MemoryESDI | MemorySegESI | MemorySegEDI | MemoryESEDI
        )
    })
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    use Mnemonic::*;
    if !lifts(i) {
        return false;
    }
    let size = i.memory_size().size();
    let ty = int(size);
    let accumulator = match size {
        1 => Register::AL,
        2 => Register::AX,
        4 => Register::EAX,
        _ => Register::RAX,
    };
    let step = l.string_step(size as i64);
    let stores = !matches!(i.mnemonic(), Lodsb | Lodsw | Lodsd | Lodsq);
    let value = if matches!(i.mnemonic(), Stosb | Stosw | Stosd | Stosq) {
        l.gpr(accumulator)
    } else {
        let from = l.var(RSI);
        let value = l.load(ty, from, size);
        if stores {
            advance(l, RSI, step);
        }
        value
    };
    if stores {
        let to = l.var(RDI);
        l.store(to, value, size);
        advance(l, RDI, step);
    } else {
        advance(l, RSI, step);
        l.set_gpr(accumulator, value);
    }
    true
}

fn advance(l: &mut Lifter<'_>, var: usize, step: Value) {
    let old = l.var(var);
    let new = l.b.ins().iadd(old, step);
    l.set_var(var, new);
}

impl Lifter<'_> {
    /// `size`, or `-size` if the direction flag is set.
    pub(in super::super) fn string_step(&mut self, size: i64) -> Value {
        let direction = self.frame_load(I64, frame::OFF_DIRECTION);
        let twice = self.iconst(I64, (2 * size) as u64);
        let back = self.b.ins().imul(direction, twice);
        let forward = self.iconst(I64, size as u64);
        self.b.ins().isub(forward, back)
    }
}
