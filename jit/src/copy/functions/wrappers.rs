//! Which calls lead to the library's locks: by themselves, or by short functions around them.

mod foreign;

use super::extent::instructions;
use super::{Functions, foreign_slot, indirect_slot, word};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use refrain_vm::LockRole;
use std::ops::Range;

/// Short functions around a lock that may lie between it and who takes it, in optimised code.
pub(super) const WRAPPERS: u32 = 1;
/// The same of a lock of the library's, without optimisation, in C++: a guard, a lock, a mutex and a
/// function of the library's.
const PLAIN_WRAPPERS: u32 = 4;

/// The library's locks that a call leads to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Reached {
    /// There are some.
    pub(super) any: bool,
    /// One of them takes a lock.
    takes: bool,
    /// One of them may release a lock.
    may_release: bool,
}

impl Reached {
    fn and(self, other: Reached) -> Reached {
        Reached {
            any: self.any || other.any,
            takes: self.takes || other.takes,
            may_release: self.may_release || other.may_release,
        }
    }

    /// What the call does to a lock. One that takes a lock and releases it leaves all as it was.
    pub(super) fn role(self) -> Option<LockRole> {
        match (self.takes, self.may_release) {
            (true, false) => Some(LockRole::Takes),
            (false, true) => Some(LockRole::MayRelease),
            _ => None,
        }
    }
}

impl Functions {
    /// The machine wants to see calls of this function.
    pub(in crate::copy) fn hook(&mut self, pc: u64) {
        self.hooked.insert(pc);
        self.known.mix(pc);
        self.forget_code();
    }

    /// A hooked function does this to a lock.
    pub(in crate::copy) fn lock_role(&mut self, pc: u64, role: LockRole) {
        self.roles.insert(pc, role);
        self.known.mix((pc, role));
        self.forget_code();
    }

    /// The library's locks that an instruction calls, itself or by a short function, of any module, that
    /// calls one or ends in one, itself or by another such function. A lock that another module makes
    /// itself counts, too.
    pub(super) fn locks(&mut self, instruction: &Instruction) -> Reached {
        if !is_call(instruction) {
            return Reached::default();
        }
        if let Some(hooked) = self.leads_to_hooked(instruction) {
            return self.reached(hooked);
        }
        let Some(to) = self.known_target(instruction) else { return Reached::default() };
        let wrapped = self.wraps_lock(to, PLAIN_WRAPPERS);
        Reached { any: wrapped.any || self.takes_foreign_lock(instruction.ip(), to), ..wrapped }
    }

    /// What a call of a hooked function reaches.
    fn reached(&self, hooked: u64) -> Reached {
        let role = self.roles.get(&hooked);
        let is = |other| role == Some(&other);
        Reached { any: true, takes: is(LockRole::Takes), may_release: is(LockRole::MayRelease) }
    }

    /// Where a branch leads as far as code tells, or what the linker has put into its tables.
    fn known_target(&self, branch: &Instruction) -> Option<u64> {
        match branch.op0_kind() {
            OpKind::NearBranch64 => Some(branch.near_branch_target()),
            _ => indirect_slot(branch).filter(|&slot| !self.is_variable(slot)).and_then(word),
        }
    }

    /// The library's locks that a branch leads to, if it leads to a short function that calls them or ends
    /// in one, itself or by so many others. It may be a stub that leads to it by a table of the linker's.
    fn wraps_lock(&mut self, target: u64, depth: u32) -> Reached {
        const LONGEST: u64 = 192;
        if let Some(&known) = self.wrappers.get(&(target, depth)) {
            return known;
        }
        // Functions that call each other end here.
        self.wrappers.insert((target, depth), Reached::default());
        let start = self.behind_stub(target);
        let extent = self
            .around(start)
            .filter(|extent| extent.range.start == start && extent.range.end - start <= LONGEST);
        let found = extent.map_or(Reached::default(), |extent| {
            let code = instructions(&extent);
            let depth = if keeps_frame(&code) { depth } else { depth.min(WRAPPERS) };
            let others = code.iter().filter(|i| is_call(i) || ends_in_other(i, &extent.range));
            others.into_iter().fold(Reached::default(), |found, i| {
                found.and(match self.leads_to_hooked(i) {
                    Some(hooked) => self.reached(hooked),
                    None if depth == 0 => Reached::default(),
                    None => {
                        let to = self.known_target(i);
                        to.map_or(Reached::default(), |to| self.wraps_lock(to, depth - 1))
                    }
                })
            })
        });
        self.wrappers.insert((target, depth), found);
        found
    }

    /// The hooked function, of another module or of its own, that a branch leads to.
    fn leads_to_hooked(&mut self, branch: &Instruction) -> Option<u64> {
        let hooked = |slot| word(slot).filter(|to| self.hooked.contains(to));
        if branch.op0_kind() != OpKind::NearBranch64 {
            return foreign_slot(branch).and_then(hooked);
        }
        let target = branch.near_branch_target();
        [target, self.behind_stub(target)].into_iter().find(|to| self.hooked.contains(to))
    }
}

