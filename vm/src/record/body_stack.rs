//! The stack that bodies of modelled functions run on.
//!
//! A recording runs the body of a synchronization function where its fast path is not enough; a
//! replay never does. On the guest's own stack the body would leave dead frames below the stack
//! pointer that the replay has not, and programs do read those: conservative garbage collectors
//! search them for pointers, and programs write uninitialized memory to files.

use crate::layout::PAGE;
use crate::{Error, Pages, Result};
use std::io;

/// The C library's synchronization functions take less than a page; handlers that run while one
/// waits may call others.
const LEN: usize = 16 * PAGE as usize;
/// What a function may use below its stack pointer.
const RED_ZONE: u64 = 128;

/// A thread's stack for bodies. It is mapped when the first one runs.
#[derive(Debug, Default)]
pub(crate) struct BodyStack {
    pages: Option<Pages>,
    /// Where the next body's stack begins.
    top: u64,
}

impl BodyStack {
    /// The stack pointer of a function that begins here and returns to `site`.
    pub(crate) fn enter(&mut self, site: u64) -> Result<u64> {
        if self.pages.is_none() {
            self.map().map_err(Error::host("mapping a stack for synchronization functions"))?;
        }
        // As a call leaves it: 16 bytes would be aligned after the return.
        let sp = (self.top & !15) - 8;
        if !self.holds(sp) {
            return Err(Error::Unsupported(
                "signal handlers that interrupt synchronization functions, deeply nested".into(),
            ));
        }
        // SAFETY: `sp` is an aligned word of the mapping, which nobody refers to.
        unsafe { (sp as *mut u64).write(site) };
        Ok(sp)
    }

    /// Whether this is a stack pointer of a body.
    pub(crate) fn holds(&self, sp: u64) -> bool {
        let Some(pages) = &self.pages else { return false };
        let start = pages.start().as_ptr() as u64;
        (start + PAGE..start + LEN as u64).contains(&sp)
    }

    /// Bodies begin below this body's frame until the return of the former place, which is to be
    /// set again with [`Self::begin_at`].
    pub(crate) fn begin_below(&mut self, sp: u64) -> u64 {
        std::mem::replace(&mut self.top, sp - RED_ZONE)
    }

    /// Bodies begin there.
    pub(crate) fn begin_at(&mut self, top: u64) {
        self.top = top;
    }

    fn map(&mut self) -> io::Result<()> {
        let start = self.pages.insert(Pages::new(LEN)?).start().as_ptr();
        self.top = start as u64 + LEN as u64;
        // SAFETY: the first page, which nobody uses: a body that goes too far faults.
        match unsafe { libc::mprotect(start.cast(), PAGE as usize, libc::PROT_NONE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_begin_as_after_a_call() {
        let mut stack = BodyStack::default();
        assert!(!stack.holds(0));
        let sp = stack.enter(0x1234).expect("memory for a stack");
        assert!(sp % 16 == 8 && stack.holds(sp));
        // SAFETY: just written there.
        assert_eq!(unsafe { (sp as *const u64).read() }, 0x1234);
        assert_eq!(stack.enter(1).ok(), Some(sp), "one after the other");
    }

    #[test]
    fn a_body_in_a_body_leaves_the_outer_frame_alone() {
        let mut stack = BodyStack::default();
        let outer = stack.enter(1).expect("memory for a stack");
        let top = stack.begin_below(outer - 200);
        let inner = stack.enter(2).expect("there is room");
        assert!(inner + 8 <= outer - 200 - RED_ZONE && stack.holds(inner));
        stack.begin_at(top);
        assert_eq!(stack.enter(3).ok(), Some(outer));
        stack.begin_below(outer - LEN as u64 + 2 * PAGE + 8);
        stack.begin_below(stack.top - PAGE + RED_ZONE);
        assert!(stack.enter(4).is_err(), "the guard page");
    }
}
