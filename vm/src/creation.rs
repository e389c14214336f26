//! A thread that creates another one, for both sides: from `pthread_create` to its `clone`, it keeps the
//! order of threads' ends, because the library looks for the stack of a thread that has ended.
//!
//! The library may wait for its own locks meanwhile, and whoever has these for a handler of this thread
//! (`setuid` waits for all threads). So handlers interrupt the creation where it waits, and what they
//! call does not end it.

/// The creation of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creation {
    /// Its ticket, which is held.
    pub(crate) ticket: u64,
    /// How many handlers that have interrupted it have not returned.
    handlers: u32,
}

impl Creation {
    pub(crate) fn new(ticket: u64) -> Creation {
        Creation { ticket, handlers: 0 }
    }

    /// Whether what the thread calls is called by the creation itself or behind it.
    pub(crate) fn is_current(&self) -> bool {
        self.handlers == 0
    }

    pub(crate) fn begin_handler(&mut self) {
        self.handlers += 1;
    }

    pub(crate) fn end_handler(&mut self) {
        self.handlers = self.handlers.saturating_sub(1);
    }
}
