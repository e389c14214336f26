//! Arrays of atomics: words that the locked instructions of a function name by an index, where the function
//! scans them.
//!
//! Whoever looks for a set bit in a map of words, or for a full slot among many, loads one word after the
//! other in a loop that looks like any computation, and takes what it has found by a locked instruction
//! behind it, which names the word by another register.

use crate::copy::ordered::{is_candidate, is_locked};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use refrain_trace::fixed::FixedSet;

/// Instructions behind the one that computes an element's address, among which it is used.
const REACH: usize = 64;

/// The elements of an array as an operand names them: base, scale and offset.
type Array = (Register, u32, u64);

/// Indices of loads of such arrays. `code` is a function's instructions in order.
pub(super) fn arrays(code: &[Instruction]) -> Vec<usize> {
    let of_locked = |i: &Instruction| Some((array(i)?, i.memory_size().size()));
    let locked: FixedSet<(Array, usize)> =
        code.iter().filter(|i| is_locked(i)).filter_map(of_locked).collect();
    let mut found = Vec::new();
    if locked.is_empty() {
        return found;
    }
    for (at, i) in code.iter().enumerate() {
        let Some(array) = array(i) else { continue };
        if is_candidate(i) && locked.contains(&(array, i.memory_size().size())) {
            found.push(at);
        } else if i.mnemonic() == Mnemonic::Lea && locked.iter().any(|(it, _)| *it == array) {
            let element = i.op0_register();
            let behind = (at + 1..code.len()).take(REACH);
            let uses = behind.take_while(|&at| !loses(&code[at], element));
            found.extend(uses.filter(|&at| {
                let i = &code[at];
                is_candidate(i)
                    && (i.memory_base(), i.memory_index()) == (element, Register::None)
                    && i.memory_displacement64() == 0
                    && locked.contains(&(array, i.memory_size().size()))
            }));
        }
    }
    found
}

/// The array whose element an operand is.
fn array(i: &Instruction) -> Option<Array> {
    let (base, index) = (i.memory_base(), i.memory_index());
    let is_indexed = base.is_gpr64() && index.is_gpr64() && base != Register::RSP;
    is_indexed.then(|| (base, i.memory_index_scale(), i.memory_displacement64()))
}

/// Whether an instruction puts into a register what does not come of it.
fn loses(i: &Instruction, register: Register) -> bool {
    let is_it = i.op0_kind() == OpKind::Register && i.op0_register().full_register() == register;
    is_it
        && match i.mnemonic() {
            Mnemonic::Add | Mnemonic::Sub => i.op1_kind() == OpKind::Register,
            Mnemonic::Lea => i.memory_base() != register,
            Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => {
                false
            }
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use super::arrays;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// A map of bits that is scanned for a word that is not 0, one bit of which is then taken; `base` and
    /// `step` are what the scan names and how it goes on.
    fn scan(base: AsmRegister64, step: fn(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(|a| {
            let mut again = a.create_label();
            a.lea(rcx, qword_ptr(base + rdx * 8)).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rcx)).unwrap();
            step(a);
            a.test(rax, rax).unwrap();
            a.je(again).unwrap();
            a.mov(rsi, qword_ptr(rcx)).unwrap();
            a.lock().and(qword_ptr(rbx + r12 * 8), rax).unwrap();
            a.mov(esi, dword_ptr(rbx + rsi * 8)).unwrap();
            a.mov(rsi, qword_ptr(rbx + rsi * 8)).unwrap();
        });
        arrays(&code)
    }

    #[test]
    fn elements_are_found_by_their_addresses_and_by_their_indices() {
        let next = |a: &mut CodeAssembler| a.add(rcx, 8).unwrap();
        assert_eq!(scan(rbx, next), [1, 5, 8]);
        assert_eq!(scan(rdi, next), [8], "another array");
        assert_eq!(scan(rbx, |a| a.mov(rcx, rdi).unwrap()), [1, 8], "something else by then");
    }
}
