//! Loops that go over the records of all threads: has anybody not seen the new epoch, does anybody still
//! hold this pointer?
//!
//! Threads have their records side by side, each in a cache line of its own, and each thread stores to
//! its own record while others look; or a table has a pointer to each record. Such a loop compares a field
//! of each record, and stores nothing. Loops that compute do not go on by a cache line or more in each
//! round, nor do they take their pointers from a table. It is beside the locked instruction by which its
//! thread goes on. Where a loop around it does nothing but wait, words side by side are records, too. Some
//! compilers compute the record's address from its number in each round; in code that is not optimised, what is
//! compared lies on the stack.
//!
//! A loop right behind a fence that is nothing else may store what it has found, elsewhere: whoever retires a
//! batch of objects has others see it, and then makes a list of the threads that may hold them still.

use super::beside::{comparison_among, is_compared};
use super::fenced::meets_fence;
use crate::common::is_call;
use crate::copy::addresses::has_frame;
use crate::copy::loops::{Loop, is_within};
use crate::copy::ordered::{is_candidate, is_locked, writes_memory};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;

/// Instructions of a loop that is looked at.
const LONGEST: usize = 96;
/// Bytes of a record, at least.
const LINE: u64 = 64;
/// Bytes of a pointer.
const POINTER: u64 = size_of::<u64>() as u64;
/// Instructions from a load to the comparison, with the next field's and the next record's between them.
const ROUND: usize = 8;
/// Instructions between a fence and a loop.
const REACH: usize = 16;

/// Indices of the loads of such fields. `code` is a function's instructions in order, `beside` says which
/// of them are beside the program's own locks, `pauses` which let others go on, and `loops` are its loops.
pub(super) fn records(
    code: &[Instruction],
    beside: &[bool],
    pauses: &[bool],
    loops: &[Loop],
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    if !beside.contains(&true) {
        return found;
    }
    let is_plain = has_frame(code);
    // Code that is not optimised keeps its variables on the stack.
    let writes_others = |i: &Instruction| {
        let own = i.memory_base() == Register::RBP && i.memory_index() == Register::None;
        writes_memory(i) && !(is_plain && own)
    };
    let only_waits = |body: &Loop| {
        let inside = || body.iter().flat_map(|block| block.clone());
        inside().any(|at| pauses[at])
            && inside().all(|at| !writes_others(&code[at]) && (pauses[at] || !is_call(&code[at])))
    };
    let waiting: Vec<&Loop> = loops.iter().filter(|body| only_waits(body)).collect();
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone());
        if inside().count() > LONGEST || inside().any(|at| is_call(&code[at])) {
            continue;
        }
        let is_behind_fence =
            |first: usize| meets_fence(code[..first].iter().rev(), REACH, is_only_fence);
        let writes = inside().any(|at| writes_others(&code[at]));
        if writes && !inside().min().is_some_and(is_behind_fence) {
            continue;
        }
        let instructions = || inside().map(|at| &code[at]);
        let stepped: BTreeSet<Register> =
            instructions().filter_map(|i| steps(i, POINTER)).collect();
        let pointer = |i: &Instruction| steps(i, LINE).or_else(|| picked(i, &stepped));
        let mut pointers: BTreeSet<Register> = instructions().filter_map(pointer).collect();
        if waiting.iter().any(|outer| outer.len() > 1 && is_within(body, outer)) {
            pointers.extend(instructions().filter_map(|i| steps(i, 1)));
        }
        if instructions().any(|i| writes_others(i) && pointers.contains(&i.memory_base())) {
            continue;
        }
        let elements = elements(instructions());
        found.extend(inside().filter(|&at| {
            let load = &code[at];
            let (base, index) = (load.memory_base(), load.memory_index());
            let is_element = elements.contains(&base) && base != Register::RBP;
            let of_element = is_element || elements.contains(&index);
            let is_field = pointers.contains(&base) && is_compared(code, at)
                || is_plain && is_element
                || !is_plain && of_element && comparison_among(code, at, ROUND).is_some();
            beside[at] && is_field && is_candidate(load)
        }));
    }
    found
}

/// Whether an instruction only orders accesses. In place of `mfence`, compilers use a locked `or` of a word on
/// the thread's own stack, which leaves the word as it is and takes less time.
fn is_only_fence(i: &Instruction) -> bool {
    let is_own = || i.memory_base() == Register::RSP;
    i.mnemonic() == Mnemonic::Mfence || is_locked(i) && is_own()
}

