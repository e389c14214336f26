//! Walks before a lock: loops that follow pointers on a function's way to the first lock that it takes.
//!
//! Who looks for a place in a list or a tree before the lock is taken, and looks again afterwards
//! whether it still is one, reads what other threads change meanwhile, and reads it in a loop that looks
//! like any computation. In a skip list, a level says which of a node's links is meant. A walk behind a lock
//! is guarded; one behind a fence is not, though a function with locks may have been called before. The search may
//! also be a function of its own, which those call that lock what it has found.

use crate::common::is_call;
use crate::copy::listing::Listing;
use crate::copy::loops::Loop;
use crate::copy::ordered::{is_candidate, is_locked};
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;

/// Instructions of a loop that is looked at.
const LONGEST: usize = 96;

/// Indices of the loads by which such loops find their way, and of what they compare or add up there. `code` is a
/// function's instructions in order, `locks` says which of them lock, and `loops` are its loops. `is_called` says
/// that it is short, and called beside locks.
pub(super) fn walks(
    code: &Listing,
    locks: &[bool],
    is_called: bool,
    loops: &[Loop],
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    if loops.is_empty() || !is_called && !locks.contains(&true) {
        return found;
    }
    let own: Vec<bool> = code.iter().map(is_locked).collect();
    let fences = code.iter().enumerate().filter(|(_, i)| i.mnemonic() == Mnemonic::Mfence);
    let mut unlocked = reached_without(code, locks, vec![0]);
    let behind = reached_without(code, &own, fences.map(|(at, _)| at).collect());
    unlocked.iter_mut().zip(behind).for_each(|(unlocked, behind)| *unlocked |= behind);
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone());
        let is_walk = inside().count() <= LONGEST
            && inside().all(|at| !locks[at] && !is_call(&code[at]))
            && inside().any(|at| unlocked[at]);
        if !is_walk {
            continue;
        }
        let slots: BTreeSet<u64> = inside().filter_map(|at| stored_slot(&code[at])).collect();
        let has_field = |at: usize| {
            let index = code[at].memory_index();
            index == Register::None
                || inside().all(|at| steps_only(&code[at], index))
                || is_computed(&code[..at], index)
        };
        // What the loop's own loads put into registers, and so is another pointer in each round.
        let moves = inside().filter(|&at| has_field(at));
        let moves: Vec<Move> = moves.filter_map(|at| moves_to(&code[at])).collect();
        let mut pointers = chased(&moves);
        loop {
            let before = pointers.len();
            for at in inside() {
                let i = &code[at];
                let of_slot = i.op1_kind() == OpKind::Memory
                    && slot(i).is_some_and(|slot| slots.contains(&slot));
                if let Some(Move { from, to, .. }) = moves_to(i)
                    && (of_slot || pointers.contains(&from))
                {
                    pointers.insert(to);
                }
            }
            if pointers.len() == before {
                break;
            }
        }
        found.extend(inside().filter(|&at| {
            let i = &code[at];
            pointers.contains(&i.memory_base())
                && has_field(at)
                && matches!(i.memory_size().size(), 4 | 8)
                && matches!(
                    i.mnemonic(),
                    Mnemonic::Mov | Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Add | Mnemonic::Sub
                )
                && is_candidate(i)
        }));
    }
    found
}

/// What a register gets from another one.
struct Move {
    from: Register,
    to: Register,
    /// It is loaded from where that points.
    loads: bool,
}

/// What an instruction moves to a register, as it is, or from where a register points, or to the begin of
/// the node whose link a register points to.
fn moves_to(i: &Instruction) -> Option<Move> {
    if i.code() == Code::Lea_r64_m
        && i.memory_index() == Register::None
        && !matches!(i.memory_base(), Register::None | Register::RIP | Register::RSP)
    {
        return Some(Move { from: i.memory_base(), to: i.op0_register(), loads: false });
    }
    // A tree's search may choose between the addresses of two links.
    let chooses = i.condition_code() != ConditionCode::None && i.op_count() == 2;
    let is_move = matches!(i.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        || chooses && i.op0_kind() == OpKind::Register && i.op0_register().is_gpr64();
    if !is_move || i.op0_kind() != OpKind::Register || i.op0_register() == Register::RSP {
        return None;
    }
    let loads = i.op1_kind() == OpKind::Memory;
    let from = if loads { i.memory_base() } else { i.op1_register() };
    Some(Move { from, to: i.op0_register(), loads })
}

/// Whether an instruction leaves a register as it is, or adds a constant to it. Then the register may hold the
/// level of a skip list, which says which of a node's links is meant.
fn steps_only(i: &Instruction, register: Register) -> bool {
    let counts = match i.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub => i.try_immediate(1).is_ok(),
        Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Cmp | Mnemonic::Test => true,
        _ => false,
    };
    let is_it = i.op0_kind() == OpKind::Register
        && i.op0_register().full_register() == register.full_register();
    !is_it || counts
}

