//! Private memory from the kernel, for what is too large or too special for the allocator: tables of which
//! few pages are used, stacks, and memory that translated code addresses. Pages that are not used take
//! no memory, and beginning costs nothing. (The allocator writes zeros to what is aligned as tables of
//! translated code are.)

use crate::reserve;
use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

/// Zeroed pages, which are given back when this is dropped.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value, which gives out no more than its address.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many bytes, at a place of the kernel's choice.
    pub fn new(len: usize) -> io::Result<Pages> {
        let map = || {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at a place of the kernel's choice.
            let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
            if at == libc::MAP_FAILED { ptr::null_mut() } else { at.cast() }
        };
        let start = NonNull::new(reserve::again(map)).ok_or_else(io::Error::last_os_error)?;
        Ok(Pages { start, len })
    }

    /// Where they begin. Whoever accesses them sees to it that they are still there, and that nobody
    /// else does so at the time.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped only here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A value in pages of its own, which begins as zeros. It is not dropped; its pages are given back.
#[derive(Debug)]
pub struct Zeroed<T>(Pages, PhantomData<T>);

impl<T> Zeroed<T> {
    /// A value of zeros.
    ///
    /// # Safety
    /// All bytes zero must be a value of the type, which needs no [`Drop`].
    pub(crate) unsafe fn new() -> Zeroed<T> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0) };
        match Pages::new(size_of::<T>()) {
            Ok(pages) => Zeroed(pages, PhantomData),
            Err(_) => handle_alloc_error(Layout::new::<T>()),
        }
    }

    /// Where the value is.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.start.cast().as_ptr()
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped for this value, which `new`'s caller says it is; borrowed as `self` is.
        unsafe { self.0.start.cast().as_ref() }
    }
}

impl<T> DerefMut for Zeroed<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.start.cast().as_mut() }
    }
}
