//! What a wait under a lock says about the order of that lock.
//!
//! A thread that waits while it holds a lock waits for all that others still have to do before;
//! so what they do under that lock before must be over when the lock is taken. In the recording
//! it was, or the run would have ended there. A scheduler that does not keep the recorded order
//! has to be told, because a skeleton has no values. pigz marks a thread as done under a lock,
//! and its main thread, under the same lock, joins whichever thread is marked: had another one
//! been first, it would have joined that one. The main thread of the skeleton joins the recorded
//! one whatever happened, and if it had the lock before that one was done, the join would never
//! end. In the same way a load under a lock has read what others counted under it before.
//!
//! So each acquisition gets *precedences*: acquisitions of the same lock by other threads without
//! which a wait before its release cannot end. The waits looked at are those whose ends the
//! recording names: a join, and a count (of atomic instructions, signals, arrivals), which is
//! made up of the events that it was made up of in the recording. A semaphore is no such wait:
//! its units have no names.
//!
//! Invariant: precedences are part of every recorded order, so a replay in that order never
//! waits for one.

use crate::skeleton::{AFTER, Code, Operation, Precedence, Strand};
use refrain_trace::fixed::FixedMap;

/// A thread holds few locks at a time. Of more than this the oldest are forgotten, so that a trace
/// in which locks are never given back is no worse than any other.
const HELD: usize = 16;
/// A wait looks at so many threads that counted, the latest first, and keeps the precedences that
/// follow for so many. What the others did before is mostly implied by what these waited for.
const LOOKED_AT: usize = 32;
const KEPT: usize = 4;

/// A lock that a thread holds, by its acquisition.
#[derive(Clone, Copy, Debug)]
struct Held {
    object: u32,
    event: u32,
    shared: bool,
    depth: u32,
}

/// A wait under a lock. There is one of these for each lock that is held.
#[derive(Clone, Copy, Debug)]
struct Wait {
    thread: u32,
    position: u32,
    lock: Held,
}

/// `event` of `thread`, an acquisition of `object`, comes after `source`, one of `other`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Need {
    thread: u32,
    other: u32,
    object: u32,
    event: u32,
    source: u32,
}

/// Collects needs while the builder finds out who counted what.
#[derive(Debug, Default)]
pub(crate) struct Precedences {
    /// By thread and position.
    waits: Vec<Wait>,
    acquisitions: Acquisitions,
    needs: Vec<Need>,
    /// By object that is waited for under a lock: who counted, in the recorded order.
    counted: FixedMap<u32, Vec<(u32, u32)>>,
    /// By object and thread: how many counts it has waited for.
    seen: FixedMap<(u32, u32), usize>,
}

impl Precedences {
    /// Finds the waits under locks. `counts` are the waits for counts of other objects than the
    /// operation's: thread, position, object.
    pub(crate) fn new(
        strands: &[Strand],
        counts: impl Iterator<Item = (u32, u32, u32)>,
    ) -> Precedences {
        let mut precedences = Precedences::default();
        for (thread, strand) in strands.iter().enumerate() {
            if strand.operations.iter().any(|operation| operation.code.awaits()) {
                precedences.find_waits(thread as u32, &strand.operations);
            }
        }
        if precedences.waits.is_empty() {
            return precedences;
        }
        precedences.acquisitions = Acquisitions::of(strands, &precedences.waits);
        precedences.join(strands);
        let awaits = |wait: &Wait| strands[wait.thread as usize].operations[wait.position as usize];
        let own =
            precedences.waits.iter().map(awaits).filter(|operation| operation.code == Code::Await);
        precedences.counted.extend(own.map(|operation| (operation.object, Vec::new())));
        for (thread, position, object) in counts {
            if precedences.held(thread, position).next().is_some() {
                precedences.counted.entry(object).or_default();
            }
        }
        precedences
    }

    fn find_waits(&mut self, thread: u32, operations: &[Operation]) {
        let mut held: Vec<Held> = Vec::new();
        for (position, operation) in (0..).zip(operations) {
            let (code, object) = (operation.code, operation.object);
            if code.awaits() {
                self.waits.extend(held.iter().map(|&lock| Wait { thread, position, lock }));
            }
            let at = held.iter().position(|lock| lock.object == object);
            let acquires = code.possesses() || code == Code::Read;
            match (code, at) {
                (_, Some(at)) if acquires => held[at].depth += 1,
                (_, None) if acquires => {
                    if held.len() == HELD {
                        held.remove(0);
                    }
                    let shared = code == Code::Read;
                    held.push(Held { object, event: position, shared, depth: 1 });
                }
                (Code::Unlock, Some(at)) if held[at].depth > 1 => held[at].depth -= 1,
                (Code::Unlock | Code::CondRelease, Some(at)) => _ = held.remove(at),
                _ => {}
            }
        }
    }

