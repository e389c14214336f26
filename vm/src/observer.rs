//! Observers of a replay: whatever wants to see accesses, calls or events.

use refrain_trace::{Access, Event, EventId, ThreadId};

/// What an observer wants compiled into the thread bodies. What nobody wants costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interest {
    /// Memory accesses.
    pub accesses: bool,
    /// Calls and returns.
    pub calls: bool,
}

/// Watches a replay. One is asked for a [`ThreadObserver`] per guest thread, so that nothing is
/// shared while threads run.
pub trait Observer: Send + Sync {
    /// What to report.
    fn interest(&self) -> Interest;
    /// The watcher of one thread, called on that thread before it runs.
    fn thread(&self, thread: ThreadId) -> Box<dyn ThreadObserver>;
}

/// Watches one thread. Calls come in program order, on the thread's own host thread.
pub trait ThreadObserver {
    /// Accesses (and calls and returns, if asked for) since the previous report.
    fn accesses(&mut self, batch: &[Access]);
    /// The thread comes to a system call, which [`Self::event`] will show when it returns; other
    /// threads that wait for it do not go on yet. (Changes of the address space come at once.)
    fn enter(&mut self, id: EventId, call: &Event) {
        let _ = (id, call);
    }
    /// The thread performed an event; all accesses before it have been reported. It has waited for
    /// the events of other threads that it depends on, and those that depend on it still wait.
    fn event(&mut self, id: EventId, event: &Event);
    /// The thread is done.
    fn finish(&mut self) {}
}
