//! Memory that a recording keeps back for when there is none left.
//!
//! An allocation that fails ends the process, and with the recorder the user's program. So a
//! recording sets some memory aside. The first allocation that fails gives it up and is made again;
//! the writer, who asks for that, ends the trace; and the program goes on, unrecorded, with what
//! the rest of the memory allows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr::{self, NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::thread::{Builder, JoinHandle};
use std::{hint, io};

/// More than the writer and the threads need until the writer has noticed. (No table has this size: a test
/// knows the reserve by it.)
const SIZE: usize = 36 << 20;

static MEMORY: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static STATE: AtomicU8 = AtomicU8::new(NONE);
/// Nothing is set aside.
const NONE: u8 = 0;
/// Somebody is about to set it aside.
const COMES: u8 = 1;
const SET_ASIDE: u8 = 2;
/// Somebody is about to give it up.
const LEAVES: u8 = 3;
const GIVEN_UP: u8 = 4;

/// The system's allocator, with a reserve for recordings.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: every request goes to the system's allocator, at most twice; that keeps the contract.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        again(|| unsafe { System.alloc(layout) })
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        again(|| unsafe { System.alloc_zeroed(layout) })
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; where it fails, the old memory is as it was.
        again(|| unsafe { System.realloc(pointer, layout, size) })
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocates, once more if there is no memory and the reserve can be given up.
#[inline]
pub(crate) fn again(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let memory = allocate();
    if memory.is_null() && give_up() { allocate() } else { memory }
}

/// Gives the reserve back to the system, unless somebody else has. False if there was none.
#[cold]
fn give_up() -> bool {
    loop {
        match STATE.compare_exchange(SET_ASIDE, LEAVES, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                let memory = MEMORY.load(Ordering::SeqCst);
                // SAFETY: it was mapped for this, in this size, and nobody uses it.
                unsafe { libc::munmap(memory, SIZE) };
                STATE.store(GIVEN_UP, Ordering::SeqCst);
                return true;
            }
            Err(COMES | LEAVES) => crate::host::yield_now(),
            // Perhaps between the caller's failure and now.
            Err(state) => return state == GIVEN_UP,
        }
    }
}

/// Sets memory aside, if there is any; once for this process.
pub(crate) fn set_aside() {
    let (read_write, own) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    if STATE.compare_exchange(NONE, COMES, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let memory = unsafe { libc::mmap(ptr::null_mut(), SIZE, read_write, own, -1, 0) };
    let found = NonNull::new(memory).filter(|_| memory != libc::MAP_FAILED);
    MEMORY.store(found.map_or(null_mut(), NonNull::as_ptr), Ordering::SeqCst);
    STATE.store(if found.is_some() { SET_ASIDE } else { NONE }, Ordering::SeqCst);
}

/// Starts a thread. The standard library allocates the thread's handle from the system, past
/// [`Allocator`], and ends the process where that fails. So a block of each small size is allocated
/// and freed before: the C library keeps them for the next allocations of the calling thread.
pub(crate) fn spawn<T: Send + 'static>(
    builder: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    for size in (16..=128).step_by(16) {
        let layout = Layout::array::<u8>(size).expect("a few bytes");
        // SAFETY: the size is not zero; the block is freed as it was allocated, and only if it was.
        unsafe {
            let block = hint::black_box(Allocator.alloc(layout));
            if !block.is_null() {
                Allocator.dealloc(block, layout);
            }
        }
    }
    builder.spawn(run)
}

/// Whether an allocation has failed since.
pub(crate) fn is_given_up() -> bool {
    STATE.load(Ordering::Relaxed) == GIVEN_UP
}
