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
/// Blocks that the kernel is asked about at a time.
const ASKED: usize = 256;

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
        let blocks = lines.start / BLOCK..lines.end.div_ceil(BLOCK);
        let mut present = [0; ASKED];
        for block in blocks.clone() {
            // States that the kernel has given no memory to are nobody's.
            let nth = (block - blocks.start) % ASKED;
            if nth == 0 {
                self.ask_for_memory(block, &mut present[..ASKED.min(blocks.end - block)]);
            }
            if present[nth] & 1 == 0 {
                continue;
            }
            let here = lines.start.max(block * BLOCK)..lines.end.min((block + 1) * BLOCK);
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

    /// Of some blocks from this one on, whether the kernel has given memory to the states of their lines;
    /// where it does not say, it may have.
    fn ask_for_memory(&self, block: usize, present: &mut [u8]) {
        let at = ptr::from_ref(self.of(block * BLOCK)).cast_mut();
        let len = present.len() * BLOCK * size_of::<AtomicU32>();
        // SAFETY: the call is about as many pages of the states as it may write bytes.
        if unsafe { libc::mincore(at.cast(), len, present.as_mut_ptr()) } != 0 {
            present.fill(1);
        }
    }
}
