//! Loading a program: what `execve` does, in the guest's part of the address space.

use crate::elf::{Elf, Segment};
use crate::host::{self, Guest};
use crate::layout::{self, PAGE};
use crate::memory::{
    AddressSpace, MapRequest, guest_may_map, map_fixed, may_generate, page_down, page_up,
};
use crate::{Error, Hidden, Result, cpuid};
use refrain_trace::{Entry, Module};
use rustix::process::{getegid, geteuid, getgid, getuid};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file that was written so recently may be written again.
pub(crate) const UNSETTLED: Duration = Duration::from_secs(2);

/// A program and how it is started.
#[derive(Clone, Debug)]
pub struct Command {
    /// The executable, or a script.
    pub program: PathBuf,
    /// Arguments, `argv[0]` first.
    pub argv: Vec<OsString>,
    /// The environment: mostly of the form `NAME=value`.
    pub env: Vec<OsString>,
}

impl Command {
    /// The command that the kernel executes: of a script, its interpreter, which has the script
    /// among its arguments. Fails as `execve` does.
    fn interpreted(&self) -> Result<(PathBuf, Vec<OsString>), i32> {
        /// So many scripts that interpret each other are executed.
        const DEEPEST: usize = 5;
        let (mut program, mut argv) = (self.program.clone(), self.argv.clone());
        for _ in 0..=DEEPEST {
            let Some(mut line) = first_line(&program)? else { return Ok((program, argv)) };
            line.push(program.into_os_string());
            program = PathBuf::from(&line[0]);
            line.extend(argv.into_iter().skip(1));
            argv = line;
        }
        Err(libc::ELOOP)
    }
}

/// The interpreter that a script names, and the rest of the line as its argument. `None` if the
/// file is no script.
fn first_line(path: &Path) -> Result<Option<Vec<OsString>>, i32> {
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EACCES);
    let mut head = Vec::new();
    let file = std::fs::File::open(path).map_err(errno)?;
    file.take(HEAD).read_to_end(&mut head).map_err(errno)?;
    let Some(line) = head.strip_prefix(b"#!") else {
        return if head.starts_with(b"\x7fELF") { Ok(None) } else { Err(libc::ENOEXEC) };
    };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    let mut words = line.splitn(2, |byte| b" \t".contains(byte));
    let interpreter = words.next().filter(|word| !word.is_empty()).ok_or(libc::ENOEXEC)?;
    let word = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let argument = words.next().map(|rest| word(rest.trim_ascii()));
    Ok(Some([Some(word(interpreter)), argument].into_iter().flatten().collect()))
}

/// What the kernel says of a command's format: whether there is anything that can execute it.
pub(crate) fn kind(command: &Command) -> Result<(), i32> {
    command.interpreted().map(|_| ())
}

/// The program that a command executes: of a script, its interpreter.
pub fn executed(command: &Command) -> Option<PathBuf> {
    command.interpreted().ok().map(|(program, _)| program)
}

/// The identity that the command's program has among the modules of its recordings
/// ([`refrain_trace::Module::identity`]); of a script, its interpreter's.
pub fn identity(command: &Command) -> Option<String> {
    let (path, _) = command.interpreted().ok()?;
    let (elf, _) = open(&path).ok()?;
    let (start, end) = elf.span();
    let module = Module {
        path: path.to_string_lossy().into_owned(),
        build_id: elf.build_id.clone(),
        start,
        end,
        constant: elf.constant(),
        ..Module::default()
    };
    Some(module.identity())
}

/// Whether the program can be loaded.
pub(crate) fn check(command: &Command) -> Result<()> {
    let (program, _) = interpreted(command)?;
    if let Some(interpreter) = open(&program)?.0.interpreter {
        open(Path::new(&interpreter))?;
    }
    Ok(())
}

fn interpreted(command: &Command) -> Result<(PathBuf, Vec<OsString>)> {
    command.interpreted().map_err(|errno| match errno {
        libc::ENOENT if !command.program.exists() => Error::NotFound(command.program.clone()),
        libc::ENOEXEC => Error::NotExecutable {
            path: command.program.clone(),
            why: "neither an ELF program nor a script that names its interpreter".into(),
        },
        _ => {
            let why = std::io::Error::from_raw_os_error(errno);
            Error::NotExecutable {
                path: command.program.clone(),
                why: format!("a script whose interpreter cannot be executed: {why}"),
            }
        }
    })
}