/// The registers that have the address of a record in code that computes it in each round from the
/// record's number, or how far the record lies from the first.
fn elements<'a>(code: impl Iterator<Item = &'a Instruction> + Clone) -> BTreeSet<Register> {
    let mut scaled = BTreeSet::new();
    for i in code.clone() {
        let is_scaled = match i.code() {
            Code::Shl_rm64_imm8 => i.immediate(1) >= LINE.ilog2().into(),
            Code::Imul_r64_rm64_imm8 | Code::Imul_r64_rm64_imm32 => i.immediate(2) >= LINE,
            _ => false,
        };
        if is_scaled && i.op0_kind() == OpKind::Register {
            scaled.insert(i.op0_register());
        }
    }
    let adds = |i: &&Instruction| {
        matches!(i.code(), Code::Add_r64_rm64 | Code::Add_rm64_r64)
            && i.op0_kind() == OpKind::Register
            && i.op1_kind() == OpKind::Register
            && (scaled.contains(&i.op0_register()) || scaled.contains(&i.op1_register()))
    };
    let points = |i: &&Instruction| {
        let of_scaled = scaled.contains(&i.memory_base()) || scaled.contains(&i.memory_index());
        i.code() == Code::Lea_r64_m && of_scaled
    };
    let is_sum = |i: &&Instruction| adds(i) || points(i);
    let sums: Vec<Register> = code.filter(is_sum).map(|i| i.op0_register()).collect();
    scaled.extend(sums);
    scaled
}

/// The register to which an instruction adds the size of a record, of so many bytes at least, so that it
/// points to the next one.
fn steps(i: &Instruction, least: u64) -> Option<Register> {
    let adds = matches!(i.code(), Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Add_RAX_imm32);
    let subtracts =
        matches!(i.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Sub_RAX_imm32);
    if !adds && !subtracts || i.op0_kind() != OpKind::Register {
        return None;
    }
    ((i.immediate(1) as i64).unsigned_abs() >= least).then(|| i.op0_register())
}

/// The register to which an instruction moves a pointer out of a table, whose entries may have more than that. Each
/// round adds the size of an entry to one of the `stepped` registers, or counts entries of eight bytes.
fn picked(i: &Instruction, stepped: &BTreeSet<Register>) -> Option<Register> {
    let is_entry = match i.memory_index() {
        Register::None => stepped.contains(&i.memory_base()),
        index => i.memory_index_scale() == POINTER as u32 || stepped.contains(&index),
    };
    (i.code() == Code::Mov_r64_rm64 && is_entry).then(|| i.op0_register())
}

