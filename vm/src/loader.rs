//! Loading a program: what `execve` does, in the guest's part of the address space.

use crate::elf::Elf;
use crate::host::Guest;
use crate::layout::{self, PAGE};
use crate::memory::{AddressSpace, MapRequest, guest_may_map, map_fixed, page_down, page_up};
use crate::{Error, Result, cpuid};
use refrain_trace::Entry;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A program and how it is started.
#[derive(Clone, Debug)]
pub struct Command {
    /// The executable.
    pub program: PathBuf,
    /// Arguments, `argv[0]` first.
    pub argv: Vec<OsString>,
    /// The environment.
    pub env: Vec<(OsString, OsString)>,
}

/// A loaded file.
pub(crate) struct Loaded {
    pub(crate) path: PathBuf,
    pub(crate) elf: Elf,
    pub(crate) bias: u64,
}

/// A program that is ready to run.
pub(crate) struct Image {
    /// The program first, then its interpreter, if it has one.
    pub(crate) files: Vec<Loaded>,
    pub(crate) entry: Entry,
    /// Everything that is mapped: range and protection. Beyond the bytes that the loader wrote,
    /// the content is zero.
    pub(crate) mappings: Vec<(Range<u64>, i32)>,
}

impl Image {
    /// Where the program's interpreter lies; empty if it has none.
    pub(crate) fn linker(&self) -> Range<u64> {
        self.files.get(1).map_or(0..0, |linker| {
            let (start, end) = linker.elf.span();
            linker.bias.wrapping_add(start)..linker.bias.wrapping_add(end)
        })
    }
}

/// Loads `command` into the guest's address space.
pub(crate) fn load(command: &Command, space: &mut AddressSpace) -> Result<Image> {
    let program = Elf::read(&command.program)?;
    let bias = if program.position_independent { layout::PROGRAM } else { 0 };
    let mut mappings = Vec::new();
    map_segments(&command.program, &program, bias, space, &mut mappings)?;
    let mut files = vec![Loaded { path: command.program.clone(), elf: program, bias }];
    if let Some(interpreter) = files[0].elf.interpreter.clone() {
        let path = PathBuf::from(interpreter);
        let elf = Elf::read(&path)?;
        let bias = layout::LIBRARIES.start;
        map_segments(&path, &elf, bias, space, &mut mappings)?;
        files.push(Loaded { path, elf, bias });
    }
    let first = files.last().expect("the program itself was pushed");
    let rip = first.bias + first.elf.entry;
    let rsp = build_stack(command, &files, space, &mut mappings)?;
    let entry = Entry { rip, rsp, brk: layout::HEAP.start };
    Ok(Image { files, entry, mappings })
}

/// Maps the segments of one file as private anonymous memory filled from it. (The file may
/// change while it runs; the recording must not.)
fn map_segments(
    path: &Path,
    elf: &Elf,
    bias: u64,
    space: &mut AddressSpace,
    mappings: &mut Vec<(Range<u64>, i32)>,
) -> Result<()> {
    let bad = |why: &str| Error::NotExecutable { path: path.into(), why: why.into() };
    for segment in &elf.segments {
        let start = bias.checked_add(segment.vaddr).ok_or(bad("damaged segment"))?;
        let end = start.checked_add(segment.mem_size).ok_or(bad("damaged segment"))?;
        let range = page_down(start)..page_up(end);
        if range.is_empty() {
            continue;
        }
        if !guest_may_map(&range) {
            return Err(bad(&format!(
                "linked to addresses {range:#x?}, which refrain keeps for itself; \
                 link it as a position-independent executable"
            )));
        }
        let content = elf
            .bytes(segment.file_offset, segment.file_size)
            .ok_or(bad("truncated: a segment lies beyond its end"))?;
        fill(&range, start, content, segment.prot)?;
        space.note(range.clone(), segment.prot);
        mappings.push((range, segment.prot));
    }
    Ok(())
}

/// Maps `range`, stores `content` at `start`, and gives it its protection.
fn fill(range: &Range<u64>, start: u64, content: &[u8], prot: i32) -> Result<()> {
    anonymous(range, libc::PROT_READ | libc::PROT_WRITE, 0)?;
    if !content.is_empty() && !Guest.write(start, content) {
        return Err(Error::host("filling a segment")(std::io::Error::other(
            "memory that was just mapped cannot be written",
        )));
    }
    let mut throwaway = AddressSpace::new();
    match throwaway.protect(range.start, range.end - range.start, prot) {
        0 => Ok(()),
        e => Err(Error::host("protecting a segment")(std::io::Error::from_raw_os_error(-e as i32))),
    }
}

/// Maps zeroed memory at a fixed place.
pub(crate) fn anonymous(range: &Range<u64>, prot: i32, flags: i32) -> Result<()> {
    map_fixed(MapRequest {
        address: range.start,
        len: range.end - range.start,
        prot,
        flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
        fd: -1,
        offset: 0,
    })
    .map_err(Error::host("mapping guest memory"))
}

/// Settings for the dynamic linker and glibc's allocator, which order their threads partly
/// through plain loads that a recording of synchronization does not see: symbols are bound before
/// the program starts, the allocator has no lock-free free lists, and its thresholds do not adapt
/// without a lock (they stand where they end up in programs that free large blocks).
/// Stacks of ended threads are kept: giving them back would depend on who has ended.
const SETTINGS: [&str; 2] = [
    "LD_BIND_NOW=1",
    "GLIBC_TUNABLES=glibc.malloc.mxfast=0:\
     glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=67108864:\
     glibc.pthread.stack_cache_size=4294967296",
];

