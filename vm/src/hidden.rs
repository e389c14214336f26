//! Descriptors of refrain's own in a process that it shares with the guest.
//!
//! They have high numbers, so that the guest gets the low ones as it would natively, and are
//! noted: system calls that name one answer the guest that there is none, and lists of open
//! descriptors leave them out.

use crate::host;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many numbers are set apart, if the process may have so many.
const ROOM: i32 = 640;
/// No number above this: the kernel's table of descriptors is as long as the highest is high, and
/// copied by `fork`.
const HIGHEST: i32 = 4096;
const BITS: usize = 64;

/// Which of the numbers are taken.
static TAKEN: Marks = [const { AtomicU64::new(0) }; ROOM as usize / BITS];

/// Of these, the ones that child processes of the guest close.
static UNSHARED: Marks = [const { AtomicU64::new(0) }; ROOM as usize / BITS];

/// A descriptor that the guest neither sees nor reaches. Its number is free again when this is
/// dropped.
#[derive(Debug)]
pub struct Hidden(Option<File>);

impl Hidden {
    /// Another descriptor for the same file, out of the guest's reach. It is not inherited by
    /// programs that are executed.
    pub fn copy(of: impl AsFd) -> io::Result<Hidden> {
        let fd = duplicate(of.as_fd())?;
        let (word, bit) = place(&TAKEN, fd.as_raw_fd())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
        word.fetch_or(bit, Ordering::SeqCst);
        Ok(Hidden(Some(fd.into())))
    }

    /// No child process of the guest keeps it: the file is closed, and unlocked, with this process.
    #[must_use]
    pub fn unshared(self) -> Hidden {
        if let Some((word, bit)) = place(&UNSHARED, self.file().as_raw_fd()) {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        self
    }

    /// The file.
    pub fn file(&self) -> &File {
        self.0.as_ref().expect("it is taken only by methods that consume it")
    }

    /// As a file, which stays hidden for good.
    pub fn into_file(mut self) -> File {
        self.0.take().expect("it is taken only here and when it is dropped")
    }
}

impl AsFd for Hidden {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            let number = fd.as_raw_fd();
            drop(fd);
            forget(number);
        }
    }
}

/// Whether a descriptor is refrain's own.
pub(crate) fn is_own(fd: i32) -> bool {
    place(&TAKEN, fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// All that are refrain's own, ascending.
pub(crate) fn own() -> impl Iterator<Item = i32> {
    numbers().filter(|&fd| is_own(fd))
}

/// In a child process: closes what is its parent's alone.
pub(crate) fn close_unshared() {
    let is_unshared = |&fd: &i32| {
        place(&UNSHARED, fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    };
    for fd in own().filter(is_unshared) {
        // SAFETY: whoever used it is a thread that this process does not have.
        unsafe { libc::close(fd) };
        forget(fd);
    }
}

/// The number is free again.
fn forget(fd: i32) {
    for marks in [&UNSHARED, &TAKEN] {
        if let Some((word, bit)) = place(marks, fd) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

/// Closes the guest's descriptors that do not outlive the execution of a program.
pub(crate) fn close_on_execution() {
    let open = host::open_descriptors().unwrap_or_default();
    for fd in open.into_iter().filter(|&fd| !is_own(fd)) {
        // SAFETY: the descriptor is the guest's, or it is closed already.
        unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFD);
            if flags >= 0 && flags & libc::FD_CLOEXEC != 0 {
                libc::close(fd);
            }
        }
    }
}

/// A mark for each number that is set apart.
type Marks = [AtomicU64; ROOM as usize / BITS];

/// Where the mark of a number is, if it is one of those that are set apart.
fn place(marks: &'static Marks, fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let numbers = numbers();
    let number = numbers.contains(&fd).then(|| (fd - numbers.start) as usize)?;
    Some((&marks[number / BITS], 1 << (number % BITS)))
}

/// The numbers that are set apart: behind what the guest may open, or a quarter of those if it may
/// open any number.
fn numbers() -> Range<i32> {
    static NUMBERS: OnceLock<(i32, i32)> = OnceLock::new();
    let &(first, room) = NUMBERS.get_or_init(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let [soft, hard] = [current, maximum].map(|limit| limit.unwrap_or(u64::MAX));
        let room = ROOM as u64;
        let (first, room) = match soft.saturating_add(room) <= hard {
            true => (soft, room),
            false => (soft - room.min(soft / 4), room.min(soft / 4)),
        };
        (i32::try_from(first).unwrap_or(HIGHEST).min(HIGHEST), room as i32)
    });
    first..first + room
}

/// A copy of a descriptor with one of the numbers that are set apart, or a higher one, whatever the
/// limit is.
fn duplicate(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let Range { start: first, end } = numbers();
    let before = getrlimit(Resource::Nofile);
    let needed = end as u64;
    let raised = before.current.is_some_and(|soft| soft < needed);
    if raised {
        let current = Some(needed.min(before.maximum.unwrap_or(u64::MAX)));
        // Where that is refused, there is no such number, which is said below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..before });
    }
    let copy = fcntl_dupfd_cloexec(fd, first);
    if raised {
        let _ = setrlimit(Resource::Nofile, before);
    }
    Ok(copy?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_copy_is_known_as_refrains_own_until_it_is_dropped() {
        assert!(!is_own(0) && !is_own(-1));
        let is_forgotten = || {
            let copy = Hidden::copy(io::stderr()).expect("there is room");
            let fd = copy.as_fd().as_raw_fd();
            assert!(is_own(fd) && own().any(|own| own == fd));
            drop(copy);
            !is_own(fd)
        };
        // Another test may get the number at once.
        assert!((0..100).any(|_| is_forgotten()));
    }

    #[test]
    fn a_child_closes_what_is_its_parents_alone() {
        let (mut reader, writer) = io::pipe().expect("there is room");
        let kept = Hidden::copy(&writer).expect("there is room");
        let left = Hidden::copy(writer).expect("there is room").unshared();
        std::mem::forget(left.into_file());
        close_unshared();
        drop(kept.file().write_all(b"kept"));
        drop(kept);
        let mut read = String::new();
        reader.read_to_string(&mut read).expect("ends, since nobody can write");
        assert_eq!(read, "kept");
    }
}
