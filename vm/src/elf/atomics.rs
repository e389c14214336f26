//! Where code was compiled from a library's atomic operations, as the line tables have it, or symbols.
//!
//! An atomic load or store is a plain `mov` in most orders, like any other. But in C++, Rust and D it is
//! an inlined function of the standard library, and a line table, which a program has that is built
//! for finding source lines, names the file of each instruction.
//!
//! GNU's compiler for D does not inline these functions of a library as it is distributed. They do nothing
//! but load or store what their argument points to, as many others do, but their symbols name them.

use super::Elf;
use gimli::{
    AttributeValue, DebugLine, DebugLineOffset, DebugLineStr, DebugStr, EndianSlice,
    LineProgramHeader, LittleEndian,
};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadRef, SymbolKind};
use std::borrow::Cow;
use std::ops::Range;

/// The ends of the names of files that define atomic operations, and nearly nothing else.
const SOURCES: [&str; 15] = [
    // Rust
    "/core/src/sync/atomic.rs",
    // GNU's C++ library
    "/bits/atomic_base.h",
    "/bits/atomic_wait.h",
    "/ext/atomicity.h",
    // Its header, and LLVM's
    "/atomic",
    // LLVM's C++ library
    "/__atomic/atomic.h",
    "/__atomic/atomic_base.h",
    "/__atomic/cxx_atomic_impl.h",
    "/__atomic/support/c11.h",
    "/__atomic/support/gcc.h",
    // Concurrency Kit
    "/ck_pr.h",
    // D
    "/core/atomic.d",
    "/core/internal/atomic.d",
    // Zig and Crystal
    "/std/atomic.zig",
    "/src/atomic.cr",
];
/// A folder of such files.
const BOOST: &[u8] = b"/boost/atomic/";

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// How the names of the symbols of D's atomic operations begin: those of `core.atomic` and
/// `core.internal.atomic`.
const OF_D: [&[u8]; 2] = [b"_D4core6atomic", b"_D4core8internal6atomic"];
/// Where D's compilers, GNU's and LLVM's, list the modules of a program: no other language has them.
const MODULES_OF_D: [&str; 2] = ["minfo", "__minfo"];

/// The sections that line tables are in.
struct Sections<'a> {
    lines: DebugLine<Slice<'a>>,
    line_names: DebugLineStr<Slice<'a>>,
    names: DebugStr<Slice<'a>>,
}

impl Elf {
    /// How many bytes there are of what may name atomic operations: of line tables, and, of code in D, of
    /// symbols.
    pub(crate) fn names_of_atomics(&self) -> u64 {
        let Ok(file) = ElfFile64::<Endianness, _>::parse(&self.data) else { return 0 };
        let size = |name| file.section_by_name(name).map_or(0, |section| section.size());
        let symbols = if is_in_d(&file) { size(".dynsym") + size(".symtab") } else { 0 };
        size(".debug_line") + symbols
    }

