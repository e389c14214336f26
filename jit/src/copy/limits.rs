//! Looks at limits: compiled code adds a size to a pointer to allocate, and compares the pointer at
//! once with a limit in memory. Other threads change the limit to make the thread stop or collect
//! garbage, so the limit is a word of synchronization: GHC's `HpLim`, OCaml's `young_limit`.
//!
//! Pointer and base are registers that compilers of such languages reserve, r12 to r15. So a look is `add`
//! of a constant or of a register, or `sub` of a constant, right before a comparison of that register
//! with what another of these registers points to. Only a constant that another register gets may be
//! between (the size, for the code that makes room). Whether an instruction is a look depends on the
//! bytes before it, not on the block in which it is translated, and on no function around it: such code
//! has few symbols.
//!
//! Compilers of C keep variables in these registers, too, and make such code of a loop over an array
//! whose end is in memory: its look is watched, which costs a comparison.
//!
//! Where functions themselves see to it that the stack has room, they compare the stack pointer with a
//! limit, which other threads change for the same reason (Poly/ML). Compilers of C have no such
//! comparison, so any of the stack pointer with what another register points to is a look.

use crate::memory::read_guest;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

/// Bytes of `add r64, imm32` and `mov r32, imm32`.
const LONG: usize = 12;

/// Whether the instruction looks at a limit.
pub(super) fn is_look_at_limit(instruction: &Instruction) -> bool {
    if compares_stack(instruction) {
        return true;
    }
    let Some(pointer) = compared(instruction) else { return false };
    let mut before = [0; LONG];
    let from = instruction.ip().saturating_sub(LONG as u64);
    read_guest(from, &mut before) == LONG && moves(&before, pointer)
}

/// Whether the stack pointer is compared with what another register points to.
fn compares_stack(instruction: &Instruction) -> bool {
    instruction.code() == Code::Cmp_r64_rm64
        && instruction.op0_register() == Register::RSP
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base().is_gpr64()
        && instruction.memory_base() != Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None
}

/// What is compared with memory, by the register's number, if both registers may be reserved ones.
fn compared(instruction: &Instruction) -> Option<u8> {
    let [register, memory] = [instruction.op0_kind(), instruction.op1_kind()];
    let base = reserved(instruction.memory_base())?;
    let is_plain = instruction.memory_index() == Register::None;
    let is_look = instruction.mnemonic() == Mnemonic::Cmp
        && (register, memory) == (OpKind::Register, OpKind::Memory);
    let pointer = reserved(instruction.op0_register()).filter(|_| is_look && is_plain)?;
    (pointer != base).then_some(pointer)
}

/// The number of one of the registers r12 to r15, without the bit that a prefix has.
fn reserved(register: Register) -> Option<u8> {
    match register {
        Register::R12 => Some(4),
        Register::R13 => Some(5),
        Register::R14 => Some(6),
        Register::R15 => Some(7),
        _ => None,
    }
}

/// Whether the bytes end with an instruction that adds to a register, or subtracts a constant, and
/// perhaps one behind it that loads a constant.
fn moves(before: &[u8], register: u8) -> bool {
    let earlier = match before {
        [earlier @ .., 0xb8..=0xbf, _, _, _, _] => earlier,
        _ => &[],
    };
    adds(before, register) || adds(earlier, register)
}

fn adds(before: &[u8], register: u8) -> bool {
    /// REX with W (64 bits) and B (r8 to r15), and the same with R.
    const PREFIX: u8 = 0x49;
    const PREFIX_R: u8 = 0x4d;
    let of_constant = |mod_rm: u8| [0xc0 | register, 0xe8 | register].contains(&mod_rm);
    let of_register = |mod_rm: u8| mod_rm & 0xc7 == 0xc0 | register;
    match before {
        [.., PREFIX, 0x83, mod_rm, _] if of_constant(*mod_rm) => true,
        [.., PREFIX, 0x81, mod_rm, _, _, _, _] if of_constant(*mod_rm) => true,
        [.., PREFIX | PREFIX_R, 0x01, mod_rm] => of_register(*mod_rm),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    /// Of some instructions, whether the last one looks at a limit.
    fn looks(write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> bool {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        write(&mut a).expect("what the tests write can be encoded");
        let bytes = a.assemble(0x1000).expect("likewise");
        let code: Vec<_> = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect();
        let last = code.last().expect("there are some");
        let before = &bytes[..(last.ip() - 0x1000) as usize];
        compared(last).is_some_and(|pointer| moves(before, pointer))
    }

    #[test]
    fn of_runtimes() {
        let ghc = |a: &mut CodeAssembler| {
            a.add(r12, 24)?;
            a.cmp(r12, qword_ptr(r13 + 0x358))
        };
        let ghc_large = |a: &mut CodeAssembler| {
            a.add(r12, 1024)?;
            a.cmp(r12, qword_ptr(r13 + 0x358))
        };
        let ocaml = |a: &mut CodeAssembler| {
            a.sub(r15, 40)?;
            a.cmp(r15, qword_ptr(r14))
        };
        let ghc_with_size = |a: &mut CodeAssembler| {
            a.add(r12, 40)?;
            a.mov(ecx, 40)?;
            a.cmp(r12, qword_ptr(r13 + 0x358))
        };
        let ghc_of_any_size = |a: &mut CodeAssembler| {
            a.add(r12, rcx)?;
            a.cmp(r12, qword_ptr(r13 + 0x358))
        };
        assert!(looks(ghc));
        assert!(looks(ghc_with_size));
        assert!(looks(ghc_of_any_size));
        assert!(looks(ghc_large));
        assert!(looks(ocaml));
    }

    #[test]
    fn of_the_stack() {
        let looks = |write: fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>| {
            let code = crate::copy::tests::assembled(|a| write(a).unwrap());
            is_look_at_limit(&code[0])
        };
        assert!(looks(|a| a.cmp(rsp, qword_ptr(rbp + 0x18))));
        assert!(!looks(|a| a.cmp(rsp, qword_ptr(rsp + 0x18))));
        assert!(!looks(|a| a.cmp(rsp, qword_ptr(rbp + rcx * 8))));
        assert!(!looks(|a| a.cmp(rsp, qword_ptr(0x70).fs())));
        assert!(!looks(|a| a.cmp(rsp, rbp)));
        assert!(!looks(|a| a.mov(rsp, qword_ptr(rbp + 0x18))));
        assert!(!looks(|a| a.cmp(rax, qword_ptr(rbp + 0x18))));
    }

    #[test]
    fn of_nobody() {
        let another = |a: &mut CodeAssembler| {
            a.add(r14, 24)?;
            a.cmp(r12, qword_ptr(r13 + 0x358))
        };
        let indexed = |a: &mut CodeAssembler| {
            a.add(r12, 24)?;
            a.cmp(r12, qword_ptr(r13 + rax * 8))
        };
        let ordinary = |a: &mut CodeAssembler| {
            a.add(rbx, 24)?;
            a.cmp(rbx, qword_ptr(r13 + 0x358))
        };
        let loads = |a: &mut CodeAssembler| {
            a.add(r12, 24)?;
            a.mov(r12, qword_ptr(r13 + 0x358))
        };
        let uses = |a: &mut CodeAssembler| {
            a.add(r12, 24)?;
            a.mov(ecx, dword_ptr(r12))?;
            a.cmp(r12, qword_ptr(r13 + 0x358))
        };
        assert!(!looks(uses));
        assert!(!looks(another));
        assert!(!looks(indexed));
        assert!(!looks(ordinary));
        assert!(!looks(loads));
    }
}
