//! Variables of translated code: what lives in SSA values between two synchronizations with the
//! frame, and which of them an instruction reads and writes.

use super::frame::{Frame, off_gpr, off_high, off_xmm};
use iced_x86::{
    EncodingKind, Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits,
};
use std::mem::offset_of;

/// Number of variables.
pub(super) const VARS: usize = 56;
/// First SSE register.
pub(super) const XMM: usize = 16;
/// Upper half of the first AVX register.
pub(super) const HIGH: usize = 40;
/// First status flag (CF, PF, AF, ZF, SF, OF).
pub(super) const FLAG: usize = 32;
/// Index of the flags from [`FLAG`] on.
pub(super) const CF: usize = 0;
pub(super) const PF: usize = 1;
pub(super) const AF: usize = 2;
pub(super) const ZF: usize = 3;
pub(super) const SF: usize = 4;
pub(super) const OF: usize = 5;
/// The access buffer's cursor.
pub(super) const CURSOR: usize = 38;
/// Retired instructions.
pub(super) const RETIRED: usize = 39;

/// Registers that translated code hands from region to region in host registers, in the order in
/// which the calling convention has its arguments: rdi, rsi, rdx, rcx in themselves, rax in r8,
/// rsp in r9. The frame has them only while none is running, and for thunks that use them.
pub(super) const HOT: [usize; 6] = [7, 6, 2, 1, 0, 4];

/// A set of variables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct VarSet(pub(super) u64);

impl VarSet {
    pub(super) const EMPTY: VarSet = VarSet(0);
    pub(super) const HOT: VarSet = VarSet(0xd7);
    pub(super) const FLAGS: VarSet = VarSet(0x3f << FLAG);
    /// The lower halves of all AVX registers.
    const XMM: VarSet = VarSet(0xffff << XMM);
    /// The upper ones.
    pub(super) const HIGH: VarSet = VarSet(0xffff << HIGH);

    pub(super) fn one(var: usize) -> Self {
        VarSet(1 << var)
    }
    /// Flags given as a mask of flag indices.
    pub(super) fn of_flags(mask: u8) -> Self {
        VarSet(u64::from(mask) << FLAG)
    }
    pub(super) fn flags(self) -> u8 {
        (self.0 >> FLAG) as u8 & 0x3f
    }
    pub(super) fn has(self, var: usize) -> bool {
        self.0 >> var & 1 != 0
    }
    pub(super) fn insert(&mut self, var: usize) {
        self.0 |= 1 << var;
    }
    pub(super) fn remove(&mut self, var: usize) {
        self.0 &= !(1 << var);
    }
    pub(super) fn or(self, other: Self) -> Self {
        VarSet(self.0 | other.0)
    }
    pub(super) fn and(self, other: Self) -> Self {
        VarSet(self.0 & other.0)
    }
    pub(super) fn without(self, other: Self) -> Self {
        VarSet(self.0 & !other.0)
    }
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let var = rest.trailing_zeros() as usize;
            (rest != 0).then(|| {
                rest &= rest - 1;
                var
            })
        })
    }
}

/// Where a variable lives in the frame. Flags have no place of their own.
pub(super) fn offset(var: usize) -> i32 {
    match var {
        0..XMM => off_gpr(var),
        XMM..FLAG => off_xmm(var - XMM),
        HIGH..VARS => off_high(var - HIGH),
        CURSOR => offset_of!(Frame, context.access_cursor) as i32,
        RETIRED => offset_of!(Frame, context.retired) as i32,
        _ => unreachable!("flags are stored packed"),
    }
}

/// The variable of a register, of an AVX register that of its lower half; `None` for segment, x87, MMX
/// and other registers, and for those of AVX-512, which stay in the frame ([`super::wide`]).
pub(super) fn var_of(register: Register) -> Option<usize> {
    if register.is_gpr() {
        Some(register.full_register().number())
    } else if register.is_vector_register() && register.number() < 16 {
        Some(XMM + register.number())
    } else {
        None
    }
}

/// What an instruction (or a block) does to the variables.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Effects {
    /// Read before written.
    pub(super) uses: VarSet,
    /// Certainly overwritten as a whole.
    pub(super) kills: VarSet,
    /// Possibly written.
    pub(super) writes: VarSet,
}

impl Effects {
    /// Overwrites these variables, and nothing else.
    fn overwriting(set: VarSet) -> Effects {
        Effects { uses: VarSet::EMPTY, kills: set, writes: set }
    }

    /// The effects of `self`, then `next`.
    pub(super) fn then(self, next: Effects) -> Effects {
        Effects {
            uses: self.uses.or(next.uses.without(self.kills)),
            kills: self.kills.or(next.kills),
            writes: self.writes.or(next.writes),
        }
    }
}

