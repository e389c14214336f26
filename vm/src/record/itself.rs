//! What the guest finds about itself in `/proc`: its own program, not the recorder.
//!
//! The recorder tells the kernel where the guest's arguments, environment and auxiliary vector lie,
//! so that the kernel's own `cmdline`, `environ` and `auxv` (and `ps`) show the guest's. The kernel
//! cannot be told of the guest's mappings, threads and signals: when the guest opens `maps`,
//! `status` or `stat`, the recorder makes the file.

use super::calls::Pending;
use super::machine::Loaded;
use super::signals::Standing;
use super::thread::GuestThread;
use crate::host::{self, Guest};
use crate::layout;
use crate::loader::Image;
use crate::memory::AddressSpace;
use crate::syscall::Call;
use refrain_trace::payload::Write;
use std::ffi::CString;
use std::fmt::Write as _;
use std::sync::PoisonError;

impl GuestThread {
    /// The call with the path of the guest's program where it names that as `/proc/self/exe`; the
    /// string must live until the call is over.
    pub(crate) fn with_own_path(&self, call: &Call) -> Option<(Call, CString)> {
        let nofollow = [libc::SYS_lstat, libc::SYS_unlink, libc::SYS_symlink];
        if nofollow.contains(&call.number()) {
            return None;
        }
        let at = call.strings().find(|&at| {
            let path = Guest.string(call.arguments()[at]).unwrap_or_default();
            own_entry(&path) == Some("exe")
        })?;
        let path = CString::new(self.machine.program()).ok()?;
        Some((call.with_argument(at, path.as_ptr() as u64), path))
    }

    /// `readlink`, `readlinkat`: `/proc/self/exe` names the guest's program.
    pub(crate) fn read_link(&mut self, pending: Pending) {
        let args = *pending.call.arguments();
        let at = usize::from(i64::from(pending.event.nr) == libc::SYS_readlinkat);
        let path = Guest.string(args[at]).unwrap_or_default();
        if own_entry(&path) != Some("exe") {
            let call = pending.call;
            self.pass_as(pending, &call);
            return;
        }
        let program = self.machine.program().into_bytes();
        let len = program.len().min(args[at + 2] as usize);
        let writes = vec![Write { address: args[at + 1], bytes: program[..len].to_vec() }];
        self.answer_with(pending, len as i64, writes);
    }

    /// `open`, `openat`, `openat2`.
    pub(crate) fn open(&mut self, mut pending: Pending) {
        let args = *pending.call.arguments();
        let at = usize::from(i64::from(pending.event.nr) != libc::SYS_open);
        let flags = match i64::from(pending.event.nr) {
            libc::SYS_openat2 => Guest.word(args[2]).unwrap_or(0),
            _ => args[at + 1],
        } as i32;
        let path = Guest.string(args[at]).unwrap_or_default();
        let content = match own_entry(&path) {
            Some("maps") => Some(self.maps()),
            Some("status") => self.status(&path),
            Some("stat") => self.stat(&path),
            // What is written there would change memory that no replay could tell.
            Some("mem") if flags & libc::O_ACCMODE != libc::O_RDONLY => {
                return self.answer(pending, -i64::from(libc::EACCES));
            }
            _ => None,
        };
        // A thread that has ended has no files.
        let Some(content) = content else { return self.pass(pending) };
        self.enter(&mut pending);
        let cloexec = flags & libc::O_CLOEXEC != 0;
        let result = host::file_of_the_guests(content.as_bytes(), cloexec);
        self.leave(&mut pending);
        self.conclude(pending, result, Vec::new(), refrain_trace::payload::Effect::None);
    }

    /// `/proc/self/maps`: the guest's mappings as the guest knows them.
    fn maps(&self) -> String {
        let space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = self.machine.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        all.lines().filter_map(|line| describe(line, &space, &loaded)).collect()
    }

    /// `/proc/self/status`, or that of one thread: threads and signals are the guest's.
    fn status(&self, path: &[u8]) -> Option<String> {
        let all = read(path)?;
        let thread = task(path).map_or(Some(self.id), |id| self.machine.thread_by_kernel_id(id));
        let Standing { pending, shared, blocked, ignored, caught } =
            self.machine.signals.standing(thread?);
        let own = |line: &str| {
            let value = match line.split(':').next()? {
                "Threads" => return Some(format!("Threads:\t{}", self.machine.threads_alive())),
                "SigPnd" => pending,
                "ShdPnd" => shared,
                "SigBlk" => blocked,
                "SigIgn" => ignored,
                "SigCgt" => caught,
                _ => return None,
            };
            Some(format!("{}\t{value:016x}", &line[..7]))
        };
        Some(all.lines().map(|line| own(line).unwrap_or_else(|| line.to_owned()) + "\n").collect())
    }

    /// `/proc/self/stat`, or that of one thread: the number of threads is the guest's.
    fn stat(&self, path: &[u8]) -> Option<String> {
        /// From behind the program's name on.
        const THREADS: usize = 17;
        let all = read(path)?;
        let (name, rest) = all.rsplit_once(')')?;
        let own = |(at, field): (usize, &str)| match at {
            THREADS => format!(" {}", self.machine.threads_alive()),
            _ => format!(" {field}"),
        };
        let fields: String = rest.split_whitespace().enumerate().map(own).collect();
        Some(format!("{name}){fields}\n"))
    }
}

