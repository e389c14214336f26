//! Large values that begin as zeros, in pages of their own: pages that are not used take no memory,
//! and beginning costs nothing. The allocator writes zeros to what is aligned as tables of translated
//! code are.

use crate::reserve;
use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull, null_mut};

/// A value in pages of its own. It is not dropped; its pages are given back.
#[derive(Debug)]
pub struct Zeroed<T>(NonNull<T>);

// SAFETY: it owns its value, as a box does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    /// A value of zeros.
    ///
    /// # Safety
    /// All bytes zero must be a value of the type, which needs no [`Drop`].
    pub(crate) unsafe fn new() -> Zeroed<T> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0) };
        let map = || {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at a place of the kernel's choice.
            let at = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), prot, flags, -1, 0) };
            if at == libc::MAP_FAILED { null_mut() } else { at.cast() }
        };
        match NonNull::new(reserve::again(map)) {
            Some(at) => Zeroed(at.cast()),
            None => handle_alloc_error(Layout::new::<T>()),
        }
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped for this value, which `new`'s caller says it is; borrowed as `self` is.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Zeroed<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and ends with it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}
