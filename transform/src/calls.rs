//! The calls that a thread is in, and which of them a critical section belongs to.
//!
//! # The site of a critical section
//! is in the innermost function that was under way from the acquisition to the release: what takes
//! a lock and returns with it is a wrapper, and its caller's line is what a programmer looks for.
//! If that function lies in a library of the system, the site is in its nearest caller outside of such
//! libraries. If there is no such caller, the site is in the outermost function outside of them which that
//! function has called on the way to the acquisition.
//!
//! # Losing count
//! A call's record names the call instruction, a return's record the address that it returns to.
//! A return belongs to the innermost call that it can be the end of; those further in were left in
//! other ways (`longjmp`, exceptions, functions that are one event). One that fits none of the innermost
//! calls changes nothing. Code that the program has generated may lie above 4 GiB, where records name no
//! address: a return to such code ends the innermost call from such code.

use std::ops::Range;
use std::sync::Arc;

/// Bytes of the longest instruction.
const LONGEST: u64 = 15;
/// Calls that a section remembers, from the innermost.
const KEPT: usize = 24;
/// Calls among which the one that a return ends is looked for, from the innermost.
const REACH: usize = 1 << 10;
/// The call's address is not known: it is above 4 GiB.
const ABOVE: u32 = 0;

#[derive(Default)]
pub(crate) struct Calls {
    /// The call instructions, outermost first.
    stack: Vec<u32>,
    /// Code of libraries of the system, ascending.
    pub(crate) foreign: Arc<[Range<u64>]>,
}

/// Where a thread was when it acquired a lock.
pub(crate) struct Taken {
    depth: usize,
    /// The innermost calls.
    calls: [u32; KEPT],
}

impl Calls {
    pub(crate) fn enter(&mut self, call: u32) {
        self.stack.push(call);
    }

    /// The thread goes on at `to`, behind one of its calls. Says how many are left.
    pub(crate) fn leave(&mut self, to: u64) -> usize {
        let ends = |call: &u32| match *call {
            ABOVE => to > u64::from(u32::MAX),
            call => (1..=LONGEST).contains(&to.wrapping_sub(u64::from(call))),
        };
        let first = self.stack.len().saturating_sub(REACH);
        if let Some(at) = self.stack[first..].iter().rposition(ends) {
            self.stack.truncate(first + at);
        }
        self.stack.len()
    }

    pub(crate) fn depth(&self) -> usize {
        self.stack.len()
    }

    /// Where the thread is.
    pub(crate) fn remember(&self) -> Taken {
        let depth = self.stack.len();
        let mut calls = [0; KEPT];
        for (kept, call) in calls.iter_mut().zip(self.stack.iter().rev()) {
            *kept = *call;
        }
        Taken { depth, calls }
    }

    /// The sites of a section that was acquired at `acquire` and is released at `release` now,
    /// between which the thread was never less than `frames` calls deep: addresses within or behind
    /// the instructions.
    pub(crate) fn sites(
        &self,
        taken: &Taken,
        frames: usize,
        (acquire, release): (u64, u64),
    ) -> (u64, u64) {
        let inner = frames.min(taken.depth);
        let is_known = |frames: usize| taken.depth - frames < KEPT;
        let first = |frames: usize| taken.at(frames).unwrap_or(acquire);
        let is_own = |&frames: &usize| !is_known(frames) || !self.is_foreign(first(frames));
        // A section that outlasts all of the program's functions ends in code of the system that has started
        // the thread. Its site is in the outermost of these functions.
        let outwards = (0..=inner).rev().find(is_own);
        let frames = outwards.or_else(|| (inner..=taken.depth).find(is_own)).unwrap_or(inner);
        let last = self.stack.get(frames).map_or(release, |call| u64::from(*call) + 1);
        (first(frames), last)
    }

    /// Where a thread is that is at `pc`: that instruction and the calls around it, but for those in
    /// libraries of the system; from the inside out.
    pub(crate) fn outwards(&self, pc: u64) -> Vec<u64> {
        let calls = self.stack.iter().rev().map(|call| u64::from(*call));
        let all = std::iter::once(pc).chain(calls).take(KEPT);
        all.filter(|at| !self.is_foreign(*at)).collect()
    }

    fn is_foreign(&self, pc: u64) -> bool {
        let after = self.foreign.partition_point(|range| range.start < pc);
        after > 0 && pc <= self.foreign[after - 1].end
    }
}

impl Taken {
    /// Where the function was that had `frames` calls around it; `None` if it was the innermost.
    fn at(&self, frames: usize) -> Option<u64> {
        let out = self.depth.checked_sub(frames + 1)?;
        self.calls.get(out).map(|call| u64::from(*call) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapper_s_site_is_its_caller_s() {
        let mut calls = Calls::default();
        calls.enter(0x100); // main calls work
        calls.enter(0x200); // work calls lock
        let taken = calls.remember();
        assert_eq!(calls.sites(&taken, 2, (0x305, 0x315)), (0x305, 0x315), "within one function");
        let frames = calls.leave(0x205);
        assert_eq!(frames, 1);
        calls.enter(0x210); // work calls unlock
        assert_eq!(calls.sites(&taken, frames, (0x305, 0x405)), (0x201, 0x211));
        // Of a library, the caller.
        assert_eq!(calls.outwards(0x305), [0x305, 0x210, 0x100]);
        calls.foreign = std::iter::once(0x200..0x300).collect();
        assert_eq!(calls.sites(&taken, frames, (0x305, 0x405)), (0x101, 0x101));
        assert_eq!(calls.outwards(0x305), [0x305, 0x100]);
    }

    /// A thread ends with a lock that another one gives away for it.
    #[test]
    fn a_section_that_outlasts_the_thread_s_function_has_a_site() {
        let mut calls = Calls::default();
        calls.enter(0x900); // the system calls run
        calls.enter(0x100); // run calls lock
        let taken = calls.remember();
        let frames = calls.leave(0x905);
        calls.foreign = std::iter::once(0x900..0xa00).collect();
        assert_eq!((frames, calls.sites(&taken, frames, (0x305, 0x905))), (0, (0x101, 0x905)));
    }

    #[test]
    fn a_return_ends_the_calls_that_were_left_otherwise() {
        let mut calls = Calls::default();
        for call in [0x100, 0x200, 0x300] {
            calls.enter(call);
        }
        assert_eq!(calls.leave(0x999), 3, "fits none");
        assert_eq!(calls.leave(0x105), 0);
        assert_eq!(calls.leave(0x105), 0);
    }

    /// As a program that generates code calls functions of its libraries in a loop.
    #[test]
    fn calls_from_above_end_too() {
        let mut calls = Calls::default();
        calls.enter(0x100);
        for _ in 0..3 {
            calls.enter(ABOVE);
            calls.enter(0x200);
            assert_eq!(calls.leave(0x205), 2);
            assert_eq!(calls.leave(0x2000_0000_0005), 1);
        }
        assert_eq!(calls.leave(0x105), 0);
    }
}
