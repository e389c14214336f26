//! Bytes that are loaded into a register only to be tested: compilers compare an ordinary byte where it
//! lies, but load an atomic one. So `movzx` and `test` of the same register is a look at a flag, such as
//! one by which a thread is told to stop, whatever is around it. (Words are loaded to be tested in either
//! case, and so is all that is on the stack or in arrays in code that is not optimised.)

use crate::copy::addresses::is_unoptimised;
use crate::copy::ordered::is_candidate;
use iced_x86::{Code, Instruction, OpKind, Register};

/// Indices of such loads in a function's code.
pub(super) fn tested(code: &[Instruction]) -> Vec<usize> {
    if is_unoptimised(code) {
        return Vec::new();
    }
    let is_it = |at: &usize| match &code[*at..] {
        [load, test, ..] if is_tested(load, test) => true,
        // The answer of the function that looks is made ready before the look.
        [load, other, test, ..] => is_tested(load, test) && makes_answer(other, load),
        _ => false,
    };
    (0..code.len()).filter(is_it).collect()
}

/// Whether an instruction does nothing but clear a register, and not the one that was loaded.
fn makes_answer(i: &Instruction, load: &Instruction) -> bool {
    matches!(i.code(), Code::Xor_r32_rm32 | Code::Xor_rm32_r32)
        && i.op0_kind() == OpKind::Register
        && i.op1_kind() == OpKind::Register
        && i.op0_register() == i.op1_register()
        && i.op0_register() != load.op0_register()
}

fn is_tested(load: &Instruction, test: &Instruction) -> bool {
    load.code() == Code::Movzx_r32_rm8
        && is_candidate(load)
        && load.memory_index() == Register::None
        && test.code() == Code::Test_rm8_r8
        && test.op0_register() == test.op1_register()
        && test.op0_register().full_register() == load.op0_register().full_register()
}

#[cfg(test)]
mod tests {
    use super::tested;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    #[test]
    fn flags_and_data() {
        let code = assembled(|a| {
            a.movzx(r10d, byte_ptr(r8 + 0xac)).unwrap();
            a.test(r10b, r10b).unwrap();
            a.movzx(eax, byte_ptr(rdi)).unwrap();
            a.test(cl, cl).unwrap();
            a.movzx(eax, byte_ptr(rdi + rcx)).unwrap();
            a.test(al, al).unwrap();
            a.mov(eax, dword_ptr(rdi)).unwrap();
            a.test(eax, eax).unwrap();
            a.movzx(eax, byte_ptr(rsp + 8)).unwrap();
            a.test(al, al).unwrap();
            a.movzx(edx, byte_ptr(rax)).unwrap();
            a.xor(eax, eax).unwrap();
            a.test(dl, dl).unwrap();
            a.movzx(edx, byte_ptr(rax)).unwrap();
            a.inc(eax).unwrap();
            a.test(dl, dl).unwrap();
        });
        assert_eq!(tested(&code), [0, 10]);
    }

    #[test]
    fn not_without_optimisation() {
        let code = assembled(|a| {
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.mov(qword_ptr(rbp - 8), rdi).unwrap();
            a.mov(rax, qword_ptr(rbp - 8)).unwrap();
            a.movzx(eax, byte_ptr(rax)).unwrap();
            a.test(al, al).unwrap();
        });
        assert_eq!(tested(&code), []);
        let optimised = assembled(|a| {
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.movzx(eax, byte_ptr(rdi)).unwrap();
            a.test(al, al).unwrap();
        });
        assert_eq!(tested(&optimised), [2], "with a frame pointer nevertheless");
    }
}
