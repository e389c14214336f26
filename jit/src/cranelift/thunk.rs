//! Native thunks: guest instructions that the processor executes as they are.
//!
//! A thunk loads just the guest registers that its instructions use from the frame, executes
//! them, and stores those that they change. Guest registers sit in their own host registers, but
//! for rsp, in whose place a free one is used; an FS-relative operand goes through another free
//! register that holds the guest's thread pointer.

use super::frame::{self, off_gpr, off_high, off_xmm};
use super::vars::{self, Effects, HIGH, VarSet, XMM};
use super::wide::{self, WideSet};
use crate::common::has_memory;
use crate::lanes;
use crate::moved::operand_at;
use iced_x86::{
    Code, Encoder, Instruction, InstructionInfoFactory, MemoryOperand, Mnemonic, OpKind, Register,
};
use refrain_vm::reg::RSP;
use refrain_vm::{Feature, Processor};

/// Neighbouring instructions for one thunk.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    instructions: Vec<Instruction>,
    effects: Effects,
    wide: WideSet,
    operand: Operand,
}

/// Where the memory operand of an instruction is that is executed by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Operand {
    /// Where the instruction says.
    Own,
    /// The frame's `detail`.
    Detail,
    /// Where the frame's `detail` points to.
    AtDetail,
}

/// How many instructions a thunk may hold, and how many general registers they may use.
const MOST: usize = 24;
const MOST_REGISTERS: u32 = 12;

/// Machine code of a thunk.
pub(super) struct ThunkCode {
    pub(super) bytes: Vec<u8>,
    /// For each guest instruction, where its code begins and its pc.
    pub(super) map: Vec<(u32, u32)>,
}

/// How a thunk treats the status flags.
#[derive(Clone, Copy)]
pub(super) struct FlagUse {
    load: bool,
    store: bool,
}

impl Batch {
    /// A batch of one instruction for a guest with this processor; `None` if it cannot run in a thunk.
    pub(super) fn new(
        i: &Instruction,
        processor: Processor,
        factory: &mut InstructionInfoFactory,
    ) -> Option<Batch> {
        let batch = Batch {
            instructions: vec![*i],
            effects: vars::effects(factory, i),
            wide: wide::used(i, processor.has(Feature::Avx512F), factory),
            operand: Operand::Own,
        };
        batch.encode(batch.flag_use()).is_some().then_some(batch)
    }

    /// Takes another instruction in, unless it does not fit. If `addresses` is set, all addresses
    /// must be computable before the thunk runs.
    pub(super) fn join(&mut self, other: &Batch, addresses: bool) -> bool {
        let effects = self.effects.then(other.effects);
        let general = VarSet(0xffff);
        let registers = effects.uses.or(effects.writes).and(general).0.count_ones();
        let by_lanes = other.instructions.iter().any(|i| lanes::of(i).is_some());
        let in_addresses = if by_lanes { VarSet(!0) } else { general };
        let moved = other.effects.uses.and(self.effects.writes).and(in_addresses);
        if self.instructions.len() >= MOST
            || registers > MOST_REGISTERS
            || addresses && !moved.is_empty()
        {
            return false;
        }
        self.instructions.extend_from_slice(&other.instructions);
        self.effects = effects;
        self.wide = self.wide.or(other.wide);
        true
    }

    /// The same instruction with its memory operand there.
    pub(super) fn with(self, operand: Operand) -> Batch {
        Batch { operand, ..self }
    }

    pub(super) fn operand(&self) -> Operand {
        self.operand
    }

    pub(super) fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    pub(super) fn effects(&self) -> Effects {
        self.effects
    }

    /// What the lifter expects of the flags.
    pub(super) fn flag_use(&self) -> FlagUse {
        FlagUse { load: self.effects.uses.flags() != 0, store: self.effects.writes.flags() != 0 }
    }

