//! Counters in parts: each thread counts in a record of its own, and who asks adds them up.
//!
//! The records begin cache lines, so that threads do not disturb each other. Nothing else tells that others
//! write what the loop reads: it takes no lock and waits for nothing. So a loop that goes on by one to four
//! cache lines for each that it loads words from, and does nothing but add these up, reads such counters.
//! Loops over columns of numbers seldom have rows of just that size.

use crate::common::has_memory;
use crate::copy::loops::Loop;
use crate::copy::ordered::is_candidate;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;

/// Instructions of such a loop, which may be unrolled.
const LONGEST: usize = 48;
const LINE: u64 = 64;
/// Cache lines from one record to the next, at most.
const LINES: u64 = 4;

/// Finds the loads by which a function adds up such counters; returns their indices in its `code`. `loops`
/// are the function's.
pub(super) fn shards(code: &[Instruction], loops: &[Loop]) -> Vec<usize> {
    loops.iter().flat_map(|body| of_loop(code, body)).collect()
}

fn of_loop(code: &[Instruction], body: &Loop) -> Vec<usize> {
    let inside = || body.iter().flat_map(|block| block.clone());
    if inside().count() > LONGEST || !inside().all(|at| is_plain(&code[at])) {
        return Vec::new();
    }
    let steps: Vec<(Register, u64)> = inside().filter_map(|at| step(&code[at])).collect();
    let &[(pointer, step)] = &steps[..] else { return Vec::new() };
    let points = |i: &Instruction| i.memory_base() == pointer || i.memory_index() == pointer;
    let loads: Vec<usize> = inside().filter(|&at| loads_word(&code[at])).collect();
    // The pointer may have gone on already.
    let line = |&at: &usize| {
        (code[at].memory_displacement64() as i64).rem_euclid(step as i64) as u64 / LINE
    };
    let lines: BTreeSet<u64> = loads.iter().map(line).collect();
    let of_each = step / LINE / (lines.len() as u64).max(1);
    let loaded: BTreeSet<Register> = loads
        .iter()
        .filter(|&&at| code[at].mnemonic() == Mnemonic::Mov)
        .map(|&at| code[at].op0_register().full_register())
        .collect();
    let adds_loaded = |at: usize| {
        let i = &code[at];
        i.mnemonic() == Mnemonic::Add
            && (loads_word(i)
                || i.op1_kind() == OpKind::Register
                    && (loaded.contains(&i.op1_register().full_register())
                        || loaded.contains(&i.op0_register().full_register())))
    };
    let are_counters = step.is_multiple_of(LINE)
        && (1..=LINES).contains(&of_each)
        && loads.iter().all(|&at| points(&code[at]))
        && inside().any(adds_loaded);
    if are_counters { loads } else { Vec::new() }
}

/// Whether an instruction does nothing in a loop but load words, add and compare.
fn is_plain(i: &Instruction) -> bool {
    let touches_memory = has_memory(i);
    match i.mnemonic() {
        Mnemonic::Mov | Mnemonic::Add => !touches_memory || loads_word(i),
        Mnemonic::Nop => true,
        Mnemonic::Lea => true,
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Sub | Mnemonic::Inc | Mnemonic::Dec => {
            !touches_memory
        }
        _ => i.flow_control() == FlowControl::ConditionalBranch,
    }
}

/// Whether a word of memory is moved or added to a register.
fn loads_word(i: &Instruction) -> bool {
    use Code::*;
    matches!(i.code(), Mov_r64_rm64 | Mov_r32_rm32 | Add_r64_rm64 | Add_r32_rm32) && is_candidate(i)
}

/// The register that an instruction moves on by a cache line or more, and by how much.
fn step(i: &Instruction) -> Option<(Register, u64)> {
    let adds = matches!(i.code(), Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Add_RAX_imm32);
    let subtracts =
        matches!(i.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Sub_RAX_imm32);
    let is_step = (adds || subtracts) && i.op0_kind() == OpKind::Register;
    let by = is_step.then(|| (i.immediate(1) as i64).unsigned_abs());
    by.filter(|&by| by >= LINE).map(|by| (i.op0_register(), by))
}

#[cfg(test)]
mod tests {
    use super::shards;
    use crate::copy::loops::loops;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    fn found(step: i32, more: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rdx, qword_ptr(rax + 8)).unwrap();
            a.add(rax, step).unwrap();
            more(a);
            a.cmp(rcx, rax).unwrap();
            a.jne(again).unwrap();
            a.ret().unwrap();
        });
        shards(&code, &loops(&code))
    }

    #[test]
    fn sums_of_counters() {
        let adds = |a: &mut CodeAssembler| a.add(rsi, rdx).unwrap();
        assert_eq!(found(64, adds), [0]);
        assert_eq!(found(128, adds), [0]);
        assert_eq!(found(4096, adds), [], "a column of numbers");
        assert_eq!(found(8, adds), [], "an array");
        assert_eq!(found(72, adds), [], "records that begin no cache lines");
        assert_eq!(found(64, |_| ()), [], "it adds nothing up");
        assert_eq!(found(64, |a| a.mov(qword_ptr(rdi), rdx).unwrap()), [], "it stores");
        let calls = |a: &mut CodeAssembler| {
            a.add(rsi, rdx).unwrap();
            a.call(rbx).unwrap();
        };
        assert_eq!(found(64, calls), [], "it does something else");
    }

    /// Several counters of each record, added from memory; and records of two rounds in one.
    #[test]
    fn several_words_of_a_record() {
        let others = |a: &mut CodeAssembler| {
            a.add(rsi, rdx).unwrap();
            a.add(rdi, qword_ptr(rax - 48)).unwrap();
        };
        assert_eq!(found(64, others), [0, 3]);
        let next = |a: &mut CodeAssembler| {
            a.add(rsi, rdx).unwrap();
            a.add(rsi, qword_ptr(rax - 440)).unwrap();
        };
        assert_eq!(found(512, next), [0, 3]);
    }
}
