//! What is to be done with an instruction.

use super::desc::Kind;
use crate::emulated::{emulated, is_of_state};
use crate::features::may_execute;
use crate::refused::is_refused;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use refrain_vm::Processor;

/// How an instruction is translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// As it is, apart from RIP-relative operands.
    Copy,
    /// An unconditional direct jump.
    Jump(u64),
    /// A conditional jump with this condition code.
    Branch(u8, u64),
    /// `loop`, `loope`, `loopne`, `jrcxz`, `jecxz`: they have short forms only.
    ShortBranch(u64),
    /// An indirect jump.
    JumpIndirect,
    /// A direct call.
    Call(u64),
    /// An indirect call.
    CallIndirect,
    /// A return that pops this many bytes more.
    Return(u16),
    /// A transaction that is aborted at once.
    AbortTransaction(u64),
    /// Leave the translated code; report the address of the next instruction.
    LeaveAfter(Kind),
    /// Leave the translated code; report the address of this instruction.
    LeaveBefore(Kind),
    /// Not executable by this engine.
    Unsupported,
}

/// Classifies a valid instruction of a guest with this processor.
pub(super) fn classify(instruction: &Instruction, processor: Processor) -> Action {
    if !may_execute(processor, instruction) || touches_segments(instruction) {
        return Action::Unsupported;
    }
    if let Some(action) = branch(instruction) {
        return action;
    }
    if let Some(what) = emulated(instruction) {
        return Action::LeaveAfter(Kind::Emulate(what));
    }
    let register = || instruction.op0_register().number() as u8;
    match instruction.mnemonic() {
        Mnemonic::Syscall => Action::LeaveAfter(Kind::Syscall),
        Mnemonic::Int3 | Mnemonic::Int1 => Action::LeaveAfter(Kind::Trap(libc::SIGTRAP)),
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => {
            Action::LeaveBefore(Kind::Trap(libc::SIGILL))
        }
        Mnemonic::Int if instruction.immediate8() == 0x80 => Action::Unsupported,
        Mnemonic::Wrfsbase => {
            let wide = instruction.code() == Code::Wrfsbase_r64;
            Action::LeaveAfter(Kind::WriteFsBase(register(), wide))
        }
        mnemonic if is_refused(mnemonic) || is_of_state(instruction) => Action::Unsupported,
        _ => Action::Copy,
    }
}

/// Instructions that reach GS, which is the engine's, or load a segment register.
fn touches_segments(instruction: &Instruction) -> bool {
    let loads = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().is_segment_register()
        && instruction.mnemonic() != Mnemonic::Push;
    let through_gs = instruction.segment_prefix() == Register::GS
        && !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    loads || through_gs
}

/// Branches, as far as the instruction is one.
fn branch(instruction: &Instruction) -> Option<Action> {
    let near = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
    let target = instruction.near_branch_target();
    Some(match instruction.mnemonic() {
        Mnemonic::Jmp if near => Action::Jump(target),
        Mnemonic::Jmp if instruction.code() == Code::Jmp_rm64 => Action::JumpIndirect,
        Mnemonic::Call if near => Action::Call(target),
        Mnemonic::Call if instruction.code() == Code::Call_rm64 => Action::CallIndirect,
        Mnemonic::Jmp | Mnemonic::Call => Action::Unsupported,
        Mnemonic::Ret => match instruction.code() {
            Code::Retnq => Action::Return(0),
            Code::Retnq_imm16 => Action::Return(instruction.immediate16()),
            _ => Action::Unsupported,
        },
        Mnemonic::Xbegin if near => Action::AbortTransaction(target),
        _ if near => match instruction.condition_code() as u8 {
            condition @ 1..=16 if instruction.is_jcc_short_or_near() => {
                Action::Branch(condition - 1, target)
            }
            _ => Action::ShortBranch(target),
        },
        _ if instruction.op_count() > 0
            && matches!(
                instruction.op0_kind(),
                OpKind::NearBranch16
                    | OpKind::NearBranch32
                    | OpKind::FarBranch16
                    | OpKind::FarBranch32
            ) =>
        {
            Action::Unsupported
        }
        _ => return None,
    })
}
