//! Which calls lead to the library's locks: by themselves, or by short functions around them.

mod foreign;

use super::extent::instructions;
use super::{Functions, foreign_slot, indirect_slot, stub_slot, word};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

/// Short functions around a lock that may lie between it and who takes it, in optimised code.
pub(super) const WRAPPERS: u32 = 1;
/// The same of a lock of the library's, without optimisation, in C++: a guard, a lock, a mutex and a
/// function of the library's.
const PLAIN_WRAPPERS: u32 = 4;

impl Functions {
    /// Whether an instruction calls one of the library's locks, itself or by a short function, of any
    /// module, that calls one or ends in one, itself or by another such function, or a lock that another
    /// module makes itself.
    pub(super) fn locks(&mut self, instruction: &Instruction) -> bool {
        is_call(instruction)
            && (self.leads_to_hooked(instruction)
                || self.known_target(instruction).is_some_and(|to| {
                    self.wraps_lock(to, PLAIN_WRAPPERS)
                        || self.takes_foreign_lock(instruction.ip(), to)
                }))
    }

    /// Where a branch leads as far as code tells, or what the linker has put into its tables.
    fn known_target(&self, branch: &Instruction) -> Option<u64> {
        match branch.op0_kind() {
            OpKind::NearBranch64 => Some(branch.near_branch_target()),
            _ => indirect_slot(branch).filter(|&slot| !self.is_variable(slot)).and_then(word),
        }
    }

    /// Whether what a branch leads to is short and calls one of the library's locks or ends in one,
    /// itself or by so many others. It may be a stub that leads to it by a table of the linker's.
    fn wraps_lock(&mut self, target: u64, depth: u32) -> bool {
        const LONGEST: u64 = 192;
        if let Some(&known) = self.wrappers.get(&(target, depth)) {
            return known;
        }
        // Functions that call each other end here.
        self.wrappers.insert((target, depth), false);
        let start = stub_slot(target).and_then(word).unwrap_or(target);
        let extent = self
            .around(start)
            .filter(|extent| extent.range.start == start && extent.range.end - start <= LONGEST);
        let found = extent.is_some_and(|extent| {
            let code = instructions(&extent);
            let depth = if keeps_frame(&code) { depth } else { depth.min(WRAPPERS) };
            let others = code.iter().filter(|i| is_call(i) || ends_in_other(i, &extent.range));
            others.into_iter().any(|i| {
                self.leads_to_hooked(i)
                    || depth > 0
                        && self.known_target(i).is_some_and(|to| self.wraps_lock(to, depth - 1))
            })
        });
        self.wrappers.insert((target, depth), found);
        found
    }

    /// Whether a branch leads to a hooked function, of another module or of its own.
    fn leads_to_hooked(&mut self, branch: &Instruction) -> bool {
        let hooked = |slot| word(slot).is_some_and(|to| self.hooked.contains(&to));
        if branch.op0_kind() != OpKind::NearBranch64 {
            return foreign_slot(branch).is_some_and(hooked);
        }
        let target = branch.near_branch_target();
        if let Some(&known) = self.stubs.get(&target) {
            return known;
        }
        let found = self.hooked.contains(&target) || foreign_slot(branch).is_some_and(hooked);
        self.stubs.insert(target, found);
        found
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
