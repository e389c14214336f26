//! Loops that go over the records of all threads: has anybody not seen the new epoch, does anybody still
//! hold this pointer?
//!
//! Threads have their records side by side, each in a cache line of its own, and each thread stores to
//! its own record while others look; or a table has a pointer to each record. Such a loop compares a field
//! of each record, and stores nothing; its steps of a cache line or more, or the table, tell it from loops
//! that compute. It is beside the locked instruction by which its thread goes on.

use super::beside::is_compared;
use super::loops::Loop;
use super::ordered::{is_candidate, writes_memory};
use crate::common::is_call;
use iced_x86::{Code, Instruction, OpKind, Register};
use std::collections::BTreeSet;

/// Instructions of a loop that is looked at.
const LONGEST: usize = 96;
/// Bytes of a record, at least.
const LINE: u64 = 64;

/// Indices of the loads of such fields. `code` is a function's instructions in order, `beside` says which
/// of them are beside the program's own locks, and `loops` are its loops.
pub(super) fn records(code: &[Instruction], beside: &[bool], loops: &[Loop]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    if !beside.contains(&true) {
        return found;
    }
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone());
        if inside().count() > LONGEST
            || inside().any(|at| writes_memory(&code[at]) || is_call(&code[at]))
        {
            continue;
        }
        let pointer = |at: usize| steps(&code[at]).or_else(|| picked(&code[at]));
        let pointers: BTreeSet<Register> = inside().filter_map(pointer).collect();
        found.extend(inside().filter(|&at| {
            let load = &code[at];
            beside[at]
                && pointers.contains(&load.memory_base())
                && is_candidate(load)
                && is_compared(code, at)
        }));
    }
    found
}

/// The register that an instruction moves on by a record.
fn steps(i: &Instruction) -> Option<Register> {
    let adds = matches!(i.code(), Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Add_RAX_imm32);
    let subtracts =
        matches!(i.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Sub_RAX_imm32);
    if !adds && !subtracts || i.op0_kind() != OpKind::Register {
        return None;
    }
    ((i.immediate(1) as i64).unsigned_abs() >= LINE).then(|| i.op0_register())
}

/// The register to which an instruction moves a pointer out of a table.
fn picked(i: &Instruction) -> Option<Register> {
    let is_picked = i.code() == Code::Mov_r64_rm64
        && i.memory_index() != Register::None
        && i.memory_index_scale() == size_of::<u64>() as u32;
    is_picked.then(|| i.op0_register())
}

#[cfg(test)]
mod tests {
    use super::records;
    use crate::copy::beside::beside;
    use crate::copy::loops::loops;
    use crate::copy::ordered::is_locked;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// Which loads are found in a loop with such steps, which does something more.
    fn found(step: i32, locks: bool, more: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(|a| {
            let (mut again, mut done) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.movzx(ecx, byte_ptr(rdx + 4)).unwrap();
            a.test(cl, cl).unwrap();
            a.jne(done).unwrap();
            more(a);
            a.add(rdx, step).unwrap();
            a.cmp(rbx, rdx).unwrap();
            a.jne(again).unwrap();
            if locks {
                a.lock().cmpxchg(dword_ptr(rdi), edx).unwrap();
            }
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
        });
        let locks: Vec<bool> = code.iter().map(is_locked).collect();
        records(&code, &beside(&code, &locks), &loops(&code)).into_iter().collect()
    }

    /// As of the work that each of several providers has, of which the most urgent is looked for.
    #[test]
    fn through_a_table_of_pointers() {
        let found = |scale: i32| {
            let code = assembled(|a| {
                let (mut again, mut next) = (a.create_label(), a.create_label());
                a.set_label(&mut again).unwrap();
                a.mov(rdx, qword_ptr(r8 + rax * scale)).unwrap();
                a.cmp(byte_ptr(rdx + 0x20), 0).unwrap();
                a.je(next).unwrap();
                a.mov(edx, dword_ptr(rdx + 0x1c)).unwrap();
                a.cmp(ecx, edx).unwrap();
                a.cmovg(ecx, edx).unwrap();
                a.set_label(&mut next).unwrap();
                a.inc(rax).unwrap();
                a.cmp(rdi, rax).unwrap();
                a.jne(again).unwrap();
                a.lock().or(qword_ptr(rsi), rbp).unwrap();
            });
            let locks: Vec<bool> = code.iter().map(is_locked).collect();
            records(&code, &beside(&code, &locks), &loops(&code)).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(8), [1, 3]);
        assert_eq!(found(1), [], "no table of pointers");
    }

    #[test]
    fn in_steps_of_a_cache_line() {
        assert_eq!(found(64, true, |_| ()), [0]);
        assert_eq!(found(128, true, |_| ()), [0]);
        assert_eq!(found(8, true, |_| ()), [], "an array of words");
        assert_eq!(found(64, false, |_| ()), [], "without a lock");
        assert_eq!(found(64, true, |a| a.mov(dword_ptr(rsi), ecx).unwrap()), [], "it computes");
        let tests = |a: &mut CodeAssembler| a.cmp(qword_ptr(rdx + 16), 0).unwrap();
        assert_eq!(found(64, true, tests), [0, 3]);
    }
}