    /// What a single step expects: all flags in, all flags out.
    pub(super) fn all_flags() -> FlagUse {
        FlagUse { load: true, store: true }
    }

    /// The thunk's code, which runs at any address.
    pub(super) fn encode(&self, flags: FlagUse) -> Option<ThunkCode> {
        let used = self.effects.uses.or(self.effects.writes);
        let mut free = [5, 3, 1, 2, 0, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11]
            .into_iter()
            .filter(|&n| !used.has(n))
            .map(gpr64);
        let stack = if used.has(RSP) { free.next()? } else { Register::None };
        let segment =
            if self.instructions.iter().any(uses_fs) { free.next()? } else { Register::None };
        let moved = if self.instructions.iter().any(moves_by_stack) {
            free.next()?
        } else {
            Register::None
        };
        let place = match self.operand {
            Operand::AtDetail => free.next()?,
            _ => Register::None,
        };
        let wide = if self.wide.is_empty() { Register::None } else { free.next()? };
        let mut out = Out { encoder: Encoder::new(64), at: 0, map: Vec::new() };
        let strings = self.instructions.iter().any(Instruction::is_string_instruction);
        self.load_flags(&mut out, flags.load, strings)?;
        let host = |var: usize| if var == RSP { stack } else { gpr64(var) };
        for var in self.effects.uses.without(VarSet::FLAGS).iter() {
            if var < XMM {
                out.load(host(var), 8 + off_gpr(var))?;
            } else if var >= HIGH {
                // The lower half is used too, and loaded already.
                let (high, whole) = (slot(8 + off_high(var - HIGH)), ymm(var));
                let load = Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8;
                out.push(Instruction::with4(load, whole, whole, high, 1).ok()?)?;
            } else {
                out.push(
                    Instruction::with2(
                        Code::Movups_xmm_xmmm128,
                        xmm(var),
                        slot(8 + off_xmm(var - XMM)),
                    )
                    .ok()?,
                )?;
            }
        }
        if wide != Register::None {
            out.load(wide, 8 + frame::OFF_WIDE)?;
            out.push_all(self.wide.load(wide).ok()?)?;
        }
        for i in &self.instructions {
            let mut i = *i;
            out.map.push((out.at as u32, i.ip() as u32));
            make_absolute(&mut i);
            let by_stack = moves_by_stack(&i).then(|| i.mnemonic());
            if let Some(mnemonic) = by_stack {
                i = move_of_operand(&i, moved)?;
                if mnemonic == Mnemonic::Pop {
                    out.push(Instruction::with2(Code::Mov_r64_rm64, moved, top(stack)).ok()?)?;
                    out.push(Instruction::with2(Code::Lea_r64_m, stack, above(stack, 8)).ok()?)?;
                }
            }
            match self.operand {
                Operand::Own if uses_fs(&i) => redirect_fs(&mut i, segment, &mut out, stack)?,
                Operand::Own => {}
                Operand::Detail => i = operand_at(&i, Register::None),
                Operand::AtDetail => {
                    out.load(place, 8 + frame::OFF_DETAIL)?;
                    i = operand_at(&i, place);
                }
            }
            rename(&mut i, stack)?;
            if self.operand == Operand::Detail {
                i.set_memory_base(Register::RSP);
                i.set_memory_displ_size(8);
                i.set_memory_displacement64((8 + frame::OFF_DETAIL) as u64);
            }
            out.push(i)?;
            if by_stack == Some(Mnemonic::Push) {
                out.push(Instruction::with2(Code::Lea_r64_m, stack, above(stack, -8)).ok()?)?;
                out.push(Instruction::with2(Code::Mov_rm64_r64, top(stack), moved).ok()?)?;
            }
        }
        out.map.push((out.at as u32, 0));
        if flags.store || strings {
            out.push(Instruction::with(Code::Pushfq))?;
            out.push(Instruction::with1(Code::Pop_rm64, slot(8 + frame::OFF_FLAGS_OUT)).ok()?)?;
        }
        if strings {
            out.push(Instruction::with(Code::Cld))?;
        }
        if wide != Register::None {
            out.push_all(self.wide.store(wide).ok()?)?;
        }
        for var in self.effects.writes.without(VarSet::FLAGS).iter() {
            if var >= HIGH {
                let high = slot(8 + off_high(var - HIGH));
                let store = Code::VEX_Vextractf128_xmmm128_ymm_imm8;
                out.push(Instruction::with3(store, high, ymm(var), 1).ok()?)?;
            } else if var < XMM {
                out.push(
                    Instruction::with2(Code::Mov_rm64_r64, slot(8 + off_gpr(var)), host(var))
                        .ok()?,
                )?;
            } else {
                out.push(
                    Instruction::with2(
                        Code::Movups_xmmm128_xmm,
                        slot(8 + off_xmm(var - XMM)),
                        xmm(var),
                    )
                    .ok()?,
                )?;
            }
        }
        if self.instructions.iter().any(vars::is_of_avx) {
            // Code without AVX is slow where these are in use.
            out.push(Instruction::with(Code::VEX_Vzeroupper))?;
        }
        out.push(Instruction::with(Code::Retnq))?;
        Some(ThunkCode { bytes: out.encoder.take_buffer(), map: out.map })
    }

