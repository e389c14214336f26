//! Memory in common with other processes, which are not recorded.
//!
//! A program that shares memory with processes that it has forked reads there what they write. So
//! each access of such memory is an event with what the memory shows (`record::common`,
//! `replay::common`). To catch each access, both sides keep the memory out of the guest's reach:
//! an access faults, and the machine executes the instruction by itself, on [`Copies`] of its operands,
//! with the bytes that the memory shows; a recording then brings what the instruction has changed to the
//! memory itself. A replay has no such memory at all: all that is read there is in the events. Threads
//! need not wait for each other, since no access depends on what is there.
//!
//! Library functions and system calls go to the memory itself, in a recording, by its other address.
//!
//! Memory in which the kernel shows what a socket receives (rings of packets) is treated so, too, whether there
//! are other processes or not. It cannot be mapped twice, so it is moved to its other address.

pub(crate) mod recorded;
pub(crate) mod replayed;
mod writers;

use crate::host;
use crate::layout::{PAGE, guest_may_map};
use crate::order::Span;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A stretch of pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    pub(crate) range: Range<u64>,
    /// What the guest may do with it.
    pub(crate) prot: i32,
}

impl Area {
    /// The area that an event names; `None` if it can be no guest's.
    pub(crate) fn of(address: u64, words: &[u8]) -> Option<Area> {
        let (len, prot) = words.split_first_chunk()?;
        let end = address.checked_add(u64::from_le_bytes(*len))?;
        let prot = u64::from_le_bytes(*prot.first_chunk()?) as i32;
        let range = address..end;
        let whole = address.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        let known = prot & !(libc::PROT_READ | libc::PROT_WRITE) == 0;
        (whole && known && guest_may_map(&range)).then_some(Area { range, prot })
    }

    /// The words that name it in an event.
    pub(crate) fn words(&self) -> Vec<u8> {
        let len = self.range.end - self.range.start;
        [len.to_le_bytes(), (self.prot as u64).to_le_bytes()].concat()
    }

    /// Lets the guest access it, or, with `PROT_NONE`, not.
    pub(crate) fn protect(&self, prot: i32) {
        let args = [self.range.start, self.range.end - self.range.start, prot as u64, 0, 0, 0];
        // SAFETY: an area lies in the guest's arenas, where the host keeps nothing.
        let result = unsafe { host::syscall(libc::SYS_mprotect as u64, args) };
        assert!(result == 0, "the pages of an area are mapped, and were accessible once");
    }

    fn meets(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

/// Whether any of these areas has any of these bytes.
pub(crate) fn meet(areas: &[Area], range: &Range<u64>) -> bool {
    areas.iter().any(|area| area.meets(range))
}

/// The parts of a range that are in none of these areas, which lie in ascending order.
pub(crate) fn outside(areas: &[Area], range: Range<u64>) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut at = range.start;
    for area in areas.iter().filter(|area| area.meets(&range)) {
        if at < area.range.start {
            parts.push(at..area.range.start);
        }
        at = area.range.end;
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

/// As what a recording executes an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// As an event, which needs no order.
    Access,
    /// As one that orders threads.
    Order,
    /// As one of many in the body of a library function, which is the event.
    Body,
}

/// Bytes of an operand that are executed at once.
pub(crate) const MOST: u64 = PAGE;
/// An instruction has at most so many operands in memory.
const OPERANDS: usize = 2;
/// Words of an operand: it may begin and end within a word, and keeps its place in a cache line.
const ROOM: usize = (MOST / 8) as usize + 16;
const LINE: u64 = 64;

/// Copies of an instruction's operands, on which the guest executes it. As aligned as the operands are.
#[repr(align(64))]
pub(crate) struct Copies([[AtomicU64; ROOM]; OPERANDS]);

impl Copies {
    pub(crate) fn new() -> Box<Copies> {
        Box::new(Copies(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)))))
    }

    /// The words that an operand touches, by their addresses.
    pub(crate) fn words(span: Span) -> impl Iterator<Item = u64> {
        (span.start & !7..span.start.saturating_add(span.len)).step_by(8)
    }

    /// Whether there is room for an operand.
    pub(crate) fn fits(number: usize, span: Span) -> bool {
        number < OPERANDS && span.len <= MOST
    }

    fn first(span: Span) -> usize {
        (span.start % LINE / 8) as usize
    }

    /// Where the guest is to access the copy of an operand.
    pub(crate) fn place(&self, number: usize, span: Span) -> u64 {
        let word = &self.0[number][Copies::first(span)];
        word.as_ptr().expose_provenance() as u64 + span.start % 8
    }

    pub(crate) fn set(&self, number: usize, span: Span, words: &[u64]) {
        for (place, &word) in self.0[number][Copies::first(span)..].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, number: usize, span: Span) -> Vec<u64> {
        let words = &self.0[number][Copies::first(span)..][..Copies::words(span).count()];
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

/// The bytes of an operand in the words that it touches.
pub(crate) fn bytes_of(span: Span, words: &[u64]) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.skip((span.start % 8) as usize).take(span.len as usize).collect()
}

/// The words that an operand of these bytes touches; zero where it does not.
pub(crate) fn words_of(span: Span, bytes: &[u8]) -> Vec<u64> {
    let ahead = std::iter::repeat_n(0, (span.start % 8) as usize);
    let all: Vec<u8> = ahead.chain(bytes.iter().copied()).collect();
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    };
    all.chunks(8).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_keep_what_surrounds_an_operand() {
        let copies = Copies::new();
        let span = Span { start: 0x10_0000_003d, len: 9, write: true };
        assert_eq!(Copies::words(span).collect::<Vec<_>>(), [0x10_0000_0038, 0x10_0000_0040]);
        copies.set(1, span, &[7 << 40, 9]);
        assert_eq!(copies.get(1, span), [7 << 40, 9]);
        assert_eq!(copies.place(1, span) % 64, 0x3d);
        assert_eq!(bytes_of(span, &[7 << 40, 9]), [7, 0, 0, 9, 0, 0, 0, 0, 0]);
        assert_eq!(words_of(span, &[7, 0, 0, 9, 0, 0, 0, 0, 0]), [7 << 40, 9]);
        assert!(!Copies::fits(0, Span { len: MOST + 1, ..span }) && !Copies::fits(2, span));
    }

    #[test]
    fn what_is_outside_of_areas() {
        let area = |range| Area { range, prot: 0 };
        let areas = [area(0x2000..0x3000), area(0x3000..0x4000), area(0x8000..0x9000)];
        assert_eq!(outside(&areas, 0x1000..0x9000), [0x1000..0x2000, 0x4000..0x8000]);
        assert_eq!(outside(&areas, 0x2000..0x4000), []);
        assert_eq!(outside(&areas, 0x5000..0x9000), vec![0x5000..0x8000]);
        assert!(meet(&areas, &(0x3fff..0x5000)) && !meet(&areas, &(0x4000..0x8000)));
    }
}
