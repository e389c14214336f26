//! Links between objects that a loop locks, or tries to lock, one after the other, as the C library does with the
//! arenas of its allocator: a loop that goes on to the next object has no lock that guards the way there.

use crate::copy::loops::Loop;
use crate::copy::ordered::{is_candidate, is_locked};
use iced_x86::{Instruction, Mnemonic, Register};

/// Indices of the loads by which such loops go on. `code` is a function's instructions in order, `loops` are its
/// loops.
pub(super) fn locked_links(code: &[Instruction], loops: &[Loop]) -> Vec<usize> {
    let mut found = Vec::new();
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone());
        let names = |register: Register| {
            inside().any(|at| is_locked(&code[at]) && code[at].memory_base() == register)
        };
        found.extend(inside().filter(|&at| {
            let i = &code[at];
            i.mnemonic() == Mnemonic::Mov
                && is_candidate(i)
                && i.memory_index() == Register::None
                && i.memory_base() == i.op0_register()
                && names(i.memory_base())
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::locked_links;
    use crate::copy::loops::loops;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// As many links as are found in a loop that tries to lock what a register names.
    fn found(locks: AsmRegister64) -> usize {
        let code = assembled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rsi, qword_ptr(rbx + 8)).unwrap();
            a.xor(eax, eax).unwrap();
            a.lock().cmpxchg(dword_ptr(locks), edx).unwrap();
            a.mov(rbx, qword_ptr(rbx + 16)).unwrap();
            a.cmp(rbx, rdi).unwrap();
            a.jne(again).unwrap();
            a.mov(rbx, qword_ptr(rbx + 16)).unwrap();
            a.ret().unwrap();
        });
        locked_links(&code, &loops(&code)).len()
    }

    #[test]
    fn the_link_to_the_next_object_that_is_locked() {
        assert_eq!(found(rbx), 1);
        assert_eq!(found(rcx), 0, "it locks something else");
    }
}
