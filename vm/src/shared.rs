//! Memory that a file shows (`MAP_SHARED`): which addresses show which part of which file.
//!
//! Recording and replay keep the same table. A recording looks up what a call that changes a file
//! changes in memory; a replay has a file in memory for each, so that all mappings of it agree.

use std::collections::BTreeMap;
use std::ops::Range;

/// A stretch of memory that shows a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The file, by the order in which the guest first mapped them.
    pub(crate) file: u64,
    /// Where in the file the stretch begins.
    pub(crate) offset: u64,
}

impl Part {
    /// What the part has of a range of addresses.
    fn within(self, range: &Range<u64>) -> Option<Part> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        (start < end).then(|| Part { start, end, offset: self.offset + start - self.start, ..self })
    }

    /// The addresses that show a range of the file.
    fn showing(self, range: &Range<u64>) -> Option<Range<u64>> {
        let shown = self.offset..self.offset + (self.end - self.start);
        let (start, end) = (shown.start.max(range.start), shown.end.min(range.end));
        let at = |offset| self.start + offset - self.offset;
        (start < end).then(|| at(start)..at(end))
    }
}

/// All of it.
#[derive(Default, Debug)]
pub(crate) struct SharedMaps {
    by_start: BTreeMap<u64, Part>,
}

impl SharedMaps {
    /// Something else is mapped there, or nothing.
    pub(crate) fn cut(&mut self, range: &Range<u64>) {
        for part in self.parts(range) {
            let whole =
                *self.by_start.range(..=part.start).next_back().expect("a part of it was found").1;
            self.by_start.remove(&whole.start);
            for rest in [whole.start..part.start, part.end..whole.end] {
                if let Some(rest) = whole.within(&rest) {
                    self.by_start.insert(rest.start, rest);
                }
            }
        }
    }

    /// A file is mapped.
    pub(crate) fn insert(&mut self, part: Part) {
        self.cut(&(part.start..part.end));
        self.by_start.insert(part.start, part);
    }

    /// A mapping has moved or changed its length; it stays where it was, too, if it is `kept`.
    pub(crate) fn remap(&mut self, old: Range<u64>, new: Range<u64>, kept: bool) {
        // (A length of nothing asks for another mapping of the same.)
        let first = self.parts(&(old.start..old.end.max(old.start + 1))).into_iter().next();
        if !kept {
            self.cut(&old);
        }
        self.cut(&new);
        if let Some(part) = first.filter(|part| part.start == old.start) {
            self.insert(Part { start: new.start, end: new.end, ..part });
        }
    }

    /// What of a range shows files.
    pub(crate) fn parts(&self, range: &Range<u64>) -> Vec<Part> {
        let before = self.by_start.range(..=range.start).next_back().map(|(_, part)| *part);
        let inside = self.by_start.range(range.start..range.end).map(|(_, part)| *part);
        let mut parts: Vec<Part> =
            before.into_iter().chain(inside).filter_map(|part| part.within(range)).collect();
        parts.dedup();
        parts
    }

    /// Where a range of a file is shown.
    pub(crate) fn showing(&self, file: u64, range: &Range<u64>) -> Vec<Range<u64>> {
        let of_file = self.by_start.values().filter(|part| part.file == file);
        of_file.filter_map(|part| part.showing(range)).collect()
    }

    /// The mapping that begins there.
    pub(crate) fn at(&self, start: u64) -> Option<Part> {
        self.by_start.get(&start).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, end: u64, file: u64, offset: u64) -> Part {
        Part { start, end, file, offset }
    }

    #[test]
    fn files_are_shown_where_they_are_mapped() {
        let mut maps = SharedMaps::default();
        maps.insert(part(0x1000, 0x5000, 1, 0));
        maps.insert(part(0x9000, 0xa000, 1, 0x2000));
        assert_eq!(maps.showing(1, &(0x2800..0x2900)), [0x3800..0x3900, 0x9800..0x9900]);
        maps.cut(&(0x2000..0x4000));
        assert_eq!(maps.showing(1, &(0x2800..0x2900)).first(), Some(&(0x9800..0x9900)));
        assert_eq!(
            maps.parts(&(0..0x10000)),
            [
                part(0x1000, 0x2000, 1, 0),
                part(0x4000, 0x5000, 1, 0x3000),
                part(0x9000, 0xa000, 1, 0x2000)
            ]
        );
        maps.remap(0x9000..0xa000, 0x20000..0x22000, false);
        assert_eq!(maps.at(0x9000), None);
        assert_eq!(maps.showing(1, &(0x3000..0x3001)), [0x4000..0x4001, 0x21000..0x21001]);
        assert!(maps.showing(2, &(0..u64::MAX)).is_empty());
    }
}
