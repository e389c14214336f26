//! Changes of the address space, in the order in which replay repeats them.

use super::calls::Pending;
use super::notice::Notice;
use super::thread::GuestThread;
use crate::elf::Elf;
use crate::memory::{
    AddressSpace, MapRequest, Purpose, may_allow_execution, named, page_up, replaces,
};
use crate::syscall::MachineCall;
use crate::{Hidden, Result, host};
use refrain_trace::payload::{Effect, SyscallRecord, Window, Write};
use refrain_trace::{Event, order};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::PoisonError;

/// Files up to this size are kept whole, so that piecemeal mappings of a library share a blob.
const WHOLE_FILE: u64 = 64 << 20;

impl GuestThread {
    /// Carries out a call that changes the address space. The lock makes the change and its
    /// ticket one step.
    pub(crate) fn memory_call(&mut self, mut pending: Pending, what: MachineCall) -> Result<()> {
        let args = *pending.call.arguments();
        let machine = self.machine.clone();
        let range = changed_range(what, args);
        let protected = (what == MachineCall::Mprotect).then(|| named(args));
        let taken = range.as_ref().or(protected.as_ref());
        let taken = taken.and_then(|range| self.take_memory(&machine, range));
        if taken.is_some() {
            pending.event.begin = host::ticks();
        }
        let mut space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        self.fast_path.pages.forget_in(space.taken_by(what, args));
        let changes = range.as_ref().filter(|_| !machine.log.is_silent());
        if changes.is_some_and(|range| machine.mapped.before(range)) {
            machine.log.pages();
        }
        let replaced = space.replaced_by(what, args);
        let (from, brk) = (host::ticks(), space.program_break());
        let result = match machine.forbids_generated_code && would_hold_generated_code(what, args) {
            true => {
                machine.notice(Notice::ForbiddenCode);
                -i64::from(libc::EACCES)
            }
            false => match what {
                MachineCall::Shmat => self.attach(args, &mut space),
                MachineCall::Shmdt => self.detach(args[0], &mut space),
                MachineCall::Madvise => {
                    let range = named(args);
                    machine.mapped.advise(&range, || space.advise(args[0], args[1], args[2]))
                }
                MachineCall::Mprotect | MachineCall::Mremap => {
                    match self.parts_for_kernel(what, args) {
                        Some(parts) => space.protect_parts(&parts, args[2] as i32),
                        None => perform(&mut space, what, args, self.purpose(args)),
                    }
                }
                _ => perform(&mut space, what, args, self.purpose(args)),
            },
        };
        pending.issued(from);
        if result >= 0
            && let Some(range) = space.generated_by(what, args, result)
        {
            machine.notice(Notice::GeneratedCode);
            machine.engine.generated(range);
        }
        if replaced.is_some() || may_allow_execution(what, args) {
            machine.engine.executable(space.executable());
        }
        if let Some(range) = replaced.filter(|_| result >= 0) {
            machine.engine.forget(range);
        }
        let (mut file, mut shown) = (0, Content::default());
        match what {
            _ if result < 0 => {}
            MachineCall::Brk => self.fast_path.fresh.add(page_up(brk)..page_up(result as u64)),
            MachineCall::Mmap => {
                let start = result as u64;
                if args[3] as i32 & (libc::MAP_ANONYMOUS | libc::MAP_SHARED) == libc::MAP_ANONYMOUS
                {
                    self.fast_path.fresh.add(start..start + page_up(args[1]));
                }
                machine.mapped.unmap(&(start..start + page_up(args[1])));
                shown = self.file_content(start, args).unwrap_or_default();
                file = self.keep_shared(what, args, start);
            }
            MachineCall::Shmat => {
                if let Some((number, len, bytes)) = self.attached(args, result as u64) {
                    machine.mapped.unmap(&(result as u64..result as u64 + len));
                    let window = Window { blob: machine.log.blob(bytes), offset: 0, len };
                    (file, shown.window) = (number, Some(window));
                }
            }
            MachineCall::Munmap => {
                range.iter().for_each(|range| machine.mapped.unmap(range));
                self.keep_shared(what, args, 0);
            }
            MachineCall::Mremap => {
                let from = args[0]..args[0] + page_up(args[1]);
                let to = result as u64..result as u64 + page_up(args[2]);
                machine.mapped.moved(from, to);
                self.keep_shared(what, args, result as u64);
                shown.writes = self.shown_by_growth(args, result as u64);
            }
            _ => {}
        }
        let Content { window: content, writes } = shown;
        let record = SyscallRecord { args, writes, effect: Effect::Memory { content } };
        self.context.finish_syscall(result);
        self.append_made(Some(&record), || Event {
            ticket: machine.tickets.take(order::MEMORY_SLOT),
            value: result as u64,
            result: file as i32,
            end: pending.end(),
            ..pending.event
        });
        drop(space);
        if let Some((lines, turns)) = taken {
            self.end_turns(&turns);
            drop(lines);
        }
        self.end_recording(pending.done);
        if result >= 0 {
            let watched = self.common_may_differ(what, args, result as u64);
            let writes = match what {
                MachineCall::Shmat => true,
                _ => [(2, libc::PROT_WRITE), (3, libc::MAP_SHARED)]
                    .iter()
                    .all(|&(at, flag)| args[at] as i32 & flag != 0),
            };
            if file != 0 && writes && !watched {
                machine.notice(Notice::SharedFile);
            }
        }
        if result >= 0 && machine.lines().is_some() && machine.has_shared() {
            let start = result as u64;
            let end = match what {
                MachineCall::Mmap => start + page_up(args[1]),
                MachineCall::Mremap => start + page_up(args[2]),
                MachineCall::Shmat => self.shown_from(start).map_or(start, |part| part.end),
                _ => start,
            };
            self.shown_twice(&self.doubles(start..end));
        }
        Ok(())
    }

