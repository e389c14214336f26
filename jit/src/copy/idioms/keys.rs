//! Keys of thread-specific data, in the C library. When a thread ends, the library checks for each value of the
//! thread that the value's key has not been deleted, and calls the key's destructor.
//!
//! Libraries delete their keys when the program ends. A thread that another one has waited for may still be ending
//! then. For each key, the library's table has a number and, right behind the number, the destructor. A locked
//! instruction changes the number when the key is created or deleted. The idiom is a function that compares such a
//! number, loads the destructor, and calls the destructor by a register: the loads of both are watched.

use crate::copy::ordered::is_candidate;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Instructions between the call and the loads.
const REACH: usize = 12;
/// Bytes of a number, behind which the destructor lies.
const NUMBER: u64 = 8;

/// Indices of such loads in a function's code.
pub(super) fn keys(code: &[Instruction]) -> Vec<usize> {
    let calls = code.iter().enumerate().filter(|(_, i)| {
        i.flow_control() == FlowControl::IndirectCall && i.op0_kind() == OpKind::Register
    });
    let found = calls.filter_map(|(at, call)| {
        let before = at.saturating_sub(REACH)..at;
        let destructor =
            before.clone().rev().find(|&load| loads(&code[load], call.op0_register()))?;
        let number = before.take_while(|&load| load < destructor).find(|&load| {
            is_in_front(&code[load], &code[destructor]) && is_compared(&code[load..destructor])
        })?;
        Some([number, destructor])
    });
    found.flatten().collect()
}

/// Whether an instruction loads a word into a register.
fn loads(i: &Instruction, register: Register) -> bool {
    i.code() == Code::Mov_r64_rm64 && is_candidate(i) && i.op0_register() == register
}

/// Whether a load is of the word right before the one that another load is of.
fn is_in_front(number: &Instruction, destructor: &Instruction) -> bool {
    number.code() == Code::Mov_r64_rm64
        && is_candidate(number)
        && (number.memory_base(), number.memory_index())
            == (destructor.memory_base(), Register::None)
        && destructor.memory_index() == Register::None
        && number.memory_displacement64().wrapping_add(NUMBER) == destructor.memory_displacement64()
}

/// Whether what the first of these instructions loads is compared with a word in memory.
fn is_compared(code: &[Instruction]) -> bool {
    let loaded = code[0].op0_register();
    code.iter().any(|i| {
        i.mnemonic() == Mnemonic::Cmp
            && i.op0_kind() == OpKind::Memory
            && i.op1_register() == loaded
    })
}

#[cfg(test)]
mod tests {
    use super::keys;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// The inner loop of glibc's `__nptl_deallocate_tsd`.
    #[test]
    fn numbers_beside_destructors() {
        let found = |number: i32| {
            keys(&assembled(|a| {
                let mut next = a.create_label();
                a.mov(rdi, qword_ptr(rbx)).unwrap();
                a.test(rdi, rdi).unwrap();
                a.je(next).unwrap();
                a.mov(qword_ptr(rbx), 0).unwrap();
                a.mov(rax, qword_ptr(rbp + number)).unwrap();
                a.cmp(qword_ptr(rbx - 8), rax).unwrap();
                a.jne(next).unwrap();
                a.mov(rdx, qword_ptr(rbp)).unwrap();
                a.test(rdx, rdx).unwrap();
                a.je(next).unwrap();
                a.call(rdx).unwrap();
                a.set_label(&mut next).unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(found(-8), [4, 7]);
        assert_eq!(found(-16), [], "another number");
    }
}
