//! Where functions lie, as the unwind information has it, which stripped files have too. What is
//! compiled without it may have symbols. Where there are none either (Free Pascal's programs), functions
//! begin where calls lead.

use super::Elf;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::cmp::Reverse;
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
/// A module has unwind information for all of its code if it has that of more functions than start-up
/// code has, and not many more bytes of code for each.
const START_UP: usize = 8;
const LONG: u64 = 1 << 10;
/// Where compilers let functions begin.
const ALIGNMENT: u64 = 16;

impl Extents {
    /// The same with functions of which symbols tell.
    fn with(mut self, mut symbols: Vec<Range<u64>>) -> Extents {
        symbols.sort_unstable_by_key(|symbol| (symbol.start, Reverse(symbol.end)));
        symbols.dedup_by_key(|symbol| symbol.start);
        symbols.retain(|symbol| self.starts.binary_search(&symbol.start).is_err());
        self.starts.extend(symbols.iter().map(|symbol| symbol.start));
        self.starts.sort_unstable();
        let Extents { starts, mut followed } = self;
        let by_symbol = Extents::new(starts, |start| {
            let at = symbols.binary_search_by_key(&start, |symbol| symbol.start).ok()?;
            Some(symbols[at].end)
        });
        followed.extend(by_symbol.followed);
        followed.sort_unstable_by_key(|function| function.start);
        Extents { followed, ..by_symbol }
    }

    /// `end` says where the function ends that begins there, if it knows that.
    fn new(starts: Vec<u64>, end: impl Fn(u64) -> Option<u64>) -> Extents {
        let nexts = starts.iter().copied().skip(1).chain([u64::MAX]);
        let far = starts.iter().copied().zip(nexts);
        let far = far.filter(|(start, next)| next.saturating_sub(*start) >= FAR);
        let followed = far.filter_map(|(start, next)| {
            let end =
                end(start).filter(|end| start < *end && *end < next.saturating_sub(PADDING))?;
            Some(start..end)
        });
        Extents { followed: followed.collect(), starts }
    }
}

impl Elf {
    /// Where functions lie, by the search table of the unwind information (`.eh_frame_hdr`), and by the
    /// symbols, if there is code that has none. Static programs have no such table: of them, the unwind
    /// information itself and the symbols are read. Where neither tells of more than start-up code, functions
    /// begin where calls lead.
    pub(crate) fn extents(&self) -> Extents {
        let extents = match self.by_unwind_table() {
            Some(extents) if self.is_covered_by(extents.starts.len()) => return extents,
            Some(extents) => extents.with(self.symbols()),
            None => self.by_unwind_information().unwrap_or_default().with(self.symbols()),
        };
        // All of the code is read for that, which of large libraries takes longer than all else at a start.
        match extents.starts.len() > START_UP {
            true => extents,
            false => extents.with(self.called()),
        }
    }

    /// Where direct calls lead. Bytes that look like a call may be part of something else; but hardly any
    /// of those lead to code, and to a place where a function may begin.
    fn called(&self) -> Vec<Range<u64>> {
        let calls = self.code().flat_map(|segment| {
            let bytes = self.bytes(segment.file_offset, segment.file_size).unwrap_or_default();
            called(bytes, segment.vaddr)
        });
        calls.map(|start| start..start).collect()
    }

    /// Whether so many functions may be all that there are.
    fn is_covered_by(&self, functions: usize) -> bool {
        let bytes: u64 = self.code().map(|segment| segment.file_size).sum();
        functions > START_UP && bytes / functions as u64 <= LONG
    }

    /// The functions of the dynamic symbol table, and of the static one where there is one.
    fn symbols(&self) -> Vec<Range<u64>> {
        let Ok(file) = ElfFile64::<Endianness, _>::parse(&self.data) else { return Vec::new() };
        let symbols = file.dynamic_symbols().chain(file.symbols());
        let functions = symbols.filter(|it| it.kind() == SymbolKind::Text && it.is_definition());
        functions.map(|it| it.address()..it.address().saturating_add(it.size())).collect()
    }

