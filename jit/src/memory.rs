//! Memory at chosen low addresses, and reading guest memory that may not be there.
//!
//! Translated code is mapped twice: executable and read-only at its place in the code cache, and
//! writable somewhere else. Code can then be patched while other threads execute it, and no page
//! is ever writable and executable at once. So are tables that translated code reads: at the place
//! that it knows, where stores of the guest could find them, they are read-only. Both mappings share
//! memory, and so would a `fork`ed child with its parent: it takes new memory first
//! ([`CodeMemory::renew`]).

use crate::common::LONGEST_INSTRUCTION;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use refrain_vm::EngineError;
use refrain_vm::layout::CODE_CACHE;
use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Reserves `len` bytes of the code cache's address range, private and zeroed, writable.
///
/// Tries one place after another, since several engines may live in one process.
pub(crate) fn reserve_low(len: u64) -> Result<LowMemory, EngineError> {
    let len = len.next_multiple_of(1 << 21);
    let mut start = CODE_CACHE.start;
    let mut last = Error::from_raw_os_error(libc::ENOMEM);
    while start + len <= CODE_CACHE.end {
        match reserve(start..start + len) {
            Ok(memory) => return Ok(memory),
            Err(error) => last = error,
        }
        start += 1 << 21;
    }
    Err(EngineError::CodeMemory(len, CODE_CACHE.start, last))
}

/// A private range at a low address, given back when dropped.
pub(crate) struct LowMemory {
    start: u64,
    len: u64,
}

impl LowMemory {
    /// Its addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.len
    }

    /// Makes `range` of it executable code memory instead.
    pub(crate) fn code(&self, range: Range<u64>) -> Result<CodeMemory, EngineError> {
        self.twice(range, libc::PROT_READ | libc::PROT_EXEC)
    }

    /// Makes `range` of it a table instead, zeroed.
    pub(crate) fn table(&self, range: Range<u64>) -> Result<TableMemory, EngineError> {
        self.twice(range, libc::PROT_READ).map(TableMemory)
    }

    fn twice(&self, range: Range<u64>, protection: i32) -> Result<CodeMemory, EngineError> {
        assert!(
            self.start <= range.start && range.end <= self.start + self.len,
            "code and tables lie in the range that was reserved for them"
        );
        CodeMemory::map(range.clone(), protection)
            .map_err(|e| EngineError::CodeMemory(range.end - range.start, range.start, e))
    }
}

impl Drop for LowMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `reserve` for this value alone; the engine that
        // owns it has no thread left that could execute or read it.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len as usize) };
    }
}

/// Reserves zeroed pages at `range`, of which only those cost memory that are used; `None` if
/// something is there already or the system does not overcommit.
pub(crate) fn reserve_sparse(range: Range<u64>) -> Option<LowMemory> {
    let memory = reserve(range).ok()?;
    // SAFETY: the advice concerns the mapping that was just made.
    unsafe {
        let (at, len) = (memory.start as *mut libc::c_void, memory.len as usize);
        libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
        libc::madvise(at, len, libc::MADV_DONTDUMP);
    }
    Some(memory)
}

/// Maps zeroed pages at `range`, if nothing is there yet.
fn reserve(range: Range<u64>) -> std::io::Result<LowMemory> {
    let len = range.end - range.start;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let start = range.start as *mut libc::c_void;
    // SAFETY: MAP_FIXED_NOREPLACE never touches an existing mapping.
    let at = unsafe { libc::mmap(start, len as usize, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // An old kernel takes the address for a hint; then the wrong pages are given back.
    let memory = LowMemory { start: at as u64, len };
    if at == start { Ok(memory) } else { Err(Error::from_raw_os_error(libc::EEXIST)) }
}

/// Has the system give the memory of `range`, whole pages, in one go, if it is mapped and may be written.
pub(crate) fn populate(range: Range<u64>) {
    // `MADV_POPULATE_WRITE`, Linux 5.14; older ones give it when it is written.
    const POPULATE: i32 = 23;
    let (start, len) = (range.start as *mut libc::c_void, (range.end - range.start) as usize);
    // SAFETY: the contents of memory stay what they are, wherever that is.
    unsafe { libc::madvise(start, len, POPULATE) };
}

/// Code memory: executable at `range`, written through an alias.
pub(crate) struct CodeMemory {
    range: Range<u64>,
    alias: u64,
    /// What may be done at `range`.
    protection: i32,
}

/// A file, mapped to be read. It must not become shorter meanwhile: who replaces such files renames.
pub(crate) struct MappedFile {
    start: *const u8,
    len: usize,
}

// SAFETY: the memory is only read.
unsafe impl Send for MappedFile {}
// SAFETY: likewise.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    pub(crate) fn new(file: &File) -> Result<MappedFile, Error> {
        let len = file.metadata()?.len() as usize;
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, read, private, file.as_raw_fd(), 0) };
        match start {
            libc::MAP_FAILED => Err(Error::last_os_error()),
            start => Ok(MappedFile { start: start.cast(), len }),
        }
    }

    /// What it holds.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped there until `self` is dropped, and nobody writes them: the
        // mapping is private, and who replaces the file makes another one (the type's documentation).
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.len) };
    }
}

