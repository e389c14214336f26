//! Instructions whose results the machine supplies.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use refrain_vm::{Emulate, Operand, StateArea};

/// What the machine does for this instruction, if it is one of them.
pub(crate) fn emulated(instruction: &Instruction) -> Option<Emulate> {
    Some(match instruction.mnemonic() {
        Mnemonic::Cpuid => Emulate::Cpuid,
        Mnemonic::Rdtsc => Emulate::Rdtsc,
        Mnemonic::Rdtscp => Emulate::Rdtscp,
        Mnemonic::Xgetbv => Emulate::Xgetbv,
        Mnemonic::Iretq => Emulate::InterruptReturn,
        Mnemonic::Rdrand | Mnemonic::Rdseed => Emulate::Random {
            register: instruction.op0_register().full_register().number() as u8,
            size: instruction.op0_register().size() as u8,
        },
        _ if is_of_state(instruction) => Emulate::State(StateArea {
            operand: operand(instruction)?,
            loads: matches!(instruction.mnemonic(), Mnemonic::Xrstor | Mnemonic::Xrstor64),
            len: instruction.len() as u8,
        }),
        _ => return None,
    })
}

/// Whether it stores or loads the extended state, as the guest's `cpuid` says that it may.
pub(crate) fn is_of_state(instruction: &Instruction) -> bool {
    use Mnemonic::{Xrstor, Xrstor64, Xsave, Xsave64};
    matches!(instruction.mnemonic(), Xsave | Xsave64 | Xrstor | Xrstor64)
}

/// The operand in memory; `None` if it is reached through FS, or by a 32-bit address.
fn operand(instruction: &Instruction) -> Option<Operand> {
    let register = |register: Register| match register {
        Register::None => Some(None),
        register if register.is_gpr64() => Some(Some(register.number() as u8)),
        _ => None,
    };
    let usual = instruction.op0_kind() == OpKind::Memory
        && !matches!(instruction.memory_segment(), Register::FS | Register::GS);
    if !usual {
        return None;
    }
    let displacement = instruction.memory_displacement64();
    if instruction.is_ip_rel_memory_operand() {
        return Some(Operand { base: None, index: None, displacement });
    }
    let scale = instruction.memory_index_scale() as u8;
    let index = register(instruction.memory_index())?.map(|index| (index, scale));
    Some(Operand { base: register(instruction.memory_base())?, index, displacement })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    fn first(write: impl FnOnce(&mut CodeAssembler)) -> Option<Emulate> {
        let mut a = CodeAssembler::new(64).unwrap();
        write(&mut a);
        let code = a.assemble(0x1000).unwrap();
        let mut decoder = iced_x86::Decoder::with_ip(64, &code, 0x1000, 0);
        emulated(&decoder.decode())
    }

    #[test]
    fn operands_are_told_by_their_registers() {
        let saved = first(|a| a.xsave64(ptr(rsp + 4 * r12 - 64)).unwrap());
        let operand =
            Operand { base: Some(4), index: Some((12, 4)), displacement: (-64_i64) as u64 };
        assert_eq!(saved, Some(Emulate::State(StateArea { operand, loads: false, len: 6 })));
        let loaded = first(|a| a.xrstor(ptr(rdi)).unwrap());
        let operand = Operand { base: Some(7), index: None, displacement: 0 };
        assert_eq!(loaded, Some(Emulate::State(StateArea { operand, loads: true, len: 3 })));
        assert_eq!(first(|a| a.xsave(ptr(rdi).fs()).unwrap()), None);
        assert_eq!(first(|a| a.xsave(ptr(edi)).unwrap()), None);
    }
}