#[cfg(test)]
mod tests {
    use super::records;
    use crate::copy::idioms::beside::beside;
    use crate::copy::idioms::pauses::{Callee, pauses};
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
        records(&code, &beside(&code, &locks), &pauses(&code, |_| Callee::Other), &loops(&code))
            .into_iter()
            .collect()
    }

    /// As of the work that each of several providers has, of which the most urgent is looked for.
    #[test]
    fn through_a_table_of_pointers() {
        let found = |scale: i32, step: i32| {
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
                a.add(rax, step).unwrap();
                a.cmp(rdi, rax).unwrap();
                a.jne(again).unwrap();
                a.lock().or(qword_ptr(rsi), rbp).unwrap();
            });
            let locks: Vec<bool> = code.iter().map(is_locked).collect();
            records(&code, &beside(&code, &locks), &pauses(&code, |_| Callee::Other), &loops(&code))
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(found(8, 1), [1, 3]);
        assert_eq!(found(1, 16), [1, 3], "entries that have more than a pointer");
        assert_eq!(found(1, 1), [], "no table of pointers");
    }

    /// As a batch of retired objects is handed to all threads that may hold them.
    #[test]
    fn listed_behind_a_fence() {
        let found = |fences: bool, to: AsmRegister64| {
            let code = assembled(|a| {
                let (mut again, mut next) = (a.create_label(), a.create_label());
                if fences {
                    a.lock().or(dword_ptr(rsp - 64), 0).unwrap();
                }
                a.mov(rbx, qword_ptr(rbp)).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(rcx, qword_ptr(r8)).unwrap();
                a.cmp(rcx, -1).unwrap();
                a.je(next).unwrap();
                a.mov(qword_ptr(to + 0x10), r8).unwrap();
                a.add(r9, 0x20).unwrap();
                a.set_label(&mut next).unwrap();
                a.add(r8, 0x100).unwrap();
                a.cmp(r8, rdx).unwrap();
                a.jne(again).unwrap();
                a.lock().add(qword_ptr(rbx + 0x18), rsi).unwrap();
                a.ret().unwrap();
            });
            let locks: Vec<bool> = code.iter().map(is_locked).collect();
            records(&code, &beside(&code, &locks), &pauses(&code, |_| Callee::Other), &loops(&code))
                .len()
        };
        assert_eq!(found(true, r9), 1);
        assert_eq!(found(false, r9), 0, "it computes");
        assert_eq!(found(true, r8), 0, "it writes the records");
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

    /// Each reader has a word, and a writer waits until all words are zero: `while (any(words)) pause();`.
    #[test]
    fn words_that_a_loop_waits_for() {
        let found = |waits: bool, stores: bool| {
            let code = assembled(|a| {
                let (mut from_start, mut again) = (a.create_label(), a.create_label());
                let (mut wait, mut done) = (a.create_label(), a.create_label());
                a.xchg(dword_ptr(rdi), ecx).unwrap();
                a.set_label(&mut from_start).unwrap();
                a.mov(rax, rbx).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(rdx, qword_ptr(rax)).unwrap();
                a.test(rdx, rdx).unwrap();
                a.jne(wait).unwrap();
                a.add(rax, 8).unwrap();
                a.cmp(r15, rax).unwrap();
                a.jne(again).unwrap();
                a.jmp(done).unwrap();
                a.set_label(&mut wait).unwrap();
                if waits {
                    a.pause().unwrap();
                }
                if stores {
                    a.mov(dword_ptr(rsi), ecx).unwrap();
                }
                a.jmp(from_start).unwrap();
                a.set_label(&mut done).unwrap();
                a.ret().unwrap();
            });
            let locks: Vec<bool> = code.iter().map(is_locked).collect();
            let pauses = pauses(&code, |_| Callee::Other);
            let found = records(&code, &beside(&code, &locks), &pauses, &loops(&code));
            found.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(true, false), [2]);
        assert_eq!(found(false, false), [], "it searches");
        assert_eq!(found(true, true), [], "it does something else");
    }

    /// As clang compiles TBB's search of all threads' deques: `slot[i].pool && slot[i].head < slot[i].tail`.
    #[test]
    fn by_number() {
        let found = |shift: i32| {
            let code = assembled(|a| {
                let (mut next, mut again) = (a.create_label(), a.create_label());
                let (mut last, mut done) = (a.create_label(), a.create_label());
                a.set_label(&mut next).unwrap();
                a.inc(rdx).unwrap();
                a.cmp(rdx, rax).unwrap();
                a.jae(done).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(rsi, rdx).unwrap();
                a.shl(rsi, shift).unwrap();
                a.mov(r8, qword_ptr(rdi + rsi + 0x208)).unwrap();
                a.test(r8, r8).unwrap();
                a.je(next).unwrap();
                a.lea(r8, qword_ptr(rdi + rsi)).unwrap();
                a.mov(rsi, qword_ptr(r8 + 0x10)).unwrap();
                a.mov(r8, qword_ptr(r8 + 0x90)).unwrap();
                a.inc(rdx).unwrap();
                a.cmp(rdx, rax).unwrap();
                a.jae(last).unwrap();
                a.cmp(rsi, r8).unwrap();
                a.jae(again).unwrap();
                a.set_label(&mut last).unwrap();
                a.cmp(rsi, r8).unwrap();
                a.set_label(&mut done).unwrap();
                a.lock().cmpxchg(qword_ptr(rdi + 0xe8), rdx).unwrap();
                a.ret().unwrap();
            });
            let locks: Vec<bool> = code.iter().map(is_locked).collect();
            let pauses = pauses(&code, |_| Callee::Other);
            let found = records(&code, &beside(&code, &locks), &pauses, &loops(&code));
            found.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(8), [5, 9, 10]);
        assert_eq!(found(3), [], "an array of words");
    }

    /// As clang compiles `for (int i = 0; i < 4; i++) if (records[i].epoch) return;` without
    /// optimisation.
    #[test]
    fn in_code_that_is_not_optimised() {
        let found = |shift: i32| {
            let code = assembled(|a| {
                let (mut again, mut done) = (a.create_label(), a.create_label());
                a.push(rbp).unwrap();
                a.mov(rbp, rsp).unwrap();
                a.set_label(&mut again).unwrap();
                a.cmp(dword_ptr(rbp - 0x2c), 4).unwrap();
                a.jge(done).unwrap();
                a.movsxd(rcx, dword_ptr(rbp - 0x2c)).unwrap();
                a.lea(rax, ptr(0x7000)).unwrap();
                a.shl(rcx, shift).unwrap();
                a.add(rax, rcx).unwrap();
                a.mov(rax, qword_ptr(rax)).unwrap();
                a.mov(qword_ptr(rbp - 0x38), rax).unwrap();
                a.cmp(qword_ptr(rbp - 0x38), 0).unwrap();
                a.jne(done).unwrap();
                a.inc(dword_ptr(rbp - 0x2c)).unwrap();
                a.jmp(again).unwrap();
                a.set_label(&mut done).unwrap();
                a.lock().cmpxchg(qword_ptr(rdi), rcx).unwrap();
                a.ret().unwrap();
            });
            let locks: Vec<bool> = code.iter().map(is_locked).collect();
            let pauses = pauses(&code, |_| Callee::Other);
            let found = records(&code, &beside(&code, &locks), &pauses, &loops(&code));
            found.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(6), [8]);
        assert_eq!(found(3), [], "an array of words");
    }
}
