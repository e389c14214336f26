//! A state per line, in memory that the kernel gives to those that are used.

use super::State;
use crate::order::filter::{ENTRIES, LINE};
use crate::{Error, Pages, Result};
use refrain_trace::ThreadId;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Lines of a page of the guest's memory.
const PAGE: usize = 4096 / LINE as usize;
/// Lines whose states are in one page.
const BLOCK: usize = 4096 / size_of::<AtomicU32>();

/// See the module's documentation.
pub(super) struct States(Pages);

impl States {
    pub(super) fn new() -> Result<States> {
        let pages = Pages::new(ENTRIES * size_of::<AtomicU32>());
        pages.map(States).map_err(Error::host("mapping the states of lines"))
    }

    fn of(&self, line: usize) -> &AtomicU32 {
        assert!(line < ENTRIES);
        // SAFETY: the pages have that many, all zero at first, and are there as long as this.
        unsafe { self.0.start().cast::<AtomicU32>().add(line).as_ref() }
    }

    pub(super) fn get(&self, line: usize) -> State {
        State::unpack(self.of(line).load(Ordering::Acquire))
    }

    pub(super) fn set(&self, line: usize, state: State) {
        self.of(line).store(state.pack(), Ordering::Release);
    }

    /// Makes what is nobody's one thread's.
    pub(super) fn claim(&self, line: usize, owner: ThreadId) -> bool {
        let owned = State::Owned { owner, taken: 0 }.pack();
        self.of(line).compare_exchange(0, owned, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The pages among these lines, from the first line on, of which a line is not nobody's. Pages that are
    /// this thread's alone, with all lines, are left out.
    pub(super) fn accessed(
        &self,
        lines: Range<usize>,
        alone: Option<ThreadId>,
    ) -> Vec<Range<usize>> {
        let is_own = |line| match self.get(line) {
            State::Owned { owner, .. } => Some(owner) == alone,
            _ => false,
        };
        let mut pages: Vec<Range<usize>> = Vec::new();
        let mut start = lines.start;
        while start < lines.end {
            // States that the kernel has given no memory to are nobody's.
            let here = start..(start + BLOCK - start % BLOCK).min(lines.end);
            start = here.end;
            if !self.is_in_memory(here.start) {
                continue;
            }
            for first in here.clone().step_by(PAGE) {
                let page = first..(first + PAGE).min(here.end);
                let is_nobodys = |line| self.get(line) == State::Unowned;
                if page.clone().all(is_nobodys) || page.clone().all(is_own) {
                    continue;
                }
                match pages.last_mut().filter(|last| last.end == page.start) {
                    Some(last) => last.end = page.end,
                    None => pages.push(page),
                }
            }
        }
        pages
    }

    /// Whether the kernel has given memory to the states of these lines.
    fn is_in_memory(&self, line: usize) -> bool {
        let at = ptr::from_ref(self.of(line - line % BLOCK)).cast_mut();
        let mut present = 0_u8;
        // SAFETY: the call is about one page of the states, for which it writes one byte.
        let asked =
            unsafe { libc::mincore(at.cast(), BLOCK * size_of::<AtomicU32>(), &mut present) };
        asked != 0 || present & 1 != 0
    }
}