    /// What `.eh_frame` says.
    fn by_unwind_information(&self) -> Option<Extents> {
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
        // Of what begins at one place, the longest one comes first.
        ranges.sort_unstable_by_key(|range: &Range<u64>| (range.start, Reverse(range.end)));
        ranges.dedup_by_key(|range| range.start);
        let starts: Vec<u64> = ranges.iter().map(|range| range.start).collect();
        Some(Extents::new(starts, |start| {
            let at = ranges.binary_search_by_key(&start, |range| range.start).ok()?;
            Some(ranges[at].end)
        }))
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
        let entries = table.as_chunks::<8>().0;
        Some(Extents::new(starts, |start| {
            let (section, offset) = unwind?;
            let at = entries.binary_search_by_key(&start, |entry| address(entry)).ok()?;
            let entry = address(&entries[at][4..]);
            self.end_of(start, entry, offset.checked_add(entry.checked_sub(section)?)?)
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

/// Where direct calls in `code`, which lies at this address, lead to in it.
fn called(code: &[u8], address: u64) -> Vec<u64> {
    const CALL: u8 = 0xe8;
    /// What stands before a function that is not aligned: the return of another one, or filling.
    const ENDS: [u8; 3] = [0xc3, 0x90, 0xcc];
    let all = address..address.saturating_add(code.len() as u64);
    let targets = code.windows(5).zip(address..).filter(|(bytes, _)| bytes[0] == CALL);
    let targets = targets.map(|(bytes, at)| {
        let distance = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        at.wrapping_add(5).wrapping_add_signed(distance.into())
    });
    let is_start = |at: u64| {
        let before = at.checked_sub(address + 1).map(|before| code[before as usize]);
        at.is_multiple_of(ALIGNMENT) || before.is_some_and(|byte| ENDS.contains(&byte))
    };
    targets.filter(|&at| all.contains(&at) && is_start(at)).collect()
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
            let whole = elf.by_unwind_information().unwrap();
            assert_eq!((table.starts, &table.followed), (whole.starts, &whole.followed), "{file}");
            followed += whole.followed.len();
        }
        assert!(followed > 0, "of each file, the last function has nothing behind it");
    }

    #[test]
    fn only_what_is_far_from_the_next_function_has_its_end() {
        let [near, far, long, last] = [0x1000, 0x1100, 0x1100 + FAR, 0x1100 + 3 * FAR];
        let ends = [near + 0x10, far + 0x10, last - PADDING, last + 0x20];
        let starts = [near, far, long, last];
        let end = |start| Some(ends[starts.iter().position(|it| *it == start)?]);
        let extents = Extents::new(starts.to_vec(), end);
        assert_eq!(extents.followed, [far..far + 0x10, last..last + 0x20]);
    }

    #[test]
    fn calls_lead_to_functions() {
        let mut code = vec![0; 0x60];
        code[0x54] = 0xc3;
        // To a function before; to one behind; into another one; out of the code.
        for (at, to) in [(0x31, 0x10_i32), (0x36, 0x55), (0x3b, 0x4c), (0x42, 0x100)] {
            code[at] = 0xe8;
            code[at + 1..at + 5].copy_from_slice(&(to - (at as i32 + 5)).to_le_bytes());
        }
        assert_eq!(called(&code, 0x1000), [0x1010, 0x1055]);
    }

    #[test]
    fn symbols_tell_of_what_has_no_unwind_information() {
        let known = Extents::new(vec![0x1000, 0x9000], |start| Some(start + 0x20));
        let symbols = vec![0x5000..0x5010, 0x1000..0x1000, 0x2000..0x2040, 0x2000..0x2000];
        let extents = known.with(symbols);
        assert_eq!(extents.starts, [0x1000, 0x2000, 0x5000, 0x9000]);
        let followed = [0x1000..0x1020, 0x2000..0x2040, 0x5000..0x5010, 0x9000..0x9020];
        assert_eq!(extents.followed, followed);
    }
}
