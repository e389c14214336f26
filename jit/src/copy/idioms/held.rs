//! What a function executes while it holds a lock, by whatever way it came there: one of the library's, or
//! one that languages make of a word, which is 0 if nobody holds it.
//!
//! What a lock guards does not race, so a load there that may be one of ordinary data is none that has to
//! be watched. What remains are flags: a program may well set one without the lock that it looks at
//! within.

use super::beside::{first_use, is_compared};
use crate::common::is_call;
use crate::copy::loops::{ends_here, target};
use crate::copy::ordered::{compares, is_on_stack};
use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};
use refrain_vm::LockRole;

/// Of each instruction, whether all ways to it from where the function begins, or from where nobody knows
/// what leads, go through a call that takes a lock, and through none behind it that may release one.
/// `roles` are those of the instructions that call the library's locks.
pub(in crate::copy) fn held(code: &[Instruction], roles: &[Option<LockRole>]) -> Vec<bool> {
    if !roles.contains(&Some(LockRole::Takes)) {
        return vec![false; code.len()];
    }
    let jumps: Vec<Option<usize>> = code.iter().map(|i| target(code, i)).collect();
    let mut is_reached = vec![false; code.len()];
    jumps.iter().flatten().for_each(|&to| is_reached[to] = true);
    let falls = |at: usize| !ends_here(&code[at]) && at + 1 < code.len();
    let mut free = vec![false; code.len()];
    let mut front: Vec<usize> = (0..code.len())
        .filter(|&at| match at.checked_sub(1) {
            // What aligns a loop is executed by nobody.
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

/// Notes what instructions do to locks that are words: a locked comparison with 0 takes one, if the function
/// releases the same word. Where that fails, a function is called that waits for the lock; or else the lock
/// is not held there.
pub(in crate::copy) fn add_own(code: &[Instruction], roles: &mut [Option<LockRole>]) {
    /// Instructions from where taking the lock has failed to the call by which the function waits for it.
    const FAILED: usize = 8;
    let words =
        code.iter().enumerate().filter_map(|(at, i)| Some((at, changed_word(code, at, i)?)));
    let (mut taken, mut released): (Vec<_>, Vec<_>) =
        words.partition(|(_, change)| *change == Change::Takes);
    released.retain(|&(at, _)| taken.iter().any(|&(by, _)| may_be_same(&code[by], &code[at])));
    taken.retain(|&(by, _)| released.iter().any(|&(at, _)| may_be_same(&code[by], &code[at])));
    for (at, _) in released {
        roles[at] = Some(LockRole::MayRelease);
    }
    for (at, _) in taken {
        let Some(branch) = code.get(at + 1) else { continue };
        let failed = match branch.condition_code() {
            ConditionCode::ne => target(code, branch),
            ConditionCode::e => Some(at + 2),
            _ => continue,
        };
        let way = failed.map_or(&[][..], |failed| &code[failed..code.len().min(failed + FAILED)]);
        let straight =
            way.iter().take_while(|i| is_call(i) || i.flow_control() == FlowControl::Next);
        if let (Some(call), Some(failed)) = (straight.clone().position(is_call), failed) {
            // (The few instructions before the call count as those behind it.)
            roles[failed + call] = Some(LockRole::Takes);
            roles[at] = Some(LockRole::Takes);
        }
    }
}

/// What an instruction does to a word that may be a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Takes,
    Releases,
}

fn changed_word(code: &[Instruction], at: usize, i: &Instruction) -> Option<Change> {
    if i.op0_kind() != OpKind::Memory || is_on_stack(i) {
        return None;
    }
    let value = |register| constant(&code[..at], register);
    match i.mnemonic() {
        Mnemonic::Cmpxchg if i.has_lock_prefix() => {
            match (value(Register::RAX)?, value(i.op1_register())?) {
                (0, 1..) => Some(Change::Takes),
                (_, 0) => Some(Change::Releases),
                _ => None,
            }
        }
        Mnemonic::Xchg => (value(i.op1_register())? == 0).then_some(Change::Releases),
        Mnemonic::Mov => i.try_immediate(1).is_ok_and(|it| it == 0).then_some(Change::Releases),
        _ => None,
    }
}

/// The constant that the code before leaves in a register, if it is one.
pub(in crate::copy) fn constant(before: &[Instruction], register: Register) -> Option<u64> {
    let whole = register.full_register();
    let writes = |i: &&Instruction| {
        i.op0_kind() == OpKind::Register && i.op0_register().full_register() == whole
    };
    let writer = before.iter().rev().find(writes)?;
    match writer.mnemonic() {
        Mnemonic::Xor if writer.op1_kind() == OpKind::Register => {
            (writer.op0_register() == writer.op1_register()).then_some(0)
        }
        Mnemonic::Mov => writer.try_immediate(1).ok(),
        _ => None,
    }
}

/// Whether what takes a lock and what releases one may name the same word: a plain store by the same
/// registers, and what is locked by whatever registers.
fn may_be_same(taken: &Instruction, released: &Instruction) -> bool {
    let place = |i: &Instruction| {
        (i.memory_base(), i.memory_index(), i.memory_index_scale(), i.memory_displacement64())
    };
    taken.memory_size() == released.memory_size()
        && (released.mnemonic() != Mnemonic::Mov || place(taken) == place(released))
}

/// Whether the load at `at` may be of a flag: it is short, and is only compared with a constant.
pub(super) fn is_flag(code: &[Instruction], at: usize) -> bool {
    let load = &code[at];
    let compare = match compares(load) {
        true => Some(load),
        false => first_use(code, at).map(|next| &code[next]),
    };
    let with_constant = |compare: &Instruction| {
        let is_immediate = compare.try_immediate(compare.op_count().saturating_sub(1)).is_ok();
        let itself = compare.mnemonic() == Mnemonic::Test
            && compare.op0_kind() == OpKind::Register
            && compare.op0_register() == compare.op1_register();
        is_immediate || itself
    };
    load.memory_size().size() <= 4 && is_compared(code, at) && compare.is_some_and(with_constant)
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
    fn locks_that_are_words() {
        let found = |waits: bool, releases: bool| {
            let code = assembled(|a| {
                let (mut failed, mut held) = (a.create_label(), a.create_label());
                a.mov(ecx, 1).unwrap();
                a.xor(eax, eax).unwrap();
                a.lock().cmpxchg(dword_ptr(rbx), ecx).unwrap();
                a.jne(failed).unwrap();
                a.set_label(&mut held).unwrap();
                a.mov(rdx, qword_ptr(rbx + 8)).unwrap();
                a.xor(eax, eax).unwrap();
                if releases {
                    a.xchg(dword_ptr(rbx), eax).unwrap();
                }
                a.ret().unwrap();
                a.set_label(&mut failed).unwrap();
                a.mov(rdi, rbx).unwrap();
                if waits {
                    a.call(0x3000).unwrap();
                }
                a.jmp(held).unwrap();
            });
            let mut roles = vec![None; code.len()];
            add_own(&code, &mut roles);
            let held = held(&code, &roles);
            (0..code.len()).filter(|&at| held[at]).collect::<Vec<_>>()
        };
        // The branch, what the lock guards, and the way by the call that waits for the lock.
        assert_eq!(found(true, true), [3, 4, 5, 8, 9, 10]);
        assert_eq!(found(false, true), [], "it goes on without the lock");
        assert_eq!(found(true, false), [], "a flag that is set once");
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
