//! What is to be done with an instruction.

use super::desc::Kind;
use crate::emulated::{emulated, is_of_state};
use crate::features::may_execute;
use crate::refused::is_refused;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use refrain_vm::{Cause, Processor};

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
        Mnemonic::Int3 => Action::LeaveAfter(Kind::Trap(Cause::BREAKPOINT)),
        Mnemonic::Int1 => Action::LeaveAfter(Kind::Trap(Cause::DEBUG)),
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => {
            Action::LeaveBefore(Kind::Trap(Cause::ILLEGAL))
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

/// Remembers which instructions are copied, whatever their operands are: nearly all are, and to look at
/// all that might forbid it takes longer than to copy one.
#[derive(Default)]
pub(super) struct Copied {
    /// One bit for each of iced's codes.
    known: Vec<u64>,
}

impl Copied {
    /// As [`classify`], for one processor.
    pub(super) fn classify(&mut self, instruction: &Instruction, processor: Processor) -> Action {
        let code = instruction.code() as usize;
        let (word, bit) = (code / 64, 1 << (code % 64));
        if instruction.segment_prefix() == Register::GS {
            return classify(instruction, processor);
        }
        if self.known.get(word).is_some_and(|known| known & bit != 0) {
            return Action::Copy;
        }
        let action = classify(instruction, processor);
        // Which of these it is, the operand says.
        if action == Action::Copy && instruction.mnemonic() != Mnemonic::Int {
            self.known.resize(self.known.len().max(word + 1), 0);
            self.known[word] |= bit;
        }
        action
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

#[cfg(test)]
mod tests {
    use super::{Action, Copied};
    use iced_x86::code_asm::*;
    use refrain_vm::Processor;

    #[test]
    fn what_is_remembered_is_true_of_other_operands() {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.mov(eax, dword_ptr(rdi).gs()).unwrap();
        a.mov(ecx, dword_ptr(rsi + 8)).unwrap();
        a.int(0x21).unwrap();
        a.int(0x80).unwrap();
        a.syscall().unwrap();
        let mut copied = Copied::default();
        let all = a.instructions().iter();
        let all = all.map(|i| copied.classify(i, Processor::V2) == Action::Copy);
        let all: Vec<bool> = all.collect();
        assert_eq!(all, [true, false, true, true, false, false]);
    }
}
