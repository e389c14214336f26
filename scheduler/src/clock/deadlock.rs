//! Why no thread can go on.

use super::Visitor;
use super::engine::Engine;
use super::objects::NOBODY;
use super::threads::{Phase, Reason};
use crate::skeleton::{Code, Operation};
use crate::{Scheduler, rank};
use refrain_trace::{EventId, ThreadId};
use std::fmt;

/// What a thread waits for in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// The end of a thread, which it joins.
    End,
    /// An event of a thread: a causal edge, or its own creation.
    Event,
    /// Signals, arrivals or atomic instructions, which are counted.
    Count,
    /// An object that others have.
    Release,
    /// An object that nobody has, but which others get first by the scheduler's order.
    Turn,
    /// The same by what the recording says of any order: while it had the lock, it waited for
    /// what the others did after they had had it.
    Precedence,
}

/// A thread that waits, and for whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The thread.
    pub thread: ThreadId,
    /// The event that it cannot perform.
    pub event: EventId,
    /// Address of the object that it waits at; 0 if it waits for an event.
    pub object: u64,
    /// What it waits for.
    pub want: Want,
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
            write!(f, "; {wait}")?;
        }
        if !self.cycle.is_empty() {
            write!(f, "{REMARK}")?;
        }
        Ok(())
    }
}

/// Why a replay can come to a deadlock that the program might not have come to.
const REMARK: &str = " (in virtual time every thread does what it did in the recording; the \
     program itself may take another path when its locks go round in another order)";

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self.object;
        write!(f, "{} at {} waits for ", self.thread, self.event)?;
        match self.want {
            Want::End => write!(f, "the end of")?,
            Want::Event => write!(f, "an event of")?,
            Want::Count => write!(f, "a signal, an arrival or a store at {object:#x} by")?,
            Want::Release => write!(f, "{object:#x}, which is to be released by")?,
            Want::Turn => write!(f, "{object:#x}, which comes first to")?,
            Want::Precedence => write!(f, "{object:#x}, which must have been had by")?,
        }
        for other in &self.waits_for {
            write!(f, " {other}")?;
        }
        if self.waits_for.is_empty() {
            write!(f, " nobody")?;
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
    let address = |object: u32| engine.skeleton.objects[object as usize].address;
    let (object, (want, waits_for)) = match thread.reason {
        Reason::Event { thread: other, event } => {
            let joins = thread.phase != Phase::Unborn && thread.operation().code == Code::Join;
            let last = engine.threads[other as usize].operations.len() as u32 - 1;
            let want = if joins && event == last { Want::End } else { Want::Event };
            (0, (want, vec![ThreadId(other)]))
        }
        Reason::Count { object, .. } => {
            let counts = |operation: &Operation| {
                operation.object == object && matches!(operation.code, Code::Count | Code::Ordered)
            };
            (address(object), (Want::Count, still_to(engine, id, counts)))
        }
        Reason::Object { object } => (address(object), at_object(engine, id, object)),
    };
    let event = EventId(u64::from(thread.position));
    Wait { thread: ThreadId(id as u32), event, object, want, waits_for }
}

fn at_object<S: Scheduler, V: Visitor>(
    engine: &Engine<'_, S, V>,
    id: usize,
    object: u32,
) -> (Want, Vec<ThreadId>) {
    let state = &engine.objects[object as usize];
    let thread = &engine.threads[id];
    if state.holder != NOBODY && state.holder as usize != id {
        return (Want::Release, vec![ThreadId(state.holder)]);
    }
    if !state.allows(thread.operation().code, id as u32) {
        let opens = |operation: &Operation| {
            operation.object == object && matches!(operation.code, Code::Unlock | Code::SemPost)
        };
        return (Want::Release, still_to(engine, id, opens));
    }
    if !engine.is_preceded(id) {
        let others = engine.preceding(thread).map(|before| ThreadId(before.thread));
        return (Want::Precedence, others.collect());
    }
    if let Some(thread) = engine.behind {
        return (Want::Turn, vec![thread]);
    }
    // Held back: by whoever has the object's next place.
    let next = state.granted;
    let has_next = |operation: &Operation| {
        let placed = operation.competes() && operation.rank != rank::NONE;
        operation.object == object && placed && operation.rank == next
    };
    (Want::Turn, still_to(engine, id, has_next))
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
