//! Changes of the address space, in the order in which replay repeats them.

use super::calls::Pending;
use super::notice::Notice;
use super::thread::GuestThread;
use crate::elf::Elf;
use crate::memory::{AddressSpace, MapRequest, Purpose, page_up};
use crate::syscall::MachineCall;
use crate::{Result, host};
use refrain_trace::payload::{Effect, SyscallRecord, Window};
use refrain_trace::{Event, order};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::PoisonError;

/// Identity of a file's content: device, inode, size, time of change.
pub(crate) type FileKey = (u64, u64, u64, i64, i64);

/// Files up to this size are kept whole, so that piecemeal mappings of a library share a blob.
const WHOLE_FILE: u64 = 64 << 20;

impl GuestThread {
    /// Carries out a call that changes the address space. The lock makes the change and its
    /// ticket one step.
    pub(crate) fn memory_call(&mut self, pending: Pending, what: MachineCall) -> Result<()> {
        let args = *pending.call.arguments();
        let machine = self.machine.clone();
        let mut space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        self.leaf.pages.forget();
        let range = changed_range(what, args);
        let changes = range.as_ref().filter(|_| !machine.log.is_silent());
        if changes.is_some_and(|range| machine.mapped.before(range)) {
            machine.log.pages();
        }
        let replaced = space.replaced_by(what, args);
        let result = match machine.forbids_generated_code && would_hold_generated_code(what, args) {
            true => {
                machine.notice(Notice::ForbiddenCode);
                -i64::from(libc::EACCES)
            }
            false => perform(&mut space, what, args, self.purpose(args)),
        };
        if result >= 0
            && let Some(range) = space.generated_by(what, args, result)
        {
            machine.notice(Notice::GeneratedCode);
            machine.engine.generated(range);
        }
        if let Some(range) = replaced.filter(|_| result >= 0) {
            machine.engine.forget(range);
        }
        let content = match what {
            MachineCall::Mmap if result >= 0 => {
                let start = result as u64;
                machine.mapped.unmap(&(start..start + page_up(args[1])));
                self.file_content(start, args)
            }
            MachineCall::Munmap if result >= 0 => {
                range.iter().for_each(|range| machine.mapped.unmap(range));
                None
            }
            MachineCall::Mremap if result >= 0 => {
                let from = args[0]..args[0] + page_up(args[1]);
                let to = result as u64..result as u64 + page_up(args[2]);
                machine.mapped.moved(from, to);
                None
            }
            _ => None,
        };
        let record = SyscallRecord { args, writes: Vec::new(), effect: Effect::Memory { content } };
        self.context.finish_syscall(result);
        self.append_made(Some(&record), || Event {
            ticket: machine.tickets.take(order::MEMORY_SLOT),
            value: result as u64,
            end: host::ticks(),
            ..pending.event
        });
        drop(space);
        Ok(())
    }

    /// What an `mmap` is for. Memory for generated code goes where code goes. Libraries are mapped by the dynamic linker, whole at first; one with
    /// segments that are aligned to more than a page, into space that it has reserved.
    fn purpose(&self, [_, _, prot, flags, ..]: [u64; 6]) -> Purpose {
        const ELSEWHERE: i32 = libc::MAP_STACK | libc::MAP_NORESERVE;
        let (prot, flags) = (prot as i32, flags as i32);
        let by_linker = self.machine.linker.contains(&self.context.rip);
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
    fn file_content(&self, address: u64, args: [u64; 6]) -> Option<Window> {
        let [_, len, _, flags, fd, offset] = args;
        if flags as i32 & libc::MAP_ANONYMOUS != 0 {
            return None;
        }
        // SAFETY: the descriptor is the guest's and stays open: ManuallyDrop never closes it.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd as i32) });
        let metadata = file.metadata().ok()?;
        let size = metadata.len();
        let wanted = page_up(len).min(size.saturating_sub(offset));
        if flags as i32 & libc::MAP_TYPE == libc::MAP_PRIVATE {
            let pages = self.machine.mapped.map(
                address..address + page_up(len),
                offset,
                &metadata,
                || Some((super::out_of_reach_copy(&file)?, path_of(fd as i32))),
                || self.machine.log.blob_id(),
            );
            if let Some((blob, new)) = pages {
                if new && offset == 0 && self.purpose(args) == Purpose::Code {
                    self.notice_library(fd as i32, address, &file);
                }
                return Some(Window { blob, offset, len: wanted });
            }
        }
        if size > WHOLE_FILE {
            let bytes = read_at(&file, offset, wanted)?;
            let len = bytes.len() as u64;
            let blob = self.machine.log.blob(bytes);
            return Some(Window { blob, offset: 0, len });
        }
        let key = (metadata.dev(), metadata.ino(), size, metadata.mtime(), metadata.mtime_nsec());
        let mut files = self.machine.files.lock().unwrap_or_else(PoisonError::into_inner);
        let blob = match files.get(&key) {
            Some(&blob) => blob,
            None => {
                let bytes = read_at(&file, 0, size)?;
                if offset == 0 && self.purpose(args) == Purpose::Code {
                    self.notice_library(fd as i32, address, &file);
                }
                let blob = self.machine.log.blob(bytes);
                files.insert(key, blob);
                blob
            }
        };
        Some(Window { blob, offset, len: wanted })
    }

    /// The dynamic linker maps a library's first segment first, mostly with room for the others:
    /// that mapping tells where the library will lie.
    fn notice_library(&self, fd: i32, address: u64, file: &File) {
        let copy = super::out_of_reach_copy(file).or_else(|| file.try_clone().ok());
        if let Some(Ok(elf)) = copy.map(Elf::of_library) {
            let bias = address.wrapping_sub(elf.span().0);
            self.machine.register_module(path_of(fd).as_ref(), &elf, bias);
        }
    }
}

/// The path of an open file.
fn path_of(fd: i32) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    path.to_string_lossy().into_owned()
}

/// Where the call may take memory away, or its content.
fn changed_range(what: MachineCall, args: [u64; 6]) -> Option<std::ops::Range<u64>> {
    let changes = match what {
        MachineCall::Mmap => args[3] & (libc::MAP_FIXED as u64) != 0,
        MachineCall::Munmap | MachineCall::Mremap | MachineCall::Madvise => true,
        _ => false,
    };
    changes.then(|| args[0]..args[0].saturating_add(page_up(args[1])))
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
        MachineCall::Madvise => space.advise(address, len, third),
        other => unreachable!("{other:?} does not change the address space"),
    }
}