    /// Status and direction flags, before any register holds a guest value.
    fn load_flags(&self, out: &mut Out, status: bool, direction: bool) -> Option<()> {
        if direction {
            out.load(Register::RAX, 8 + frame::OFF_DIRECTION)?;
            out.push(Instruction::with2(Code::Shl_rm64_imm8, Register::RAX, 10).ok()?)?;
            if status {
                out.push(
                    Instruction::with2(
                        Code::Or_r64_rm64,
                        Register::RAX,
                        slot(8 + frame::OFF_FLAGS_IN),
                    )
                    .ok()?,
                )?;
            } else {
                out.push(Instruction::with2(Code::Or_rm64_imm32, Register::RAX, 0x202).ok()?)?;
            }
            out.push(Instruction::with1(Code::Push_r64, Register::RAX).ok()?)?;
            out.push(Instruction::with(Code::Popfq))?;
        } else if status {
            out.push(Instruction::with1(Code::Push_rm64, slot(8 + frame::OFF_FLAGS_IN)).ok()?)?;
            out.push(Instruction::with(Code::Popfq))?;
        }
        Some(())
    }
}

struct Out {
    encoder: Encoder,
    at: u64,
    map: Vec<(u32, u32)>,
}

impl Out {
    fn push(&mut self, i: Instruction) -> Option<()> {
        self.at += self.encoder.encode(&i, self.at).ok()? as u64;
        Some(())
    }

    fn push_all(&mut self, code: Vec<Instruction>) -> Option<()> {
        code.into_iter().try_for_each(|i| self.push(i))
    }

    fn load(&mut self, register: Register, offset: i32) -> Option<()> {
        self.push(Instruction::with2(Code::Mov_r64_rm64, register, slot(offset)).ok()?)
    }
}

/// `[rsp + offset]`.
fn slot(offset: i32) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RSP, i64::from(offset))
}

