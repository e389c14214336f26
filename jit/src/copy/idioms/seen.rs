//! Words of which a function keeps a copy: `if (word != last) { last = word; ... }`.
//!
//! A watchdog compares the counters of other threads with its copies now and then, and updates the copies. A user
//! of a configuration or a table compares the table's version with the version that the user knows. The function
//! loads the word once, compares the value with the copy, and stores the value to the copy: so another thread
//! changes the word. That thread may do so by plain instructions that look like no synchronization.

use crate::common::{has_memory, is_call, writes_register};
use crate::copy::addresses::is_by_frame_pointer;
use crate::copy::ordered::{is_candidate, same_operand};
use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};

/// Instructions between the load and the comparison, at most.
const APART: usize = 4;
/// Instructions between the comparison and the store, at most.
const REACH: usize = 12;

/// Indices of the loads of such words in a function's code.
pub(super) fn seen(code: &[Instruction]) -> Vec<usize> {
    let is_own = is_by_frame_pointer(code);
    let mut factory = InstructionInfoFactory::new();
    let mut found = Vec::new();
    for (at, load) in code.iter().enumerate() {
        let loads = matches!(load.code(), Code::Mov_r32_rm32 | Code::Mov_r64_rm64);
        if !loads || !is_candidate(load) || is_own(load) {
            continue;
        }
        let value = load.op0_register();
        let Some(comparison) = comparison(code, at, value, &mut factory) else { continue };
        let copy = &code[comparison];
        if !same_operand(copy, load) && is_kept(code, comparison, value, &mut factory) {
            found.push(at);
        }
    }
    found
}

/// Where what the instruction at `at` has loaded is compared with a word in memory, soon.
fn comparison(
    code: &[Instruction],
    at: usize,
    value: Register,
    factory: &mut InstructionInfoFactory,
) -> Option<usize> {
    for (next, i) in code.iter().enumerate().skip(at + 1).take(APART) {
        let compares = i.mnemonic() == Mnemonic::Cmp
            && has_memory(i)
            && [i.op0_register(), i.op1_register()].contains(&value);
        if compares {
            return Some(next);
        }
        if i.flow_control() != FlowControl::Next
            || writes_register([i], value.full_register(), factory)
        {
            return None;
        }
    }
    None
}

/// Whether the value is stored where the comparison has found the copy, soon behind it.
fn is_kept(
    code: &[Instruction],
    comparison: usize,
    value: Register,
    factory: &mut InstructionInfoFactory,
) -> bool {
    let copy = &code[comparison];
    for i in code.iter().skip(comparison + 1).take(REACH) {
        let stores = matches!(i.code(), Code::Mov_rm32_r32 | Code::Mov_rm64_r64)
            && i.op0_kind() == OpKind::Memory
            && i.op1_register() == value;
        if stores && same_operand(i, copy) {
            return true;
        }
        let ends = matches!(i.flow_control(), FlowControl::Return | FlowControl::IndirectBranch);
        let changes = [value, copy.memory_base(), copy.memory_index()]
            .into_iter()
            .filter(|&register| register != Register::None)
            .any(|register| writes_register([i], register.full_register(), factory));
        if ends || changes || is_call(i) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::seen;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// As gcc compiles a loop over threads, each with a counter.
    fn watches(between: fn(&mut CodeAssembler), keeps: fn(&mut CodeAssembler)) -> Vec<usize> {
        seen(&assembled(|a| {
            let (mut again, mut changed) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(rdx, qword_ptr(rbp + rax * 8)).unwrap();
            a.mov(edx, dword_ptr(rdx + 0xc84)).unwrap();
            between(a);
            a.cmp(edx, dword_ptr(rcx + rax * 4)).unwrap();
            a.jne(changed).unwrap();
            a.add(r12d, 1).unwrap();
            a.set_label(&mut changed).unwrap();
            keeps(a);
            a.add(rax, 1).unwrap();
            a.cmp(eax, 8).unwrap();
            a.jl(again).unwrap();
            a.ret().unwrap();
        }))
    }

    #[test]
    fn what_is_kept() {
        let keeps = |a: &mut CodeAssembler| a.mov(dword_ptr(rcx + rax * 4), edx).unwrap();
        assert_eq!(watches(|_| (), keeps), [1]);
        assert_eq!(watches(|a| a.add(edx, 1).unwrap(), keeps), [], "another number");
        let elsewhere = |a: &mut CodeAssembler| a.mov(dword_ptr(rcx + rax * 4 + 4), edx).unwrap();
        assert_eq!(watches(|_| (), elsewhere), []);
        let another = |a: &mut CodeAssembler| a.mov(dword_ptr(rcx + rax * 4), r12d).unwrap();
        assert_eq!(watches(|_| (), another), []);
        let later = |a: &mut CodeAssembler| {
            a.call(0x5000).unwrap();
            a.mov(dword_ptr(rcx + rax * 4), edx).unwrap();
        };
        assert_eq!(watches(|_| (), later), []);
    }

    #[test]
    fn copies_within_the_function() {
        let same = seen(&assembled(|a| {
            a.mov(edx, dword_ptr(rdi)).unwrap();
            a.cmp(edx, dword_ptr(rdi)).unwrap();
            a.mov(dword_ptr(rdi), edx).unwrap();
            a.ret().unwrap();
        }));
        assert_eq!(same, []);
    }
}
