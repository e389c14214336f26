//! The guest's code that a block is made from.

use crate::memory::read_guest;
use std::cell::OnceCell;

/// Most blocks are shorter, and what is in no cache takes its time to be read.
pub(super) const FIRST: usize = 64;

/// The guest's code from an address on, as far as it can be read and may be executed.
pub(super) struct Text {
    pub(super) pc: u64,
    /// Bytes that are read at most.
    most: usize,
    first: [u8; FIRST],
    first_len: usize,
    all: OnceCell<Vec<u8>>,
}

impl Text {
    /// No more than `most` bytes, nor what lies at `end` or behind.
    pub(super) fn at(pc: u64, most: usize, end: u64) -> Text {
        let may_run = end.saturating_sub(pc);
        let within = |len: usize| (len as u64).min(may_run) as usize;
        let (most, mut first) = (within(most), [0; FIRST]);
        let first_len = read_guest(pc, &mut first[..within(FIRST)]);
        Text { pc, most, first, first_len, all: OnceCell::new() }
    }

    /// What most blocks lie in, or all that was read so far.
    pub(super) fn first(&self) -> &[u8] {
        self.all.get().map_or(&self.first[..self.first_len], |all| all)
    }

    /// All of it. What was changed meanwhile is noticed by who looks at this before anything else.
    pub(super) fn all(&self) -> &[u8] {
        self.all.get_or_init(|| {
            let mut code = vec![0; self.most];
            let readable = read_guest(self.pc, &mut code);
            code.truncate(readable);
            code
        })
    }
}
