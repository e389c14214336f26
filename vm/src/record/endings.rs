//! Threads that end while another one creates a thread: they sleep until the creation is done, and the
//! next creation waits until they have ended. Otherwise, threads that a program creates without a pause
//! would pile up, all of them looking for a moment between two creations.

use crate::host;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Who wakes them may have done so before they sleep.
const MOST: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct Endings {
    waiting: AtomicU32,
    /// Counts the creations and ends that were done while a thread waited.
    done: AtomicU32,
}

impl Endings {
    /// Waits until the end succeeds.
    pub(crate) fn wait(&self, mut end: impl FnMut() -> bool) {
        if end() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let done = self.done.load(Ordering::SeqCst);
            if end() {
                break;
            }
            host::futex_wait(self.done.as_ptr() as u64, done, MOST);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a thread waits.
    pub(crate) fn any(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// A creation or an end is done.
    pub(crate) fn wake(&self) {
        if self.any() {
            self.done.fetch_add(1, Ordering::SeqCst);
            host::futex_wake_all(self.done.as_ptr() as u64);
        }
    }

    /// In a child process, other threads are gone.
    pub(crate) fn forget_others(&self) {
        self.waiting.store(0, Ordering::SeqCst);
    }
}
