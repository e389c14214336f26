//! System calls that change a file which the guest has mapped. Such a `write` or `truncate` also changes the
//! memory that shows the file, so the recorder stores the new bytes of that memory with the call's event. This
//! holds of shared mappings and of private ones: a private mapping shows the change in the pages that the guest
//! has not stored to, and what the guest stores through a shared mapping. So a replay has one file in memory for
//! both kinds of mappings. That file is as long as the guest's: what lies behind its end faults there, too.
//! (A file of which the trace has the pages that were touched is not expected to change. It has no such file
//! in memory, unless it is mapped shared or ends before its mapping does.)

pub(super) mod shared;

use super::files;
use super::machine::Machine;
use super::thread::GuestThread;
use crate::file_maps::Part;
use crate::host::{self, Guest};
use crate::loader::is_settled;
use crate::memory::{OUT_OF_MEMORY, Purpose, page_up};
use crate::syscall::{Call, MachineCall};
use refrain_trace::payload::Write;
use shared::{Identity, Shared};
use std::collections::BTreeSet;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{MutexGuard, PoisonError};

/// No device has this number.
pub(crate) const SEGMENTS: u64 = u64::MAX;

/// A mapped file as it is before a call that may change it.
pub(crate) struct Before {
    identity: Identity,
    size: u64,
}

impl GuestThread {
    /// A call is about to be issued. If it may change a file that the guest has mapped, keeps all that the
    /// mappings show of the file.
    pub(crate) fn before_change(&self, call: &Call) -> Option<Before> {
        if !self.machine.has_shared() {
            return None;
        }
        let [a, b, c, ..] = *call.arguments();
        let truncates = |flags: u64| flags & libc::O_TRUNC as u64 != 0;
        let at_path = |at: u64| {
            let path = Guest.string(at)?;
            std::fs::metadata(std::str::from_utf8(&path).ok()?).ok()
        };
        let metadata = match call.number() {
            libc::SYS_ftruncate => borrowed(a)?.metadata().ok(),
            libc::SYS_truncate | libc::SYS_creat => at_path(a),
            libc::SYS_open if truncates(b) => at_path(a),
            libc::SYS_openat if truncates(c) => at_path(b),
            _ => borrowed(written_file(call)?)?.metadata().ok(),
        }?;
        let identity = (metadata.dev(), metadata.ino());
        self.keep_rest(identity);
        if self.shared().private.has(identity) {
            // The pages that were touched, as they were then.
            self.machine.mapped.before_change(identity);
        }
        self.shared().is_mapped(identity).then_some(Before { identity, size: metadata.size() })
    }

    /// Keeps the rest of what is shown of a file that may change from now on.
    pub(crate) fn keep_rest(&self, identity: Identity) {
        let mut shared = self.shared();
        if shared.by_pages.remove(&identity) {
            self.machine.mapped.keep_rest(&shared.shown(identity));
        }
    }

    /// The same of the files that are shown in a range.
    pub(crate) fn keep_rest_shown(&self, range: &Range<u64>) {
        let shared = self.shared();
        let shown: BTreeSet<u64> = shared.maps.parts(range).iter().map(|part| part.file).collect();
        let by_pages = shared.by_pages.iter().filter(|it| shown.contains(&shared.files[*it]));
        let by_pages: Vec<Identity> = by_pages.copied().collect();
        drop(shared);
        by_pages.into_iter().for_each(|identity| self.keep_rest(identity));
    }

