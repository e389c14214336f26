//! Looking at guest memory without asking the kernel each time.

use crate::elsewhere;
use crate::host::Guest;
use crate::layout::PAGE;
use crate::recovery;
use std::ops::Range;

/// Pages of guest memory that the kernel has confirmed to be readable: what makes looking at an
/// operand before each atomic instruction a load instead of a system call.
///
/// A page may be unmapped or protected by another guest thread after it was confirmed. The load then
/// fails, and the guest's instruction will fault, too, which may be what the guest waits for.
pub(crate) struct KnownPages {
    groups: [Group; KnownPages::SIZE],
}

/// As many pages, one behind the other, as a word has bits.
#[derive(Clone, Copy, Default)]
struct Group {
    /// The number of the first page, divided by [`KnownPages::PAGES`].
    number: u64,
    /// A bit for each page that is known.
    known: u64,
}

impl KnownPages {
    const SIZE: usize = 1024;
    const PAGES: u64 = u64::BITS as u64;

    pub(crate) fn new() -> KnownPages {
        KnownPages { groups: [Group::default(); KnownPages::SIZE] }
    }

    /// A group with this page alone, and where the group is kept. Heap, stacks and libraries begin at round
    /// addresses, whose low bits are alike.
    fn place(page: u64) -> (usize, Group) {
        let (number, bit) = (page / KnownPages::PAGES, page % KnownPages::PAGES);
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (hash as usize % KnownPages::SIZE, Group { number, known: 1 << bit })
    }

    /// The thread itself has changed the address space.
    pub(crate) fn forget(&mut self) {
        *self = KnownPages::new();
    }

    /// The thread itself is about to take memory in this range away.
    pub(crate) fn forget_in(&mut self, range: Range<u64>) {
        let lost = range.start / PAGE..range.end.div_ceil(PAGE);
        for group in self.groups.iter_mut().filter(|group| group.known != 0) {
            let first = group.number * KnownPages::PAGES;
            let start = lost.start.max(first);
            let end = lost.end.min(first + KnownPages::PAGES);
            (start..end).for_each(|page| group.known &= !(1 << (page - first)));
        }
    }

    /// The low 8 bytes of a memory operand of `size` bytes.
    pub(crate) fn operand(&mut self, address: u64, size: u8) -> Option<u64> {
        self.known_operand(address, size).or_else(|| {
            if elsewhere::has(address, u64::from(size)) {
                return None;
            }
            let value = Guest.operand(address, size)?;
            let (place, page) = KnownPages::place(address / PAGE);
            let group = &mut self.groups[place];
            match group.number == page.number {
                true => group.known |= page.known,
                false => *group = page,
            }
            Some(value)
        })
    }

    fn knows(&self, page: u64) -> bool {
        let (place, page) = KnownPages::place(page);
        let group = self.groups[place];
        group.number == page.number && group.known & page.known != 0
    }

    /// The same, if no system call is needed for it.
    pub(crate) fn known_operand(&self, address: u64, size: u8) -> Option<u64> {
        let len = u64::from(size.min(8));
        let page = address / PAGE;
        let elsewhere = elsewhere::has(address, len);
        if elsewhere || page != address.wrapping_add(len - 1) / PAGE || !self.knows(page) {
            return None;
        }
        // SAFETY: guest memory, which was readable when it was confirmed.
        unsafe { recovery::load(address, len as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a call does not concern is still known.
    #[test]
    fn pages_are_forgotten_where_memory_was_taken_away() {
        let words = vec![7_u64; 4 * PAGE as usize / 8];
        let start = (words.as_ptr() as u64).next_multiple_of(PAGE);
        let mut pages = KnownPages::new();
        let known = |pages: &KnownPages| {
            [0, 1, 2].map(|page| pages.known_operand(start + page * PAGE, 8).is_some())
        };
        assert_eq!(known(&pages), [false; 3]);
        for page in 0..3 {
            assert_eq!(pages.operand(start + page * PAGE, 8), Some(7));
        }
        pages.forget_in(start + PAGE..start + 2 * PAGE - 1);
        assert_eq!(known(&pages), [true, false, true]);
        pages.forget_in(0..0);
        assert_eq!(known(&pages), [true, false, true]);
        pages.forget_in(0..u64::MAX);
        assert_eq!(known(&pages), [false; 3]);
    }
}
