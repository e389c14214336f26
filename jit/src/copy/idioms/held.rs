//! The instructions that a function executes only while it holds one of the library's locks.
//!
//! Data that a lock guards do not race, so a load of such data need not be watched while the lock is held.
//! A flag is another matter: a program may set it without the lock, and look at it with the lock held.

use super::beside::comparison;
use crate::copy::listing::Listing;
use iced_x86::{Instruction, Mnemonic, OpKind};
use refrain_vm::LockRole;

/// Of each instruction, whether the function holds a lock there on every way: each way begins where the
/// function does, or at an instruction to which no known branch leads; it goes through a call that takes a
/// lock, and behind that through no call that may release one. `roles` says what the calls do.
pub(in crate::copy) fn held(code: &Listing, roles: &[Option<LockRole>]) -> Vec<bool> {
    if !roles.contains(&Some(LockRole::Takes)) {
        return vec![false; code.len()];
    }
    let jumps: Vec<Option<usize>> = (0..code.len()).map(|at| code.target(at)).collect();
    let mut is_reached = vec![false; code.len()];
    jumps.iter().flatten().for_each(|&to| is_reached[to] = true);
    let falls = |at: usize| code.next(at).is_some();
    let mut free = vec![false; code.len()];
    let mut front: Vec<usize> = (0..code.len())
        .filter(|&at| match at.checked_sub(1) {
            // No way leads to the `nop` that aligns a loop.
            Some(before) => {
                !is_reached[at] && !falls(before) && code[at].mnemonic() != Mnemonic::Nop
            }
            None => true,
        })
        .chain((0..code.len()).filter(|&at| roles[at] == Some(LockRole::MayRelease)))
        .collect();
    front.iter().for_each(|&at| free[at] = true);
    while let Some(at) = front.pop() {
        let takes = roles[at] == Some(LockRole::Takes);
        let next = (falls(at) && !takes).then_some(at + 1);
        for to in next.into_iter().chain(jumps[at]) {
            if !std::mem::replace(&mut free[to], true) {
                front.push(to);
            }
        }
    }
    free.iter().map(|free| !free).collect()
}

/// Whether the load at `at` may be of a flag: it is short, and is only compared with a constant.
pub(super) fn is_flag(code: &[Instruction], at: usize) -> bool {
    let with_constant = |compare: &Instruction| {
        let is_immediate = compare.try_immediate(compare.op_count().saturating_sub(1)).is_ok();
        let itself = compare.mnemonic() == Mnemonic::Test
            && compare.op0_kind() == OpKind::Register
            && compare.op0_register() == compare.op1_register();
        is_immediate || itself
    };
    code[at].memory_size().size() <= 4 && comparison(code, at).is_some_and(with_constant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::ordered::is_load;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// Which instructions are executed with a lock held, if calls to 0x1000 take it, to 0x2000 may release
    /// it, and others do neither.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<bool> {
        let code = assembled(write);
        let role = |i: &Instruction| match i.is_call_near() {
            true if i.near_branch_target() == 0x1000 => Some(LockRole::Takes),
            true if i.near_branch_target() == 0x2000 => Some(LockRole::MayRelease),
            _ => None,
        };
        held(&code, &code.iter().map(role).collect::<Vec<_>>())
    }

    #[test]
    fn a_lock_is_held_on_all_ways_or_not_at_all() {
        let straight = found(|a| {
            a.inc(eax).unwrap();
            a.call(0x1000).unwrap();
            a.inc(eax).unwrap();
            a.call(0x3000).unwrap();
            a.call(0x2000).unwrap();
            a.inc(eax).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(straight, [false, false, true, true, false, false, false]);
        // It is taken on one of two ways; a loop comes back without it, another one with it.
        let branches = found(|a| {
            let (mut over, mut again, mut inner) =
                (a.create_label(), a.create_label(), a.create_label());
            a.test(eax, eax).unwrap();
            a.je(over).unwrap();
            a.call(0x1000).unwrap();
            a.set_label(&mut over).unwrap();
            a.inc(eax).unwrap();
            a.set_label(&mut again).unwrap();
            a.call(0x1000).unwrap();
            a.set_label(&mut inner).unwrap();
            a.dec(eax).unwrap();
            a.jne(inner).unwrap();
            a.call(0x2000).unwrap();
            a.jmp(again).unwrap();
            a.nop().unwrap();
            a.jmp(inner).unwrap();
            a.inc(ebx).unwrap();
        });
        let held: Vec<usize> = (0..branches.len()).filter(|&at| branches[at]).collect();
        assert_eq!(held, [5, 6, 9, 10], "and not what nobody knows the way to");
    }

    #[test]
    fn flags_are_short_and_compared_with_constants() {
        let code = assembled(|a| {
            a.cmp(byte_ptr(rdi + 8), 0).unwrap();
            a.cmp(dword_ptr(rdi + 8), 3).unwrap();
            a.cmp(qword_ptr(rdi + 8), 0).unwrap();
            a.cmp(dword_ptr(rdi + 8), eax).unwrap();
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            a.test(eax, eax).unwrap();
            a.mov(ecx, dword_ptr(rdi + 8)).unwrap();
            a.cmp(ecx, edx).unwrap();
            a.mov(esi, dword_ptr(rdi + 8)).unwrap();
            a.add(esi, esi).unwrap();
        });
        let flags: Vec<usize> =
            (0..code.len()).filter(|&at| is_load(&code[at]) && is_flag(&code, at)).collect();
        assert_eq!(flags, [0, 1, 4]);
    }
}
