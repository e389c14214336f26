//! Whether a system call of the guest's would have to wait, as far as the kernel can be asked without side
//! effects.

use super::syscall;
use std::ffi::CString;

/// Whether a descriptor is ready for some of these events (`POLLIN`, `POLLOUT`), or tells at once why not: it
/// never waits, or is none.
pub(crate) fn is_ready(fd: u64, events: i16) -> bool {
    crate::pipes::never_waits(fd)
        || polled(&mut [libc::pollfd { fd: fd as i32, events, revents: 0 }])
}

/// Whether `poll` would find something at once.
pub(crate) fn polled(descriptors: &mut [libc::pollfd]) -> bool {
    // SAFETY: the slice is live, and the call fills it in without waiting.
    unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t, 0) != 0 }
}

/// Whether this is a pipe with a name, which waits for its other end to be opened.
pub(crate) fn is_named_pipe(directory: i32, path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    // SAFETY: the path is a string, and the structure has room for what the call says.
    let kind = kind(|stat| unsafe { libc::fstatat(directory, path.as_ptr(), stat, 0) });
    kind == Some(libc::S_IFIFO)
}

/// Whether a descriptor is of a character device, such as a terminal.
pub(crate) fn is_device(fd: u64) -> bool {
    // SAFETY: the structure has room for what the call says.
    kind(|stat| unsafe { libc::fstat(fd as i32, stat) }) == Some(libc::S_IFCHR)
}

/// Whether a descriptor is of a socket.
pub(crate) fn is_socket(fd: u64) -> bool {
    // SAFETY: the structure has room for what the call says.
    kind(|stat| unsafe { libc::fstat(fd as i32, stat) }) == Some(libc::S_IFSOCK)
}

fn kind(ask: impl FnOnce(&mut libc::stat) -> i32) -> Option<u32> {
    // SAFETY: the structure is plain data, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    (ask(&mut stat) == 0).then_some(stat.st_mode & libc::S_IFMT)
}

/// Whether `waitid` with these arguments would find no child that it is to tell of.
pub(crate) fn waits_for_child(kind: u32, id: u32, options: i32) -> bool {
    // SAFETY: the structure is plain data, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = options | libc::WNOHANG | libc::WNOWAIT;
    let told = &raw mut info as u64;
    let args = [u64::from(kind), u64::from(id), told, options as u64, 0, 0];
    // SAFETY: the structure outlives the call, which neither waits nor takes the child away.
    let result = unsafe { syscall(libc::SYS_waitid as u64, args) };
    result == 0 && info.si_signo == 0
}

/// Whether another process holds a lock that `fcntl` would wait for.
pub(crate) fn waits_for_lock(fd: u64, command: i32, mut lock: libc::flock) -> bool {
    let asked = if command == libc::F_OFD_SETLKW { libc::F_OFD_GETLK } else { libc::F_GETLK };
    // SAFETY: the structure is live, and the command fills it in.
    let known = unsafe { libc::fcntl(fd as i32, asked, &raw mut lock) };
    known == 0 && lock.l_type != libc::F_UNLCK as i16
}

/// What a semaphore of System V counts.
pub(crate) fn semaphore(id: i32, number: u16) -> i32 {
    // SAFETY: the command has no fourth argument, and changes nothing.
    unsafe { libc::semctl(id, number.into(), libc::GETVAL) }
}

/// The state of a queue of messages of System V.
pub(crate) fn queue(id: i32) -> Option<libc::msqid_ds> {
    // SAFETY: the structure is plain data, for which zero is a value; the command fills it in.
    unsafe {
        let mut state: libc::msqid_ds = std::mem::zeroed();
        (libc::msgctl(id, libc::IPC_STAT, &mut state) == 0).then_some(state)
    }
}