    /// Another process may change files from now on: keeps the pages that the guest has touched of them.
    pub(crate) fn keep_touched(&self) {
        if !self.shared().by_pages.is_empty() {
            self.machine.mapped.before(&files::ANYWHERE);
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.machine.shared()
    }

    /// What a call has changed in memory that shows files.
    pub(crate) fn shown_changes(
        &self,
        call: &Call,
        result: i64,
        before: Option<Before>,
    ) -> Vec<Write> {
        if result < 0 {
            return Vec::new();
        }
        if let Some(file) = opened_to_write(call, result as u64)
            && let Some(identity) = identity(file)
            && self.shared().private.has(identity)
        {
            self.machine.set_shared();
        }
        let Some(Before { identity, size }) = before else { return Vec::new() };
        let shared = self.shared();
        let shown = |range: Range<u64>| shared.showing(identity, &range).into_iter();
        let (range, new) = match call.number() {
            libc::SYS_ftruncate | libc::SYS_truncate => (0..0, call.arguments()[1]),
            libc::SYS_creat | libc::SYS_open | libc::SYS_openat => (0..0, 0),
            _ => {
                let range = changed(call, result as u64).map_or(0..0, |(_, range)| range);
                (range.clone(), range.end.max(size))
            }
        };
        // What is stored behind a file's end is gone when the file changes its length.
        let end = new.min(size);
        let tail = if new == size { 0..0 } else { end..page_up(end) };
        // A page that has come into the file is there for a replay if any of its bytes is written.
        let last = |shown: Range<u64>| shown.end - 1..shown.end;
        let grown = shown(page_up(size)..page_up(new)).map(last);
        let changed = shown(tail).chain(shown(range)).chain(grown).map(now);
        let changed = changed.filter(|write| !write.bytes.is_empty());
        let cut_off = shown(page_up(new)..page_up(size)).flat_map(|range| self.cut_off(range));
        changed.chain(cut_off).collect()
    }

    /// What says that a file ends where it is shown by this range: a write of no bytes. Of a file that is kept
    /// by pages, which a replay may be unable to shorten, the trace has zeros as well.
    fn cut_off(&self, range: Range<u64>) -> impl Iterator<Item = Write> {
        let zeros = self.machine.mapped.keeps(&range);
        let zeros = zeros.then(|| vec![0; (range.end - range.start) as usize]);
        let address = range.start;
        zeros.into_iter().chain([Vec::new()]).map(move |bytes| Write { address, bytes })
    }

    /// Keeps the table of shared mappings up with a call that has changed the address space; the
    /// number of the file that was mapped, or 0.
    pub(crate) fn keep_shared(&self, what: MachineCall, args: [u64; 6], result: u64) -> u64 {
        let [address, len, third, flags, fd, offset] = args;
        let machine = &self.machine;
        let mut shared = self.shared();
        match what {
            MachineCall::Mmap => {
                let range = result..result + page_up(len);
                shared.cut(&range);
                let anonymous = flags as i32 & libc::MAP_ANONYMOUS != 0;
                let file = borrowed(fd).filter(|_| !anonymous);
                let Some(metadata) = file.and_then(|file| file.metadata().ok()) else { return 0 };
                let id = (metadata.dev(), metadata.ino());
                if flags as i32 & libc::MAP_SHARED == 0 {
                    if host::may_write(fd) || !is_settled(&metadata) {
                        machine.set_shared();
                    }
                    let file = shared.insert_private(id, range.clone(), offset);
                    // What is kept by pages does not change.
                    let may_change = metadata.is_file() && !machine.mapped.keeps(&range);
                    return if may_change { file } else { 0 };
                }
                let file = shared.number(id);
                if machine.mapped.keeps(&range) {
                    shared.by_pages.insert(id);
                }
                let Range { start, end } = range;
                let writable = host::may_write(fd);
                shared.maps.insert(Part { start, end, file, offset, writable });
                machine.set_shared();
                file
            }
            MachineCall::Munmap => {
                shared.cut(&(address..address + page_up(len)));
                0
            }
            MachineCall::Mremap => {
                let kept = flags as i32 & libc::MREMAP_DONTUNMAP != 0 || len == 0;
                let old = address..address + page_up(len);
                shared.remap(old, result..result + page_up(third), kept);
                0
            }
            _ => 0,
        }
    }

    /// The parts of a file that the trace must hold, when the file is about to be mapped. These are all parts but
    /// those that the guest can store to through another mapping: a replay has their bytes from the guest's own
    /// stores, and if it stored recorded bytes there, it could undo what other threads have stored since.
    pub(crate) fn unknown(&self, identity: Identity, range: &Range<u64>) -> Vec<Range<u64>> {
        let shared = self.shared();
        match shared.files.get(&identity) {
            // Other processes may store there as well.
            Some(&file) if !self.machine.has_common() => shared.maps.not_writable(file, range),
            _ => vec![range.clone()],
        }
    }

    /// What the part behind the former end shows, after a mapping of a file has become longer.
    pub(crate) fn shown_by_growth(&self, [_, old, new, ..]: [u64; 6], at: u64) -> Vec<Write> {
        let grown = at + page_up(old)..at + page_up(new);
        // If the file is kept by pages, the trace gets each page of this part once the guest touches it.
        let shows = grown.start < grown.end
            && self.shared().shows_file(&grown)
            && !self.machine.mapped.keeps(&grown);
        if shows { vec![now(grown)] } else { Vec::new() }
    }

    /// What a new mapping shows that is shown elsewhere, too.
    pub(crate) fn doubles(&self, range: Range<u64>) -> Vec<(u64, u64, u64)> {
        self.shared().maps.doubles(&range)
    }

    /// `shmat(id, address, flags)` at an address that is the guest's; its length.
    pub(crate) fn attach(&self, args: [u64; 6], space: &mut crate::memory::AddressSpace) -> i64 {
        let [id, wanted, flags, ..] = args;
        let Some(size) = host::segment_size(id as i32) else {
            return -i64::from(libc::EINVAL);
        };
        let len = page_up(size);
        let address = match wanted {
            0 => space.place(len, Purpose::Data),
            _ => Some(crate::memory::page_down(wanted)),
        };
        let range = address.map(|address| address..address.saturating_add(len));
        let Some(range) = range.filter(crate::memory::guest_may_map) else {
            return OUT_OF_MEMORY;
        };
        let replaces = flags as i32 & libc::SHM_REMAP != 0;
        if !replaces && !space.is_free(&range) {
            return -i64::from(libc::EINVAL);
        }
        let issued = [id, range.start, flags & !(libc::SHM_EXEC as u64), 0, 0, 0];
        // SAFETY: the range lies in the guest's arenas, where the host keeps nothing.
        let result = unsafe { host::syscall(libc::SYS_shmat as u64, issued) };
        if result >= 0 {
            space.note(range.clone(), crate::memory::prot_of_segment(flags));
            space.note_content(range, libc::MAP_SHARED);
        }
        result
    }

    /// Keeps the table up with a segment that was attached there: its number, its length, and its
    /// content, if that is not the program's own already.
    pub(crate) fn attached(&self, args: [u64; 6], start: u64) -> Option<(u64, u64, Vec<u8>)> {
        let [id, _, flags, ..] = args;
        let len = page_up(host::segment_size(id as i32)?);
        let is_known = self.unknown((SEGMENTS, id), &(0..len)).is_empty();
        let mut shared = self.shared();
        let file = shared.number((SEGMENTS, id));
        let writable = flags as i32 & libc::SHM_RDONLY == 0;
        shared.maps.insert(Part { start, end: start + len, file, offset: 0, writable });
        self.machine.set_shared();
        let bytes = if is_known { Vec::new() } else { Guest.read_prefix(start, len as usize) };
        Some((file, len, bytes))
    }

    /// `shmdt(address)`.
    pub(crate) fn detach(&self, address: u64, space: &mut crate::memory::AddressSpace) -> i64 {
        let mut shared = self.shared();
        let Some(part) = shared.maps.at(address) else {
            return -i64::from(libc::EINVAL);
        };
        // SAFETY: what is mapped there is the guest's.
        let result = unsafe { host::syscall(libc::SYS_shmdt as u64, [address, 0, 0, 0, 0, 0]) };
        if result == 0 {
            shared.maps.cut(&(part.start..part.end));
            space.forget(part.start..part.end);
        }
        result
    }

    /// The mapping that begins there, if it shows a file or a segment.
    pub(crate) fn shown_from(&self, start: u64) -> Option<Part> {
        self.shared().maps.at(start)
    }
}

impl Machine {
    /// Whether the guest had a file mapped shared, and a way to change it.
    pub(crate) fn may_have_changed(&self, identity: Identity) -> bool {
        let shared = self.shared();
        shared.files.contains_key(&identity) && !shared.by_pages.contains(&identity)
    }