/// A part of a file.
pub(crate) struct FilePart {
    pub(crate) file: Arc<MappedFile>,
    pub(crate) range: Range<usize>,
}

impl FilePart {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }
}

/// Memory of a table: read-only at its place, written through an alias.
pub(crate) struct TableMemory(CodeMemory);

impl TableMemory {
    /// The word at `address`, which translated code reads and other threads write.
    pub(crate) fn word(&self, address: u64) -> &AtomicU64 {
        assert!(address.is_multiple_of(8), "table words are aligned");
        let offset = self.0.offset(address, 8);
        // SAFETY: the alias maps the whole range writable until `self` is dropped, the address was
        // checked to lie in it and to be aligned, and only atomics are used on it.
        unsafe { &*((self.0.alias + offset) as *const AtomicU64) }
    }

    /// The half of a word at `address`, likewise.
    pub(crate) fn half(&self, address: u64) -> &AtomicU32 {
        assert!(address.is_multiple_of(4), "halves of table words are aligned");
        let offset = self.0.offset(address, 4);
        // SAFETY: as in `word`; a table is used by words or by halves.
        unsafe { &*((self.0.alias + offset) as *const AtomicU32) }
    }

    /// As [`CodeMemory::prepare`].
    pub(crate) fn prepare(&self, range: Range<u64>) {
        self.0.prepare(range);
    }

    /// As [`CodeMemory::renew`].
    pub(crate) fn renew(&mut self) -> Result<(), Error> {
        self.0.renew()
    }
}

impl CodeMemory {
    /// Replaces the reservation at `range`.
    fn map(range: Range<u64>, protection: i32) -> Result<CodeMemory, Error> {
        let len = (range.end - range.start) as usize;
        // SAFETY: the alias-to-be is a fresh reservation, and the fixed mapping replaces a part
        // of the caller's own.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let alias = libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0);
            if alias == libc::MAP_FAILED {
                return Err(Error::last_os_error());
            }
            let memory = CodeMemory { range, alias: alias as u64, protection };
            memory.map_twice()?;
            Ok(memory)
        }
    }

    /// In a child process: empty memory of its own takes the place of its parent's. No other
    /// thread may be executing code there, and nobody goes on with what was there.
    pub(crate) fn renew(&mut self) -> Result<(), Error> {
        // SAFETY: both ranges are this value's.
        unsafe { self.map_twice() }
    }

    /// Maps new shared memory at both places. It is no file: a limit on the size of files, which
    /// is the guest's affair, says nothing about it.
    ///
    /// # Safety
    /// Both ranges belong to the caller, and nobody uses what is mapped there.
    unsafe fn map_twice(&self) -> Result<(), Error> {
        let len = (self.range.end - self.range.start) as usize;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let [alias, code] = [self.alias, self.range.start].map(|at| at as *mut libc::c_void);
        // SAFETY: plain system calls; for the two ranges, the caller's. Moving none of a shared
        // mapping makes a second one of the same memory.
        let done = unsafe {
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mmap(alias, len, writable, flags, -1, 0) == alias
                && libc::mremap(alias, 0, len, how, code) == code
                && libc::mprotect(code, len, self.protection) == 0
        };
        if done { Ok(()) } else { Err(Error::last_os_error()) }
    }

    /// Where the code is executed.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Where code for the addresses of `range` is written.
    pub(crate) fn writable(&self, range: Range<u64>) -> *mut u8 {
        (self.alias + self.offset(range.start, range.end - range.start)) as *mut u8
    }

    /// Has the system give all memory of `range`, whole pages, in one go: page by page, when it is
    /// written and once more when it is executed, takes several times as long.
    pub(crate) fn prepare(&self, range: Range<u64>) {
        let start = self.writable(range.clone()) as u64;
        populate(start..start + (range.end - range.start));
    }

    /// Copies finished code to `address`.
    ///
    /// # Safety
    /// Nobody executes what is there so far, and the bytes are code that may be executed there.
    pub(crate) unsafe fn write(&self, address: u64, bytes: &[u8]) {
        let offset = self.offset(address, bytes.len() as u64);
        // SAFETY: the alias maps the whole range writable and the target was checked to lie in
        // it; no Rust reference to it exists, and for the rest, the caller.
        unsafe {
            let to = (self.alias + offset) as *mut u8;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// What is at these addresses.
    pub(crate) fn read(&self, range: Range<u64>) -> Vec<u8> {
        let len = range.end - range.start;
        let mut bytes = vec![0; len as usize];
        let from = self.alias + self.offset(range.start, len);
        // SAFETY: the alias maps the whole range, which was checked; who patches code has exclusive access
        // to this value's owner, or is the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len())
        };
        bytes
    }

    /// Replaces the 32-bit field at `address`, which lies within eight aligned bytes, while other
    /// threads may be executing the instruction that holds it.
    ///
    /// # Safety
    /// The instruction may be executed with the old value and with the new one.
    pub(crate) unsafe fn patch(&self, address: u64, value: u32) {
        let offset = self.offset(address, 4);
        assert!(address & 7 <= 4, "patched fields never cross eight aligned bytes");
        let word = self.alias + (offset & !7);
        let shift = (offset & 7) * 8;
        // SAFETY: aligned, inside the writable alias, and accessed only by atomics once the code
        // is published.
        let word = unsafe { &*(word as *const AtomicU64) };
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| {
            Some(old & !(0xffff_ffff << shift) | u64::from(value) << shift)
        });
    }

    fn offset(&self, address: u64, len: u64) -> u64 {
        assert!(
            self.range.start <= address && address + len <= self.range.end,
            "code is written inside the code memory"
        );
        address - self.range.start
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        let len = (self.range.end - self.range.start) as usize;
        // SAFETY: the alias belongs to this value alone; the executable mapping is part of the
        // reservation, which its owner unmaps.
        unsafe { libc::munmap(self.alias as *mut libc::c_void, len) };
    }
}