/// Whether a register holds a number that was computed from others right before, as a level may be: the last of
/// these instructions.
fn is_computed(before: &[Instruction], register: Register) -> bool {
    const REACH: usize = 4;
    let is_it = |i: &&Instruction| {
        i.op0_kind() == OpKind::Register
            && i.op0_register().full_register() == register.full_register()
    };
    let last = before.iter().rev().take(REACH).find(is_it);
    last.is_some_and(|i| i.mnemonic() == Mnemonic::Lea && !i.is_ip_rel_memory_operand())
}

/// Registers that a loop follows from round to round: moves lead from what is loaded by one to itself.
fn chased(moves: &[Move]) -> BTreeSet<Register> {
    let leads_to = |start: Register| {
        let mut reached = BTreeSet::from([start]);
        loop {
            let next = moves.iter().filter(|m| reached.contains(&m.from)).map(|m| m.to);
            let next: Vec<Register> = next.filter(|to| !reached.contains(to)).collect();
            if next.is_empty() {
                return reached;
            }
            reached.extend(next);
        }
    };
    let loads = moves.iter().filter(|m| m.loads);
    loads.filter(|m| leads_to(m.to).contains(&m.from)).map(|m| m.to).collect()
}

/// Of each instruction, whether the function can come to it from one of `front` before it takes a lock.
fn reached_without(code: &Listing, locks: &[bool], mut front: Vec<usize>) -> Vec<bool> {
    let mut reached = vec![false; code.len()];
    while let Some(at) = front.pop() {
        if at >= code.len() || std::mem::replace(&mut reached[at], true) || locks[at] {
            continue;
        }
        front.extend(code.target(at).into_iter().chain(code.next(at)));
    }
    reached
}

/// The displacement of a slot of the stack that an instruction names by the frame pointer.
fn slot(instruction: &Instruction) -> Option<u64> {
    (instruction.memory_base() == Register::RBP && instruction.memory_index() == Register::None)
        .then(|| instruction.memory_displacement64())
}

fn stored_slot(instruction: &Instruction) -> Option<u64> {
    let stores =
        instruction.op0_kind() == OpKind::Memory && instruction.code() == Code::Mov_rm64_r64;
    stores.then(|| slot(instruction)).flatten()
}

#[cfg(test)]
mod tests {
    use super::walks;
    use crate::copy::loops::loops;
    use crate::copy::ordered::is_locked;
    use crate::copy::tests::assembled;
    use iced_x86::Mnemonic;
    use iced_x86::code_asm::*;