    pub(super) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a range shows now.
fn now(range: Range<u64>) -> Write {
    let bytes = Guest.read_prefix(range.start, (range.end - range.start) as usize);
    Write { address: range.start, bytes }
}

/// The descriptor of a file that a call has opened in order to write.
fn opened_to_write(call: &Call, result: u64) -> Option<u64> {
    let [_, b, c, ..] = *call.arguments();
    let flags = match call.number() {
        libc::SYS_creat => return Some(result),
        libc::SYS_open => b,
        libc::SYS_openat => c,
        libc::SYS_openat2 => Guest.word(c)?,
        _ => return None,
    };
    (flags & libc::O_ACCMODE as u64 != 0).then_some(result)
}

/// The descriptor of a file that a call may write to, or make longer.
fn written_file(call: &Call) -> Option<u64> {
    let [a, _, c, ..] = *call.arguments();
    match call.number() {
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendfile | libc::SYS_fallocate => Some(a),
        libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => Some(a),
        libc::SYS_copy_file_range | libc::SYS_splice => Some(c),
        _ => None,
    }
}

/// The descriptor of a file that a call has changed, and which part of it.
fn changed(call: &Call, result: u64) -> Option<(u64, Range<u64>)> {
    let [_, b, c, d, ..] = *call.arguments();
    let file = written_file(call)?;
    let behind = |fd: u64, len: u64| {
        let position = host::position(fd)?;
        Some((fd, position.checked_sub(len)?..position))
    };
    let appends = |fd: u64| host::appends(fd);
    let at = |fd: u64, offset: u64, len: u64| match appends(fd) || offset == u64::MAX {
        false => Some((fd, offset..offset.saturating_add(len))),
        true if offset == u64::MAX => behind(fd, len),
        true => {
            let size = borrowed(fd)?.metadata().ok()?.len();
            Some((fd, size.checked_sub(len)?..size))
        }
    };
    match call.number() {
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendfile => behind(file, result),
        libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => at(file, d, result),
        libc::SYS_copy_file_range | libc::SYS_splice => match d {
            0 => behind(file, result),
            offset => at(file, Guest.word(offset)?.checked_sub(result)?, result),
        },
        libc::SYS_fallocate => {
            let shifts = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
            let end = if b as i32 & shifts != 0 { u64::MAX } else { c.saturating_add(d) };
            Some((file, c..end))
        }
        _ => None,
    }
}

/// A file of the guest's, which stays open.
pub(super) fn borrowed(fd: u64) -> Option<ManuallyDrop<File>> {
    // SAFETY: the descriptor is the guest's and stays open: ManuallyDrop never closes it.
    (fd as i32 >= 0).then(|| ManuallyDrop::new(unsafe { File::from_raw_fd(fd as i32) }))
}

fn identity(fd: u64) -> Option<Identity> {
    let metadata = borrowed(fd)?.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}
