//! What common instructions do with registers and memory.
//!
//! Most instructions are of a few kinds, whose mnemonic and operands say it; iced's tables say it of
//! all, and take ten times as long.

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register,
};

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

/// Whether it is a call or a system call.
pub(crate) fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// What a common instruction does with memory, which is all in its one operand there:
/// [`OpAccess::None`] if it has none. `None` for the other instructions.
pub(crate) fn memory_access(instruction: &Instruction) -> Option<OpAccess> {
    use Mnemonic::*;
    let is_memory = |at: u32| instruction.op_kind(at) == OpKind::Memory;
    let written = match instruction.mnemonic() {
        Mov => OpAccess::Write,
        Movzx | Movsx | Movsxd | Cmp | Test => OpAccess::Read,
        Add | Sub | And | Or | Xor => OpAccess::ReadWrite,
        Lea | Nop | Endbr64 | Je | Jne | Jb | Jae | Ja | Jbe => return Some(OpAccess::None),
        _ => return None,
    };
    Some(match (is_memory(0), is_memory(1)) {
        (true, _) => written,
        (false, true) => OpAccess::Read,
        (false, false) => OpAccess::None,
    })
}

/// Whether the only general register that a common instruction writes is its first operand, or it
/// writes none.
fn writes_first(instruction: &Instruction) -> Option<bool> {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Mov | Lea | Movzx | Movsx | Movsxd | Add | Sub | And | Or | Xor => {
            let is_register = instruction.op0_kind() == OpKind::Register;
            (!is_register || instruction.op0_register().is_gpr()).then_some(is_register)
        }
        Cmp | Test | Nop | Endbr64 | Jmp | Je | Jne | Jb | Jae | Ja | Jbe => Some(false),
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
    match writes_first(instruction) {
        Some(true) => say(instruction.op0_register().full_register()),
        Some(false) => {}
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
            let Some(first) = writes_first(&i) else { continue };
            let used = factory.info(&i).used_registers();
            let written: BTreeSet<Register> = used
                .iter()
                .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
                .map(|used| used.register().full_register())
                .filter(|register| register.is_gpr())
                .collect();
            let expected = first.then(|| i.op0_register().full_register());
            assert_eq!(written, expected.into_iter().collect(), "{i}");
            count += 1;
        }
        assert!(count > 10_000, "{count}");
    }
}
