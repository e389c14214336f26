//! What translated code and the machine share about one thread's accesses ([`crate::Order`]).
//!
//! In a recording with [`refrain_trace::Order::Stride`], translated code looks up the *line* of each
//! access in tables of its thread: which lines it may read, and which it may write, without a word
//! to anybody. The machine fills the tables ([`super::lines`]), and takes lines back from a thread
//! that runs: it clears the entry, has the kernel order all processors ([`crate::Barrier::heavy`]),
//! and waits until the thread is seen outside of its *window*, the instructions of a block from its
//! first look to the end of its last access.
//!
//! Of code that the guest generates, a third table says that the thread has *kept* a line: it has compared
//! all blocks of the line with what was translated, and the line has not been written since. So a thread
//! that keeps a line may not write it by itself, and a line that it may not read any more it does not keep.
//! Nor does it keep what a call has changed ([`Filter::give_up_code`]).
//!
//! What may lie in two lines is looked up in a table of *pairs*: an entry says that the thread may
//! access the line and the one behind it. Where it does not, the two lines are looked up.

use crate::layout::{HEAP, MAPPINGS};
use crossbeam::utils::Backoff;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a line: what processors keep coherent, so that neighbours in it are seldom two threads'.
pub(super) const LINE: u64 = 64;
/// The bits of an address that are its line's index: its place in 8 GiB, and what tells the guest's
/// arenas apart ([`crate::layout`]). Lines with the same index share entries, which costs time, never
/// truth.
pub const INDEX_MASK: u64 = 0x1_ffff_ffc0 | HEAP_BIT | MAPPINGS_BIT;
/// Set in the addresses of the program break.
const HEAP_BIT: u64 = HEAP.start;
/// Set in those of most mappings.
const MAPPINGS_BIT: u64 = MAPPINGS.start;
/// Bits that are a line's place in 8 GiB.
const NEAR: u32 = 27;
/// Entries of a table.
pub const ENTRIES: usize = 1 << INDEX_MASK.count_ones();

/// The index of the line of an address: the bits of [`INDEX_MASK`], put together.
pub fn index(address: u64) -> usize {
    let near = (address / LINE) & ((1 << NEAR) - 1);
    let heap = u64::from(address & HEAP_BIT != 0) << NEAR;
    let mappings = u64::from(address & MAPPINGS_BIT != 0) << (NEAR + 1);
    (near | heap | mappings) as usize
}

/// How many lines from an address on have indices that follow each other.
pub(super) fn straight(address: u64) -> u64 {
    (1 << NEAR) - ((address / LINE) & ((1 << NEAR) - 1))
}

/// An address in the line of an index.
pub(super) fn address_of(index: usize) -> u64 {
    let index = index as u64;
    let near = (index & ((1 << NEAR) - 1)) * LINE;
    let arena = |bit: u32, of: u64| if index >> (NEAR + bit) & 1 != 0 { of } else { 0 };
    near | arena(0, HEAP_BIT) | arena(1, MAPPINGS_BIT)
}

/// Bytes that an instruction, or the kernel, is about to access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first one.
    pub start: u64,
    /// How many.
    pub len: u64,
    /// Whether they are, or may be, written.
    pub write: bool,
}

impl Span {
    /// The addresses of its lines.
    pub(crate) fn lines(self) -> impl Iterator<Item = u64> {
        let first = self.start / LINE;
        let end = if self.len == 0 {
            first
        } else {
            (self.start.saturating_add(self.len - 1)) / LINE + 1
        };
        (first..end).map(|line| line * LINE)
    }
}

/// Where a thread's executor keeps what it shares. Everything is there as long as the executor.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    /// In a recording: accesses of the thread so far. In a replay: those before the next event.
    pub count: *const AtomicU64,
    /// Not 0 while the thread is between a block's first look at a line and the end of the block's last
    /// access.
    pub window: *const AtomicU8,
    /// The lines that the thread may read.
    pub readable: Table,
    /// Those that it may write, which includes reading.
    pub writable: Table,
    /// Those whose code it keeps: a byte per line, 1 if it does. Null in a replay.
    pub kept: *const AtomicU8,
}

// SAFETY: the pointers are to atomics; who uses them sees to it that they are still there.
unsafe impl Send for Filter {}

/// Lines that a thread may access in one way. The pointers are null in a replay.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// A byte per line: 1 if the thread may access it.
    pub lines: *const AtomicU8,
    /// The same for the line and the one with the next index.
    pub pairs: *const AtomicU8,
}

/// The entry of a line in a table, or of the pair that the line begins.
fn entry<'a>(entries: *const AtomicU8, line: usize) -> &'a AtomicU8 {
    assert!(line < ENTRIES && !entries.is_null());
    // SAFETY: a recording's tables have that many entries, and are there as long as the
    // executor: who calls this is the filter's thread, or holds the list of those that execute
    // guest code (`Lines::threads`).
    unsafe { &*entries.add(line) }
}

impl Table {
    /// Whether the thread may access the line.
    fn holds(&self, line: usize) -> bool {
        entry(self.lines, line).load(Ordering::Acquire) != 0
    }

    /// The thread may access the line.
    fn add(&self, line: usize) {
        entry(self.lines, line).store(1, Ordering::Release);
        for first in pairs_of(line) {
            if self.holds(first) && self.holds(first + 1) {
                entry(self.pairs, first).store(1, Ordering::Release);
            }
        }
    }

