//! What all idioms know of the function that they look through.

use super::polls::polls;
use super::unfolded::unfolded;
use super::{Surroundings, beside::beside, is_word};
use crate::common::is_call;
use crate::copy::addresses::{SymbolicAddress, symbolic_addresses};
use crate::copy::listing::Listing;
use crate::copy::loops::{Flow, Loop, is_within};
use crate::copy::ordered::is_locked;
use iced_x86::{Instruction, Mnemonic};
use std::cell::OnceCell;
use std::ops::Range;

/// A function, whose instructions are named by their indices.
pub(super) struct Function<'a> {
    pub(super) code: &'a Listing,
    pub(super) around: &'a Surroundings<'a>,
    /// What each operand names, as far as that is known.
    pub(super) addresses: Vec<Option<SymbolicAddress>>,
    pub(super) flow: Flow,
    pub(super) loops: Vec<Loop>,
    /// Addresses of the loads that loops poll.
    pub(super) polls: Box<[u64]>,
    /// Of each instruction, whether it is locked or calls something that locks.
    pub(super) locks: Vec<bool>,
    /// Of each instruction, whether it is beside one that is locked or lets others go on.
    pub(super) waits: Vec<bool>,
    /// The same, or beside one that locks, or beside a word of `unfolded`.
    pub(super) near: Vec<bool>,
    /// What `unfolded` finds.
    pub(super) unfolded: Vec<usize>,
    computes: OnceCell<Vec<bool>>,
}

impl<'a> Function<'a> {
    pub(super) fn new(code: &'a Listing, around: &'a Surroundings<'a>) -> Function<'a> {
        let addresses = symbolic_addresses(code);
        let flow = Flow::of(code);
        let polls = polls(code, &addresses, &flow, around.only_waits);
        let or_locked = |calls: &[bool]| -> Vec<bool> {
            (0..code.len()).map(|at| calls[at] || code.is_locked(at)).collect()
        };
        let (locks, own) = (or_locked(around.locks), or_locked(around.pauses));
        let beside_locks = beside(code, &locks);
        let waits = match around.trusted {
            true => vec![false; code.len()],
            false if around.is_called_beside_own => vec![true; code.len()],
            false if own == locks => beside_locks.clone(),
            false => beside(code, &own),
        };
        let unfolded = if around.trusted { Vec::new() } else { unfolded(code) };
        let mut is_unfolded = vec![false; code.len()];
        words(code, &unfolded).for_each(|at| is_unfolded[at] = true);
        let beside_unfolded = beside(code, &is_unfolded);
        let is_near = |at: usize| {
            around.is_called_beside_locks || beside_locks[at] || waits[at] || beside_unfolded[at]
        };
        Function {
            near: (0..code.len()).map(is_near).collect(),
            loops: flow.loops(),
            computes: OnceCell::new(),
            code,
            around,
            addresses,
            flow,
            polls,
            locks,
            waits,
            unfolded,
        }
    }

    /// Whether an instruction accesses memory that somebody may write: constant data are tables of `switch`
    /// statements and numbers.
    pub(super) fn accesses(&self, at: usize) -> bool {
        let constant_at = || self.addresses[at].and_then(SymbolicAddress::variable_or_array);
        self.code.has_memory(at) && constant_at().is_none_or(self.around.is_variable)
    }

    /// Whether it is a load that loops poll.
    pub(super) fn is_polled(&self, at: usize) -> bool {
        self.polls.binary_search(&self.code[at].ip()).is_ok()
    }

    pub(super) fn has_locks(&self) -> bool {
        self.locks.contains(&true)
    }

    /// The words among what `unfolded` finds.
    pub(super) fn unfolded_words(&self) -> impl Iterator<Item = usize> + '_ {
        words(self.code, &self.unfolded)
    }

    /// Whether an instruction is in an inner loop without calls or locked instructions, and without a loop in it
    /// that waits, and in no loop with a word of `unfolded`.
    pub(super) fn computes(&self, at: usize) -> bool {
        self.computes.get_or_init(|| self.computations())[at]
    }

    fn computations(&self) -> Vec<bool> {
        let code = self.code;
        let mut computes = vec![false; code.len()];
        let polled = |block: &Range<usize>| block.clone().any(|at| self.is_polled(at));
        let waiting: Vec<&Loop> =
            self.loops.iter().filter(|body| body.iter().any(polled)).collect();
        for body in self.loops.iter().rev() {
            // Inner loops come last, and have the last word.
            let plain = |i: &Instruction| {
                !is_locked(i)
                    && !is_call(i)
                    && !matches!(i.mnemonic(), Mnemonic::Pause | Mnemonic::Mfence)
            };
            let has_waiting =
                || waiting.iter().any(|inner| inner.len() < body.len() && is_within(inner, body));
            let computing =
                body.iter().all(|block| code[block.clone()].iter().all(plain)) && !has_waiting();
            for block in body {
                computes[block.clone()].fill(computing);
            }
        }
        let shares =
            |body: &&Loop| body.iter().any(|it| self.unfolded_words().any(|at| it.contains(&at)));
        for block in self.loops.iter().filter(shares).flatten() {
            computes[block.clone()].fill(false);
        }
        computes
    }
}

fn words<'a>(code: &'a Listing, found: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    found.iter().copied().filter(|&at| is_word(&code[at]))
}
