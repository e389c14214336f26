//! A hint to the processor, which is all that this crate needs `unsafe` for.

#![allow(unsafe_code)]

/// Has the processor fetch the line of memory at an address, which may be any: what it has no access to, it
/// leaves alone.
#[inline]
pub(crate) fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction changes no memory and no register, and does not fault, whatever the
        // address. It is in every x86-64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