    /// What an `mmap` is for: code or data, which lie in different arenas. Memory for generated code is for code.
    /// The dynamic linker maps a library whole at first; if the library's segments are aligned to more than a
    /// page, the linker reserves space for it before.
    fn purpose(&self, [_, _, prot, flags, ..]: [u64; 6]) -> Purpose {
        const ELSEWHERE: i32 = libc::MAP_STACK | libc::MAP_NORESERVE;
        let (prot, flags) = (prot as i32, flags as i32);
        let linker = self.machine.linker.lock().unwrap_or_else(PoisonError::into_inner);
        let by_linker = linker.contains(&self.context.rip);
        let for_code = match flags & libc::MAP_ANONYMOUS != 0 {
            true => {
                by_linker && prot == libc::PROT_NONE && flags & ELSEWHERE == 0
                    || prot & libc::PROT_EXEC != 0
            }
            false => by_linker || flags & libc::MAP_DENYWRITE != 0,
        };
        if for_code { Purpose::Code } else { Purpose::Data }
    }

    /// What a file mapping shows, kept in the trace. Also notices libraries.
    fn file_content(&self, address: u64, args: [u64; 6]) -> Option<Content> {
        let [_, len, _, flags, fd, offset] = args;
        if flags as i32 & libc::MAP_ANONYMOUS != 0 {
            return None;
        }
        // SAFETY: the descriptor is the guest's and stays open: ManuallyDrop never closes it.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd as i32) });
        let metadata = file.metadata().ok().filter(|it| it.is_file())?;
        let size = metadata.len();
        let wanted = page_up(len).min(size.saturating_sub(offset));
        let is_library = offset == 0 && self.purpose(args) == Purpose::Code;
        let is_private = flags as i32 & libc::MAP_TYPE == libc::MAP_PRIVATE;
        let identity = (metadata.dev(), metadata.ino());
        // What was kept of such a file may be of another time.
        let changes = !is_private && host::may_write(fd) || self.machine.may_have_changed(identity);
        if is_library {
            self.notice_library(fd as i32, address, &file);
        }
        if !changes {
            let blob = self.machine.mapped.map(
                address..address + page_up(len),
                offset,
                &metadata,
                || Some((Hidden::copy(&*file).ok()?, path_of(fd as i32))),
                || self.machine.log.blob_id(),
            );
            if let Some(blob) = blob {
                return Some(Window { blob, offset, len: wanted }.into());
            }
        }
        if !is_private {
            self.keep_rest(identity);
        }
        if size > WHOLE_FILE || changes || !is_private {
            let range = offset..offset + wanted;
            let unknown = match is_private {
                true => vec![range.clone()],
                false => self.unknown(identity, &range),
            };
            let extents =
                |range: Range<u64>| host::extents(fd, range.clone()).unwrap_or(vec![range]);
            let extents: Vec<_> = unknown.into_iter().flat_map(extents).collect();
            if extents != [range.clone()] {
                let window =
                    Window { blob: self.machine.log.blob(Vec::new()), offset: 0, len: wanted };
                return Content::sparse(&file, address, offset, extents, window);
            }
            let blob = self.machine.log.blob(read_at(&file, offset, wanted)?);
            return Some(Window { blob, offset: 0, len: wanted }.into());
        }
        let key = (metadata.dev(), metadata.ino(), size, metadata.mtime(), metadata.mtime_nsec());
        let mut files = self.machine.files.lock().unwrap_or_else(PoisonError::into_inner);
        let blob = match files.get(&key) {
            Some(&blob) => blob,
            None => {
                let blob = self.machine.log.blob(read_at(&file, 0, size)?);
                files.insert(key, blob);
                blob
            }
        };
        Some(Window { blob, offset, len: wanted }.into())
    }