    /// Mnemonics of what is found in what `write` assembles.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Mnemonic> {
        let code = assembled(write);
        let locks: Vec<bool> = code.iter().map(is_locked).collect();
        walks(&code, &locks, false, &loops(&code))
            .into_iter()
            .map(|at| code[at].mnemonic())
            .collect()
    }

    fn walk(a: &mut CodeAssembler) {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rcx, rax).unwrap();
        a.mov(rax, qword_ptr(rax + 8)).unwrap();
        a.add(rdx, qword_ptr(rdi + rdx * 8)).unwrap();
        a.cmp(dword_ptr(rax), esi).unwrap();
        a.jl(again).unwrap();
    }

    fn lock(a: &mut CodeAssembler) {
        a.lock().inc(dword_ptr(rcx + 16)).unwrap();
    }

    #[test]
    fn before_the_lock_and_behind_it() {
        let before = found(|a| {
            walk(a);
            lock(a);
        });
        assert_eq!(before, [Mnemonic::Mov, Mnemonic::Cmp]);
        let behind = found(|a| {
            lock(a);
            walk(a);
        });
        assert_eq!(behind, []);
        assert_eq!(found(walk), []);
    }

    /// As gcc compiles the search through a skip list for its size.
    #[test]
    fn functions_of_their_own() {
        let code = assembled(|a| {
            let [mut level, mut next, mut below] = std::array::from_fn(|_| a.create_label());
            a.set_label(&mut level).unwrap();
            a.lea(rsi, qword_ptr(rax + 1)).unwrap();
            a.lea(r11, qword_ptr(rsi * 8)).unwrap();
            a.mov(rsi, qword_ptr(rdi + rsi * 8)).unwrap();
            a.set_label(&mut next).unwrap();
            a.mov(r10d, dword_ptr(rsi)).unwrap();
            a.cmp(r10d, r9d).unwrap();
            a.jge(below).unwrap();
            a.mov(r10, qword_ptr(rsi + r11)).unwrap();
            a.mov(rdi, rsi).unwrap();
            a.mov(rsi, r10).unwrap();
            a.jmp(next).unwrap();
            a.set_label(&mut below).unwrap();
            a.mov(qword_ptr(rdx + rax * 8), rdi).unwrap();
            a.sub(rax, 1).unwrap();
            a.jae(level).unwrap();
            a.ret().unwrap();
        });
        let found = |is_called: bool| {
            let none = vec![false; code.len()];
            walks(&code, &none, is_called, &loops(&code)).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(true), [2, 3, 6]);
        assert_eq!(found(false), []);
    }

    /// As compilers make of `while ((behind = before->next) && behind->key < key) before = behind;`.
    #[test]
    fn through_copies() {
        let list = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rbx, qword_ptr(rax)).unwrap();
            a.mov(rbp, rax).unwrap();
            a.mov(rax, rbx).unwrap();
            a.cmp(dword_ptr(rbx + 8), edx).unwrap();
            a.jl(again).unwrap();
            lock(a);
        });
        assert_eq!(list, [Mnemonic::Mov, Mnemonic::Cmp]);
    }

    /// As `list_for_each_entry`: the link of a node leads to that of the next one.
    #[test]
    fn links_within_nodes() {
        let sum = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.sub(rdx, qword_ptr(rax + 16)).unwrap();
            a.mov(rcx, qword_ptr(rax + 48)).unwrap();
            a.lea(rax, qword_ptr(rcx - 48)).unwrap();
            a.cmp(rcx, rsi).unwrap();
            a.jne(again).unwrap();
            lock(a);
        });
        assert_eq!(sum, [Mnemonic::Sub, Mnemonic::Mov]);
    }

    /// A function with locks was called before, and none is held: as where an epoch is about to begin.
    #[test]
    fn behind_a_fence() {
        let found_in = |fence: bool| {
            let code = assembled(|a| {
                if fence {
                    a.mfence().unwrap();
                }
                a.call(0x5000).unwrap();
                walk(a);
                lock(a);
            });
            let locks: Vec<bool> = code.iter().map(|i| is_locked(i) || i.is_call_near()).collect();
            walks(&code, &locks, false, &loops(&code)).len()
        };
        assert_eq!([found_in(true), found_in(false)], [2, 0]);
    }

    /// As a tree is searched, whose nodes say by two links where to go on.
    #[test]
    fn one_of_two_links() {
        let search = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rbp, rbx).unwrap();
            a.lea(rcx, qword_ptr(rbx + 16)).unwrap();
            a.lea(rax, qword_ptr(rbx + 8)).unwrap();
            a.cmp(dword_ptr(rbx), r15d).unwrap();
            a.cmovg(rcx, rax).unwrap();
            a.mov(rbx, qword_ptr(rcx)).unwrap();
            a.mov(rcx, qword_ptr(rbx + 8)).unwrap();
            a.test(rcx, rcx).unwrap();
            a.jne(again).unwrap();
            lock(a);
        });
        assert_eq!(search, [Mnemonic::Cmp, Mnemonic::Mov, Mnemonic::Mov]);
    }

    /// As a skip list is searched, level by level.
    #[test]
    fn links_on_levels() {
        let search = |loads_index: bool| {
            found(|a| {
                let [mut level, mut next, mut below] = std::array::from_fn(|_| a.create_label());
                a.set_label(&mut level).unwrap();
                a.mov(rax, qword_ptr(rsi + rcx)).unwrap();
                a.test(rax, rax).unwrap();
                a.je(below).unwrap();
                a.set_label(&mut next).unwrap();
                a.cmp(qword_ptr(rax), rbp).unwrap();
                a.jge(below).unwrap();
                a.mov(rsi, rax).unwrap();
                a.mov(rax, qword_ptr(rax + rcx)).unwrap();
                if loads_index {
                    a.movzx(ecx, byte_ptr(rbx)).unwrap();
                }
                a.test(rax, rax).unwrap();
                a.jne(next).unwrap();
                a.set_label(&mut below).unwrap();
                a.sub(rcx, 8).unwrap();
                a.jne(level).unwrap();
                lock(a);
            })
        };
        assert_eq!(search(false), [Mnemonic::Mov, Mnemonic::Cmp, Mnemonic::Mov]);
        assert_eq!(search(true), [], "a tree of characters");
    }

    #[test]
    fn arrays_are_no_lists() {
        let array = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rcx, qword_ptr(rax)).unwrap();
            a.add(rax, 8).unwrap();
            a.cmp(rcx, rsi).unwrap();
            a.jne(again).unwrap();
            lock(a);
        });
        assert_eq!(array, []);
    }

    /// As compilers translate it without optimisation.
    #[test]
    fn through_the_stack() {
        let list = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rbp - 8)).unwrap();
            a.mov(rax, qword_ptr(rax + 8)).unwrap();
            a.mov(qword_ptr(rbp - 8), rax).unwrap();
            a.mov(rax, qword_ptr(rbp - 8)).unwrap();
            a.mov(eax, dword_ptr(rax)).unwrap();
            a.cmp(dword_ptr(rbp - 12), eax).unwrap();
            a.jg(again).unwrap();
            lock(a);
        });
        assert_eq!(list, [Mnemonic::Mov; 2]);
    }
}
