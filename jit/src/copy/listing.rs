//! The instructions of a function, with what is asked of each of them over and over.
//!
//! Some forty idioms go over a function's code, most of them more than once, and ask the same few questions of
//! every instruction. The answers come from tables of all instructions that there are, so a listing looks them up
//! once.

use super::ordered;
use crate::common::{each_written, has_memory, is_call, is_padding};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpKind, Register};
use std::collections::BTreeSet;
use std::ops::Deref;

/// See the module's documentation. Instructions are named by their indices.
pub(super) struct Listing {
    code: Vec<Instruction>,
    facts: Vec<Facts>,
}

/// What is known of an instruction.
struct Facts {
    /// Where a branch leads, or [`NOWHERE`].
    target: u32,
    /// The general registers that it writes, or may write, as bits by their numbers; what a call changes besides
    /// is not among them.
    written: u16,
    /// Which of the answers are yes.
    is: u16,
}

const NOWHERE: u32 = u32::MAX;

/// The bits of [`Facts::is`].
mod is {
    pub(super) const CALL: u16 = 1 << 0;
    pub(super) const MEMORY: u16 = 1 << 1;
    pub(super) const LOAD: u16 = 1 << 2;
    pub(super) const CANDIDATE: u16 = 1 << 3;
    pub(super) const STORE: u16 = 1 << 4;
    pub(super) const LOCKED: u16 = 1 << 5;
    pub(super) const WRITE: u16 = 1 << 6;
    pub(super) const END: u16 = 1 << 7;
    pub(super) const BEHIND_END: u16 = 1 << 8;
    pub(super) const BRANCH: u16 = 1 << 9;
}

impl Listing {
    pub(super) fn new(code: Vec<Instruction>) -> Listing {
        let mut factory = InstructionInfoFactory::new();
        let mut facts: Vec<Facts> =
            code.iter().map(|i| Facts::of(&code, i, &mut factory)).collect();
        let mut is_behind_end = false;
        for (i, facts) in code.iter().zip(&mut facts) {
            facts.is |= if is_behind_end { is::BEHIND_END } else { 0 };
            if !is_padding(i) {
                is_behind_end = ends_here(i);
            }
        }
        Listing { code, facts }
    }

    fn is(&self, at: usize, bit: u16) -> bool {
        self.facts[at].is & bit != 0
    }

    /// Where a branch inside the function leads.
    pub(super) fn target(&self, at: usize) -> Option<usize> {
        let target = self.facts[at].target;
        (target != NOWHERE).then_some(target as usize)
    }

    /// The instructions to which branches of the function lead.
    pub(super) fn joints(&self) -> BTreeSet<usize> {
        (0..self.code.len()).filter_map(|at| self.target(at)).collect()
    }

    /// The general registers that an instruction writes, or may write, as bits by their numbers. What a call
    /// changes besides is not among them.
    pub(super) fn written(&self, at: usize) -> u16 {
        self.facts[at].written
    }

    /// Whether it is a call or a system call.
    pub(super) fn is_call(&self, at: usize) -> bool {
        self.is(at, is::CALL)
    }

    /// Whether it has an operand in memory.
    pub(super) fn has_memory(&self, at: usize) -> bool {
        self.is(at, is::MEMORY)
    }

    /// See [`ordered::is_load`].
    pub(super) fn is_load(&self, at: usize) -> bool {
        self.is(at, is::LOAD)
    }

    /// See [`ordered::is_candidate`].
    pub(super) fn is_candidate(&self, at: usize) -> bool {
        self.is(at, is::CANDIDATE)
    }

    /// See [`ordered::is_store`].
    pub(super) fn is_store(&self, at: usize) -> bool {
        self.is(at, is::STORE)
    }

    /// See [`ordered::is_locked`].
    pub(super) fn is_locked(&self, at: usize) -> bool {
        self.is(at, is::LOCKED)
    }

    /// See [`ordered::writes_memory`].
    pub(super) fn writes_memory(&self, at: usize) -> bool {
        self.is(at, is::WRITE)
    }

