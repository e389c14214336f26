//! The second address of guest memory that is out of the guest's reach at its first: of memory in common with
//! other processes ([`crate::common`]). The machine and the kernel access it there.

use refrain_trace::payload::Write;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Where areas are, by ascending addresses, and where their aliases begin.
pub(crate) type Aliases = Vec<(Range<u64>, u64)>;

/// Each list stays for ever: somebody may be looking into it.
static ALIASES: AtomicPtr<Aliases> = AtomicPtr::new(std::ptr::null_mut());

/// The other address of a byte of such memory.
#[inline]
pub(crate) fn alias(address: u64) -> Option<u64> {
    let aliases = ALIASES.load(Ordering::Acquire);
    if aliases.is_null() {
        return None;
    }
    // SAFETY: it was a box, and is never freed.
    let aliases = unsafe { &*aliases };
    let behind = aliases.partition_point(|(range, _)| range.start <= address);
    let (range, alias) = &aliases[behind.checked_sub(1)?];
    (address < range.end).then(|| alias + (address - range.start))
}

/// Whether the first or the last of these bytes is in such memory.
#[inline]
pub(crate) fn has(address: u64, len: u64) -> bool {
    is_any() && (alias(address).is_some() || alias(address.wrapping_add(len - 1)).is_some())
}

/// Whether there is any such memory.
#[inline]
pub(crate) fn is_any() -> bool {
    !ALIASES.load(Ordering::Relaxed).is_null()
}

/// A word of such memory, by its other address.
///
/// # Safety
/// `alias` is that of an address that is a multiple of eight, and the area stays mapped while the
/// reference is used.
pub(crate) unsafe fn word<'a>(alias: u64) -> &'a AtomicU64 {
    // SAFETY: the caller's; other threads and processes change the word at will.
    unsafe { AtomicU64::from_ptr(alias as *mut u64) }
}

/// From here on these are all.
pub(crate) fn publish(aliases: Aliases) {
    let list = match aliases.is_empty() {
        true => std::ptr::null_mut(),
        false => Box::into_raw(Box::new(aliases)),
    };
    ALIASES.store(list, Ordering::Release);
}

thread_local! {
    /// What such memory shows to the system call that the thread is about to make.
    static SHOWN: RefCell<Vec<Write>> = const { RefCell::new(Vec::new()) };
}

/// Whether the calling thread may have to read guest memory at a second address, or bytes that it is shown.
pub(crate) fn is_possible() -> bool {
    is_any() || SHOWN.with_borrow(|shown| !shown.is_empty())
}

/// From here on the calling thread reads these bytes where they are; none at all, if there are none.
pub(crate) fn show(bytes: Vec<Write>) {
    SHOWN.with_borrow_mut(|shown| *shown = bytes);
}

/// The bytes from here on that the calling thread is shown, at most so many.
pub(crate) fn shown(address: u64, most: usize) -> Option<Vec<u8>> {
    SHOWN.with_borrow(|shown| {
        shown.iter().find_map(|write| {
            let at = usize::try_from(address.checked_sub(write.address)?).ok()?;
            let rest = write.bytes.get(at..).filter(|rest| !rest.is_empty())?;
            Some(rest[..rest.len().min(most)].to_vec())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_shown_bytes_until_it_is_shown_others() {
        show(vec![Write { address: 0x1000, bytes: vec![1, 2, 3] }]);
        assert_eq!(shown(0x1001, 8), Some(vec![2, 3]));
        assert_eq!(shown(0x1000, 1), Some(vec![1]));
        assert_eq!(shown(0x1003, 8), None);
        show(Vec::new());
        assert_eq!(shown(0x1001, 8), None);
    }
}
