//! What the machine needs to know of an ELF file: segments, interpreter, build id, symbols.

use crate::{Error, Hidden, Result};
use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::fs::{self, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

mod atomics;
mod functions;

pub(crate) use functions::Extents;

/// A loadable segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) vaddr: u64,
    pub(crate) mem_size: u64,
    pub(crate) file_offset: u64,
    pub(crate) file_size: u64,
    /// PROT_* bits.
    pub(crate) prot: i32,
}

impl Segment {
    /// The virtual addresses whose bytes are in the file.
    fn in_file(&self) -> Range<u64> {
        self.vaddr..self.vaddr.saturating_add(self.file_size)
    }
}

/// Bytes of a file that are read at once where something of unknown length is looked for.
const BLOCK: u64 = 64 << 10;

/// Where a file's bytes are.
enum Data {
    Whole(Vec<u8>),
    /// Read as far as somebody asks for them.
    File(ReadCache<At>),
}

/// A file that is read without moving its offset, which belongs to the guest.
struct At {
    file: Hidden,
    position: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.file().read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for At {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let moved = |from: u64, by: i64| from.checked_add_signed(by);
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => moved(self.file.file().metadata()?.len(), by),
            SeekFrom::Current(by) => moved(self.position, by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

impl<'a> ReadRef<'a> for &'a Data {
    fn len(self) -> Result<u64, ()> {
        match self {
            Data::Whole(bytes) => Ok(bytes.len() as u64),
            Data::File(cache) => cache.len(),
        }
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        match self {
            Data::Whole(bytes) => bytes.as_slice().read_bytes_at(offset, size),
            Data::File(cache) => cache.read_bytes_at(offset, size),
        }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        match self {
            Data::Whole(bytes) => bytes.as_slice().read_bytes_at_until(range, delimiter),
            Data::File(cache) => {
                // Symbols have thousands of names, which lie close together.
                let block = range.start - range.start % BLOCK;
                let rest = cache.len()?.checked_sub(block).ok_or(())?;
                let bytes = cache.read_bytes_at(block, rest.min(BLOCK))?;
                let end = (range.end.saturating_sub(block)).min(bytes.len() as u64) as usize;
                let name = bytes.get((range.start - block) as usize..end).ok_or(())?;
                match name.iter().position(|&byte| byte == delimiter) {
                    Some(len) => Ok(&name[..len]),
                    None => cache.read_bytes_at_until(range, delimiter),
                }
            }
        }
    }
}

/// The code of a library, which is read without touching the pages that the guest has of it.
pub(crate) struct CodeFile {
    file: Hidden,
    segments: Vec<Segment>,
}

impl CodeFile {
    /// Reads code at a virtual address, and says how many bytes were read.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let within = |segment: &&Segment| segment.in_file().contains(&address);
        let Some(segment) = self.segments.iter().find(within) else { return 0 };
        let len = buffer.len().min((segment.in_file().end - address) as usize);
        let offset = segment.file_offset.saturating_add(address - segment.vaddr);
        self.file.file().read_at(&mut buffer[..len], offset).unwrap_or_default()
    }
}

/// An ELF program or library.
pub(crate) struct Elf {
    data: Data,
    pub(crate) position_independent: bool,
    pub(crate) entry: u64,
    /// Virtual address of the program header table and the number of its entries.
    pub(crate) program_headers: (u64, u64),
    /// The program asks for a stack that it may execute.
    pub(crate) executes_stack: bool,
    pub(crate) segments: Vec<Segment>,
    pub(crate) interpreter: Option<String>,
    pub(crate) build_id: Option<String>,
    /// Identifies the file with its present content. `None` if the file's path is not known.
    version: Option<String>,
    /// Whether it needs libraries. Such a file is a library, or a program with an interpreter.
    pub(crate) needs_libraries: bool,
    /// What is read-only once the dynamic linker is done: virtual addresses, end exclusive.
    relro: Option<(u64, u64)>,
}

impl Elf {
    /// Bytes of its code.
    pub(crate) fn code_len(&self) -> u64 {
        self.code().map(|segment| segment.mem_size).sum()
    }

