//! Descriptors that tell of signals (`signalfd`).
//!
//! The kernel has none of the guest's signals pending, so its own `signalfd` would never tell of
//! one. The guest gets the reading end of a pipe instead: whoever waits for the descriptor, by
//! whatever call, waits for a byte, which the machine writes when a signal comes that the
//! descriptor tells of. What a `read` then returns is made of the signals that are pending.
//!
//! When no such signal is pending any more, whoever has taken it, the bytes are taken back.

pub(super) mod table;

use super::calls::{EBADF, EINVAL, Pending};
use super::coherence::borrowed;
use super::signals::{CODE, Signal, UNBLOCKABLE, field};
use super::thread::GuestThread;
use crate::frame::Info;
use crate::host::Guest;
use crate::{Hidden, pipes, syscall};
use refrain_trace::payload::{Effect, Write};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use table::SignalFile;

/// Bytes of `signalfd_siginfo`.
const RECORD: u64 = 128;
/// Bytes of the kernel's signal set.
const SET: u64 = 8;
const EAGAIN: i64 = 11;
const EFAULT: i64 = 14;

impl GuestThread {
    /// `signalfd(descriptor, set, length)`, `signalfd4(…, flags)`.
    pub(crate) fn signal_file(&mut self, mut pending: Pending) {
        let [fd, set, len, flags, ..] = *pending.call.arguments();
        let known = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as u64;
        let set = Guest.word(set).filter(|_| len == SET && flags & !known == 0);
        self.enter(&mut pending);
        let result = match set.map(|set| set & !UNBLOCKABLE) {
            None if len == SET && flags & !known == 0 => -EFAULT,
            None => -EINVAL,
            Some(set) if fd as i32 == -1 => self.new_signal_file(set, flags as i32),
            Some(set) => match pipe_of(fd) {
                None if borrowed(fd).is_none_or(|file| file.metadata().is_err()) => -EBADF,
                Some(inode) if self.machine.signals.change_file(inode, set) => fd as i64,
                _ => -EINVAL,
            },
        };
        self.leave(&mut pending);
        self.conclude(pending, result, Vec::new(), Effect::None);
    }

    fn new_signal_file(&self, set: u64, flags: i32) -> i64 {
        const _: () = assert!(libc::SFD_CLOEXEC == libc::O_CLOEXEC);
        const _: () = assert!(libc::SFD_NONBLOCK == libc::O_NONBLOCK);
        let made = pipes::of_the_guests(flags).and_then(|(fd, writer)| {
            let writer = Hidden::copy(writer)?;
            let inode = pipe_of(fd as u64).ok_or(io::ErrorKind::NotFound)?;
            Ok((fd, SignalFile { inode, writer, set, told: false }))
        });
        match made {
            Ok((fd, file)) => {
                self.machine.signals.add_file(file);
                fd.into()
            }
            Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EMFILE)),
        }
    }

    /// The pipe of a descriptor that tells of signals, if a call reads from one.
    pub(crate) fn reads_signals(&self, call: &syscall::Call) -> Option<u64> {
        let reads = [libc::SYS_read, libc::SYS_readv].contains(&call.number());
        if !reads || !self.machine.signals.has_files() {
            return None;
        }
        let inode = pipe_of(call.arguments()[0])?;
        self.machine.signals.set_of_file(inode).map(|_| inode)
    }

    /// `read`, `readv`: as many records as signals are pending and there is room for.
    pub(crate) fn read_signals(&mut self, mut pending: Pending, inode: u64) {
        self.enter(&mut pending);
        let [fd, a, b, ..] = *pending.call.arguments();
        let room = match pending.call.number() {
            libc::SYS_read => Some(vec![(a, b)]),
            _ => vectors(a, b),
        };
        let outcome = match room {
            None => Err(-EFAULT),
            Some(room) => self.wait_for_signals(fd, inode, &room).map(|signals| (room, signals)),
        };
        self.leave(&mut pending);
        let (result, writes) = match outcome {
            Err(result) => (result, Vec::new()),
            Ok((room, signals)) => {
                let bytes: Vec<u8> =
                    signals.iter().flat_map(|signal| record(&signal.info)).collect();
                (bytes.len() as i64, scatter(&bytes, &room))
            }
        };
        for write in &writes {
            Guest.write(write.address, &write.bytes);
        }
        self.conclude(pending, result, writes, Effect::None);
    }

    /// At least one signal, or the call's result if there is none.
    fn wait_for_signals(
        &mut self,
        fd: u64,
        inode: u64,
        room: &[(u64, u64)],
    ) -> Result<Vec<Signal>, i64> {
        let most = room.iter().map(|&(_, len)| len).sum::<u64>() / RECORD;
        if most == 0 {
            return Err(-EINVAL);
        }
        loop {
            let signals = self.machine.signals.take_for_file(self.id, inode, most as usize, || {
                pipes::drain(fd);
            });
            if !signals.is_empty() {
                return Ok(signals);
            }
            if pipes::never_waits(fd) {
                return Err(-EAGAIN);
            }
            let mut byte = [0_u8];
            let args = [fd, byte.as_mut_ptr() as u64, 1, 0, 0, 0];
            let wait = syscall::resolve(libc::SYS_read as u64, args).expect("`read` has a row");
            let read = self.issue(&wait, libc::SYS_read as u16);
            if read < 0 && read != -EAGAIN {
                return Err(read);
            }
        }
    }
}