fn is_call(instruction: &Instruction) -> bool {
    instruction.is_call_near() || instruction.is_call_near_indirect()
}

/// Whether a jump leaves its function, so that the other one returns in its place.
fn ends_in_other(jump: &Instruction, inside: &Range<u64>) -> bool {
    let is_direct = matches!(
        jump.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    jump.is_jmp_near_indirect() || is_direct && !inside.contains(&jump.near_branch_target())
}

/// Whether a function begins as compilers have it without optimisation.
fn keeps_frame(code: &[Instruction]) -> bool {
    let is = |i: &Instruction, mnemonic, op1| {
        i.mnemonic() == mnemonic && i.op0_register() == Register::RBP && i.op1_register() == op1
    };
    let mut code = code.iter().filter(|i| i.mnemonic() != Mnemonic::Endbr64);
    code.next().is_some_and(|i| is(i, Mnemonic::Push, Register::None))
        && code.next().is_some_and(|i| is(i, Mnemonic::Mov, Register::RSP))
}

#[cfg(test)]
mod tests {
    use crate::copy::functions::tests::{fill_slot, jump_through_slot, write_functions};
    use iced_x86::code_asm::*;
    use refrain_vm::LockRole;

    /// Functions of 16 bytes: a lock of the library's, a function around it and one around that one,
    /// and who calls each of them.
    #[test]
    fn functions_around_locks() {
        fn look(a: &mut CodeAssembler) {
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
        }
        fn call(a: &mut CodeAssembler, distance: i64) {
            // The assembler is told that the code begins at 0.
            a.call(distance as u64).unwrap();
        }
        let (mut functions, starts) = write_functions(&[
            look,
            |a| call(a, -16),
            |a| call(a, -16),
            |a| {
                call(a, -16);
                look(a);
            },
            |a| {
                call(a, -48);
                look(a);
            },
            |a| {
                call(a, 16);
                look(a);
            },
            look,
        ]);
        functions.hook(starts[0]);
        let mut sites = |at: usize| functions.idioms(starts[at]).expect("known").sites.len();
        assert_eq!([sites(3), sites(4), sites(5)], [1, 1, 0]);
    }

    /// Functions of 16 bytes: the first takes a lock, and the second releases it. Others look at data and at a
    /// flag: behind a call of the first or of the second, or called by a function that has taken the lock.
    #[test]
    fn what_a_lock_guards_is_not_beside_it() {
        fn looks(a: &mut CodeAssembler) {
            a.add(rcx, qword_ptr(rdi + 8)).unwrap();
            a.cmp(byte_ptr(rdi + 16), 0).unwrap();
            a.ret().unwrap();
        }
        fn calls(a: &mut CodeAssembler, distance: i64) {
            a.call(distance as u64).unwrap();
            looks(a);
        }
        fn calls_both(a: &mut CodeAssembler, (lock, other): (i64, i64)) {
            a.call(lock as u64).unwrap();
            a.call(other as u64).unwrap();
            a.ret().unwrap();
        }
        let (mut functions, starts) = write_functions(&[
            |a| a.ret().unwrap(),
            |a| a.ret().unwrap(),
            |a| calls(a, -32),
            |a| calls(a, -32),
            |a| calls_both(a, (-64, 16)),
            looks,
            |a| calls_both(a, (-80, 16)),
            looks,
            |a| calls_both(a, (-128, -16)),
        ]);
        starts[..2].iter().for_each(|&start| functions.hook(start));
        functions.lock_role(starts[0], LockRole::Takes);
        functions.lock_role(starts[1], LockRole::MayRelease);
        let mut sites = |at: usize| functions.idioms(starts[at]).expect("known").sites.len();
        assert_eq!([sites(2), sites(3)], [1, 2], "the flag alone, and all");
        assert_eq!([sites(5), sites(7)], [1, 2], "the latter is called without the lock, too");
    }

    /// Functions of 16 bytes, as in a library that others may replace functions of: one that ends in a
    /// lock of the library's, the stub that leads to it, and who calls the stub. Another module is like
    /// it.
    #[test]
    fn wrappers_behind_stubs_may_end_in_a_lock() {
        let (mut functions, starts) = write_functions(&[
            |a| a.nop().unwrap(),
            |a| {
                a.add(rdi, 8).unwrap();
                a.jmp((-16_i64) as u64).unwrap();
            },
            jump_through_slot,
            |a| {
                a.call((-16_i64) as u64).unwrap();
                a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            },
        ]);
        functions.hook(starts[0]);
        assert_eq!(functions.idioms(starts[3]).expect("known").sites.len(), 0);
        functions.forget_code();
        fill_slot(starts[2], starts[1]);
        assert_eq!(functions.idioms(starts[3]).expect("known").sites.len(), 1);
    }
}