    /// The segments that hold its code.
    fn code(&self) -> impl Iterator<Item = &Segment> + Clone {
        self.segments.iter().filter(|segment| segment.prot & libc::PROT_EXEC != 0)
    }

    /// Reads `path`. The error tells a user why the file is no program for this machine.
    pub(crate) fn read(path: &Path) -> Result<Elf> {
        let data = fs::read(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::NotFound(path.into()),
            _ => not_executable(path, &e.to_string()),
        })?;
        Elf::parse(data).map_err(|why| not_executable(path, &why))
    }

    /// The same, reading only those parts of the file that are asked for.
    pub(crate) fn read_lazily(path: &Path, file: Hidden) -> Result<Elf> {
        Elf::of_library(file).map_err(|why| not_executable(path, &why))
    }

    /// Parses an ELF image.
    pub(crate) fn parse(data: Vec<u8>) -> Result<Elf, String> {
        Elf::of(Data::Whole(data))
    }

    /// A library, of which only those parts are read that are asked for.
    pub(crate) fn of_library(file: Hidden) -> Result<Elf, String> {
        let version = file.file().metadata().ok().map(|it| version(&it));
        let elf = Elf::of(Data::File(ReadCache::new(At { file, position: 0 })))?;
        Ok(Elf { version, ..elf })
    }

    /// Its code, to be read from the file.
    pub(crate) fn into_code(self) -> Option<CodeFile> {
        let segments = self.code().cloned().collect();
        match self.data {
            Data::File(cache) => Some(CodeFile { file: cache.into_inner().file, segments }),
            Data::Whole(_) => None,
        }
    }

    fn of(owned: Data) -> Result<Elf, String> {
        let data = &owned;
        let begin = data.len().unwrap_or(0).min(64);
        check_identity(data.read_bytes_at(0, begin).unwrap_or_default())?;
        let header = elf::FileHeader64::<Endianness>::parse(data).map_err(|e| e.to_string())?;
        let endian = header.endian().map_err(|e| e.to_string())?;
        let raw = header
            .program_headers(endian, data)
            .map_err(|e| format!("damaged program headers: {e}"))?;
        let segments: Vec<Segment> = raw
            .iter()
            .filter(|p| p.p_type(endian) == elf::PT_LOAD)
            .map(|p| Segment {
                vaddr: p.p_vaddr(endian),
                mem_size: p.p_memsz(endian),
                file_offset: p.p_offset(endian),
                file_size: p.p_filesz(endian),
                prot: protection(p.p_flags(endian)),
            })
            .collect();
        let interpreter = raw
            .iter()
            .find_map(|p| p.interpreter(endian, data).ok().flatten())
            .map(|name| String::from_utf8_lossy(name).into_owned());
        let relro = raw.iter().find(|p| p.p_type(endian) == elf::PT_GNU_RELRO).map(|p| {
            let start = p.p_vaddr(endian);
            (start, start.saturating_add(p.p_memsz(endian)))
        });
        let executes_stack = raw.iter().any(|p| {
            p.p_type(endian) == elf::PT_GNU_STACK
                && protection(p.p_flags(endian)) & libc::PROT_EXEC != 0
        });
        let needs_libraries = raw.iter().any(|p| {
            let entries = p.dynamic(endian, data).ok().flatten().unwrap_or_default();
            entries.iter().any(|entry| entry.d_tag(endian) == elf::DT_NEEDED)
        });
        let phoff = header.e_phoff(endian);
        let table = raw
            .iter()
            .find(|p| p.p_type(endian) == elf::PT_PHDR)
            .map(|p| p.p_vaddr(endian))
            .or_else(|| {
                segments
                    .iter()
                    .find(|s| (s.file_offset..s.file_offset + s.file_size).contains(&phoff))
                    .map(|s| s.vaddr + phoff - s.file_offset)
            })
            .unwrap_or(0);
        let program_headers = (table, raw.len() as u64);
        let entry = header.e_entry(endian);
        let position_independent = header.e_type(endian) == elf::ET_DYN;
        let file = ElfFile64::<Endianness, _>::parse(data).map_err(|e| e.to_string())?;
        let build_id = file
            .build_id()
            .ok()
            .flatten()
            .map(|id| id.iter().map(|b| format!("{b:02x}")).collect());
        Ok(Elf {
            position_independent,
            entry,
            program_headers,
            executes_stack,
            segments,
            interpreter,
            build_id,
            version: None,
            needs_libraries,
            relro,
            data: owned,
        })
    }