    /// The dynamic linker maps a library's first segment first, mostly with room for the others:
    /// that mapping tells where the library will lie.
    fn notice_library(&self, fd: i32, address: u64, file: &File) {
        let elf = match Hidden::copy(file) {
            Ok(copy) => Elf::of_library(copy).ok(),
            Err(_) => {
                let len = file.metadata().map_or(0, |metadata| metadata.len());
                read_at(file, 0, len).and_then(|bytes| Elf::parse(bytes).ok())
            }
        };
        if let Some(elf) = elf {
            let bias = address.wrapping_sub(elf.span().0);
            self.machine.register_module(path_of(fd).as_ref(), &elf, bias, Some(file));
        }
    }
}

/// The path of an open file.
pub(super) fn path_of(fd: i32) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    path.to_string_lossy().into_owned()
}

/// Where the call may take memory away, or its content.
fn changed_range(what: MachineCall, args: [u64; 6]) -> Option<Range<u64>> {
    let changes = match what {
        MachineCall::Mmap => replaces(args),
        MachineCall::Munmap | MachineCall::Mremap | MachineCall::Madvise => true,
        _ => false,
    };
    changes.then(|| named(args))
}

/// What a new mapping shows: from its beginning on, or in places.
#[derive(Default)]
struct Content {
    window: Option<Window>,
    writes: Vec<Write>,
}

impl From<Window> for Content {
    fn from(window: Window) -> Content {
        Content { window: Some(window), writes: Vec::new() }
    }
}

impl Content {
    /// Of a file with holes, mapped from `offset` on. The window says no more than how much is shown.
    fn sparse(
        file: &File,
        address: u64,
        offset: u64,
        extents: Vec<Range<u64>>,
        window: Window,
    ) -> Option<Content> {
        let mut writes = Vec::new();
        for extent in extents {
            let bytes = read_at(file, extent.start, extent.end - extent.start)?;
            writes.push(Write { address: address + extent.start - offset, bytes });
        }
        Some(Content { window: Some(window), writes })
    }
}

/// Whether the memory would be writable and executable. Programs that are told that the system
/// forbids it mostly interpret.
fn would_hold_generated_code(what: MachineCall, args: [u64; 6]) -> bool {
    let both = libc::PROT_WRITE | libc::PROT_EXEC;
    matches!(what, MachineCall::Mmap | MachineCall::Mprotect) && args[2] as i32 & both == both
}

fn read_at(file: &File, offset: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn perform(space: &mut AddressSpace, what: MachineCall, args: [u64; 6], purpose: Purpose) -> i64 {
    let [address, len, third, flags, fd, offset] = args;
    match what {
        MachineCall::Mmap => {
            let (prot, flags, fd, offset) = (third as i32, flags as i32, fd as i32, offset as i64);
            space.map(MapRequest { address, len, prot, flags, fd, offset }, purpose)
        }
        MachineCall::Munmap => space.unmap(address, len),
        MachineCall::Mprotect => space.protect(address, len, third as i32),
        MachineCall::Mremap => space.remap(args),
        MachineCall::Brk => space.brk(address),
        other => unreachable!("{other:?} does not change the address space"),
    }
}