fn gpr64(index: usize) -> Register {
    const ALL: [Register; 16] = [
        Register::RAX,
        Register::RCX,
        Register::RDX,
        Register::RBX,
        Register::RSP,
        Register::RBP,
        Register::RSI,
        Register::RDI,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    ALL[index]
}

fn xmm(var: usize) -> Register {
    Register::XMM0 + (var - XMM) as u32
}

/// The AVX register whose upper half is this variable.
fn ymm(var: usize) -> Register {
    Register::YMM0 + (var - HIGH) as u32
}

fn uses_fs(i: &Instruction) -> bool {
    i.segment_prefix() == Register::FS
        && has_memory(i)
        && !matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
}

/// Whether this is a `push` or a `pop` of eight bytes in memory, which two moves stand for.
fn moves_by_stack(i: &Instruction) -> bool {
    matches!(i.code(), Code::Push_rm64 | Code::Pop_rm64) && has_memory(i)
}

/// The one of the two moves that has the operand: from it or, if it is popped, to it.
fn move_of_operand(i: &Instruction, moved: Register) -> Option<Instruction> {
    let operand = MemoryOperand::new(
        i.memory_base(),
        i.memory_index(),
        i.memory_index_scale(),
        i.memory_displacement64() as i64,
        i.memory_displ_size(),
        false,
        i.segment_prefix(),
    );
    match i.mnemonic() {
        Mnemonic::Pop => Instruction::with2(Code::Mov_rm64_r64, operand, moved),
        _ => Instruction::with2(Code::Mov_r64_rm64, moved, operand),
    }
    .ok()
}

fn top(stack: Register) -> MemoryOperand {
    MemoryOperand::with_base(stack)
}

fn above(stack: Register, bytes: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(stack, bytes)
}

/// Makes an operand that is relative to rip the address that it means. Guest memory lies below
/// 2 GiB, where any instruction can name it.
fn make_absolute(i: &mut Instruction) {
    if i.is_ip_rel_memory_operand() {
        let address = i.ip_rel_memory_address();
        i.set_memory_base(Register::None);
        i.set_memory_displ_size(8);
        i.set_memory_displacement64(address);
    }
}

/// Makes `fs:[…]` an operand relative to `segment`, which is loaded with the thread pointer.
fn redirect_fs(
    i: &mut Instruction,
    segment: Register,
    out: &mut Out,
    stack: Register,
) -> Option<()> {
    if i.memory_base().is_gpr32() || i.memory_index().is_gpr32() {
        return None;
    }
    out.load(segment, 8 + frame::OFF_FS_BASE)?;
    let base = match i.memory_base() {
        Register::RSP => stack,
        other => other,
    };
    if base.is_gpr64() {
        let sum = MemoryOperand::with_base_index(segment, base);
        out.push(Instruction::with2(Code::Lea_r64_m, segment, sum).ok()?)?;
    }
    i.set_memory_base(segment);
    i.set_memory_displ_size(if i.memory_displacement64() == 0 { 0 } else { 8 });
    i.set_segment_prefix(Register::None);
    Some(())
}

/// Puts `stack` in the place of rsp.
fn rename(i: &mut Instruction, stack: Register) -> Option<()> {
    if stack == Register::None {
        return Some(());
    }
    for n in 0..i.op_count() {
        if i.op_kind(n) == OpKind::Register && i.op_register(n).full_register() == Register::RSP {
            let size = i.op_register(n).size();
            i.set_op_register(n, resized(stack, size)?);
        }
    }
    if has_memory(i) {
        if i.memory_base().full_register() == Register::RSP {
            i.set_memory_base(resized(stack, i.memory_base().size())?);
        }
        if i.memory_index().full_register() == Register::RSP {
            return None;
        }
    }
    // Whoever uses rsp without naming it (pushes, calls) is lifted or refused.
    let names_it = |i: &Instruction| {
        InstructionInfoFactory::new()
            .info(i)
            .used_registers()
            .iter()
            .any(|u| u.register().full_register() == Register::RSP)
    };
    (!names_it(i)).then_some(())
}

fn resized(register: Register, size: usize) -> Option<Register> {
    let n = register.number() as u32;
    Some(match size {
        8 => Register::RAX + n,
        4 => Register::EAX + n,
        2 => Register::AX + n,
        // spl needs a REX prefix as its replacement does; ah and the like cannot be meant.
        1 if n < 4 => Register::AL + n,
        1 if n < 8 => [Register::SPL, Register::BPL, Register::SIL, Register::DIL][n as usize - 4],
        1 => Register::R8L + (n - 8),
        _ => return None,
    })
}
