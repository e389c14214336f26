//! Instructions of AVX that access memory lane by lane: gathers, and moves under a mask.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// The lanes of such an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lanes {
    /// How many there are.
    pub(crate) count: usize,
    /// Bytes that each accesses.
    pub(crate) size: usize,
    /// The register whose lanes, of the same size, say by their highest bits which are accessed.
    pub(crate) mask: Register,
    /// Of a gather: bytes of an index in the memory operand's vector.
    pub(crate) index: Option<usize>,
    /// They are written, not read.
    pub(crate) stores: bool,
}

/// The lanes of an instruction that accesses them one by one.
pub(crate) fn of(i: &Instruction) -> Option<Lanes> {
    use Mnemonic::*;
    let (size, index) = match i.mnemonic() {
        Vpgatherdd | Vgatherdps => (4, Some(4)),
        Vpgatherdq | Vgatherdpd => (8, Some(4)),
        Vpgatherqd | Vgatherqps => (4, Some(8)),
        Vpgatherqq | Vgatherqpd => (8, Some(8)),
        Vpmaskmovd | Vmaskmovps => (4, None),
        Vpmaskmovq | Vmaskmovpd => (8, None),
        _ => return None,
    };
    let stores = i.op0_kind() == OpKind::Memory;
    let count = match index {
        // As many as there are indices, and as many as there is room for.
        Some(index) => (i.memory_index().size() / index).min(i.op0_register().size() / size),
        None => i.op1_register().size() / size,
    };
    let mask = if index.is_some() { i.op2_register() } else { i.op1_register() };
    Some(Lanes { count, size, mask, index, stores })
}
