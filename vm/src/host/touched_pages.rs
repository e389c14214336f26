//! Pages of files that stay in the page table once they were touched.
//!
//! A kernel that needs memory, or that looks for what nobody uses, takes pages of files out again, since
//! it can read them anew. Then nothing shows that the process has touched them. So the recorder locks such
//! memory, page by page as it is touched (`mlock2` with `MLOCK_ONFAULT`), where it may lock as much as it
//! likes; a limit is for what the program itself locks.
//!
//! What is locked cannot be discarded by `madvise`, and counts where the program locks memory: before it
//! does one of these, the recorder lets go.

use crate::host;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::ops::Range;

/// `MLOCK_ONFAULT`: pages are locked when they are touched.
const WHEN_TOUCHED: u64 = 1;

/// Whether touched pages are locked.
#[derive(Default)]
pub(crate) struct TouchedPages {
    locks: bool,
}

impl TouchedPages {
    /// Locks, if the process may lock any memory.
    pub(crate) fn new() -> TouchedPages {
        let capable =
            capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        TouchedPages { locks: capable || getrlimit(Resource::Memlock).current.is_none() }
    }

    pub(crate) fn locks(&self) -> bool {
        self.locks
    }

    /// From now on pages at `range`, all of which is mapped, stay there once they were touched.
    pub(crate) fn keep(&self, range: &Range<u64>) {
        if self.locks {
            let arguments = [range.start, range.end - range.start, WHEN_TOUCHED, 0, 0, 0];
            // SAFETY: it changes nothing that a program could see but what the module's documentation
            // names; where it is refused, the kernel may take pages out.
            unsafe { host::syscall(libc::SYS_mlock2 as u64, arguments) };
        }
    }

    /// The kernel may take out what it likes again.
    pub(crate) fn let_go(&self, range: &Range<u64>) {
        if self.locks {
            let arguments = [range.start, range.end - range.start, 0, 0, 0, 0];
            // SAFETY: as above.
            unsafe { host::syscall(libc::SYS_munlock as u64, arguments) };
        }
    }

    /// Keeps nothing from now on.
    pub(crate) fn stop(&mut self) {
        self.locks = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::PageTable;
    use crate::layout::PAGE;
    use std::os::fd::AsRawFd;

    /// Which of a file's pages are in the page table after one in three was read and the kernel was
    /// asked to take them out.
    fn stay(pages: u64, prepare: impl FnOnce(&Range<u64>)) -> Vec<u64> {
        let path = std::env::temp_dir().join(format!("refrain-touched-{}", std::process::id()));
        std::fs::write(&path, vec![1; (pages * PAGE) as usize]).expect("there is room");
        let file = std::fs::File::open(&path).expect("it was just made");
        file.sync_all().expect("it can be written");
        std::fs::remove_file(&path).expect("it is there");
        let (len, prot, flags) = ((pages * PAGE) as usize, libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let start = at as u64;
        prepare(&(start..start + len as u64));
        for page in (0..pages).step_by(3) {
            // SAFETY: within the mapping, which is there until the end of this function.
            assert_eq!(unsafe { ((start + page * PAGE) as *const u8).read_volatile() }, 1);
        }
        // SAFETY: the mapping made above; its content stays what it is.
        unsafe { libc::madvise(at, len, libc::MADV_PAGEOUT) };
        let mut found = Vec::new();
        PageTable::open().expect("Linux has it").present(start..start + len as u64, |stretch| {
            found.extend((stretch.start - start) / PAGE..(stretch.end - start) / PAGE);
        });
        // SAFETY: the mapping made above, which nobody refers to any more.
        unsafe { libc::munmap(at, len) };
        found
    }

    #[test]
    fn touched_pages_stay() {
        let touched = TouchedPages::new();
        if !touched.locks {
            eprintln!("this user may not lock memory");
            return;
        }
        let all = stay(30, |range| touched.keep(range));
        assert!((0..30).step_by(3).all(|page| all.contains(&page)), "{all:?}");
        let some = stay(30, |range| {
            touched.keep(range);
            touched.let_go(range);
        });
        assert!(some.len() < all.len(), "{some:?}");
    }
}