/// A file of `/proc`, as the kernel has it.
fn read(path: &[u8]) -> Option<String> {
    std::fs::read_to_string(std::str::from_utf8(path).ok()?).ok()
}

/// The kernel's id of the thread that an entry of the calling process's own directory is about, if
/// it is about one.
fn task(path: &[u8]) -> Option<i32> {
    let (_, inside) = std::str::from_utf8(path).ok()?.split_once("/task/")?;
    inside.split('/').next()?.parse().ok()
}

/// What a path names within the calling process's own directory of `/proc`.
pub(crate) fn own_entry(path: &[u8]) -> Option<&str> {
    let path = std::str::from_utf8(path).ok()?.strip_prefix("/proc/")?;
    let (process, inside) = path.split_once('/')?;
    let own =
        ["self", "thread-self"].contains(&process) || process.parse() == Ok(std::process::id());
    // Each thread has the same there.
    let inside = match inside.strip_prefix("task/") {
        Some(task) => task.split_once('/')?.1,
        None => inside,
    };
    own.then_some(inside)
}

/// A line of `/proc/self/maps` as the guest is to see it; none if it is the recorder's. Memory
/// that the guest may execute is not mapped so, and the kernel may have merged it with memory that
/// it may not.
fn describe(line: &str, space: &AddressSpace, loaded: &Loaded) -> Option<String> {
    let mut fields = line.splitn(6, ' ');
    let (range, access, offset, device, inode) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let path = fields.next().unwrap_or("").trim_start();
    let (start, end) = range.split_once('-')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let (start, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
    if !crate::memory::guest_may_map(&(start..end)) {
        return None;
    }
    let mut text = String::new();
    for (part, executable) in space.by_right_to_execute(start..end) {
        let execute = if executable { "x" } else { "-" };
        let from_file = loaded.iter().find(|(range, ..)| range.contains(&part.start));
        let (offset, name) = match from_file {
            Some((range, offset, path)) if path.as_os_str() != "" => {
                (offset + part.start - range.start, path.to_string_lossy().into_owned())
            }
            _ if path.starts_with('/') => (offset + part.start - start, path.to_owned()),
            _ if space.heap().contains(&part.start) => (0, "[heap]".to_owned()),
            _ if layout::STACK.contains(&part.start) => (0, "[stack]".to_owned()),
            _ => (0, path.to_owned()),
        };
        let place = format!(
            "{:08x}-{:08x} {}{execute}{} {offset:08x} {device} {inode}",
            part.start,
            part.end,
            &access[..2],
            &access[3..4]
        );
        // As the kernel aligns it.
        let _ = match name.is_empty() {
            true => writeln!(text, "{place} "),
            false => writeln!(text, "{place:<72} {name}"),
        };
    }
    Some(text)
}

/// The segments that come from files, for `/proc/self/maps`.
pub(crate) fn loaded(image: &Image) -> Loaded {
    let segments = image.files.iter().flat_map(|file| {
        let absolute = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
        file.elf.segments.iter().map(move |segment| {
            let start = crate::memory::page_down(file.bias.wrapping_add(segment.vaddr));
            let end = file.bias.wrapping_add(segment.vaddr).wrapping_add(segment.file_size);
            let offset = crate::memory::page_down(segment.file_offset);
            (start..crate::memory::page_up(end), offset, absolute.clone())
        })
    });
    segments.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_about_oneself_are_known() {
        let pid = std::process::id();
        assert_eq!(own_entry(b"/proc/self/exe"), Some("exe"));
        assert_eq!(own_entry(format!("/proc/{pid}/maps").as_bytes()), Some("maps"));
        assert_eq!(own_entry(format!("/proc/self/task/{pid}/stat").as_bytes()), Some("stat"));
        assert_eq!(own_entry(b"/proc/1/exe").filter(|_| pid != 1), None);
        assert_eq!(own_entry(b"/proc/cpuinfo"), None);
        assert_eq!(own_entry(b"exe"), None);
    }

    #[test]
    fn an_entry_may_be_about_one_thread() {
        assert_eq!(task(b"/proc/self/task/17/stat"), Some(17));
        assert_eq!(task(b"/proc/self/stat"), None);
    }

    #[test]
    fn a_mapping_is_described_as_the_guest_has_it() {
        let mut space = AddressSpace::new();
        space.note(0x2000_1000..0x2000_2000, libc::PROT_READ | libc::PROT_EXEC);
        let lines = describe(
            "20000000-20003000 r--p 00000000 fe:00 12                         /lib/x.so",
            &space,
            &Vec::new(),
        );
        let expected = [
            "20000000-20001000 r--p 00000000 fe:00 12",
            "20001000-20002000 r-xp 00001000 fe:00 12",
            "20002000-20003000 r--p 00002000 fe:00 12",
        ];
        let expected: String =
            expected.iter().map(|place| format!("{place:<72} /lib/x.so\n")).collect();
        assert_eq!(lines, Some(expected));
        let hosts = "7fd1942d5000-7fd1942d9000 r--p 00000000 00:00 0";
        assert_eq!(describe(hosts, &space, &Vec::new()), None);
    }
}
