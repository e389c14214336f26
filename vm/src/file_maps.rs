//! Memory that shows files: which addresses show which part of which file.
//!
//! Three tables are of this kind. A recording has one of shared mappings, in which it looks up what
//! a call that changes a file changes in memory, and one of private mappings, whose touched pages it
//! keeps (`record::files`). A replay has one of shared mappings, with a file in memory for each file,
//! so that all mappings of a file agree.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A stretch of memory that shows a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The file's number, which the owner of the table gives it.
    pub(crate) file: u64,
    /// Where in the file the stretch begins.
    pub(crate) offset: u64,
    /// Whether the program may store to the file there, with the protection that the mapping has or could
    /// get. (What is stored in a private mapping is not in the file.)
    pub(crate) writable: bool,
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

/// All parts, none of which overlap.
#[derive(Default, Debug)]
pub(crate) struct FileMaps {
    by_start: BTreeMap<u64, Part>,
}

impl FileMaps {
    /// Forgets what a range shows, since something else is mapped there, or nothing. False if it
    /// showed no file.
    pub(crate) fn cut(&mut self, range: &Range<u64>) -> bool {
        let parts = self.parts(range);
        for part in &parts {
            let whole =
                *self.by_start.range(..=part.start).next_back().expect("a part of it was found").1;
            self.by_start.remove(&whole.start);
            for rest in [whole.start..part.start, part.end..whole.end] {
                if let Some(rest) = whole.within(&rest) {
                    self.by_start.insert(rest.start, rest);
                }
            }
        }
        !parts.is_empty()
    }

    /// A file is mapped.
    pub(crate) fn insert(&mut self, part: Part) {
        self.cut(&(part.start..part.end));
        self.by_start.insert(part.start, part);
    }