    /// Whether it may go on somewhere else than behind itself: a branch, a call, a return.
    pub(super) fn is_branch(&self, at: usize) -> bool {
        self.is(at, is::BRANCH)
    }

    /// Whether what follows is not executed after it.
    pub(super) fn ends_here(&self, at: usize) -> bool {
        self.is(at, is::END)
    }

    /// Whether it is not executed after the instruction before it, padding apart.
    pub(super) fn is_behind_end(&self, at: usize) -> bool {
        self.is(at, is::BEHIND_END)
    }

    /// The next instruction, if it may be executed right after this one.
    pub(super) fn next(&self, at: usize) -> Option<usize> {
        (!self.ends_here(at) && at + 1 < self.code.len()).then_some(at + 1)
    }
}

impl Deref for Listing {
    type Target = [Instruction];

    fn deref(&self) -> &[Instruction] {
        &self.code
    }
}

impl Facts {
    fn of(code: &[Instruction], i: &Instruction, factory: &mut InstructionInfoFactory) -> Facts {
        let mut written = 0;
        each_written(i, factory, |register| written |= bit(register));
        let mut is = 0;
        let mut set = |bit, yes| is |= if yes { bit } else { 0 };
        set(is::CALL, is_call(i));
        set(is::END, ends_here(i));
        set(is::BRANCH, i.flow_control() != FlowControl::Next);
        if has_memory(i) {
            let loads = ordered::is_load(i);
            set(is::MEMORY, true);
            set(is::LOAD, loads);
            set(is::CANDIDATE, loads && ordered::may_be_shared(i));
            set(is::STORE, ordered::is_store(i));
            set(is::LOCKED, ordered::is_locked(i));
            set(is::WRITE, ordered::writes_memory(i));
        }
        let target = target(code, i).map_or(NOWHERE, |at| at as u32);
        Facts { target, written, is }
    }
}

/// Where a branch inside the function leads.
pub(super) fn target(code: &[Instruction], branch: &Instruction) -> Option<usize> {
    let is_branch = branch.op0_kind() == OpKind::NearBranch64
        && !matches!(branch.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    let at = || code.binary_search_by_key(&branch.near_branch_target(), Instruction::ip);
    is_branch.then(at).and_then(Result::ok)
}

/// Whether what follows the instruction is not executed after it.
pub(super) fn ends_here(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception
    )
}

/// The bit of a general register among those that are written.
pub(super) fn bit(register: Register) -> u16 {
    1 << register.full_register().number()
}

/// The numbers of the registers whose bits are set.
pub(super) fn numbers(mut bits: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (number < u16::BITS as usize).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::tests::of_all_kinds;

    #[test]
    fn answers_are_those_of_the_functions() {
        let code = Listing::new(of_all_kinds());
        for (at, i) in code.iter().enumerate() {
            let answers = [
                (code.is_load(at), ordered::is_load(i)),
                (code.is_candidate(at), ordered::is_candidate(i)),
                (code.is_store(at), ordered::is_store(i)),
                (code.is_locked(at), ordered::is_locked(i)),
                (code.writes_memory(at), ordered::writes_memory(i)),
                (code.is_call(at), is_call(i)),
                (code.ends_here(at), ends_here(i)),
            ];
            assert!(
                answers.iter().all(|(listed, computed)| listed == computed),
                "{i}: {answers:?}"
            );
            assert_eq!(code.target(at), target(&code, i), "{i}");
            let before = code[..at].iter().rev().find(|i| !is_padding(i));
            assert_eq!(code.is_behind_end(at), before.is_some_and(ends_here), "{at}: {i}");
            let mut factory = InstructionInfoFactory::new();
            let mut written = Vec::new();
            each_written(i, &mut factory, |register| written.push(register.number()));
            written.sort_unstable();
            written.dedup();
            assert_eq!(numbers(code.written(at)).collect::<Vec<_>>(), written, "{i}");
        }
    }
}
