//! Pipes of which the guest has the reading end and refrain the writing end.

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// A pipe: a descriptor for the guest, made with these flags (`O_CLOEXEC`, `O_NONBLOCK`), and the
/// other end, which never waits.
pub(crate) fn of_the_guests(flags: i32) -> io::Result<(i32, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::from_bits_retain(flags as u32))?;
    fcntl_setfl(&writer, OFlags::WRONLY | OFlags::NONBLOCK)?;
    Ok((reader.into_raw_fd(), writer))
}

/// Whether nobody has a reading end open any more.
pub(crate) fn is_deserted(writer: &File) -> bool {
    events(writer.as_raw_fd(), 0) & libc::POLLERR != 0
}

/// Reads all that is in a pipe, without waiting.
pub(crate) fn drain(fd: u64) {
    let mut bytes = [0_u8; 4096];
    let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let position = -1;
    // SAFETY: the vector describes the array, which outlives the call.
    while unsafe { libc::preadv2(fd as i32, &raw const vector, 1, position, libc::RWF_NOWAIT) } > 0
    {
    }
    // Kernels before 6.4 know no such reading of pipes.
    while events(fd as i32, libc::POLLIN) & libc::POLLIN != 0 {
        // SAFETY: as above.
        if unsafe { libc::readv(fd as i32, &raw const vector, 1) } <= 0 {
            break;
        }
    }
}

/// Reads all that is in a pipe of which only the writing end is at hand. Without `/proc`, or the
/// right to open the pipe anew, it stays there.
pub(crate) fn drain_from_behind(writer: &File) {
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut options = File::options();
    if let Ok(mut reader) = options.read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        let mut bytes = [0_u8; 4096];
        while reader.read(&mut bytes).is_ok_and(|len| len > 0) {}
    }
}

/// Whether a read fails where it would have to wait.
pub(crate) fn never_waits(fd: u64) -> bool {
    // SAFETY: the command only asks.
    let flags = unsafe { libc::fcntl(fd as i32, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

fn events(fd: i32, events: i16) -> i16 {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the structure is live, and the call fills it in without waiting.
    unsafe { libc::poll(&mut poll, 1, 0) };
    poll.revents
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::FromRawFd;

    #[test]
    fn a_pipe_is_drained_without_waiting_and_known_to_be_deserted() {
        let (fd, writer) = of_the_guests(libc::O_CLOEXEC).expect("a pipe can be made");
        let mut writer = File::from(writer);
        assert!(!never_waits(fd as u64) && !is_deserted(&writer));
        drain(fd as u64);
        // More than a pipe holds, since the other end never waits.
        while writer.write(&[0; 4096]).is_ok() {}
        assert_ne!(events(fd, libc::POLLIN), 0);
        drain(fd as u64);
        assert_eq!(events(fd, libc::POLLIN), 0);
        assert!(writer.write(&[0]).is_ok());
        drain_from_behind(&writer);
        assert_eq!(events(fd, libc::POLLIN), 0);
        // SAFETY: the descriptor was made for this test.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        assert!(is_deserted(&writer));
    }
}
