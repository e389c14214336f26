//! The registers that AVX-512 adds to AVX. Compiled code leaves them in the context's [`Wide`]; a thunk loads those
//! that its instructions use, and stores them afterwards.

use super::vars;
use iced_x86::{
    Code, IcedError, Instruction, InstructionInfoFactory, MemoryOperand, Mnemonic, Register,
};
use refrain_vm::Wide;
use std::mem::offset_of;

/// A set of such registers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct WideSet {
    /// Upper halves of zmm0 to zmm15, and zmm16 to zmm31.
    vectors: u32,
    masks: u8,
}

impl WideSet {
    pub(super) fn is_empty(self) -> bool {
        self == WideSet::default()
    }

    pub(super) fn or(self, other: WideSet) -> WideSet {
        WideSet { vectors: self.vectors | other.vectors, masks: self.masks | other.masks }
    }

    fn vectors(self) -> impl Iterator<Item = u32> {
        (0..32).filter(move |n| self.vectors >> n & 1 != 0)
    }

    fn masks(self) -> impl Iterator<Item = u32> {
        (0..8).filter(move |n| self.masks >> n & 1 != 0)
    }

    /// Loads the set from the [`Wide`] that `base` points to, after the lower halves have been loaded.
    pub(super) fn load(self, base: Register) -> Result<Vec<Instruction>, IcedError> {
        let vectors = self.vectors().map(|n| {
            let (zmm, place) = (Register::ZMM0 + n, place_at(base, offset_of_vector(n as usize)));
            match n {
                0..16 => {
                    let load = Code::EVEX_Vinserti64x4_zmm_k1z_zmm_ymmm256_imm8;
                    Instruction::with4(load, zmm, zmm, place, 1)
                }
                _ => Instruction::with2(Code::EVEX_Vmovdqu64_zmm_k1z_zmmm512, zmm, place),
            }
        });
        let masks = self.masks().map(|n| {
            let place = place_at(base, offset_of_mask(n as usize));
            Instruction::with2(Code::VEX_Kmovq_kr_km64, Register::K0 + n, place)
        });
        vectors.chain(masks).collect()
    }

    /// Stores it there.
    pub(super) fn store(self, base: Register) -> Result<Vec<Instruction>, IcedError> {
        let vectors = self.vectors().map(|n| {
            let (zmm, place) = (Register::ZMM0 + n, place_at(base, offset_of_vector(n as usize)));
            match n {
                0..16 => {
                    let store = Code::EVEX_Vextracti64x4_ymmm256_k1z_zmm_imm8;
                    Instruction::with3(store, place, zmm, 1)
                }
                _ => Instruction::with2(Code::EVEX_Vmovdqu64_zmmm512_k1z_zmm, place, zmm),
            }
        });
        let masks = self.masks().map(|n| {
            let place = place_at(base, offset_of_mask(n as usize));
            Instruction::with2(Code::VEX_Kmovq_m64_kr, place, Register::K0 + n)
        });
        vectors.chain(masks).collect()
    }
}

/// Where a [`Wide`] keeps what it has of a vector register.
pub(super) fn offset_of_vector(n: usize) -> usize {
    match n {
        0..16 => offset_of!(Wide, upper) + 32 * n,
        _ => offset_of!(Wide, more) + 64 * (n - 16),
    }
}

/// Where it keeps a mask register.
pub(super) fn offset_of_mask(n: usize) -> usize {
    offset_of!(Wide, masks) + 8 * n
}

fn place_at(base: Register, offset: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, offset as i64)
}

/// The registers of this kind that an instruction uses or changes. On a processor with AVX-512, an instruction of
/// AVX also clears the upper halves of the registers that it writes.
pub(super) fn used(
    i: &Instruction,
    has_avx_512: bool,
    factory: &mut InstructionInfoFactory,
) -> WideSet {
    let mut set = WideSet::default();
    if !has_avx_512 || !vars::is_of_avx(i) {
        return set;
    }
    if matches!(i.mnemonic(), Mnemonic::Vzeroupper | Mnemonic::Vzeroall) {
        return WideSet { vectors: 0xffff, masks: 0 };
    }
    for used in factory.info(i).used_registers() {
        let register = used.register();
        if register.is_vector_register() {
            set.vectors |= 1 << register.number();
        } else if register.is_k() {
            set.masks |= 1 << register.number();
        }
    }
    set
}
