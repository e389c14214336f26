//! Segments of translated code. The translator brings back a unit of an image and loads those segments that hold
//! code of the unit. It does not load the rest: a program often does something else than in earlier recordings.

use super::{CHUNK, Extent};
use std::ops::Range;

/// Bytes of a segment. A segment of rare exits lies in one chunk of them.
const SEGMENT: u64 = 16 << 10;
const _: () = assert!(CHUNK.is_multiple_of(SEGMENT));

/// Where translated code lies in code memory: hot code follows the gates that each engine begins with, and the
/// chunks of rare exits lie at the end, each below the one before.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    pub(super) memory: Range<u64>,
    pub(super) first: Extent,
    pub(super) end: Extent,
}

impl Segments {
    /// The number of the segment that an address lies in: even ones are of hot code, odd ones of rare exits.
    fn of(&self, address: u64) -> u32 {
        let number = match address < self.end.chunk {
            true => (address - self.first.hot) / SEGMENT * 2,
            false => (self.memory.end - 1 - address) / SEGMENT * 2 + 1,
        };
        number as u32
    }

    /// The code of a segment.
    pub(super) fn range(&self, number: u32) -> Range<u64> {
        let offset = u64::from(number / 2) * SEGMENT;
        if number.is_multiple_of(2) {
            let start = self.first.hot + offset;
            return start..(start + SEGMENT).min(self.end.hot);
        }
        let end = self.memory.end - offset;
        // Behind the last rare exit of the lowest chunk come those of translations that are not kept yet.
        let in_last = end <= self.end.chunk + CHUNK;
        end - SEGMENT..if in_last { end.min(self.end.cold.max(end - SEGMENT)) } else { end }
    }

    /// The segments of a range of hot code or of rare exits.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = u32> + use<> {
        let ends = (!range.is_empty()).then(|| [self.of(range.start), self.of(range.end - 1)]);
        let [a, b] = ends.unwrap_or([2, 0]);
        let (from, to) = if a % 2 == 1 { (b, a) } else { (a, b) };
        (from..=to).step_by(2)
    }

    /// All segments that have code, ascending.
    pub(super) fn all(&self) -> Vec<u32> {
        let hot = self.within(self.first.hot..self.end.hot);
        let cold = self.within(self.end.chunk..self.first.chunk);
        let mut all: Vec<u32> = hot.chain(cold).filter(|&it| !self.range(it).is_empty()).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_code_is_in_one_segment() {
        let end = 0x100_3000;
        let first = Extent { hot: 0x1_0123, chunk: end, cold: end, ..Extent::default() };
        for (hot, chunks, cold) in [(0x1_0123, 0, 0), (0x1_0200, 1, 0), (0x3_4567, 3, 0x5678)] {
            let chunk = end - chunks * CHUNK;
            let last = Extent { hot, chunk, cold: chunk + cold, ..Extent::default() };
            let segments = Segments { memory: 0x1_0000..end, first, end: last };
            let mut ranges: Vec<_> = segments.all().iter().map(|&it| segments.range(it)).collect();
            ranges.sort_by_key(|range| range.start);
            let mut expected = vec![first.hot..hot, chunk..last.cold];
            expected.push((chunk + CHUNK).min(end)..end);
            expected.retain(|range| !range.is_empty());
            let mut merged: Vec<Range<u64>> = Vec::new();
            for range in ranges {
                match merged.last_mut() {
                    Some(before) if before.end == range.start => before.end = range.end,
                    _ => merged.push(range),
                }
            }
            assert_eq!(merged, expected);
            for range in expected {
                let all: Vec<u32> = segments.within(range.clone()).collect();
                assert!(all.iter().any(|&it| segments.range(it).start <= range.start));
                let is_met = |&it: &u32| {
                    let segment = segments.range(it);
                    segment.is_empty() || segment.start < range.end && range.start < segment.end
                };
                assert!(all.iter().all(is_met), "{range:x?}: {all:?}");
            }
        }
    }
}
