//! Observers of a replay: whatever wants to see accesses, calls or events.

use crate::{Answer, LeaveOut, Nested, SameEpoch, Seen};
use refrain_trace::{Access, Event, EventId, ThreadId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

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
    /// Functions of which the calls are wanted, with the accesses
    /// ([`crate::EngineConfig::functions`]).
    fn functions(&self) -> Arc<BTreeMap<u64, Answer>> {
        Arc::default()
    }
    /// Calls that are wanted with those that they are within, with the accesses
    /// ([`crate::EngineConfig::nested`]).
    fn nested(&self) -> Arc<BTreeMap<u64, Nested>> {
        Arc::default()
    }
    /// Instructions before which the value of a register is wanted, with the accesses
    /// ([`crate::EngineConfig::values`]).
    fn values(&self) -> Arc<BTreeMap<u64, usize>> {
        Arc::default()
    }
    /// Stores that are reads if they change nothing ([`crate::EngineConfig::compared`]).
    fn compared(&self) -> Arc<BTreeSet<u64>> {
        Arc::default()
    }
    /// The notes by which repeated accesses are left out, if the engine was made to use them
    /// ([`crate::EngineConfig::leave_out`]). [`ThreadObserver::repeats`] then says when.
    fn seen(&self) -> Option<&Seen> {
        None
    }
    /// Which accesses the observer has no use for. For [`LeaveOut::SameEpoch`], its threads'
    /// [`ThreadObserver::same_epoch`] says what they are.
    fn leaves_out(&self) -> LeaveOut {
        match self.seen() {
            Some(_) => LeaveOut::Touched,
            None => LeaveOut::Nothing,
        }
    }
}

/// Watches one thread. Calls come in program order, on the thread's own host thread.
pub trait ThreadObserver {
    /// Accesses (and calls and returns, if asked for) since the previous report. The access of an
    /// instruction that is an event is not among them: the event tells it.
    fn accesses(&mut self, batch: &[Access]);
    /// The thread comes to a system call, which [`Self::event`] will show when it returns; other
    /// threads that wait for it do not go on yet. (Changes of the address space come at once.)
    fn enter(&mut self, id: EventId, call: &Event) {
        let _ = (id, call);
    }
    /// What the kernel has read and written in the guest's memory for the system call that
    /// [`Self::event`] shows next. Reads may be missing where only the kernel knows.
    fn kernel(&mut self, reads: &[Range<u64>], writes: &[Range<u64>]) {
        let _ = (reads, writes);
    }
    /// The thread performed an event; all accesses before it have been reported. It has waited for
    /// the events of other threads that it depends on, and those that depend on it still wait.
    /// `retired`: what the engine has counted by now ([`crate::EngineConfig::count`]).
    fn event(&mut self, id: EventId, event: &Event, retired: u64);
    /// The thread has executed a locked instruction or a watched store that has no event, because no
    /// other thread had accessed the word: what the event would say, but for ticket and time. `id` is
    /// the event before.
    fn own(&mut self, id: EventId, event: &Event) {
        let _ = (id, event);
    }
    /// Whether, until the next event, accesses are wanted that touch only bytes which have been
    /// reported of this thread before. If not, they may be left out. Asked before the thread runs
    /// and after each event.
    fn repeats(&self) -> bool {
        true
    }
    /// What the thread has accessed in its present epoch. The same notes each time.
    fn same_epoch(&self) -> Option<&SameEpoch> {
        None
    }
    /// The thread is done.
    fn finish(&mut self) {}
}
