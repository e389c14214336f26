//! The ranking's observer: it collects the critical sections of every replayed thread.

use super::made::OwnLocks;
use refrain_trace::{Access, Event, EventId, ThreadId};
use refrain_transform::{Collector, Uses};
use refrain_vm::{Interest, Observer, Seen, ThreadObserver};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The collectors of the threads that are done.
type Done = Arc<Mutex<Vec<Collector>>>;

/// Gives each thread a collector and gathers them at the end.
pub(super) struct Collect {
    /// Per thread: its stack, where it is known.
    own: Vec<Option<Range<u64>>>,
    /// Locks that the program makes itself, where critical sections are wanted.
    locks: Option<OwnLocks>,
    /// What instructions do with what they access.
    uses: Arc<Uses>,
    /// Keeps repeated accesses away, where the kernel has the address space for it.
    seen: Option<Seen>,
    done: Done,
}

impl Collect {
    /// An observer of threads with these stacks.
    pub(super) fn new(own: Vec<Option<Range<u64>>>) -> Collect {
        let seen = Seen::new();
        if let Err(error) = &seen {
            tracing::warn!("every access is logged, which takes longer: {error}");
        }
        Collect { own, locks: None, uses: Arc::default(), seen: seen.ok(), done: Done::default() }
    }

    /// Critical sections are wanted with their sites, those of such locks too.
    pub(super) fn of_locks(self, locks: OwnLocks) -> Collect {
        Collect { locks: Some(locks), ..self }
    }

    /// Conflicts that are benign are to be told.
    pub(super) fn with_uses(self, uses: Uses) -> Collect {
        Collect { uses: Arc::new(uses), ..self }
    }

    /// The locks that the program makes itself.
    pub(super) fn locks(&self) -> Option<&OwnLocks> {
        self.locks.as_ref()
    }

    /// What the threads collected. Threads that are not done have collected nothing.
    pub(super) fn take(&self) -> Vec<Collector> {
        std::mem::take(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Collect {
    fn interest(&self) -> Interest {
        Interest { accesses: true, calls: self.locks.is_some() }
    }

    fn thread(&self, thread: ThreadId) -> Box<dyn ThreadObserver> {
        let own = self.own.get(thread.index()).cloned().flatten();
        let mut collector = Collector::new(thread, own);
        if let Some(locks) = &self.locks {
            collector = collector.knowing(locks.made.roles(thread), locks.foreign.clone());
            collector = collector.asked_at(locks.made.asked(thread));
            collector = collector.with_uses(self.uses.clone());
        }
        Box::new(OnThread { collector: Some(collector), done: self.done.clone() })
    }

    fn values(&self) -> Arc<BTreeMap<u64, usize>> {
        Arc::new(self.uses.values.clone())
    }

    fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref()
    }
}

struct OnThread {
    /// Until the thread is done.
    collector: Option<Collector>,
    done: Done,
}

impl ThreadObserver for OnThread {
    fn accesses(&mut self, batch: &[Access]) {
        if let Some(collector) = &mut self.collector {
            collector.accesses(batch);
        }
    }

    fn kernel(&mut self, reads: &[Range<u64>], writes: &[Range<u64>]) {
        if let Some(collector) = &mut self.collector {
            collector.kernel(reads, writes);
        }
    }

    fn event(&mut self, id: EventId, event: &Event, _: u64) {
        if let Some(collector) = &mut self.collector {
            collector.event(id, event);
        }
    }

    fn own(&mut self, _: EventId, event: &Event) {
        if let Some(collector) = &mut self.collector {
            collector.own_access(event);
        }
    }

    fn repeats(&self) -> bool {
        self.collector.as_ref().is_some_and(Collector::wants_repeats)
    }

    fn finish(&mut self) {
        if let Some(mut collector) = self.collector.take() {
            collector.finish();
            self.done.lock().unwrap_or_else(PoisonError::into_inner).push(collector);
        }
    }
}