/// The inode of a pipe.
fn pipe_of(fd: u64) -> Option<u64> {
    let metadata = borrowed(fd)?.metadata().ok()?;
    metadata.file_type().is_fifo().then(|| metadata.ino())
}

/// The ranges of an array of `iovec`.
pub(super) fn vectors(address: u64, count: u64) -> Option<Vec<(u64, u64)>> {
    const MOST: u64 = 1024;
    let vector = |i: u64| Guest.words(address.wrapping_add(16 * i)).map(|[at, len]| (at, len));
    (0..count.min(MOST)).map(vector).collect()
}

/// Bytes, as a call stores them in several ranges.
fn scatter(bytes: &[u8], room: &[(u64, u64)]) -> Vec<Write> {
    let mut rest = bytes;
    let mut writes = Vec::new();
    for &(address, len) in room {
        let (part, behind) =
            rest.split_at(rest.len().min(usize::try_from(len).unwrap_or(usize::MAX)));
        if !part.is_empty() {
            writes.push(Write { address, bytes: part.to_vec() });
        }
        rest = behind;
    }
    writes
}

/// What the kernel makes of a `siginfo_t` for `signalfd` (`signalfd_copyinfo`).
fn record(info: &Info) -> [u8; RECORD as usize] {
    /// (where in `siginfo_t`, where in `signalfd_siginfo`, bytes)
    type Fields = &'static [(usize, usize, usize)];
    const HEAD: Fields = &[(0, 0, 4), (4, 4, 4), (8, 8, 4)];
    const SENDER: Fields = &[(16, 12, 4), (20, 16, 4)];
    const QUEUED: Fields = &[(16, 12, 4), (20, 16, 4), (24, 44, 4), (24, 48, 8)];
    const TIMER: Fields = &[(16, 24, 4), (20, 32, 4), (24, 44, 4), (24, 48, 8)];
    const CHILD: Fields = &[(16, 12, 4), (20, 16, 4), (24, 40, 4), (32, 56, 8), (40, 64, 8)];
    const POLL: Fields = &[(16, 28, 4), (24, 20, 4)];
    const FAULT: Fields = &[(16, 72, 8)];
    const SI_TIMER: i32 = -2;
    const SI_SIGIO: i32 = -5;
    let (signal, code) = (field(info, 0), field(info, CODE));
    let fields = match code {
        SI_TIMER => TIMER,
        SI_SIGIO => POLL,
        ..0 => QUEUED,
        libc::SI_USER | 0x80 => SENDER,
        _ => match signal {
            libc::SIGCHLD => CHILD,
            libc::SIGIO => POLL,
            libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP => FAULT,
            _ => SENDER,
        },
    };
    let mut record = [0; RECORD as usize];
    for &(from, to, len) in HEAD.iter().chain(fields) {
        record[to..to + len].copy_from_slice(&info[from..from + len]);
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::FromRawFd;

    /// The kernel's own `signalfd` says how a record is made of a `siginfo_t`.
    #[test]
    fn records_are_as_the_kernel_makes_them() {
        let set = 1_u64 << (libc::SIGRTMIN() - 1) | 1 << (libc::SIGUSR1 - 1);
        host::set_mask(host::mask() | set);
        let thread = host::thread_id() as u64;
        let mut queued: Info = [0; 128];
        queued[8..12].copy_from_slice(&libc::SI_QUEUE.to_le_bytes());
        queued[16..20].copy_from_slice(&77_i32.to_le_bytes());
        queued[20..24].copy_from_slice(&88_i32.to_le_bytes());
        queued[24..32].copy_from_slice(&0x1122_3344_5566_7788_u64.to_le_bytes());
        for signal in [libc::SIGRTMIN(), libc::SIGUSR1] {
            queued[0..4].copy_from_slice(&signal.to_le_bytes());
            let sent =
                [std::process::id().into(), thread, signal as u64, queued.as_ptr() as u64, 0, 0];
            let file = [u64::MAX, &raw const set as u64, SET, 0, 0, 0];
            // SAFETY: the signal is blocked, and the calls read the set and the structure.
            let fd = unsafe {
                assert_eq!(host::syscall(libc::SYS_rt_tgsigqueueinfo as u64, sent), 0);
                host::syscall(libc::SYS_signalfd4 as u64, file)
            };
            // SAFETY: the descriptor was just made.
            let mut file = unsafe { File::from_raw_fd(fd as i32) };
            let mut kernels = [0; RECORD as usize];
            file.read_exact(&mut kernels).expect("a signal is pending");
            assert_eq!(record(&queued), kernels);
        }
    }

    #[test]
    fn bytes_fill_ranges_in_their_order() {
        let parts = scatter(&[1, 2, 3], &[(10, 2), (20, 0), (30, 9)]);
        let write = |address, bytes: &[u8]| Write { address, bytes: bytes.to_vec() };
        assert_eq!(parts, [write(10, &[1, 2]), write(30, &[3])]);
    }
}
