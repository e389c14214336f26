//! Values that translated code uses by their address.
//!
//! A `Box` promises the compiler that nobody else reaches its value: a pointer that was made of the box
//! before is void once the box is used again. But fast-path functions are told an address once, and use it
//! whenever guest code calls them. So the value's owner also reaches it by that address alone.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A value at an address that stays the same until it is dropped.
pub(crate) struct AtAddress<T>(NonNull<T>);

// SAFETY: this owns the value, as a box would.
unsafe impl<T: Send> Send for AtAddress<T> {}

impl<T> AtAddress<T> {
    pub(crate) fn new(value: T) -> AtAddress<T> {
        AtAddress(NonNull::from(Box::leak(Box::new(value))))
    }

    /// Where the value is. What uses it there must not do so while its owner does: fast-path functions
    /// run where the owner has called translated code and has no reference to the value.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

impl<T> Deref for AtAddress<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value is there until this is dropped. For those who use it by its address, see
        // `address`.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for AtAddress<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; of those who own it, nobody else has a reference.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for AtAddress<T> {
    fn drop(&mut self) {
        // SAFETY: it was a box in `new`, and nobody uses it by its address any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Counter<'a> {
        count: u32,
        dropped: &'a Cell<bool>,
    }

    impl Drop for Counter<'_> {
        fn drop(&mut self) {
            self.dropped.set(true);
        }
    }

    #[test]
    fn owner_and_fast_path_take_turns() {
        let dropped = Cell::new(false);
        let mut counter = AtAddress::new(Counter { count: 0, dropped: &dropped });
        let address = counter.address();
        for _ in 0..3 {
            counter.count += 1;
            let counter = std::ptr::with_exposed_provenance_mut::<Counter<'_>>(address as usize);
            // SAFETY: the value is there, and its owner has no reference at this moment.
            unsafe { (*counter).count *= 2 };
        }
        assert_eq!((counter.count, counter.address()), (14, address));
        drop(counter);
        assert!(dropped.get());
    }
}
