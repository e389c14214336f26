//! What short functions are called beside: a lock, a pause, or a loop's end.
//!
//! A short function that is not inlined is looked at as if it were: what it is called beside, by any
//! function of its module that is not too far away, counts as beside its own instructions.

use super::Functions;
use super::extent::{Extent, instructions};
use crate::copy::idioms::{beside, connected, held, pauses, questions};
use crate::copy::listing::Listing;
use crate::copy::loops::loops;
use crate::copy::ordered::{is_candidate, writes_memory};
use crate::copy::pieces::is_small;
use iced_x86::{Instruction, Register};
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_vm::LockRole;
use std::ops::Range;
use std::sync::Arc;

/// Calls of a short function that are looked at: those that are nearest to it.
const CALLERS: usize = 16;
/// Instructions between a call and the pause before it is made again.
const RETRY: u32 = 16;

/// What a short function is called beside.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Beside {
    /// A locked instruction, a function that has one, a lock of the library's, or a pause; or by a
    /// loop whose flag it looks at.
    pub(super) locks: bool,
    /// One of these, but not a lock of the library's, which is an event of its own.
    pub(super) own: bool,
    /// Some caller holds one of the library's locks when it calls it.
    pub(super) held: bool,
    /// Of another caller it is not certain that it holds one: it has a lock nearby, or is a loop that looks at a
    /// flag by calling the function.
    pub(super) free: bool,
    /// A pause, a few instructions away: the caller tries again later.
    tried: bool,
}

/// Which instructions of a function lock, or let others go on.
pub(super) struct Locks {
    /// They call a function of the module that has locked instructions.
    pub(super) own: Vec<bool>,
    /// They call one of the library's locks.
    pub(super) library: Vec<bool>,
    /// What these calls do to a lock.
    pub(super) roles: Vec<Option<LockRole>>,
    pub(super) pauses: Vec<bool>,
}

impl Functions {
    /// Which instructions of a function lock, or let others go on.
    pub(super) fn locks_of(
        &mut self,
        code: &Listing,
        extent: &Extent,
        module: &Range<u64>,
    ) -> Locks {
        let mut own = vec![false; code.len()];
        let mut library = own.clone();
        let mut roles = vec![None; code.len()];
        for at in (0..code.len()).filter(|&at| code.is_branch(at)) {
            own[at] = self.calls_locked(&code[at], &extent.range, module);
            let reached = self.locks(&code[at]);
            library[at] = reached.any;
            roles[at] = reached.role();
        }
        Locks { own, library, roles, pauses: pauses(code, |call| self.callee(call)) }
    }

    /// What a short function is called beside, by any function of its module, if that is searched.
    pub(super) fn called_beside(&mut self, extent: &Extent, module: &Range<u64>) -> Beside {
        const LONGEST: u64 = 192;
        /// What a caller tries again later is looked at even if it is longer.
        const LONGEST_TRIED: u64 = 1 << 10;
        let start = extent.range.start;
        let mut found = Beside::default();
        let length = extent.range.end - start;
        if !extent.ends || length > LONGEST_TRIED || !is_small(module) {
            return found;
        }
        let calls = self.pieces.callers_of(start, module, &self.starts);
        for call in calls.into_iter().take(CALLERS) {
            if let Some(caller) = self.around(call) {
                let beside = self.calls_beside(&caller, module);
                let beside = beside.get(&start).copied().unwrap_or_default();
                let counts = length <= LONGEST || beside.tried;
                found.locks |= beside.locks && counts;
                found.own |= beside.own && counts;
                found.held |= beside.held && counts;
                found.free |= beside.free && counts;
            }
            if found.locks && found.own && found.free {
                break;
            }
        }
        found
    }

    /// What a function calls beside locks.
    fn calls_beside(&mut self, extent: &Extent, module: &Range<u64>) -> Arc<FixedMap<u64, Beside>> {
        let start = extent.range.start;
        if let Some(known) = self.calls_beside.get(&start) {
            return Arc::clone(known);
        }
        let code = Listing::new(instructions(extent));
        let Locks { own, library, roles, pauses } = self.locks_of(&code, extent, module);
        let held = held(&code, &roles);
        let marks = own.iter().zip(&pauses).zip(0..);
        let own: Vec<bool> =
            marks.map(|((own, pauses), at)| own | pauses || code.is_locked(at)).collect();
        let locks: Vec<bool> =
            own.iter().zip(&library).map(|(own, library)| own | library).collect();
        let near_own = beside(&code, &own);
        let is_lock: Vec<bool> =
            own.iter().zip(&roles).map(|(own, role)| *own || role.is_some()).collect();
        let near_lock = if is_lock == own { near_own.clone() } else { beside(&code, &is_lock) };
        let near_pause = connected(&code, &pauses, RETRY);
        let near = if own == locks { near_own.clone() } else { beside(&code, &locks) };
        let mut found = FixedMap::<u64, Beside>::default();
        for (at, call) in code.iter().enumerate().filter(|(at, i)| near[*at] && i.is_call_near()) {
            let beside = found.entry(call.near_branch_target()).or_default();
            beside.locks = true;
            beside.own |= near_own[at];
            beside.held |= held[at];
            beside.free |= !held[at] && near_lock[at];
            beside.tried |= near_pause[at];
        }
        for (call, others) in questions(&code, &loops(&code)) {
            if self.answers_flag(call, &others) {
                let beside = found.entry(call.near_branch_target()).or_default();
                (beside.locks, beside.free) = (true, true);
            }
        }
        let found = Arc::new(found);
        self.calls_beside.insert(start, Arc::clone(&found));
        found
    }

    /// Whether a call leads to a function that writes nothing, and none of the others that are called
    /// is known to write what it loads.
    fn answers_flag(&self, call: &Instruction, others: &[&Instruction]) -> bool {
        if !self.only_waits(call) {
            return false;
        }
        let Some(extent) = self.around(call.near_branch_target()) else { return false };
        let code = instructions(&extent);
        let offsets = || {
            let loads = code.iter().filter(|i| is_candidate(i) && i.memory_base() != Register::RBP);
            loads.map(Instruction::memory_displacement64)
        };
        !others.iter().any(|other| offsets().any(|offset| self.writes_field(other, offset)))
    }

    /// Whether a call leads to a function of its module that writes a field at this offset of
    /// something, by itself.
    pub(super) fn writes_field(&self, call: &Instruction, offset: u64) -> bool {
        let target = call.near_branch_target();
        if !call.is_call_near() || self.starts.binary_search(&target).is_err() {
            return false;
        }
        let mut written = self.written.borrow_mut();
        written.entry(target).or_insert_with(|| self.fields_written(target)).contains(&offset)
    }

    /// The offsets of the fields that the function at `start` writes; none of a long one.
    fn fields_written(&self, start: u64) -> FixedSet<u64> {
        const LONGEST: u64 = 4 << 10;
        let extent = self.around(start).filter(|extent| extent.range.end - start <= LONGEST);
        let code = extent.map(|extent| instructions(&extent)).unwrap_or_default();
        let fields = code.iter().filter(|i| {
            writes_memory(i)
                && !matches!(i.memory_base(), Register::RSP | Register::RBP)
                && i.memory_index() == Register::None
        });
        fields.map(Instruction::memory_displacement64).collect()
    }
}
