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
    /// The thread performed an event; all accesses before it have been reported.
    fn event(&mut self, id: EventId, event: &Event);
    /// The thread is done.
    fn finish(&mut self) {}
}
