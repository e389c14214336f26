//! Where functions lie, as the unwind information has it, which stripped files have too.

use super::Elf;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};
use std::ops::Range;

/// Where functions lie. Virtual addresses.
#[derive(Default)]
pub(crate) struct Extents {
    /// Where functions begin, in ascending order.
    pub(crate) starts: Vec<u64>,
    /// Functions between whose end and the next start lies more than padding: code without unwind
    /// information, such as a compiler's that has none, or data. In ascending order.
    pub(crate) followed: Vec<Range<u64>>,
}

/// If two starts are so many bytes apart, the unwind information of the first function is read for the
/// function's end.
const FAR: u64 = 2 << 10;
/// Bytes of padding between functions, at most.
const PADDING: u64 = 64;

impl Extents {
    /// `end` says where the function ends that has this place among the starts.
    fn new(starts: Vec<u64>, end: impl Fn(usize) -> Option<u64>) -> Extents {
        let nexts = starts.iter().copied().skip(1).chain([u64::MAX]);
        let far = starts.iter().zip(nexts).enumerate();
        let far = far.filter(|(_, (start, next))| next.saturating_sub(**start) >= FAR);
        let followed = far.filter_map(|(at, (&start, next))| {
            let end = end(at).filter(|end| start < *end && *end < next.saturating_sub(PADDING))?;
            Some(start..end)
        });
        Extents { followed: followed.collect(), starts }
    }
}

impl Elf {
    /// Where functions lie, by the search table of the unwind information (`.eh_frame_hdr`). Static
    /// programs have no such table: of them, the unwind information itself and the symbols are read.
    pub(crate) fn extents(&self) -> Extents {
        self.by_unwind_table().unwrap_or_else(|| {
            let mut ranges = self.by_unwind_information().unwrap_or_default();
            self.functions(|_, address| ranges.push(address..address));
            // Of what begins at one place, the longest one comes first.
            ranges.sort_unstable_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
            ranges.dedup_by_key(|range| range.start);
            Extents::new(ranges.iter().map(|it| it.start).collect(), |at| Some(ranges[at].end))
        })
    }

    /// What `.eh_frame` says.
    fn by_unwind_information(&self) -> Option<Vec<Range<u64>>> {
        let file = ElfFile64::<Endianness, _>::parse(&self.data).ok()?;
        let section = file.section_by_name(".eh_frame")?;
        let unwind = EhFrame::new(section.data().ok()?, LittleEndian);
        let mut bases = BaseAddresses::default().set_eh_frame(section.address());
        if let Some(text) = file.section_by_name(".text") {
            bases = bases.set_text(text.address());
        }
        let mut ranges = Vec::new();
        let mut entries = unwind.entries(&bases);
        // What cannot be read ends the search; what was found before is true.
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(function) = entry
                && let Ok(function) = function.parse(EhFrame::cie_from_offset)
            {
                let start = function.initial_address();
                ranges.push(start..start.saturating_add(function.len()));
            }
        }
        Some(ranges)
    }

    /// The table: version 1, three encoding bytes, a pointer, a count, then pairs of 32-bit
    /// offsets from the section's start (the only encoding that linkers make): where a function
    /// begins, and where its unwind information is.
    fn by_unwind_table(&self) -> Option<Extents> {
        const UDATA4: u8 = 0x03;
        const DATAREL_SDATA4: u8 = 0x3b;
        let file = ElfFile64::<Endianness, _>::parse(&self.data).ok()?;
        let section = file.section_by_name(".eh_frame_hdr")?;
        let data = section.data().ok()?;
        let header = data.get(..12)?;
        if header[0] != 1 || header[2] != UDATA4 || header[3] != DATAREL_SDATA4 {
            return None;
        }
        let count = u32::from_le_bytes(header[8..12].try_into().ok()?) as usize;
        let table = data.get(12..12 + count.checked_mul(8)?)?;
        let address = |bytes: &[u8]| {
            let offset = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            section.address().wrapping_add_signed(i64::from(offset))
        };
        let starts: Vec<u64> = table.chunks_exact(8).map(address).collect();
        let unwind = file.section_by_name(".eh_frame");
        let unwind = unwind.and_then(|it| Some((it.address(), it.file_range()?.0)));
        Some(Extents::new(starts, |at| {
            let (section, offset) = unwind?;
            let entry = address(&table[8 * at + 4..]);
            let begin = address(&table[8 * at..]);
            self.end_of(begin, entry, offset.checked_add(entry.checked_sub(section)?)?)
        }))
    }

    /// The end of the function that begins at `start`, by its unwind information, which lies at
    /// `entry` and at this offset of the file: a length, a distance, where the function begins,
    /// relative to this field, and how long it is. If the field means another place, this is another
    /// encoding than the usual one.
    fn end_of(&self, start: u64, entry: u64, offset: u64) -> Option<u64> {
        const FIELD: u64 = 8;
        let bytes = self.bytes(offset.checked_add(FIELD)?, 8)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let begin = entry.wrapping_add(FIELD).wrapping_add_signed((word(0) as i32).into());
        let end = start.checked_add(word(4).into());
        end.filter(|_| begin == start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Of this program, the C library and another one: what the search table says is what reading
    /// all unwind information says.
    #[test]
    fn both_ways_to_the_extents_agree() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut files: Vec<&str> =
            maps.lines().filter_map(|map| map.split(' ').next_back()).collect();
        files.retain(|file| file.starts_with('/'));
        files.dedup();
        let mut followed = 0;
        for file in files {
            let elf = Elf::read(Path::new(file)).unwrap();
            let Some(table) = elf.by_unwind_table() else { continue };
            let mut all = elf.by_unwind_information().unwrap();
            all.sort_unstable_by_key(|it| it.start);
            all.dedup_by_key(|it| it.start);
            let starts: Vec<u64> = all.iter().map(|it| it.start).collect();
            let whole = Extents::new(starts, |at| Some(all[at].end));
            assert_eq!((table.starts, &table.followed), (whole.starts, &whole.followed), "{file}");
            followed += whole.followed.len();
        }
        assert!(followed > 0, "of each file, the last function has nothing behind it");
    }

    #[test]
    fn only_what_is_far_from_the_next_function_has_its_end() {
        let [near, far, long, last] = [0x1000, 0x1100, 0x1100 + FAR, 0x1100 + 3 * FAR];
        let ends = [near + 0x10, far + 0x10, last - PADDING, last + 0x20];
        let extents = Extents::new(vec![near, far, long, last], |at| Some(ends[at]));
        assert_eq!(extents.followed, [far..far + 0x10, last..last + 0x20]);
    }
}