    /// What files with the same code have in common: the build id or, where the linker gave them
    /// none, that they are one file, unchanged.
    pub(crate) fn build(&self) -> Option<&str> {
        self.build_id.as_deref().or(self.version.as_deref())
    }

    /// How many bytes the file has.
    pub(crate) fn len(&self) -> u64 {
        (&self.data).len().unwrap_or(0)
    }

    /// Bytes of the file, if it has as many there.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Option<&[u8]> {
        (&self.data).read_bytes_at(offset, len).ok()
    }

    /// Where its code lies: first and last (exclusive) virtual address.
    pub(crate) fn code_span(&self) -> (u64, u64) {
        span(self.code())
    }

    /// Where the whole lies: first and last (exclusive) virtual address, page-aligned.
    pub(crate) fn span(&self) -> (u64, u64) {
        let (start, end) = span(self.segments.iter());
        (crate::memory::page_down(start), crate::memory::page_up(end))
    }

    /// Virtual address ranges that hold no data of the program's: see
    /// [`refrain_trace::Module::constant`].
    pub(crate) fn constant(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = self
            .segments
            .iter()
            .filter(|s| s.prot & libc::PROT_WRITE == 0)
            .map(|s| (s.vaddr, s.vaddr.saturating_add(s.mem_size)))
            .chain(self.relro)
            .collect();
        if let Ok(file) = ElfFile64::<Endianness, _>::parse(&self.data) {
            let tables = [".got", ".got.plt"];
            ranges.extend(tables.iter().filter_map(|name| {
                let section = file.section_by_name(name)?;
                Some((section.address(), section.address().saturating_add(section.size())))
            }));
        }
        ranges.sort_unstable();
        ranges
    }

    /// The 32-bit words that a symbol of the dynamic symbol table stands for.
    pub(crate) fn words_of<const N: usize>(&self, name: &str) -> Option<[u32; N]> {
        let file = ElfFile64::<Endianness, _>::parse(&self.data).ok()?;
        let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name))?;
        let address = symbol.address();
        let segment = self.segments.iter().find(|segment| {
            (segment.vaddr..segment.vaddr + segment.file_size).contains(&address)
        })?;
        let offset = segment.file_offset + (address - segment.vaddr);
        let bytes = self.bytes(offset, 4 * N as u64)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[4 * at + i]));
        Some(std::array::from_fn(word))
    }

    /// Searches the segments with this protection for `wanted`, and returns the first place: its offset
    /// in the file and its virtual address. Reads no further than that place.
    pub(crate) fn find(&self, protection: i32, wanted: &[u8]) -> Option<(u64, u64)> {
        const PIECE: u64 = 64 << 10;
        let more = wanted.len() as u64 - 1;
        self.segments.iter().filter(|segment| segment.prot == protection).find_map(|segment| {
            (0..segment.file_size).step_by(PIECE as usize).find_map(|start| {
                let len = (PIECE + more).min(segment.file_size - start);
                let bytes = self.bytes(segment.file_offset + start, len)?;
                let mut windows = bytes.windows(wanted.len());
                let at = windows.position(|it| it[0] == wanted[0] && it == wanted)? as u64;
                Some((segment.file_offset + start + at, segment.vaddr + start + at))
            })
        })
    }

    /// The name of the function that a virtual address is in.
    pub(crate) fn function_at(&self, address: u64) -> Option<String> {
        let file = ElfFile64::<Endianness, _>::parse(&self.data).ok()?;
        let symbols = file.dynamic_symbols().chain(file.symbols());
        let holding = symbols.filter(|symbol| {
            let (start, size) = (symbol.address(), symbol.size());
            symbol.kind() == SymbolKind::Text
                && (start..start.saturating_add(size)).contains(&address)
        });
        let function = holding.max_by_key(|symbol| symbol.address())?;
        function.name().ok().map(str::to_owned)
    }

    /// Whether it calls a function of this name: another module's, or, without other modules, its own.
    pub(crate) fn calls(&self, name: &str) -> bool {
        let Ok(file) = ElfFile64::<Endianness, _>::parse(&self.data) else {
            return false;
        };
        match self.needs_libraries {
            true => file
                .dynamic_symbols()
                .any(|symbol| symbol.is_undefined() && symbol.name() == Ok(name)),
            false => file.symbols().any(|symbol| symbol.name() == Ok(name)),
        }
    }

    /// Defined functions (name, virtual address) of the dynamic symbol table, and of the static
    /// one where there is one.
    pub(crate) fn functions(&self, mut visit: impl FnMut(&str, u64)) {
        let Ok(file) = ElfFile64::<Endianness, _>::parse(&self.data) else {
            return;
        };
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            if symbol.kind() == SymbolKind::Text
                && symbol.is_definition()
                && let Ok(name) = symbol.name()
            {
                visit(name, symbol.address());
            }
        }
    }
}