/// As much of a file as the kernel looks at to find out what it is.
const HEAD: u64 = 256;

/// A loaded file.
pub(crate) struct Loaded {
    pub(crate) path: PathBuf,
    pub(crate) elf: Elf,
    pub(crate) bias: u64,
    /// If its segments show the file.
    pub(crate) file: Option<Hidden>,
}

impl Loaded {
    /// The file, if its segments show it.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref().map(Hidden::file)
    }
}

/// A program that is ready to run.
pub(crate) struct Image {
    /// The program first, then its interpreter, if it has one.
    pub(crate) files: Vec<Loaded>,
    pub(crate) entry: Entry,
    /// Everything that is mapped.
    pub(crate) mappings: Vec<Area>,
    pub(crate) strings: InitialStrings,
}

/// Where on the stack arguments and environment are, and the auxiliary vector.
#[derive(Clone, Default, Debug)]
pub(crate) struct InitialStrings {
    pub(crate) args: Range<u64>,
    pub(crate) env: Range<u64>,
    pub(crate) auxv: Vec<u64>,
}

/// Memory that the loader has mapped.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) range: Range<u64>,
    pub(crate) prot: i32,
    /// What the loader has filled; the rest is zero.
    pub(crate) filled: Range<u64>,
    /// Which of the image's files all of it shows, and from where on.
    pub(crate) shows: Option<(usize, u64)>,
}

impl Image {
    /// Where the guest may generate code from its beginning on.
    pub(crate) fn generates(&self) -> impl Iterator<Item = Range<u64>> {
        let areas = self.mappings.iter().filter(|area| may_generate(area.prot));
        areas.map(|area| area.range.clone())
    }

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
    let (path, argv) = interpreted(command)?;
    let (program, file) = open(&path)?;
    let bias = place(&path, &program, space)?;
    let mut mappings = Vec::new();
    let mut files = vec![Loaded { path, elf: program, bias, file }];
    map_segments(&files, space, &mut mappings)?;
    if let Some(interpreter) = files[0].elf.interpreter.clone() {
        let path = PathBuf::from(interpreter);
        let (elf, file) = open(&path)?;
        let bias = library_place(&path, &elf, space, PAGE)?;
        files.push(Loaded { path, elf, bias, file });
        map_segments(&files, space, &mut mappings)?;
    }
    let first = files.last().expect("the program itself was pushed");
    let rip = first.bias + first.elf.entry;
    let (rsp, strings) = build_stack(command, argv, &files, space, &mut mappings)?;
    let brk = heap_of(&files[0].elf);
    space.begin_heap(brk);
    let entry = Entry { rip, rsp, brk };
    Ok(Image { files, entry, mappings, strings })
}

/// Where a program's heap begins. Programs that save their memory as a program (old Lisps) take it to
/// be right behind the image, and have the kernel put it there, by the process's personality.
fn heap_of(program: &Elf) -> u64 {
    const AS_IT_IS: u64 = 0xffff_ffff;
    // SAFETY: this only asks.
    let personality =
        unsafe { host::syscall(libc::SYS_personality as u64, [AS_IT_IS, 0, 0, 0, 0, 0]) };
    let behind = page_up(program.span().1);
    let is_fixed = !program.position_independent && layout::FIXED_PROGRAM.contains(&behind);
    match is_fixed && personality & i64::from(libc::ADDR_NO_RANDOMIZE) != 0 {
        true => behind,
        false => layout::HEAP.start,
    }
}

/// The file, and another descriptor of it if memory can show it: not if it may still change.
fn open(path: &Path) -> Result<(Elf, Option<Hidden>)> {
    let Ok(file) = File::open(path) else { return Ok((Elf::read(path)?, None)) };
    let shown = file.metadata().is_ok_and(|metadata| is_settled(&metadata));
    match shown.then(|| Some((Hidden::copy(&file).ok()?, Hidden::copy(&file).ok()?))).flatten() {
        Some((read, shown)) => Ok((Elf::read_lazily(path, read)?, Some(shown))),
        None => Ok((Elf::read(path)?, None)),
    }
}