/// Status flags of an iced mask, as a mask of flag indices.
pub(super) fn flag_mask(bits: u32) -> u8 {
    let pairs = [
        (RflagsBits::CF, CF),
        (RflagsBits::PF, PF),
        (RflagsBits::AF, AF),
        (RflagsBits::ZF, ZF),
        (RflagsBits::SF, SF),
        (RflagsBits::OF, OF),
    ];
    pairs
        .iter()
        .fold(0, |mask, &(bit, index)| if bits & bit != 0 { mask | 1 << index } else { mask })
}

/// Whether the instruction may leave flags as they are that it writes otherwise: shifts by a
/// count that may be zero, and string comparisons repeated zero times.
pub(super) fn writes_flags_sometimes(i: &Instruction) -> bool {
    use Mnemonic::*;
    match i.mnemonic() {
        Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd => {
            let last = i.op_count() - 1;
            i.op_kind(last) != OpKind::Immediate8 || i.immediate8() & 0x1f == 0
        }
        _ => i.has_rep_prefix() || i.has_repne_prefix(),
    }
}

/// What the instruction does to registers and flags.
pub(super) fn effects(factory: &mut InstructionInfoFactory, i: &Instruction) -> Effects {
    let mut effects = Effects::default();
    let info: &InstructionInfo = factory.info(i);
    for used in info.used_registers() {
        let Some(var) = var_of(used.register()) else { continue };
        let (reads, writes) = access(used.access());
        let one = match register_of_avx(i, var) {
            // Whatever is written, all of the register is.
            true if writes || used.register().size() > XMM_SIZE => {
                VarSet::one(var).or(VarSet::one(var - XMM + HIGH))
            }
            _ => VarSet::one(var),
        };
        let partial = match var {
            0..XMM => used.register().size() < 4,
            _ => !register_of_avx(i, var) && !defines_xmm(i),
        };
        let sometimes = matches!(used.access(), OpAccess::CondWrite | OpAccess::ReadCondWrite);
        if reads || writes && (partial || sometimes) {
            effects.uses = effects.uses.or(one);
        }
        if writes {
            effects.writes = effects.writes.or(one);
            if !partial && !sometimes {
                effects.kills = effects.kills.or(one);
            }
        }
    }
    match i.mnemonic() {
        Mnemonic::Vzeroupper => effects = Effects::overwriting(VarSet::HIGH),
        Mnemonic::Vzeroall => effects = Effects::overwriting(VarSet::HIGH.or(VarSet::XMM)),
        _ => {}
    }
    let read = VarSet::of_flags(flag_mask(i.rflags_read()));
    let written = VarSet::of_flags(flag_mask(i.rflags_modified()));
    effects.uses = effects.uses.or(read);
    effects.writes = effects.writes.or(written);
    if writes_flags_sometimes(i) {
        effects.uses = effects.uses.or(written);
    } else {
        effects.kills = effects.kills.or(written);
    }
    effects
}

/// Bytes of an SSE register.
const XMM_SIZE: usize = 16;

/// Whether an instruction that uses a variable uses it as a register of AVX: other than those of
/// SSE, they do not keep the upper half of a register whose lower half they write.
fn register_of_avx(i: &Instruction, var: usize) -> bool {
    var >= XMM && is_of_avx(i)
}

/// Whether an instruction is of AVX or AVX-512, by its encoding.
pub(super) fn is_of_avx(i: &Instruction) -> bool {
    matches!(i.encoding(), EncodingKind::VEX | EncodingKind::EVEX)
}

/// Whether an access reads, and whether it writes.
pub(super) fn access(access: OpAccess) -> (bool, bool) {
    match access {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write | OpAccess::CondWrite => (false, true),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        OpAccess::None | OpAccess::NoMemAccess => (false, false),
    }
}

/// Whether an instruction that writes an SSE register writes all of it, without reading it.
fn defines_xmm(i: &Instruction) -> bool {
    use Mnemonic::*;
    match i.mnemonic() {
        Movaps | Movups | Movapd | Movupd | Movdqa | Movdqu | Lddqu | Movd | Movq | Pshufd
        | Pshuflw | Pshufhw | Cvtdq2ps | Cvtdq2pd | Cvtps2dq | Cvttps2dq | Cvtps2pd | Cvtpd2ps
        | Cvttpd2dq | Cvtpd2dq | Movddup => true,
        Movss | Movsd => i.op1_kind() == OpKind::Memory,
        Pxor | Xorps | Xorpd => {
            i.op1_kind() == OpKind::Register && i.op0_register() == i.op1_register()
        }
        _ => false,
    }
}