    /// Virtual addresses of code that comes from the definitions of atomic operations, in ascending
    /// order.
    pub(crate) fn atomics(&self) -> Vec<Range<u64>> {
        let Ok(file) = ElfFile64::<Endianness, _>::parse(&self.data) else { return Vec::new() };
        // What is compressed is not read.
        let section = |name| {
            let data = file.section_by_name(name).and_then(|it| it.uncompressed_data().ok());
            data.unwrap_or_default()
        };
        let [lines, line_names, names]: [Cow<'_, [u8]>; 3] =
            [".debug_line", ".debug_line_str", ".debug_str"].map(section);
        let sections = Sections {
            lines: DebugLine::new(&lines, LittleEndian),
            line_names: DebugLineStr::new(&line_names, LittleEndian),
            names: DebugStr::new(&names, LittleEndian),
        };
        let mut found = if is_in_d(&file) { functions_of_d(&file) } else { Vec::new() };
        let mut at = 0;
        // What cannot be read ends the search; what was found before is true.
        while let Some(next) = sections.read(at, &mut found) {
            at = next;
        }
        found.sort_unstable_by_key(|range: &Range<u64>| (range.start, range.end));
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in found {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        joined
    }
}

fn is_in_d<'a, R: ReadRef<'a>>(file: &ElfFile64<'a, Endianness, R>) -> bool {
    MODULES_OF_D.iter().any(|name| file.section_by_name(name).is_some())
}

/// D's atomic operations that have symbols.
fn functions_of_d<'a, R: ReadRef<'a>>(file: &ElfFile64<'a, Endianness, R>) -> Vec<Range<u64>> {
    let symbols = file.dynamic_symbols().chain(file.symbols());
    let is_one = |name: &[u8]| OF_D.iter().any(|of_d| name.starts_with(of_d));
    let operations = symbols.filter(|it| {
        let is_function = it.kind() == SymbolKind::Text && it.is_definition();
        is_function && it.name_bytes().is_ok_and(is_one)
    });
    operations.map(|it| it.address()..it.address().saturating_add(it.size())).collect()
}

impl<'a> Sections<'a> {
    /// Adds the code of the line table at this offset, and says where the next one begins.
    fn read(&self, offset: usize, found: &mut Vec<Range<u64>>) -> Option<usize> {
        let table = self.lines.program(DebugLineOffset(offset), 8, None, None).ok()?;
        let header = table.header();
        let before_length = usize::from(header.format().initial_length_size());
        let next = offset.checked_add(before_length)?.checked_add(header.unit_length())?;
        let files = header.file_names().len() as u64;
        let mut path = Vec::new();
        let wanted: Vec<bool> =
            (0..=files).map(|file| self.is_of_atomics(header, file, &mut path)).collect();
        if !wanted.contains(&true) {
            return Some(next);
        }
        let mut rows = table.rows();
        let mut start = None;
        while let Ok(Some((_, row))) = rows.next_row() {
            let address = row.address();
            // Of several rows for one address, the last one holds.
            found.extend(start.take().filter(|&start| start < address).map(|start| start..address));
            let file = usize::try_from(row.file_index()).unwrap_or(usize::MAX);
            let is_wanted = !row.end_sequence() && wanted.get(file).is_some_and(|&wanted| wanted);
            start = is_wanted.then_some(address);
        }
        Some(next)
    }

    /// Whether the file with this number is one of [`SOURCES`]; its name is put together in `path`.
    fn is_of_atomics(
        &self,
        header: &LineProgramHeader<Slice<'a>>,
        file: u64,
        path: &mut Vec<u8>,
    ) -> bool {
        let Some(file) = header.file(file) else { return false };
        let folder = file.directory(header).map(|folder| self.text(folder)).unwrap_or_default();
        path.clear();
        for part in [b"/", folder, b"/", self.text(file.path_name())] {
            path.extend_from_slice(part);
        }
        SOURCES.iter().any(|source| path.ends_with(source.as_bytes()))
            || path.windows(BOOST.len()).any(|part| part == BOOST)
    }

    fn text(&self, value: AttributeValue<Slice<'a>>) -> &'a [u8] {
        let text = match value {
            AttributeValue::String(text) => Some(text),
            AttributeValue::DebugLineStrRef(offset) => self.line_names.get_str(offset).ok(),
            AttributeValue::DebugStrRef(offset) => self.names.get_str(offset).ok(),
            _ => None,
        };
        text.map(|text| text.slice()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[inline(never)]
    fn loads_atomically(word: &AtomicU64) -> u64 {
        word.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn loads_plainly(word: &u64) -> u64 {
        // Functions that do the same become one.
        *word + 1
    }

    /// As a function of D's library, of which nothing but its symbol tells what it is.
    #[unsafe(export_name = "_D4core8internal6atomic__T10atomicLoadOfTests")]
    extern "C" fn loads_as_in_d(word: &u64) -> u64 {
        *word
    }

    /// Only the section that it is in counts.
    #[used]
    #[unsafe(link_section = "minfo")]
    static MODULES: u64 = 0;

    #[test]
    fn symbols_name_atomic_operations_of_d() {
        let load: extern "C" fn(&u64) -> u64 = std::hint::black_box(loads_as_in_d);
        assert_eq!(load(&7), 7);
        let elf = Elf::read(Path::new("/proc/self/exe")).unwrap();
        let file = ElfFile64::<Endianness, _>::parse(&elf.data).unwrap();
        assert!(is_in_d(&file));
        let is_it = |it: &_| ObjectSymbol::name_bytes(it).is_ok_and(|it| it.ends_with(b"OfTests"));
        let at = file.symbols().find(is_it).expect("the function has a symbol").address();
        let found = functions_of_d(&file);
        assert!(!found.is_empty() && found.iter().all(|it| it.start == at && !it.is_empty()));
    }

    /// Of this program, which has line tables, by its functions' addresses.
    #[test]
    fn atomic_operations_of_this_program() {
        use std::hint::black_box;
        let word = loads_atomically(black_box(&AtomicU64::new(7)));
        assert_eq!(loads_plainly(black_box(&word)), 8);
        let elf = Elf::read(Path::new("/proc/self/exe")).unwrap();
        assert!(elf.names_of_atomics() > 0);
        let found = elf.atomics();
        assert!(found.is_sorted_by_key(|range| range.start));
        let at = |name: &str| {
            let mut at = None;
            elf.functions(|function, address| {
                if function.contains(name) {
                    at = Some(address);
                }
            });
            at.expect("the function has a symbol")
        };
        let meets = |start: u64| found.iter().any(|it| it.start < start + 16 && start < it.end);
        // Without optimization the operation is a function of its own.
        assert!(meets(at("loads_atomically")) || cfg!(debug_assertions));
        assert!(!meets(at("loads_plainly")));
        assert!(!found.is_empty());
    }
}