/// Where a program goes: what to add to the addresses in its file.
fn place(path: &Path, elf: &Elf, space: &AddressSpace) -> Result<u64> {
    const HUGE_PAGE: u64 = 2 << 20;
    if !elf.position_independent {
        return Ok(0);
    }
    let (start, end) = elf.span();
    let room = layout::PROGRAM..layout::LIBRARIES.start;
    if let Some(free) = space.first_fit(room, end.saturating_sub(start), HUGE_PAGE) {
        return Ok(free - start);
    }
    library_place(path, elf, space, HUGE_PAGE)
}

/// Room among the libraries.
fn library_place(path: &Path, elf: &Elf, space: &AddressSpace, align: u64) -> Result<u64> {
    let (start, end) = elf.span();
    let len = end.saturating_sub(start);
    let room = space.first_fit(layout::LIBRARIES, len, align).ok_or_else(|| {
        let most = (layout::LIBRARIES.end - layout::LIBRARIES.start) >> 20;
        let why = format!(
            "its segments take {} KiB, and of the {most} MiB that refrain has for programs and \
             libraries, those of all programs that one recording executes, no such part is free",
            len >> 10
        );
        Error::NotExecutable { path: path.into(), why }
    })?;
    Ok(room - start)
}

/// Maps the segments of the last of `files`. The loader maps whole pages from the file where it may
/// (see [`open`]), and copies the rest into private anonymous memory.
fn map_segments(
    files: &[Loaded],
    space: &mut AddressSpace,
    mappings: &mut Vec<Area>,
) -> Result<()> {
    let Loaded { path, elf, bias, file } = files.last().expect("the file was pushed");
    let bad = |why: &str| Error::NotExecutable { path: path.into(), why: why.into() };
    for segment in &elf.segments {
        let start = bias.checked_add(segment.vaddr).ok_or(bad("damaged segment"))?;
        let end = start.checked_add(segment.mem_size).ok_or(bad("damaged segment"))?;
        let range = page_down(start)..page_up(end);
        if range.is_empty() {
            continue;
        }
        if !guest_may_map(&range) || !space.is_free(&range) {
            return Err(bad(&format!(
                "linked to addresses {range:#x?}, which refrain keeps for itself; \
                 link it as a position-independent executable"
            )));
        }
        space.note(range.clone(), segment.prot);
        let (prot, truncated) = (segment.prot, bad("truncated: a segment lies beyond its end"));
        let (mut start, mut offset) = (start, segment.file_offset);
        let content_end = start + segment.file_size;
        let mut rest = range;
        if let Some(shown) = file.as_ref().and_then(|_| whole_pages(segment, start)) {
            let (file, first) = (file.as_ref().expect("there is one"), page_down(offset));
            if offset.checked_add(segment.file_size).is_none_or(|end| end > elf.len()) {
                return Err(truncated);
            }
            show(&shown, prot, file.file(), first)?;
            let (filled, shows) = (shown.clone(), Some((files.len() - 1, first)));
            (rest, offset) = (shown.end..rest.end, first + (shown.end - shown.start));
            start = shown.end;
            mappings.push(Area { range: shown, prot, filled, shows });
        }
        if rest.is_empty() {
            continue;
        }
        let len = content_end.saturating_sub(start);
        fill(&rest, start, elf.bytes(offset, len).ok_or(truncated)?, prot)?;
        let filled = rest.start..page_up(content_end).clamp(rest.start, rest.end);
        mappings.push(Area { range: rest, prot, filled, shows: None });
    }
    Ok(())
}

/// The pages of a segment at `start` that hold what the file's pages hold: all that the file has
/// something for, but the last one if zeros follow there.
fn whole_pages(segment: &Segment, start: u64) -> Option<Range<u64>> {
    let end = start + segment.file_size;
    let end = if segment.mem_size > segment.file_size { page_down(end) } else { page_up(end) };
    let pages = page_down(start)..end;
    let fits = start % PAGE == segment.file_offset % PAGE && segment.file_size > 0;
    (fits && !pages.is_empty()).then_some(pages)
}