    /// `mremap` has moved a range or changed its length. What was shown at its end grows or shrinks
    /// with it. If `kept`, the old range goes on showing what it showed.
    pub(crate) fn remap(&mut self, old: Range<u64>, new: Range<u64>, kept: bool) {
        // (A length of nothing asks for another mapping of the same.)
        let old_end = old.end.max(old.start + 1);
        let parts = self.parts(&(old.start..old_end));
        if !kept {
            self.cut(&old);
        }
        self.cut(&new);
        for part in parts {
            let moved = |at: u64| new.start.saturating_add(at - old.start).min(new.end);
            let end = if part.end == old_end { new.end } else { moved(part.end) };
            let part = Part { start: moved(part.start), end, ..part };
            if part.start < part.end {
                self.insert(part);
            }
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

    /// What of a range of the file is shown nowhere where the program may store.
    pub(crate) fn not_writable(&self, file: u64, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut left = vec![range.clone()];
        for part in self.by_start.values().filter(|part| part.file == file && part.writable) {
            let shown = part.offset..part.offset + (part.end - part.start);
            let without = |range: Range<u64>| {
                let before = range.start..range.end.min(shown.start);
                let behind = range.start.max(shown.end)..range.end;
                [before, behind].into_iter().filter(|range| range.start < range.end)
            };
            left = left.into_iter().flat_map(without).collect();
        }
        left
    }

    /// What of a range is shown elsewhere, too: both addresses, and how many bytes from there on.
    pub(crate) fn doubles(&self, range: &Range<u64>) -> Vec<(u64, u64, u64)> {
        let doubles_of = |part: Part| {
            let file = part.offset..part.offset + (part.end - part.start);
            self.showing(part.file, &file).into_iter().filter_map(move |shown| {
                let other = *self.parts(&shown).first()?;
                let here = part.start + (other.offset - part.offset);
                (here != other.start).then(|| (other.start, here, shown.end - shown.start))
            })
        };
        self.parts(range).into_iter().flat_map(doubles_of).collect()
    }

    /// The numbers of the files that are shown anywhere.
    pub(crate) fn files(&self) -> BTreeSet<u64> {
        self.by_start.values().map(|part| part.file).collect()
    }

    /// The mapping that begins there.
    pub(crate) fn at(&self, start: u64) -> Option<Part> {
        self.by_start.get(&start).copied()
    }
}

/// Calls `each` with what lies in a range of parts in the order of their addresses, and takes those away
/// that end in it: the next range lies behind this one.
pub(crate) fn take_within(parts: &mut &[Part], range: &Range<u64>, mut each: impl FnMut(Part)) {
    while let [part, others @ ..] = *parts
        && part.start < range.end
    {
        part.within(range).into_iter().for_each(&mut each);
        if range.end <= part.end {
            break;
        }
        *parts = others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, end: u64, file: u64, offset: u64) -> Part {
        Part { start, end, file, offset, writable: true }
    }

    #[test]
    fn ranges_in_their_order_find_each_part_of_theirs() {
        let parts =
            [part(0x1000, 0x3000, 1, 0), part(0x3000, 0x4000, 2, 0), part(0x8000, 0xa000, 1, 0)];
        let mut left = &parts[..];
        let mut found = |range: Range<u64>| {
            let mut found = Vec::new();
            take_within(&mut left, &range, |part| found.push(part));
            found
        };
        assert_eq!(found(0x0000..0x1000), []);
        assert_eq!(found(0x1000..0x2000), [part(0x1000, 0x2000, 1, 0)]);
        let both = [part(0x2000, 0x3000, 1, 0x1000), part(0x3000, 0x4000, 2, 0)];
        assert_eq!(found(0x2000..0x5000), both, "and what is shown nowhere");
        assert_eq!(found(0x6000..0x7000), []);
        assert_eq!(found(0x7000..0x9000), [part(0x8000, 0x9000, 1, 0)]);
        assert_eq!(found(0x9000..0xb000), [part(0x9000, 0xa000, 1, 0x1000)]);
        assert_eq!(found(0xc000..0xd000), []);
    }

    #[test]
    fn a_range_may_move_with_several_files_in_it() {
        let mut maps = FileMaps::default();
        maps.insert(part(0x0000, 0x2000, 1, 0));
        maps.insert(part(0x2000, 0x3000, 2, 0x5000));
        maps.remap(0x1000..0x3000, 0x11000..0x14000, false);
        let moved = [
            part(0x0000, 0x1000, 1, 0),
            part(0x11000, 0x12000, 1, 0x1000),
            part(0x12000, 0x14000, 2, 0x5000),
        ];
        assert_eq!(maps.parts(&(0..u64::MAX)), moved);
        maps.remap(0x11000..0x14000, 0x11000..0x12000, false);
        assert_eq!(maps.parts(&(0..u64::MAX)), moved[..2]);
        assert_eq!(maps.files(), BTreeSet::from([1]));
        assert!(!maps.cut(&(0x2000..0x3000)) && maps.cut(&(0x0800..0x3000)));
    }

    #[test]
    fn files_are_shown_where_they_are_mapped() {
        let mut maps = FileMaps::default();
        maps.insert(part(0x1000, 0x5000, 1, 0));
        maps.insert(part(0x9000, 0xa000, 1, 0x2000));
        assert_eq!(maps.showing(1, &(0x2800..0x2900)), [0x3800..0x3900, 0x9800..0x9900]);
        assert_eq!(maps.doubles(&(0x9800..0xb000)), [(0x3800, 0x9800, 0x800)]);
        assert_eq!(maps.doubles(&(0x4000..0x5000)), []);
        assert_eq!(
            maps.not_writable(1, &(0x3800..0x6000)),
            std::slice::from_ref(&(0x4000..0x6000))
        );
        maps.insert(Part { writable: false, ..part(0xc000, 0xe000, 1, 0x4000) });
        assert_eq!(
            maps.not_writable(1, &(0x3800..0x6000)),
            std::slice::from_ref(&(0x4000..0x6000))
        );
        maps.insert(part(0xc000, 0xd000, 1, 0x4800));
        assert_eq!(maps.not_writable(1, &(0x3800..0x6000)), [0x4000..0x4800, 0x5800..0x6000]);
        maps.cut(&(0xc000..0xe000));
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
