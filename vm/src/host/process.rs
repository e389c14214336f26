//! What the machine asks and tells the host's kernel of the process that it shares with the guest:
//! descriptors, names, groups, the programs that it executes.

use super::{end_process_by, syscall};
use rustix::fs::MemfdFlags;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;

/// A file in memory for the guest, with this content, as one that it has opened; the descriptor
/// or a negative errno.
pub(crate) fn file_of_the_guests(content: &[u8], cloexec: bool) -> i64 {
    let flags = if cloexec { MemfdFlags::CLOEXEC } else { MemfdFlags::empty() };
    let mut file = match rustix::fs::memfd_create(c"proc", flags) {
        Ok(fd) => File::from(fd),
        Err(errno) => return -i64::from(errno.raw_os_error()),
    };
    let written = file.write_all(content).and_then(|()| file.rewind());
    // From here on it is the guest's.
    let fd = file.into_raw_fd();
    if written.is_ok() { fd.into() } else { -i64::from(libc::EIO) }
}

/// Has the kernel show other strings as the process's arguments, environment and auxiliary vector
/// (`PR_SET_MM_MAP`). It may refuse.
pub(crate) fn show_arguments(strings: &crate::loader::InitialStrings, sp: u64) {
    const PR_SET_MM_MAP: u64 = 14;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    // The manual page counts from 1, with two fields before the name's end.
    let Some(field) = (fields.len() > 44).then_some(|number: usize| fields[number - 4]) else {
        return;
    };
    // SAFETY: asked to move the break to 0, the kernel only says where it is.
    let brk = unsafe { syscall(libc::SYS_brk as u64, [0; 6]) } as u64;
    // `struct prctl_mm_map`; the last word is the size of the vector and no descriptor.
    let auxv = &strings.auxv;
    let map: [u64; 13] = [
        field(26),
        field(27),
        field(45),
        field(46),
        field(47),
        brk,
        sp,
        strings.args.start,
        strings.args.end,
        strings.env.start,
        strings.env.end,
        auxv.as_ptr() as u64,
        u64::from(u32::MAX) << 32 | size_of_val(auxv.as_slice()) as u64,
    ];
    let args = [
        libc::PR_SET_MM as u64,
        PR_SET_MM_MAP,
        map.as_ptr() as u64,
        size_of_val(&map) as u64,
        0,
        0,
    ];
    // SAFETY: the kernel reads the structure and the vector, which outlive the call; what it keeps
    // is for others to look at. The host's own break stays where it is.
    unsafe { syscall(libc::SYS_prctl as u64, args) };
}

/// Where in a file the guest reads and writes next.
pub(crate) fn position(fd: u64) -> Option<u64> {
    // SAFETY: asking for the position changes nothing.
    let position = unsafe { libc::lseek(fd as i32, 0, libc::SEEK_CUR) };
    u64::try_from(position).ok()
}

