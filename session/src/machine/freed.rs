//! A transformed trace as a race detector sees it: its freed locks order nothing, its causal edges order
//! what they join.

use refrain_trace::{CausalEdge, Event, EventId, EventKind, NO_TICKET, ThreadId, Transformed};

/// What orders the threads of a transformed trace in place of its freed locks.
pub(super) struct Freed {
    locks: Vec<u64>,
    /// Thread and event of acquisitions, with the sections that they come after; ascending.
    waits: Vec<(u32, u32, u32)>,
    /// Thread and event of the ends of such sections; ascending.
    ends: Vec<(u32, u32, u32)>,
}

impl Freed {
    pub(super) fn of(record: &Transformed) -> Freed {
        let place = |at: u32| record.sections.get(at as usize);
        let wait = |edge: &CausalEdge| {
            place(edge.target).map(|target| (target.thread, target.acquire, edge.source))
        };
        let end = |source: u32| place(source).map(|it| (it.thread, it.release, source));
        let mut waits: Vec<_> = record.edges.iter().filter_map(wait).collect();
        let mut ends: Vec<_> = record.sources().into_iter().filter_map(end).collect();
        waits.sort_unstable();
        ends.sort_unstable();
        let mut locks = record.locks.clone();
        locks.sort_unstable();
        Freed { locks, waits, ends }
    }

    /// What an event of a thread means to the detector instead of what it is: an edge is a semaphore
    /// of its own, raised at the end of its source and lowered by its target; a freed lock is one
    /// that the thread has to itself.
    pub(super) fn view(&self, thread: ThreadId, id: EventId, event: &Event) -> Vec<Event> {
        let of = |list: &[(u32, u32, u32)], kind: EventKind| -> Vec<Event> {
            let at = (thread.0, id.0 as u32);
            let from = list.partition_point(|&(thread, event, _)| (thread, event) < at);
            let here = list[from..].iter().take_while(|&&(t, e, _)| (t, e) == at);
            let event = |&(_, _, source): &(u32, u32, u32)| Event {
                code: kind as u8,
                flags: NO_TICKET,
                result: 0,
                object: EDGES + u64::from(source),
                ..*event
            };
            here.map(event).collect()
        };
        let mut seen = of(&self.waits, EventKind::SemWait);
        let own = OWN_LOCKS + u64::from(thread.0);
        seen.push(match event.kind() {
            kind if is_lock(kind) && self.locks.binary_search(&event.object).is_ok() => {
                Event { object: own, ..*event }
            }
            _ => *event,
        });
        seen.extend(of(&self.ends, EventKind::SemPost));
        seen
    }
}

/// Objects of causal edges, and of locks that a thread has to itself: above all that a program maps.
const EDGES: u64 = 1 << 60;
const OWN_LOCKS: u64 = 1 << 61;

fn is_lock(kind: EventKind) -> bool {
    kind.acquires_lock() || kind.releases_lock()
}
