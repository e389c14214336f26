//! Locks that a transformed trace has freed: their acquisitions and releases wait for no turn, but only
//! for the ends of the sections that causal edges name (PerfPlay, Rule 2 and dynamic locking).
//!
//! The tickets of a freed lock may be done in any order. If a slot has only events of freed locks, no
//! thread asks which of its tickets are done. If another event shares the slot (of another object, or the lock's
//! destruction), its thread waits for all earlier tickets: a bit for each ticket says whether it is done,
//! and the count of the slot moves on over those that follow without a gap.
//!
//! The recorded run satisfies every edge and every ticket, so no thread waits for its own future.

use super::sync::atomic::{AtomicU64, Ordering};
use crate::Result;
use refrain_trace::{Event, EventKind, ThreadId, Trace, Transformed, order};
use std::collections::BTreeMap;

const BITS: u64 = u64::BITS as u64;

/// A section waits for the end of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Wait {
    target: u32,
    thread: ThreadId,
    source: u32,
}

/// The freed locks of a trace.
pub(crate) struct Freed {
    /// Addresses, ascending.
    locks: Vec<u64>,
    /// By slot, ascending: a bit for each ticket; none where nobody waits for any.
    slots: Vec<(usize, Box<[AtomicU64]>)>,
    /// By thread, ascending.
    waits: Vec<Vec<Wait>>,
}

impl Freed {
    /// Those of a transformed trace, as far as its events bear the record out.
    pub(crate) fn of(trace: &Trace, record: &Transformed) -> Result<Freed> {
        let mut locks = record.locks.clone();
        locks.sort_unstable();
        let mut freed = Freed { locks, slots: Vec::new(), waits: Vec::new() };
        // By slot: its tickets, and whether somebody waits for some.
        let mut tickets: BTreeMap<usize, (u64, bool)> =
            freed.locks.iter().map(|&lock| (order::slot(lock), (0, false))).collect();
        // By thread: the events of freed locks, and how many events there are.
        let mut events: Vec<(Vec<u32>, u64)> = Vec::new();
        for thread in (0..trace.threads()).map(ThreadId) {
            let mut cursor = trace.cursor(thread);
            let mut of_thread = Vec::new();
            while let Some(event) = cursor.next()? {
                let frees = freed.frees(&event);
                if event.has_ticket()
                    && let Some((count, waits)) = tickets.get_mut(&order::slot(event.object))
                {
                    *count += 1;
                    *waits |= !frees;
                }
                if let Some((slot, _)) = order::bound_of(&event, None)
                    && let Some((_, waits)) = tickets.get_mut(&slot)
                {
                    *waits = true;
                }
                if frees {
                    of_thread.push((cursor.position().0 - 1) as u32);
                }
            }
            events.push((of_thread, trace.events_of(thread)));
        }
        let words = |(count, waits): (u64, bool)| {
            let count = if waits { count.div_ceil(BITS) } else { 0 };
            (0..count).map(|_| AtomicU64::new(0)).collect()
        };
        freed.slots = tickets.into_iter().map(|(slot, it)| (slot, words(it))).collect();
        freed.waits = vec![Vec::new(); events.len()];
        let known = |thread: ThreadId, event: u32| {
            events.get(thread.index()).is_some_and(|(all, _)| all.binary_search(&event).is_ok())
        };
        let is_last = |thread: ThreadId, event: u32| {
            events.get(thread.index()).is_some_and(|(_, count)| u64::from(event) + 1 == *count)
        };
        for edge in &record.edges {
            let ends = [edge.source, edge.target].map(|at| record.sections.get(at as usize));
            let [Some(source), Some(target)] = ends else { continue };
            let (from, to) = (source.thread(), target.thread());
            let ends = known(from, source.release) || is_last(from, source.release);
            if ends && known(to, target.acquire) {
                let wait = Wait { target: target.acquire, thread: from, source: source.release };
                freed.waits[to.index()].push(wait);
            }
        }
        freed.waits.iter_mut().for_each(|waits| waits.sort_unstable());
        Ok(freed)
    }

    /// Whether an event is an acquisition or a release of a freed lock.
    pub(crate) fn frees(&self, event: &Event) -> bool {
        event.has_ticket() && self.frees_call(event.kind(), event.object)
    }

    /// The same of a function's call.
    pub(crate) fn frees_call(&self, kind: EventKind, object: u64) -> bool {
        let is_lock = kind.acquires_lock() || kind.releases_lock();
        is_lock && self.locks.binary_search(&object).is_ok()
    }

    /// Events of others that an event waits for: the thread, and how many of its events must be done.
    pub(crate) fn sources(
        &self,
        thread: ThreadId,
        event: u64,
    ) -> impl Iterator<Item = (ThreadId, u64)> {
        let waits = self.waits.get(thread.index()).map_or(&[][..], Vec::as_slice);
        let from = waits.partition_point(|wait| u64::from(wait.target) < event);
        let here = waits[from..].iter().take_while(move |wait| u64::from(wait.target) == event);
        here.map(|wait| (wait.thread, u64::from(wait.source) + 1))
    }

    /// Notes that a ticket is done, if it is of the slot of a freed lock. So many are done without
    /// a gap.
    pub(super) fn advance(&self, slot: usize, ticket: u64, done: &AtomicU64) -> Option<u64> {
        let at = self.slots.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        let bits = &self.slots[at].1;
        if bits.is_empty() {
            return Some(0);
        }
        if let Some(word) = bits.get((ticket / BITS) as usize) {
            word.fetch_or(1 << (ticket % BITS), Ordering::SeqCst);
        }
        // Whoever sets the bit that is missing goes on over those behind it.
        loop {
            let count = done.load(Ordering::SeqCst);
            let word = bits.get((count / BITS) as usize);
            let is_done =
                word.is_some_and(|word| word.load(Ordering::SeqCst) & 1 << (count % BITS) != 0);
            if !is_done {
                return Some(count);
            }
            // If another thread has gone on, this one goes on from there.
            let _ = done.compare_exchange(count, count + 1, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}