/// Takes the settings out of the environment once the dynamic linker has read them: called when
/// a program comes to its entry point, `rsp` being its initial stack pointer. They were put last,
/// so what is left is the environment as the user set it.
pub(crate) fn hide_settings(rsp: u64) {
    let Some(argc) = Guest.word(rsp) else {
        return;
    };
    let mut slot = rsp.saturating_add(argc.saturating_add(2).saturating_mul(8));
    while let Some(string) = Guest.word(slot).filter(|&string| string != 0) {
        let entry = Guest.string(string).unwrap_or_default();
        if SETTINGS.iter().any(|setting| setting.as_bytes() == entry) {
            Guest.write(slot, &0u64.to_le_bytes());
        }
        slot = slot.saturating_add(8);
    }
}

/// Lays out argv, envp and the auxiliary vector as the ABI says; returns the stack pointer.
fn build_stack(
    command: &Command,
    files: &[Loaded],
    space: &mut AddressSpace,
    mappings: &mut Vec<(Range<u64>, i32)>,
) -> Result<u64> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    anonymous(&layout::STACK, prot, libc::MAP_NORESERVE)?;
    space.note(layout::STACK, prot);
    mappings.push((layout::STACK, prot));

    let mut strings = Strings::new(layout::STACK.end - PAGE);
    let exec_name = strings.push(command.program.as_os_str());
    let random = strings.bytes(b"refrain: random!");
    let platform = strings.push(OsStr::new("x86_64"));
    let mut env: Vec<u64> = command
        .env
        .iter()
        .map(|(name, value)| {
            let mut entry = name.clone();
            entry.push("=");
            entry.push(value);
            strings.push(&entry)
        })
        .collect();
    let overridden = |setting: &str| {
        command.env.iter().any(|(name, _)| setting.split('=').next() == name.to_str())
    };
    if files.len() > 1 {
        let ours = SETTINGS.iter().filter(|setting| !overridden(setting));
        env.extend(ours.map(|setting| strings.push(OsStr::new(setting))));
    }
    let argv: Vec<u64> = command.argv.iter().map(|arg| strings.push(arg)).collect();

    let mut words = vec![argv.len() as u64];
    words.extend(argv);
    words.push(0);
    words.extend(env);
    words.push(0);
    words.extend(auxiliary_vector(files, [exec_name, random, platform]));
    let rsp = (strings.at - 8 * words.len() as u64) & !15;
    if rsp < layout::STACK.start + PAGE {
        return Err(Error::Unsupported("arguments and environment exceed 200 MiB".into()));
    }
    let image: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    if !(Guest.write(rsp, &image) && Guest.write(strings.at, &strings.bytes)) {
        return Err(Error::host("writing the initial stack")(std::io::Error::other(
            "memory that was just mapped cannot be written",
        )));
    }
    Ok(rsp)
}

/// Strings at the top of the stack, laid down from high to low.
struct Strings {
    at: u64,
    bytes: Vec<u8>,
}

impl Strings {
    fn new(top: u64) -> Strings {
        Strings { at: top, bytes: Vec::new() }
    }

    fn push(&mut self, string: &OsStr) -> u64 {
        let mut bytes = string.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(&bytes)
    }

    fn bytes(&mut self, bytes: &[u8]) -> u64 {
        self.at -= bytes.len() as u64;
        self.bytes.splice(0..0, bytes.iter().copied());
        self.at
    }
}

/// A fixed auxiliary vector: no vdso, no host features, no randomness, nothing of rseq.
fn auxiliary_vector(files: &[Loaded], [exec_name, random, platform]: [u64; 3]) -> Vec<u64> {
    let program = &files[0];
    let interpreter = files.get(1).map_or(0, |i| i.bias);
    // SAFETY: these calls have no arguments and cannot fail.
    let [uid, euid, gid, egid] =
        unsafe { [libc::getuid(), libc::geteuid(), libc::getgid(), libc::getegid()] };
    let (headers, count) = program.elf.program_headers;
    let vector = [
        (libc::AT_PHDR, program.bias + headers),
        (libc::AT_PHENT, 56),
        (libc::AT_PHNUM, count),
        (libc::AT_PAGESZ, PAGE),
        (libc::AT_BASE, interpreter),
        (libc::AT_FLAGS, 0),
        (libc::AT_ENTRY, program.bias + program.elf.entry),
        (libc::AT_UID, u64::from(uid)),
        (libc::AT_EUID, u64::from(euid)),
        (libc::AT_GID, u64::from(gid)),
        (libc::AT_EGID, u64::from(egid)),
        (libc::AT_SECURE, 0),
        (libc::AT_CLKTCK, 100),
        (libc::AT_HWCAP, u64::from(cpuid::FEATURES_EDX)),
        (libc::AT_HWCAP2, 0),
        (libc::AT_RANDOM, random),
        (libc::AT_EXECFN, exec_name),
        (libc::AT_PLATFORM, platform),
        (libc::AT_NULL, 0),
    ];
    vector.into_iter().flat_map(|(key, value)| [key, value]).collect()
}