/// Whether the guest writes to the end of a file wherever it is.
pub(crate) fn appends(fd: u64) -> bool {
    // SAFETY: the command only asks.
    let flags = unsafe { libc::fcntl(fd as i32, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

/// Whether a descriptor was opened for writing.
pub(crate) fn may_write(fd: u64) -> bool {
    // SAFETY: the command only asks.
    let flags = unsafe { libc::fcntl(fd as i32, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Bytes of a shared memory segment of System V.
pub(crate) fn segment_size(id: i32) -> Option<u64> {
    // SAFETY: the structure is plain data, for which zero is a value; the command fills it in.
    unsafe {
        let mut state: libc::shmid_ds = std::mem::zeroed();
        (libc::shmctl(id, libc::IPC_STAT, &mut state) == 0).then_some(state.shm_segsz as u64)
    }
}

/// The parts of a range of a file that hold data, where there are holes between; `None` if it
/// cannot be told.
pub(crate) fn extents(fd: u64, range: std::ops::Range<u64>) -> Option<Vec<std::ops::Range<u64>>> {
    // A descriptor of one's own has a position of its own.
    let file = File::open(format!("/proc/self/fd/{}", fd as i32)).ok()?;
    let seek = |from: u64, what| {
        // SAFETY: the descriptor is open, and its position is nobody else's.
        let found = unsafe { libc::lseek(file.as_raw_fd(), from as i64, what) };
        u64::try_from(found).map_err(|_| io::Error::last_os_error().raw_os_error())
    };
    let mut extents = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let start = match seek(at, libc::SEEK_DATA) {
            Ok(start) => start,
            Err(Some(libc::ENXIO)) => break,
            Err(_) => return None,
        };
        let end = seek(start, libc::SEEK_HOLE).ok()?;
        if start < range.end {
            extents.push(start..end.min(range.end));
        }
        at = end;
    }
    Some(extents)
}

/// Whether `kill` with this argument is for the group of this process.
pub(crate) fn is_own_group(argument: i32) -> bool {
    // SAFETY: the call has no arguments and cannot fail.
    argument == 0 || argument < -1 && -argument == unsafe { libc::getpgrp() }
}

/// Whether a descriptor is a `pidfd` of this process.
pub(crate) fn names_this_process(pidfd: u64) -> bool {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd as i32));
    let own = std::process::id().to_string();
    let info = info.unwrap_or_default();
    info.lines().any(|line| line.strip_prefix("Pid:").is_some_and(|pid| pid.trim() == own))
}

/// Sends a signal to the process group of this process, which drops its own share. A signal that
/// this process cannot drop goes to the others one by one.
pub(crate) fn signal_rest_of_group(signal: i32, cannot_drop: &[i32]) {
    if !cannot_drop.contains(&signal) {
        // SAFETY: a process may signal its group.
        unsafe { libc::kill(0, signal) };
        return;
    }
    // SAFETY: the call has no arguments and cannot fail.
    let group = unsafe { libc::getpgrp() }.to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for id in ids.filter(|&id| id as u32 != std::process::id()) {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        if fields.split_whitespace().nth(2) == Some(group.as_str()) {
            // SAFETY: a process may signal its group.
            unsafe { libc::kill(id, signal) };
        }
    }
}

/// Does something during which SIGINT and SIGQUIT do not end this process: it waits for a child process, which
/// gets what the terminal sends, too, and decides. The child has the actions that this process had.
pub fn outlive_interrupts<T>(something: impl FnOnce() -> T) -> T {
    extern "C" fn nothing(_: i32) {}
    let caught = [libc::SIGINT, libc::SIGQUIT].map(|signal| {
        // What is ignored stays ignored, here and in the child.
        let caught = !super::is_ignored(signal);
        if caught {
            // SAFETY: the handler does nothing, and the execution of a program resets the action.
            unsafe { libc::signal(signal, nothing as *const () as libc::sighandler_t) };
        }
        (signal, caught)
    });
    let result = something();
    for (signal, _) in caught.into_iter().filter(|&(_, caught)| caught) {
        super::set_ignored(signal, false);
    }
    result
}

/// Ends the process by the signal that the recorded program ended by, without a core.
pub fn end_like_the_program(signal: i32) -> ! {
    // SAFETY: the call concerns what the kernel leaves of this process alone.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    end_process_by(signal)
}

/// Whether the process may execute a file, with the rights that it has now.
pub(crate) fn may_execute(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a string that outlives the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// Executes a program in place of this process; returns only if that fails, the negative errno.
pub(crate) fn execute(program: &CString, argv: &[CString], env: &[CString]) -> i64 {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end with null, and their strings outlive the call, which does not return
    // if it succeeds.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EACCES))
}

/// Deletes the timers of the process that do not outlive the execution of a program.
pub(crate) fn delete_timers() {
    let all = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
    for id in all.lines().filter_map(|line| line.strip_prefix("ID: ")?.trim().parse().ok()) {
        let id: i32 = id;
        // SAFETY: timers are the guest's; refrain has none.
        unsafe { syscall(libc::SYS_timer_delete as u64, [id as u64, 0, 0, 0, 0, 0]) };
    }
}

/// Names the calling thread as the kernel names the first thread of a program.
pub(crate) fn take_name(program: &Path) {
    let name = program.file_name().unwrap_or_default();
    if let Ok(name) = CString::new(name.as_encoded_bytes()) {
        // A thread without a name of its own does as well.
        let _ = rustix::thread::set_name(&name);
    }
}
