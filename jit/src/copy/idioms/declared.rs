//! Loads and stores that the debug information names: their source is the definition of an atomic operation.
//!
//! What such an operation keeps on the thread's own stack, which in code that is not optimised is everything,
//! is no atomic variable unless the function takes its address.

use crate::copy::ordered::{is_load, is_on_stack, is_store};
use iced_x86::{Instruction, Mnemonic, Register};
use std::ops::Range;

/// A variable on the stack has at most so many bytes before the atomic part of it.
const BEFORE: u64 = 256;

/// Indices of the accesses in a function's code that atomic operations make. `atomic` says where the code of
/// these operations lies, in ascending order.
pub(super) fn declared<'a>(
    code: &'a [Instruction],
    atomic: &'a [Range<u64>],
) -> impl Iterator<Item = usize> + 'a {
    let lent: Vec<(Register, u64)> = code
        .iter()
        .filter(|i| i.mnemonic() == Mnemonic::Lea && is_on_stack(i))
        .map(|i| (i.memory_base(), i.memory_displacement64()))
        .collect();
    let is_lent = move |i: &Instruction| {
        let offset = |start: u64| i.memory_displacement64().wrapping_sub(start);
        lent.iter().any(|&(base, start)| base == i.memory_base() && offset(start) < BEFORE)
    };
    let is_one = move |i: &Instruction| {
        let at = atomic.partition_point(|range| range.end <= i.ip());
        let is_inside = atomic.get(at).is_some_and(|range| range.contains(&i.ip()));
        let is_own = || matches!(i.segment_prefix(), Register::FS | Register::GS);
        is_inside && (is_load(i) || is_store(i)) && !is_own() && (!is_on_stack(i) || is_lent(i))
    };
    code.iter().enumerate().filter(move |(_, i)| is_one(i)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::declared;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    #[test]
    fn what_is_named_and_no_words_of_the_stack() {
        let code = assembled(|a| {
            a.lea(rdi, ptr(rsp + 0x20)).unwrap();
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.mov(qword_ptr(rsp + 8), rax).unwrap();
            a.mov(dword_ptr(rsp + 0x24), 1).unwrap();
            a.movzx(eax, byte_ptr(rsi + rcx)).unwrap();
            a.add(rax, rcx).unwrap();
            a.mov(qword_ptr(rdx), rax).unwrap();
        });
        let found = |range| declared(&code, &[range]).collect::<Vec<_>>();
        assert_eq!(found(code[0].ip()..code[5].ip()), [1, 3, 4]);
        assert_eq!(found(code[5].ip()..code[6].next_ip()), [6]);
        assert_eq!(found(0..code[0].next_ip()), []);
    }
}
