//! Why no thread can go on.

use super::Visitor;
use super::engine::Engine;
use super::objects::NOBODY;
use super::threads::{Phase, Reason};
use crate::skeleton::{Code, Operation};
use crate::{Scheduler, rank};
use refrain_trace::{EventId, ThreadId};
use std::fmt;

/// A thread that waits, and for whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The thread.
    pub thread: ThreadId,
    /// The event that it cannot perform.
    pub event: EventId,
    /// Address of the object that it waits at; 0 if it waits for an event.
    pub object: u64,
    /// Threads any of which might end the wait. Empty if the trace holds no such event.
    pub waits_for: Vec<ThreadId>,
}

/// A replay that cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deadlock {
    /// When the last thread stopped, in ticks.
    pub at: u64,
    /// Every thread that is not done.
    pub waits: Vec<Wait>,
    /// Threads each of which waits for the next, the last for the first. Empty if somebody waits
    /// for what never comes: a trace that was cut off, or a scheduler that holds back for ever.
    pub cycle: Vec<ThreadId>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deadlock")?;
        let shown = |wait: &&Wait| self.cycle.is_empty() || self.cycle.contains(&wait.thread);
        for wait in self.waits.iter().filter(shown) {
            write!(f, "; {} at {} waits for", wait.thread, wait.event)?;
            if wait.waits_for.is_empty() {
                write!(f, " nobody")?;
            }
            for other in &wait.waits_for {
                write!(f, " {other}")?;
            }
            if wait.object != 0 {
                write!(f, " at {:#x}", wait.object)?;
            }
        }
        Ok(())
    }
}

pub(super) fn explain<S: Scheduler, V: Visitor>(engine: &Engine<'_, S, V>) -> Deadlock {
    let stuck = engine.threads.iter().enumerate().filter(|(_, t)| t.phase != Phase::Done);
    let waits: Vec<Wait> = stuck.map(|(id, _)| wait(engine, id)).collect();
    Deadlock { at: engine.now, cycle: cycle(&waits), waits }
}

fn wait<S: Scheduler, V: Visitor>(engine: &Engine<'_, S, V>, id: usize) -> Wait {
    let thread = &engine.threads[id];
    let (object, waits_for) = match thread.reason {
        Reason::Event { thread, .. } => (None, vec![ThreadId(thread)]),
        Reason::Count { object, .. } => (
            Some(object),
            still_to(engine, id, |operation| {
                operation.object == object && matches!(operation.code, Code::Count | Code::Ordered)
            }),
        ),
        Reason::Object { object } => (Some(object), at_object(engine, id, object)),
    };
    Wait {
        thread: ThreadId(id as u32),
        event: EventId(u64::from(thread.position)),
        object: object.map_or(0, |index| engine.skeleton.objects[index as usize].address),
        waits_for,
    }
}

fn at_object<S: Scheduler, V: Visitor>(
    engine: &Engine<'_, S, V>,
    id: usize,
    object: u32,
) -> Vec<ThreadId> {
    let state = &engine.objects[object as usize];
    if state.holder != NOBODY && state.holder as usize != id {
        return vec![ThreadId(state.holder)];
    }
    if state.allows(engine.threads[id].operation().code, id as u32) {
        if let Some(thread) = engine.scheduler.awaits(&engine.request(id, object)) {
            return vec![thread];
        }
        // Held back: by whoever has the object's next place.
        let next = state.granted;
        return still_to(engine, id, |operation| {
            operation.object == object
                && operation.competes()
                && operation.rank != rank::NONE
                && operation.rank == next
        });
    }
    still_to(engine, id, |operation| {
        operation.object == object && matches!(operation.code, Code::Unlock | Code::SemPost)
    })
}

/// Other threads that have an operation like this before them.
fn still_to<S: Scheduler, V: Visitor>(
    engine: &Engine<'_, S, V>,
    except: usize,
    wanted: impl Fn(&Operation) -> bool,
) -> Vec<ThreadId> {
    let threads = engine.threads.iter().enumerate().filter(|(id, _)| *id != except);
    threads
        .filter(|(_, t)| t.operations[t.performed as usize..].iter().any(&wanted))
        .map(|(id, _)| ThreadId(id as u32))
        .collect()
}

/// Some cycle of the wait-for graph, from its lowest thread on.
fn cycle(waits: &[Wait]) -> Vec<ThreadId> {
    let at = |thread: ThreadId| waits.binary_search_by_key(&thread, |wait| wait.thread).ok();
    // 0: not seen, 1: on the path, 2: leads to no cycle.
    let mut seen = vec![0u8; waits.len()];
    for start in 0..waits.len() {
        let mut path: Vec<(usize, usize)> = Vec::new();
        if seen[start] == 0 {
            seen[start] = 1;
            path.push((start, 0));
        }
        while let Some((node, edge)) = path.last_mut() {
            let Some(&next) = waits[*node].waits_for.get(*edge) else {
                seen[*node] = 2;
                path.pop();
                continue;
            };
            *edge += 1;
            match at(next) {
                Some(next) if seen[next] == 1 => {
                    let from = path.iter().position(|(node, _)| *node == next);
                    let from = from.expect("a node marked 1 is on the path");
                    let mut cycle: Vec<_> =
                        path[from..].iter().map(|(node, _)| waits[*node].thread).collect();
                    let lowest = cycle.iter().enumerate().min_by_key(|(_, thread)| **thread);
                    let lowest = lowest.map_or(0, |(index, _)| index);
                    cycle.rotate_left(lowest);
                    return cycle;
                }
                Some(next) if seen[next] == 0 => {
                    seen[next] = 1;
                    path.push((next, 0));
                }
                _ => {}
            }
        }
    }
    Vec::new()
}
