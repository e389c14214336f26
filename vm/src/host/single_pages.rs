//! Pages of files that the kernel maps one by one.
//!
//! Where a process touches a page of a file that it has mapped, the kernel maps the neighbours of the
//! page too, sixteen at a time, if it has them in memory. The page table then shows several times as many
//! pages as were touched. The kernel leaves the neighbours alone where accesses may have to be reported,
//! page by page, to the owner of a `userfaultfd` (`mm/memory.c`, `should_fault_around`). So the recorder
//! registers such memory with a `userfaultfd` for write protection, and never protects any page of it.

use crate::{Hidden, Result, host};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};

/// `UFFD_USER_MODE_ONLY`: no privilege is needed.
const USER_MODE_ONLY: u64 = 1;
/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFD_FEATURE_WP_ASYNC` (Linux 6.7): faults are not reported, and any memory can be registered.
const ASYNCHRONOUS: u64 = 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`.
const WRITE_PROTECTION: u64 = 2;

/// `struct uffdio_api`; the call `UFFDIO_API` is `_IOWR(0xaa, 0x3f, …)`.
#[repr(C)]
struct Agreement {
    api: u64,
    features: u64,
    ioctls: u64,
}
const AGREE: u64 = 0xc018_aa3f;

/// `struct uffdio_register`; the call `UFFDIO_REGISTER` is `_IOWR(0xaa, 0, …)`.
#[repr(C)]
struct Registration {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}
const REGISTER: u64 = 0xc020_aa00;

/// Has the kernel enter what it maps at `range` in pages of the usual size. A file that it has in
/// memory in one large piece is else mapped as a whole, and taken out of the page table again when the
/// process writes into its own copy of it: pages that were only read before leave no trace.
pub(crate) fn no_large_pages(range: &Range<u64>) {
    let arguments = [range.start, range.end - range.start, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0];
    // SAFETY: it changes nothing that a program could see; kernels without large pages refuse it.
    unsafe { host::syscall(libc::SYS_madvise as u64, arguments) };
}

/// What memory is registered with.
pub(crate) struct SinglePages(Hidden);

impl SinglePages {
    /// `None` where the system has no such thing, or forbids it.
    pub(crate) fn new() -> Option<SinglePages> {
        let flags = libc::O_CLOEXEC as u64 | USER_MODE_ONLY;
        // SAFETY: the call makes a descriptor and nothing else.
        let fd = unsafe { host::syscall(libc::SYS_userfaultfd as u64, [flags, 0, 0, 0, 0, 0]) };
        let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0)?;
        // SAFETY: it was made just now, for nobody else.
        let made = unsafe { File::from_raw_fd(fd) };
        let mut agreement = Agreement { api: API, features: ASYNCHRONOUS, ioctls: 0 };
        control(&made, AGREE, &mut agreement).ok()?;
        // A child process has other memory.
        Hidden::copy(&made).ok().map(|copy| SinglePages(copy.unshared()))
    }

    /// From now on pages at `range`, all of which is mapped, are mapped one by one. Whatever is
    /// mapped there instead later is not concerned.
    pub(crate) fn register(&self, range: &Range<u64>) {
        let (start, len) = (range.start, range.end - range.start);
        let mut registration = Registration { start, len, mode: WRITE_PROTECTION, ioctls: 0 };
        // Where it is refused, more pages than needed are kept.
        let _ = control(self.0.file(), REGISTER, &mut registration);
    }
}

fn control<T>(file: &File, call: u64, argument: &mut T) -> Result<(), io::Error> {
    let (fd, argument) = (file.as_raw_fd() as u64, std::ptr::from_mut(argument) as u64);
    // SAFETY: the two calls read and write the structure of this size that they are named after.
    let answer = unsafe { host::syscall(libc::SYS_ioctl as u64, [fd, call, argument, 0, 0, 0]) };
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer as i32)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PAGE;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    /// How many pages of a file the page table has after one in `step` was read.
    fn present(pages: u64, step: u64, single: Option<&SinglePages>) -> u64 {
        let mut file = host::memory_file().expect("a file for the test");
        file.write_all(&vec![1; (pages * PAGE) as usize]).expect("there is room");
        let (len, prot, flags) = ((pages * PAGE) as usize, libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let start = at as u64;
        if let Some(single) = single {
            single.register(&(start..start + len as u64));
        }
        for page in (0..pages).step_by(step as usize) {
            // SAFETY: within the mapping, which is there until the end of this function.
            assert_eq!(unsafe { ((start + page * PAGE) as *const u8).read_volatile() }, 1);
        }
        let table = File::open("/proc/self/pagemap").expect("there is one");
        let mut entries = vec![0; 8 * pages as usize];
        table.read_exact_at(&mut entries, start / PAGE * 8).expect("can be read");
        // SAFETY: the mapping made above, which nobody refers to any more.
        unsafe { libc::munmap(at, len) };
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count() as u64
    }

    /// Whether the page table still has a page of a file that was read, when its neighbour has been
    /// written. The file is such as the kernel may have in large pieces.
    fn stays(prepare: fn(&Range<u64>)) -> bool {
        const LARGE: u64 = 2 << 20;
        let path = std::env::temp_dir().join(format!("refrain-large-{}", std::process::id()));
        std::fs::write(&path, vec![1; 4 * LARGE as usize]).expect("there is room");
        let file = File::open(&path).expect("it was just made");
        std::fs::remove_file(&path).expect("it is there");
        let (len, flags) = (4 * LARGE as usize, libc::MAP_PRIVATE);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new mappings at places of the kernel's choice; the file takes the place of a part of
        // the first one, which has room for it from a multiple of its large pages on.
        let start = unsafe {
            let room = libc::mmap(
                std::ptr::null_mut(),
                2 * len,
                libc::PROT_NONE,
                flags | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(room, libc::MAP_FAILED);
            let start = (room as u64).next_multiple_of(LARGE);
            let flags = flags | libc::MAP_FIXED;
            let at = libc::mmap(start as *mut libc::c_void, len, prot, flags, file.as_raw_fd(), 0);
            assert_eq!(at as u64, start);
            start
        };
        prepare(&(start..start + len as u64));
        let mut stays = true;
        for piece in (start..start + len as u64).step_by(LARGE as usize) {
            // SAFETY: within the mapping, of which nobody else knows.
            unsafe {
                assert_eq!((piece as *const u8).read_volatile(), 1);
                ((piece + 8 * PAGE) as *mut u8).write_volatile(2);
            }
            let mut found = false;
            let table = host::PageTable::open().expect("Linux has it");
            table.present(piece..piece + PAGE, |_| found = true);
            stays &= found;
        }
        // SAFETY: the mapping made above, which nobody refers to any more.
        unsafe { libc::munmap(start as *mut libc::c_void, len) };
        stays
    }

    #[test]
    fn what_was_read_stays_in_the_page_table() {
        if stays(|_| {}) {
            eprintln!("this kernel has the file in small pieces: nothing can go wrong");
        }
        assert!(stays(no_large_pages));
    }

    #[test]
    fn only_what_is_touched_is_mapped() {
        // Older kernels have no such thing.
        let Some(single) = SinglePages::new() else { return };
        assert_eq!(present(64, 8, Some(&single)), 8);
        assert!(present(64, 8, None) >= 8);
    }
}
