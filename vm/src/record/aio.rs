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
const EINVAL: i64 = 22;

/// Words of `struct io_event`.
const EVENT: usize = 4;

/// The guest's contexts, by their names.
#[derive(Default, Debug)]
pub(crate) struct Contexts(pub(super) BTreeMap<u64, Context>);

/// What is done in a context but not yet told of, and the kernel's contexts that do it.
///
/// Each of the kernel's contexts has one operation at a time: threads that submit to one context wait
/// for what they have submitted themselves.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) idle: Vec<u64>,
    pub(super) done: VecDeque<[u64; EVENT]>,
}

impl Context {
    /// Takes the kernel's contexts away, but for those in use; what the first call that fails returns.
    pub(super) fn destroy(self) -> i64 {
        self.idle.into_iter().map(destroy).min().unwrap_or(0)
    }
}

impl Contexts {
    /// A context of the kernel's that nobody else uses, for the guest's of this name.
    pub(super) fn take(&mut self, name: u64) -> Result<u64, i64> {
        let context = self.0.get_mut(&name).ok_or(-EINVAL)?;
        context.idle.pop().map_or_else(|| create(1), Ok)
    }

    /// Gives it back, with what it has done.
    pub(super) fn give_back(&mut self, name: u64, kernel: u64, done: Option<[u64; EVENT]>) {
        match self.0.get_mut(&name) {
            Some(context) => {
                context.idle.push(kernel);
                context.done.extend(done);
            }
            // The guest has destroyed it meanwhile.
            None => drop(destroy(kernel)),
        }
    }
}

/// A new context of the kernel's for so many operations.
pub(super) fn create(number: u64) -> Result<u64, i64> {
    let mut kernel = 0_u64;
    let args = [number, &raw mut kernel as u64, 0, 0, 0, 0];
    // SAFETY: the kernel writes one word, and maps its ring where nobody has memory.
    let result = unsafe { host::syscall(libc::SYS_io_setup as u64, args) };
    if result < 0 { Err(result) } else { Ok(kernel) }
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