/// Maps a file's pages, from an offset on, privately.
fn show(range: &Range<u64>, prot: i32, file: &File, offset: u64) -> Result<()> {
    let (address, len, flags) = (range.start, range.end - range.start, libc::MAP_PRIVATE);
    let (fd, offset) = (file.as_raw_fd(), offset as i64);
    map_fixed(MapRequest { address, len, prot, flags, fd, offset })
        .map_err(Error::host("mapping a segment"))
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
/// so what is left is the environment as the user set it: of equal entries, the last one goes. (A
/// program that executes itself again until it finds such a setting would never end otherwise.)
pub(crate) fn hide_settings(rsp: u64) {
    let Some(argc) = Guest.word(rsp) else {
        return;
    };
    let mut slot = rsp.saturating_add(argc.saturating_add(2).saturating_mul(8));
    let mut ours = [None; SETTINGS.len()];
    while let Some(string) = Guest.word(slot).filter(|&string| string != 0) {
        let entry = Guest.string(string).unwrap_or_default();
        for (setting, ours) in SETTINGS.iter().zip(&mut ours) {
            if setting.as_bytes() == entry {
                *ours = Some(slot);
            }
        }
        slot = slot.saturating_add(8);
    }
    for slot in ours.into_iter().flatten() {
        Guest.write(slot, &0u64.to_le_bytes());
    }
}

/// Lays out argv, envp and the auxiliary vector as the ABI says; returns the stack pointer.
fn build_stack(
    command: &Command,
    argv: Vec<OsString>,
    files: &[Loaded],
    space: &mut AddressSpace,
    mappings: &mut Vec<Area>,
) -> Result<(u64, InitialStrings)> {
    let execute = if files[0].elf.executes_stack { libc::PROT_EXEC } else { 0 };
    let prot = libc::PROT_READ | libc::PROT_WRITE | execute;
    anonymous(&layout::STACK, prot, libc::MAP_NORESERVE)?;
    space.note(layout::STACK, prot);

    let mut strings = Strings::new(layout::STACK.end - PAGE);
    let exec_name = strings.push(command.program.as_os_str());
    let random = strings.bytes(b"refrain: random!");
    let platform = strings.push(OsStr::new("x86_64"));
    // Upwards in memory come the arguments, the environment and the settings, each in its order:
    // programs that show a title write over what the kernel shows of them.
    let overridden = |setting: &str| {
        let name = |entry: &[u8]| entry.split(|&byte| byte == b'=').next().map(<[u8]>::to_vec);
        let others = command.env.iter().filter(|entry| *entry != setting);
        others.map(|entry| name(entry.as_bytes())).any(|other| other == name(setting.as_bytes()))
    };
    let ours = SETTINGS.iter().filter(|setting| files.len() > 1 && !overridden(setting));
    let ours = strings.push_all(ours.map(|setting| OsString::from(*setting)).collect());
    let above_env = strings.at;
    let mut env = strings.push_all(command.env.clone());
    let above_args = strings.at;
    let argv = strings.push_all(argv);
    let (args, env_range) = (strings.at..above_args, above_args..above_env);
    env.extend(ours);

    let mut words = vec![argv.len() as u64];
    words.extend(argv);
    words.push(0);
    words.extend(env);
    words.push(0);
    let auxv = auxiliary_vector(files, [exec_name, random, platform]);
    words.extend(&auxv);
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
    let filled = page_down(rsp)..layout::STACK.end;
    mappings.push(Area { range: layout::STACK, prot, filled, shows: None });
    Ok((rsp, InitialStrings { args, env: env_range, auxv }))
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

    /// Lays down some, so that the first is lowest; where each is.
    fn push_all(&mut self, strings: Vec<OsString>) -> Vec<u64> {
        let mut all = Vec::new();
        let mut offsets = Vec::new();
        for string in &strings {
            offsets.push(all.len() as u64);
            all.extend(string.as_bytes());
            all.push(0);
        }
        let at = self.bytes(&all);
        offsets.into_iter().map(|offset| at + offset).collect()
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
    let [uid, euid] = [getuid(), geteuid()].map(|uid| uid.as_raw());
    let [gid, egid] = [getgid(), getegid()].map(|gid| gid.as_raw());
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

/// Whether nobody has written the file lately.
pub(crate) fn is_settled(metadata: &Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.is_some_and(|age| age > UNSETTLED)
}
