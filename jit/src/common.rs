//! What common instructions do with registers and memory.
//!
//! Most instructions are of a few kinds, whose mnemonic and operands say it; iced's tables say it of
//! all, and take ten times as long.

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register,
};

/// Bytes of the longest instruction.
pub(crate) const LONGEST_INSTRUCTION: usize = 15;

/// Registers that a call may change.
pub(crate) const CLOBBERED: [Register; 9] = {
    use Register::*;
    [RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11]
};

/// Whether an instruction only fills the room between two functions.
pub(crate) fn is_padding(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
}

/// A function's instructions without what fills the room behind them.
pub(crate) fn without_padding(code: &[Instruction]) -> &[Instruction] {
    let filled = code.iter().rev().take_while(|i| is_padding(i)).count();
    &code[..code.len() - filled]
}

/// Whether an operand lies in memory, or an address is computed as for one (`lea`).
pub(crate) fn has_memory(instruction: &Instruction) -> bool {
    instruction.op_kinds().any(|kind| kind == OpKind::Memory)
}

/// Whether it is a call or a system call.
pub(crate) fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// Whether this `movsd` is the one on strings.
fn is_string(movsd: &Instruction) -> bool {
    !matches!(movsd.op0_kind(), OpKind::Register | OpKind::Memory)
}

/// What a common instruction does with memory, which is all in its one operand there:
/// [`OpAccess::None`] if it has none. `None` for the other instructions.
pub(crate) fn memory_access(instruction: &Instruction) -> Option<OpAccess> {
    use Mnemonic::*;
    let is_memory = |at: u32| instruction.op_kind(at) == OpKind::Memory;
    let written = match instruction.mnemonic() {
        Mov | Movups | Movaps | Movupd | Movapd | Movdqu | Movdqa | Movq | Movd | Movss | Sete
        | Setne | Setb | Setae | Seta | Setbe | Setl | Setle | Setg | Setge => OpAccess::Write,
        Movsd if !is_string(instruction) => OpAccess::Write,
        Movzx | Movsx | Movsxd | Cmp | Test => OpAccess::Read,
        Add | Sub | And | Or | Xor | Shl | Shr | Sar | Inc | Dec | Neg | Not | Adc | Sbb => {
            OpAccess::ReadWrite
        }
        Lea | Nop | Endbr64 | Je | Jne | Jb | Jae | Ja | Jbe | Jl | Jle | Jg | Jge | Js | Jns => {
            return Some(OpAccess::None);
        }
        _ => return None,
    };
    Some(match (is_memory(0), is_memory(1)) {
        (true, _) => written,
        (false, true) => OpAccess::Read,
        (false, false) => OpAccess::None,
    })
}

/// The general registers, whole, that a common instruction writes, or may write; [`Register::None`] stands for
/// none. `None` for the other instructions.
#[rustfmt::skip]
fn written(instruction: &Instruction) -> Option<[Register; 2]> {
    use Mnemonic::*;
    let first = || match instruction.op0_kind() {
        OpKind::Register if instruction.op0_register().is_gpr() => {
            instruction.op0_register().full_register()
        }
        _ => Register::None,
    };
    match instruction.mnemonic() {
        Cmp | Test | Nop | Endbr64 | Jmp | Je | Jne | Jb | Jae | Ja | Jbe | Jl | Jle | Jg | Jge | Js | Jns => {
            Some([Register::None; 2])
        }
        Mov | Lea | Movzx | Movsx | Movsxd | Add | Sub | And | Or | Xor | Shl | Shr | Sar | Rol | Ror | Adc | Sbb
        | Inc | Dec | Neg | Not | Bswap | Cmove | Cmovne | Cmovb | Cmovae | Cmova | Cmovbe | Cmovl | Cmovle
        | Cmovg | Cmovge | Cmovs | Cmovns | Sete | Setne | Setb | Setae | Seta | Setbe | Setl | Setle | Setg
        | Setge | Movups | Movaps | Movupd | Movapd | Movdqu | Movdqa | Movq | Movd | Movss | Xorps | Pxor
        | Addss | Addsd | Mulss | Mulsd | Subss | Subsd => Some([first(), Register::None]),
        // With one operand, it writes two registers that it does not name.
        Imul if instruction.op_count() > 1 => Some([first(), Register::None]),
        Movsd if !is_string(instruction) => Some([first(), Register::None]),
        Push | Call | Ret => Some([Register::RSP, Register::None]),
        Pop => Some([first(), Register::RSP]),
        _ => None,
    }
}

/// Whether one of these instructions writes a whole general register, or may do so.
pub(crate) fn writes_register<'a>(
    code: impl IntoIterator<Item = &'a Instruction>,
    register: Register,
    factory: &mut InstructionInfoFactory,
) -> bool {
    code.into_iter().any(|i| {
        let mut found = is_call(i) && CLOBBERED.contains(&register);
        each_written(i, factory, |written| found |= written == register);
        found
    })
}

/// Says of each general register, whole, that an instruction writes it, or may do so.
pub(crate) fn each_written(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
    mut say: impl FnMut(Register),
) {
    match written(instruction) {
        Some(registers) => {
            registers.into_iter().filter(|&it| it != Register::None).for_each(say);
        }
        None => {
            let options = InstructionInfoOptions::NO_MEMORY_USAGE;
            let used = factory.info_options(instruction, options).used_registers();
            let general = used.iter().filter(|used| used.register().is_gpr());
            general
                .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
                .for_each(|used| say(used.register().full_register()));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use iced_x86::{Code, Decoder, DecoderOptions};
    use std::collections::BTreeSet;

    /// Instructions of all kinds: what random bytes are decoded to.
    pub(crate) fn of_all_kinds() -> Vec<Instruction> {
        let mut state = 1_u64;
        let mut bytes = vec![0_u8; 600_000];
        for byte in &mut bytes {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            *byte = (state >> 56) as u8;
        }
        let mut all = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE);
        all.iter().filter(|i| i.code() != Code::INVALID).collect()
    }

    #[test]
    fn memory_is_accessed_as_the_table_says() {
        let mut factory = InstructionInfoFactory::new();
        let mut count = 0;
        for i in of_all_kinds() {
            let Some(access) = memory_access(&i) else { continue };
            let used = factory.info(&i).used_memory();
            let accesses = used.iter().map(|used| used.access());
            let none = |access: &OpAccess| matches!(access, OpAccess::None | OpAccess::NoMemAccess);
            let table: Vec<OpAccess> = accesses.filter(|access| !none(access)).collect();
            let expected: Vec<OpAccess> = [access].into_iter().filter(|it| !none(it)).collect();
            assert_eq!(table, expected, "{i}");
            count += 1;
        }
        assert!(count > 10_000, "{count}");
    }

    #[test]
    fn registers_are_written_as_the_table_says() {
        let mut factory = InstructionInfoFactory::new();
        let mut count = 0;
        for i in of_all_kinds() {
            let Some(said) = written(&i) else { continue };
            let used = factory.info(&i).used_registers();
            let all: BTreeSet<Register> = used
                .iter()
                .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
                .map(|used| used.register().full_register())
                .filter(|register| register.is_gpr())
                .collect();
            let said = said.into_iter().filter(|&it| it != Register::None);
            assert_eq!(said.collect::<BTreeSet<_>>(), all, "{i}");
            count += 1;
        }
        assert!(count > 10_000, "{count}");
    }
}