/// First and last (exclusive) virtual address of segments.
fn span<'a>(segments: impl Iterator<Item = &'a Segment> + Clone) -> (u64, u64) {
    let start = segments.clone().map(|segment| segment.vaddr).min();
    let end = segments.map(|segment| segment.vaddr.saturating_add(segment.mem_size)).max();
    (start.unwrap_or(0), end.unwrap_or(0))
}

fn not_executable(path: &Path, why: &str) -> Error {
    Error::NotExecutable { path: path.into(), why: why.into() }
}

fn protection(flags: elf::ProgramFlags) -> i32 {
    let mut prot = libc::PROT_NONE;
    for (flag, bit) in
        [(elf::PF_R, libc::PROT_READ), (elf::PF_W, libc::PROT_WRITE), (elf::PF_X, libc::PROT_EXEC)]
    {
        if flags.0 & flag.0 != 0 {
            prot |= bit;
        }
    }
    prot
}

/// What tells a file from all others, and from itself before it was changed.
fn version(file: &Metadata) -> String {
    let (modified, changed) = (file.mtime(), file.ctime());
    let (modified_ns, changed_ns) = (file.mtime_nsec(), file.ctime_nsec());
    let (device, inode, len) = (file.dev(), file.ino(), file.size());
    format!("file-{device}-{inode}-{len}-{modified}.{modified_ns}-{changed}.{changed_ns}")
}

/// Tells a wrong kind of file from a damaged one before a parser talks about offsets.
fn check_identity(data: &[u8]) -> Result<(), String> {
    if data.starts_with(b"#!") {
        return Err("a script, not an ELF program; name its interpreter as the program".into());
    }
    if !data.starts_with(b"\x7fELF") {
        return Err("not an ELF program".into());
    }
    if data.len() < 64 {
        return Err("a truncated ELF file".into());
    }
    let machine = elf::Machine(u16::from_le_bytes([data[18], data[19]]));
    match (data[4], machine) {
        (2, elf::EM_X86_64) => {}
        (1, _) => return Err("a 32-bit program; only x86-64 programs can be recorded".into()),
        (_, elf::EM_AARCH64) => {
            return Err("an AArch64 program; only x86-64 programs can be recorded".into());
        }
        (_, other) => {
            return Err(format!(
                "a program for machine {}; only x86-64 programs can be recorded",
                other.0
            ));
        }
    }
    match elf::FileType(u16::from_le_bytes([data[16], data[17]])) {
        elf::ET_EXEC | elf::ET_DYN => Ok(()),
        _ => Err("an ELF file, but not a program".into()),
    }
}
