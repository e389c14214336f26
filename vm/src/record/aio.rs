//! Asynchronous input and output (`io_setup`, `io_submit`, `io_getevents`).
//!
//! Natively the kernel writes into the program's buffers at any time between `io_submit` and the
//! moment when the program learns of it. Here `io_submit` waits for what it has submitted: what the
//! kernel has written is known when the call returns, and is recorded with it. `io_getevents` hands
//! out what has been done. The kernel itself executes each operation, so results, errors and
//! `eventfd`s that are told are the native ones.
//!
//! A context's name is the address of a page, as natively, into which libaio looks. The page is
//! empty: libaio finds no ring that it knows, and makes the call.

use crate::host;
use std::collections::{BTreeMap, VecDeque};

const EAGAIN: i64 = 11;
const EINTR: i64 = 4;

/// Words of `struct io_event`.
const EVENT: usize = 4;

/// The guest's contexts, by their names.
#[derive(Default, Debug)]
pub(crate) struct Contexts(pub(super) BTreeMap<u64, Context>);

/// The kernel's name of a context, and what is done but not yet told of.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) kernel: u64,
    pub(super) done: VecDeque<[u64; EVENT]>,
}

/// The one operation that has been submitted to a context: its `io_event`.
pub(super) fn wait_for(kernel: u64) -> Result<[u64; EVENT], i64> {
    let mut event = [0_u64; EVENT];
    let args = [kernel, 1, 1, event.as_mut_ptr() as u64, 0, 0];
    loop {
        // SAFETY: the kernel writes at most one event.
        match unsafe { host::syscall(libc::SYS_io_getevents as u64, args) } {
            1 => return Ok(event),
            result if result == -EINTR => {}
            result => return Err(if result < 0 { result } else { -EAGAIN }),
        }
    }
}

pub(super) fn destroy(kernel: u64) -> i64 {
    // SAFETY: the kernel takes its own ring away.
    unsafe { host::syscall(libc::SYS_io_destroy as u64, [kernel, 0, 0, 0, 0, 0]) }
}