/// Reads guest memory at `address` into `buffer` and returns how many bytes could be read.
/// Needs the fault handler ([`crate::fault::install`]).
pub(crate) fn read_guest(address: u64, buffer: &mut [u8]) -> usize {
    let len = buffer.len().min((u64::MAX - address) as usize);
    // SAFETY: writes at most `len` bytes into `buffer`; a fault while reading is caught by the
    // handler, which makes `copy_bytes` return early.
    let left = unsafe { copy_bytes(buffer.as_mut_ptr(), address as *const u8, len) };
    len - left
}

/// The word of guest memory at an address; how many of its bytes could be read if not all.
pub(crate) fn read_word(address: u64) -> Result<u64, usize> {
    let mut bytes = [0; 8];
    match read_guest(address, &mut bytes) {
        8 => Ok(u64::from_le_bytes(bytes)),
        readable => Err(readable),
    }
}

/// Writes guest memory at `address` and returns how many bytes could be written.
/// Needs the fault handler ([`crate::fault::install`]).
pub(crate) fn write_guest(address: u64, bytes: &[u8]) -> usize {
    if !refrain_vm::layout::guest_may_map(&(address..address.saturating_add(bytes.len() as u64))) {
        return 0;
    }
    // SAFETY: the address is the guest's; a fault while writing is caught by the handler, which makes
    // `copy_bytes` return early.
    let left = unsafe { copy_bytes(address as *mut u8, bytes.as_ptr(), bytes.len()) };
    bytes.len() - left
}

/// The guest's instruction at `address`, if there is one.
pub(crate) fn read_instruction(address: u64) -> Option<Instruction> {
    let mut bytes = [0; LONGEST_INSTRUCTION];
    let readable = read_guest(address, &mut bytes);
    let mut decoder = Decoder::with_ip(64, &bytes[..readable], address, DecoderOptions::NONE);
    Some(decoder.decode()).filter(|instruction| !instruction.is_invalid())
}

/// Copies like `memcpy`, but returns the number of bytes not copied because of a fault.
///
/// # Safety
/// `to` can be written for `len` bytes, and nobody else uses them. The fault handler is installed.
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_bytes(to: *mut u8, from: *const u8, len: usize) -> usize {
    core::arch::naked_asm!(
        "mov rcx, rdx",
        "3:",
        "rep movsb",
        "2:",
        refrain_vm::recovers!("3b", "2b"),
        "mov rax, rcx",
        "ret",
    )
}
