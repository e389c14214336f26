//! Objects that are marked with their own address: glibc writes the address of a thread's descriptor into
//! the descriptor when the thread is detached.
//!
//! Who detaches a thread looks then whether it has ended meanwhile, and a thread that ends looks whether it
//! has been detached: whoever comes second frees the descriptor. Both look by plain loads, beside the locked
//! instructions by which they say what they have done. Of the C library, whose locks are events of their
//! own, nothing else beside locks has to be looked at, since it looks at ordinary data under its locks.

use crate::common::has_memory;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Whether one of these instructions compares a field of an object with the object's address.
pub(super) fn compares_own_address(code: &[Instruction]) -> bool {
    code.iter().any(|i| {
        let pointer = i.memory_base();
        matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Cmpxchg)
            && has_memory(i)
            && !matches!(pointer, Register::None | Register::RIP | Register::RSP)
            && i.memory_index() == Register::None
            && i.op_kinds().zip(0..).any(|(kind, operand)| {
                kind == OpKind::Register && i.op_register(operand) == pointer
            })
    })
}

#[cfg(test)]
mod tests {
    use super::compares_own_address;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    #[test]
    fn a_field_is_compared_with_the_address_of_its_object() {
        let own: [fn(&mut CodeAssembler); 2] = [
            |a| a.lock().cmpxchg(qword_ptr(rdi + 0x620), rdi).unwrap(),
            |a| a.cmp(qword_ptr(rax + 0x620), rax).unwrap(),
        ];
        for own in own {
            assert!(compares_own_address(&assembled(own)));
        }
        let others: [fn(&mut CodeAssembler); 3] = [
            |a| a.cmp(qword_ptr(rax + 8), rcx).unwrap(),
            |a| a.cmp(rax, rax).unwrap(),
            |a| a.mov(qword_ptr(rax + 8), rax).unwrap(),
        ];
        for other in others {
            assert!(!compares_own_address(&assembled(other)));
        }
    }
}
