//! MEM-S: one sequence of all ordered events, as PinPlay and CoreDet enforce it (PerfPlay,
//! section 5.2).
//!
//! The sequence is a topological order of what the tickets say, the earliest recorded end first,
//! so it extends the order that ELSC honours. A thread has its first place after the call that
//! creates it, and what that call's return waits for.
//!
//! # Deviations
//! 1. The paper orders all accesses to shared memory. A trace orders synchronization, atomic
//!    instructions and system calls; without races that fixes the order of all accesses too.
//! 2. Plain loads of ordered words have no place: they keep their recorded values.

use crate::Result;
use refrain_trace::linux::{changes_mappings, creates_threads};
use refrain_trace::{Cursor, Event, EventKind, ThreadId, Trace, order};

/// The places of each thread's ordered events, in the order of the events.
pub(crate) fn sequence(trace: &Trace) -> Result<Vec<Vec<u64>>> {
    let mut streams = Vec::new();
    for thread in (0..trace.threads()).map(ThreadId) {
        let cursor = trace.cursor(thread);
        let exists = thread == ThreadId(0);
        let mut stream = Stream { cursor, exists, next: None, bounds: Vec::new() };
        stream.step()?;
        streams.push(stream);
    }
    let mut places = vec![Vec::new(); streams.len()];
    let mut done = vec![0u64; order::SLOTS];
    let mut creator = None;
    for place in 0.. {
        let Some(first) = earliest(&streams, &done, creator) else {
            // All are done, or a trace that was cut off lacks what the rest would wait for.
            return Ok(places);
        };
        places[first].push(place);
        let Next { event, slot, child } = streams[first].next.expect("who was chosen has an event");
        if let Some(stream) = child.and_then(|child| streams.get_mut(child.index())) {
            stream.exists = true;
            stream.bounds.extend(returns(&event));
        }
        if creator == Some(first) && ends_creation(&event) {
            done[order::THREADS_SLOT] += 1;
            creator = None;
        }
        if event.kind() == EventKind::ThreadCreate {
            creator = Some(first);
        } else {
            done[slot] += 1;
        }
        streams[first].step()?;
    }
    Ok(places)
}

/// A thread's next event that has a ticket.
#[derive(Clone, Copy)]
struct Next {
    event: Event,
    /// What its ticket is of.
    slot: usize,
    /// The thread that it creates.
    child: Option<ThreadId>,
}

/// What is left of a thread's events.
struct Stream {
    cursor: Cursor,
    /// The thread has been created.
    exists: bool,
    next: Option<Next>,
    /// How many tickets of which slots must be done before the thread comes to it: what the
    /// return of a call waits for, and what plain loads do that have no place themselves.
    bounds: Vec<(usize, u64)>,
}

impl Stream {
    fn step(&mut self) -> Result<()> {
        self.bounds.clear();
        if let Some(Next { event, .. }) = self.next.take() {
            self.bounds.extend(returns(&event));
        }
        while let Some(event) = self.cursor.next()? {
            let payload = if has_effect(&event) { self.cursor.payload()? } else { None };
            if let Some(slot) = order::slot_of(&event, payload.as_ref()) {
                let child = payload.and_then(|payload| payload.effect.child());
                self.next = Some(Next { event, slot, child });
                return Ok(());
            }
            self.bounds.extend(order::bound_of(&event, payload.as_ref()));
        }
        Ok(())
    }
}

fn earliest(streams: &[Stream], done: &[u64], creator: Option<usize>) -> Option<usize> {
    let may = |id: usize, event: &Event, slot: usize| {
        // A creator keeps the slot of threads until its child exists.
        let kept = slot == order::THREADS_SLOT && creator.is_some_and(|creator| creator != id);
        let extra = u64::from(creator == Some(id) && ends_creation(event));
        let turn = if slot == order::THREADS_SLOT { done[slot] + extra } else { done[slot] };
        // The result of a call may come later: only its entry has a place.
        let bound = order::bound_of(event, None).filter(|_| event.kind() != EventKind::Syscall);
        let mut bounds = streams[id].bounds.iter().copied().chain(bound);
        !kept && turn == event.ticket && bounds.all(|(slot, count)| done[slot] >= count)
    };
    let there = streams.iter().enumerate().filter(|(_, stream)| stream.exists);
    let ready = there.filter_map(|(id, stream)| {
        let Next { event, slot, .. } = stream.next.as_ref()?;
        may(id, event, *slot).then_some((event.end, id))
    });
    ready.min().map(|(_, id)| id)
}

/// What the return of a system call waits for.
fn returns(event: &Event) -> Option<(usize, u64)> {
    order::bound_of(event, None)
        .filter(|_| event.kind() == EventKind::Syscall && event.has_ticket())
}

/// Whether a thread that is creating another has done so by this event, or has failed to.
fn ends_creation(event: &Event) -> bool {
    match event.kind() {
        EventKind::Syscall => creates_threads(event.nr),
        EventKind::Atomic | EventKind::SyncStore | EventKind::Signal => false,
        kind if kind.is_of_access() => false,
        _ => true,
    }
}

/// Calls whose effect is a thread, or may be a change of the address space, and signals, whose payloads
/// say what they wait for. The payloads of others may be large.
fn has_effect(event: &Event) -> bool {
    match event.kind() {
        EventKind::Syscall => changes_mappings(event.nr) || creates_threads(event.nr),
        kind => kind == EventKind::Signal,
    }
}
