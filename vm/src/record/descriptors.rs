//! System calls about descriptors and directories that must not show the recorder.

use super::calls::Pending;
use super::itself::own_entry;
use super::thread::GuestThread;
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::{hidden, syscall};
use refrain_trace::payload::{Effect, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// Offset and size of the length of an entry of `getdents` and `getdents64`; where the name is.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 18;
const NAME_AT_64: usize = 19;

impl GuestThread {
    /// `close_range(first, last, flags)`: what the recorder has open within the range is left out.
    pub(crate) fn close_range(&mut self, pending: Pending) {
        let [first, last, ..] = *pending.call.arguments();
        let (first, last) = (first as u32, last as u32);
        let own: Vec<u32> =
            hidden::own().map(|fd| fd as u32).filter(|fd| (first..=last).contains(fd)).collect();
        if own.is_empty() || first > last {
            return self.pass(pending);
        }
        let mut result = 0;
        let mut from = first;
        for fd in own.into_iter().map(Some).chain([None]) {
            let to = fd.map_or(Some(last), |fd| fd.checked_sub(1));
            if let Some(to) = to.filter(|&to| from <= to) {
                let call = pending.call.with_argument(0, from.into()).with_argument(1, to.into());
                result = result.min(self.issue(&call, pending.event.nr));
            }
            from = fd.map_or(from, |fd| fd + 1);
        }
        self.answer(pending, result);
    }

    /// `getdents` and `getdents64`. Where the directory lists the process's descriptors or
    /// threads, those of the recorder are taken out of what the kernel has written.
    pub(crate) fn list_directory(&mut self, mut pending: Pending) {
        let [fd, buffer, ..] = *pending.call.arguments();
        let Some(list) = List::of(fd as i32) else { return self.pass(pending) };
        self.enter(&mut pending);
        let (call, nr) = (pending.call, pending.event.nr);
        let wide = i64::from(nr) == libc::SYS_getdents64;
        let (result, writes) = loop {
            let result = self.issue(&call, nr);
            let Some(entries) = usize::try_from(result)
                .ok()
                .filter(|&len| len > 0)
                .and_then(|len| Guest.read(buffer, len))
            else {
                break (result, Vec::new());
            };
            let bytes = self.visible(list, &entries, wide);
            if bytes.is_empty() {
                // No entry is left, which would mean the end of the directory.
                continue;
            }
            Guest.write(buffer, &bytes);
            let result = bytes.len() as i64;
            break (result, vec![Write { address: buffer, bytes }]);
        };
        self.leave(&mut pending);
        self.conclude(pending, result, writes, Effect::None);
    }

    /// The entries that the guest may see.
    fn visible(&self, list: List, entries: &[u8], wide: bool) -> Vec<u8> {
        let name_at = if wide { NAME_AT_64 } else { NAME_AT };
        let (mut kept, mut rest) = (Vec::new(), entries);
        while let Some(length) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
            let Some(entry) = rest.get(..length).filter(|entry| entry.len() > name_at) else {
                break;
            };
            let name = entry[name_at..].split(|&byte| byte == 0).next().unwrap_or_default();
            let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            let hidden = number.is_some_and(|number| match list {
                List::Descriptors => hidden::is_own(number),
                List::Threads => self.machine.thread_by_kernel_id(number).is_none(),
            });
            if !hidden {
                kept.extend(entry);
            }
            rest = &rest[length..];
        }
        kept
    }

    /// `semctl(id, number, GETALL, values)`: as many as the kernel says that there are.
    pub(crate) fn all_semaphores(&mut self, mut pending: Pending) {
        /// Offset of the count in `semid_ds`.
        const COUNT_AT: usize = 80;
        let [id, _, _, values, ..] = *pending.call.arguments();
        self.enter(&mut pending);
        let mut state = [0_u8; 256];
        let place = &raw mut state as u64;
        let asked = [id, 0, libc::IPC_STAT as u64, place, 0, 0];
        // SAFETY: the buffer is larger than the structure that the call fills in.
        let known = unsafe { host::syscall(libc::SYS_semctl as u64, asked) };
        let count = u64::from_le_bytes(std::array::from_fn(|i| state[COUNT_AT + i]));
        let result = self.issue(&pending.call, pending.event.nr);
        self.leave(&mut pending);
        let mut writes = Vec::new();
        if result >= 0 && known >= 0 && count <= PAGE * 8 {
            let bytes = Guest.read_prefix(values, 2 * count as usize);
            writes.push(Write { address: values, bytes });
        }
        self.conclude(pending, result, writes, Effect::None);
    }

    /// `vmsplice(pipe, vectors, count, flags)`: from the reading end of a pipe, the kernel fills what the
    /// vectors name; to the writing end, it takes that.
    pub(crate) fn vmsplice(&mut self, mut pending: Pending) {
        let [pipe, ..] = *pending.call.arguments();
        if host::may_write(pipe) {
            return self.pass(pending);
        }
        self.enter(&mut pending);
        let result = self.issue(&pending.call, pending.event.nr);
        self.leave(&mut pending);
        let filled = pending.call.sent(result, &Guest).map_or_else(Vec::new, |it| it.ranges);
        let write = |range: Range<u64>| Write {
            address: range.start,
            bytes: Guest.read_prefix(range.start, (range.end - range.start) as usize),
        };
        let writes = filled.into_iter().map(write).collect();
        self.conclude(pending, result, writes, Effect::None);
    }
}

/// What a directory of `/proc` lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum List {
    Descriptors,
    Threads,
}

impl List {
    /// What the directory with this descriptor lists, if it is about this process.
    fn of(fd: i32) -> Option<List> {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        match own_entry(path.as_os_str().as_bytes())? {
            "fd" | "fdinfo" => Some(List::Descriptors),
            "task" => Some(List::Threads),
            _ => None,
        }
    }
}

const _: () = assert!(syscall::BEGIN_AGAIN < 0, "a listing that begins again has no entries");