    /// Joins need all that the joined threads do, and those whom they join.
    fn join(&mut self, strands: &[Strand]) {
        let joins: Vec<Vec<u32>> = strands.iter().map(joins).collect();
        // A second join of a thread waits for nothing.
        let mut first = FixedMap::<(u32, u32), u32>::default();
        for &Wait { thread, position, lock } in &self.waits {
            let operation = strands[thread as usize].operations[position as usize];
            let joined = operation.object;
            if operation.code != Code::Join
                || *first.entry((thread, joined)).or_insert(position) != position
            {
                continue;
            }
            let mut all = vec![joined];
            let mut next = 0;
            while let Some(&other) = all.get(next) {
                next += 1;
                self.needs.extend(self.acquisitions.need(thread, lock, other, u32::MAX));
                let more = joins[other as usize].iter().filter(|&&child| child != thread);
                let new: Vec<u32> = more.filter(|child| !all.contains(child)).copied().collect();
                all.extend(new);
            }
        }
    }

    fn held(&self, thread: u32, position: u32) -> impl Iterator<Item = Held> {
        let at = (thread, position);
        let first = self.waits.partition_point(|wait| (wait.thread, wait.position) < at);
        let here = self.waits[first..].iter();
        here.take_while(move |wait| (wait.thread, wait.position) == at).map(|wait| wait.lock)
    }

    /// The next count of an object in the recorded order.
    pub(crate) fn count(&mut self, object: u32, thread: u32, position: u32) {
        if let Some(counted) = self.counted.get_mut(&object) {
            counted.push((thread, position));
        }
    }

    /// A wait until `object` has counted to `count`.
    pub(crate) fn follow(&mut self, thread: u32, position: u32, object: u32, count: u32) {
        let Some(counted) = self.counted.get(&object) else { return };
        let locks: Vec<Held> = self.held(thread, position).collect();
        if locks.is_empty() {
            return;
        }
        let seen = self.seen.entry((object, thread)).or_default();
        let until = counted.len().min(count as usize);
        // What was waited for before is over, and the latest of a thread implies its others.
        let new = counted.get(*seen..until).unwrap_or(&[]);
        *seen = until.max(*seen);
        let mut latest: Vec<(u32, u32)> = Vec::new();
        for &(other, before) in new.iter().rev() {
            if other != thread && latest.iter().all(|(known, _)| *known != other) {
                latest.push((other, before));
            }
            if latest.len() == LOOKED_AT {
                break;
            }
        }
        for lock in locks {
            let need = |&(other, before)| self.acquisitions.need(thread, lock, other, before);
            self.needs.extend(latest.iter().filter_map(need).take(KEPT));
        }
    }

    /// Gives the strands their precedences.
    pub(crate) fn finish(mut self, strands: &mut [Strand]) {
        self.needs.sort_unstable();
        let mut last = None;
        for Need { thread, other, object, event, source } in self.needs {
            // A thread's earlier acquisitions of the lock have waited for what they needed.
            let key = (thread, other, object);
            if last.is_some_and(|(before, had)| before == key && had >= source) {
                continue;
            }
            last = Some((key, source));
            let strand = &mut strands[thread as usize];
            strand.operations[event as usize].flags |= AFTER;
            match strand.after.last_mut() {
                Some(last) if (last.event, last.thread) == (event, other) => last.source = source,
                _ => strand.after.push(Precedence { event, thread: other, source }),
            }
        }
        for strand in strands {
            strand.after.sort_unstable();
        }
    }
}

/// Whom a thread joins.
fn joins(strand: &Strand) -> Vec<u32> {
    let joins = strand.operations.iter().filter(|operation| operation.code == Code::Join);
    let mut all: Vec<u32> = joins.map(|join| join.object).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Acquisitions by thread and lock.
#[derive(Debug, Default)]
struct Acquisitions(FixedMap<(u32, u32), Vec<Acquisition>>);

#[derive(Clone, Copy, Debug)]
struct Acquisition {
    event: u32,
    /// The latest exclusive one up to here.
    exclusive: Option<u32>,
}

impl Acquisitions {
    /// Of the locks that somebody waits under.
    fn of(strands: &[Strand], waits: &[Wait]) -> Acquisitions {
        let locks: FixedMap<u32, ()> = waits.iter().map(|wait| (wait.lock.object, ())).collect();
        let mut all = FixedMap::<(u32, u32), Vec<Acquisition>>::default();
        for (thread, strand) in strands.iter().enumerate() {
            for (event, operation) in strand.operations.iter().enumerate() {
                let exclusive = operation.code.possesses();
                let acquires = exclusive || operation.code == Code::Read;
                if acquires && locks.contains_key(&operation.object) {
                    let list = all.entry((thread as u32, operation.object)).or_default();
                    let before = list.last().and_then(|last| last.exclusive);
                    let event = event as u32;
                    let exclusive = if exclusive { Some(event) } else { before };
                    list.push(Acquisition { event, exclusive });
                }
            }
        }
        Acquisitions(all)
    }

    /// What the acquisition of `lock` by `thread` needs of `other` if all that `other` does before
    /// its event `before` is waited for: the last acquisition there that excludes it.
    fn need(&self, thread: u32, lock: Held, other: u32, before: u32) -> Option<Need> {
        let Held { object, event, shared, .. } = lock;
        let list = self.0.get(&(other, object))?;
        let end = list.partition_point(|acquisition| acquisition.event < before);
        let last = list.get(end.checked_sub(1)?)?;
        let source = if shared { last.exclusive? } else { last.event };
        Some(Need { thread, other, object, event, source })
    }
}