    /// The thread may not.
    fn remove(&self, line: usize) {
        entry(self.lines, line).store(0, Ordering::Release);
        for first in pairs_of(line) {
            entry(self.pairs, first).store(0, Ordering::Release);
        }
    }

    /// Whether an entry says that the thread may access the line.
    fn mentions(&self, line: usize) -> bool {
        let pair = |first| entry(self.pairs, first).load(Ordering::Acquire) != 0;
        self.holds(line) || pairs_of(line).any(pair)
    }
}

/// The pairs of neighbours that a line belongs to, by the first of each. The last line of an arena
/// has no neighbour: the line with the next index is elsewhere in memory.
fn pairs_of(line: usize) -> impl Iterator<Item = usize> {
    let has_next = |line: &usize| !(line + 1).is_multiple_of(1 << NEAR);
    [line.checked_sub(1), Some(line)].into_iter().flatten().filter(has_next)
}

impl Filter {
    /// The thread may read the line, or, with `write`, read and write it. If it may write the line, it does not
    /// keep the line's code any more.
    pub fn permit(&self, line: usize, write: bool) {
        self.readable.add(line);
        if write {
            self.give_up(line);
            self.writable.add(line);
        }
    }

    /// The thread keeps the code of a line if it may read the line. From then on no thread, this one included,
    /// writes the line without asking the machine.
    pub fn keep_code(&self, line: usize) {
        if self.may_read(line) {
            self.writable.remove(line);
            entry(self.kept, line).store(1, Ordering::Release);
        }
    }

    /// The thread does not keep the code of a line.
    pub(super) fn give_up(&self, line: usize) {
        let kept = entry(self.kept, line);
        // Most memory has no code: its entries are not touched.
        if kept.load(Ordering::Relaxed) != 0 {
            kept.store(0, Ordering::Release);
        }
    }

    /// The thread does not keep any code in a range whose content has changed.
    pub(super) fn give_up_code(&self, range: &Range<u64>) {
        // A longer range would only come to the same indices once more.
        let end = range.end.min(range.start.saturating_add(LINE << NEAR));
        let mut start = range.start & !(LINE - 1);
        while start < end {
            let count = straight(start).min((end - start).div_ceil(LINE));
            (0..count).for_each(|more| self.give_up(index(start) + more as usize));
            start += count * LINE;
        }
    }

    /// The thread may not write the line any more, and perhaps not read it either.
    pub(super) fn forbid(&self, line: usize, reading: bool) {
        self.writable.remove(line);
        if reading {
            self.readable.remove(line);
            self.give_up(line);
        }
    }

    /// Whether the thread may read the line.
    pub(super) fn may_read(&self, line: usize) -> bool {
        self.readable.holds(line)
    }

    /// Whether the thread may write the line.
    pub(super) fn may_write(&self, line: usize) -> bool {
        self.writable.holds(line)
    }

    /// Whether any entry for the line allows an access that the thread is to lose: writing, and if it loses
    /// `reading` as well, also reading or keeping the code.
    pub(super) fn mentions(&self, line: usize, reading: bool) -> bool {
        let is_kept = || entry(self.kept, line).load(Ordering::Acquire) != 0;
        self.writable.mentions(line) || reading && (self.readable.mentions(line) || is_kept())
    }

    /// Whether the thread may make this access by itself.
    pub(super) fn permits(&self, span: Span) -> bool {
        let may = |line| if span.write { self.may_write(line) } else { self.may_read(line) };
        span.lines().map(index).all(may)
    }

    /// How many accesses the thread has made, at a moment when it is outside of its window.
    pub(super) fn settled(&self) -> u64 {
        // SAFETY: the executor is there, as in `entry`.
        let (count, window) = unsafe { (&*self.count, &*self.window) };
        let backoff = Backoff::new();
        loop {
            let before = count.load(Ordering::Acquire);
            let outside = window.load(Ordering::Acquire) == 0;
            if outside && count.load(Ordering::Acquire) == before {
                return before;
            }
            backoff.snooze();
        }
    }

    /// The thread makes an access, or begins to.
    pub(super) fn count_one(&self) {
        // SAFETY: the caller is the filter's thread, whose executor is there.
        let count = unsafe { &*self.count };
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Opens or closes the thread's window.
    pub(super) fn set_window(&self, open: bool) {
        // SAFETY: as in `count_one`.
        unsafe { &*self.window }.store(u8::from(open), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What translated code does: `pext`.
    fn gathered(address: u64) -> u64 {
        let mut bits = 0;
        let mut at = 0;
        for bit in 0..64 {
            if INDEX_MASK >> bit & 1 != 0 {
                bits |= (address >> bit & 1) << at;
                at += 1;
            }
        }
        bits
    }

    #[test]
    fn an_index_is_made_of_the_bits_of_the_mask() {
        let mut address = 0x1234_5678_9abc_def0_u64;
        for _ in 0..10_000 {
            assert_eq!(index(address) as u64, gathered(address), "{address:#x}");
            assert_eq!(index(address_of(index(address))), index(address), "{address:#x}");
            address = address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        }
        assert!(index(u64::MAX) < ENTRIES);
    }

    #[test]
    fn the_guests_arenas_do_not_share_entries() {
        use crate::layout::{LIBRARIES, PROGRAM, STACK};
        let starts = [PROGRAM, LIBRARIES.start, HEAP.start, STACK.end - LINE, MAPPINGS.start];
        let mut indices: Vec<usize> = starts.iter().map(|&start| index(start)).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), starts.len());
    }
}
