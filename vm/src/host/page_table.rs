//! Which pages of the process are in its page table.

use crate::layout::PAGE;
use crate::{Hidden, host};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Entries of the page table that are read in one go.
const ENTRIES: usize = 1 << 12;
/// Stretches of pages that the kernel tells in one go.
const STRETCHES: usize = 256;
/// `PAGE_IS_PRESENT | PAGE_IS_SWAPPED`.
const THERE: u64 = 1 << 3 | 1 << 4;

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Stretch {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`; the call `PAGEMAP_SCAN` (Linux 6.7) is `_IOWR('f', 16, …)`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    stretches: u64,
    most: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}
const SCAN: u64 = 0xc060_6610;

/// The process's page table.
pub(crate) struct PageTable {
    file: Hidden,
    /// The kernel tells stretches; if not, all entries have to be read.
    tells: AtomicBool,
}

impl PageTable {
    /// `None` where the system does not show it.
    pub(crate) fn open() -> Option<PageTable> {
        let file = File::open("/proc/self/pagemap").and_then(Hidden::copy).ok()?;
        Some(PageTable { file, tells: AtomicBool::new(true) })
    }

    /// Calls `found` with all stretches of whole pages in `range` that are there, or swapped out.
    pub(crate) fn present(&self, range: Range<u64>, mut found: impl FnMut(Range<u64>)) {
        if !self.tells.load(Ordering::Relaxed) {
            return self.read(range, &mut found);
        }
        let Range { mut start, end } = range;
        let mut stretches = [Stretch::default(); STRETCHES];
        while start < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start,
                end,
                stretches: stretches.as_mut_ptr() as u64,
                most: STRETCHES as u64,
                any_of: THERE,
                told: THERE,
                ..Scan::default()
            };
            let fd = self.file.file().as_raw_fd() as u64;
            let arguments = [fd, SCAN, &raw mut scan as u64, 0, 0, 0];
            // SAFETY: the call reads and writes the structure, and writes as many stretches as it
            // is told that there is room for.
            let count = unsafe { host::syscall(libc::SYS_ioctl as u64, arguments) };
            if count < 0 || scan.walk_end <= start {
                self.tells.store(false, Ordering::Relaxed);
                return self.read(start..end, &mut found);
            }
            for stretch in &stretches[..count as usize] {
                found(stretch.start..stretch.end);
            }
            start = scan.walk_end;
        }
    }

    /// The same, from the entries of all pages.
    fn read(&self, range: Range<u64>, found: &mut impl FnMut(Range<u64>)) {
        let mut entries = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let count = ((range.end - at).div_ceil(PAGE) as usize).min(ENTRIES);
            entries.resize(8 * count, 0);
            if self.file.file().read_exact_at(&mut entries, at / PAGE * 8).is_err() {
                break;
            }
            for (n, entry) in (0..).zip(entries.chunks_exact(8)) {
                if entry[7] & 0xc0 != 0 {
                    found(at + n * PAGE..at + (n + 1) * PAGE);
                }
            }
            at += count as u64 * PAGE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways find the pages that were touched, however many stretches they are.
    #[test]
    fn pages_that_were_touched_are_there() {
        const PAGES: u64 = 3000;
        let (len, prot) = ((PAGES * PAGE) as usize, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at a place of the kernel's choice, which keeps small pages.
        let start = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            at as u64
        };
        let touched: Vec<u64> =
            (0..PAGES).filter(|page| page % 3 == 1 || page / 100 == 7).collect();
        for page in &touched {
            // SAFETY: within the mapping, which nobody else uses.
            unsafe { ((start + page * PAGE) as *mut u8).write_volatile(1) };
        }
        let table = PageTable::open().expect("Linux has it");
        for tells in [true, false] {
            table.tells.store(tells, Ordering::Relaxed);
            let mut found = Vec::new();
            table.present(start..start + PAGES * PAGE, |stretch| {
                found.extend((stretch.start - start) / PAGE..(stretch.end - start) / PAGE);
            });
            assert_eq!(found, touched);
        }
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(start as *mut libc::c_void, len) };
    }
}
