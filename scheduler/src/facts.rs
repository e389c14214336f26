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

use crate::skeleton::{AFTER, Code, Operation, Strand};
use refrain_trace::fixed::FixedMap;

/// An acquisition that is not possible before another one has been performed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Precedence {
    /// The acquisition, in the strand that has this.
    pub(crate) event: u32,
    /// Thread of the acquisition before it.
    pub(crate) thread: u32,
    /// The acquisition before it.
    pub(crate) source: u32,
}

/// A lock that a thread holds, by its acquisition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Held {
    object: u32,
    event: u32,
    shared: bool,
}

/// A wait under a lock. There is one of these for each lock that is held.
#[derive(Clone, Copy, Debug)]
struct Wait {
    thread: u32,
    position: u32,
    lock: Held,
}

/// What `thread` waits for under `lock`: everything that `other` does before its event `before`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Need {
    thread: u32,
    other: u32,
    lock: Held,
    before: u32,
}

/// Collects needs while the builder finds out who counted what.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// By thread and position.
    waits: Vec<Wait>,
    needs: Vec<Need>,
    /// By object that is waited for under a lock: who counted, in the recorded order.
    counted: FixedMap<u32, Vec<(u32, u32)>>,
    /// By object and thread: how many counts it has waited for.
    seen: FixedMap<(u32, u32), usize>,
}

impl Facts {
    /// Finds the waits under locks. `counts` are the waits for counts of other objects than the
    /// operation's: thread, position, object.
    pub(crate) fn new(strands: &[Strand], counts: impl Iterator<Item = (u32, u32, u32)>) -> Facts {
        let mut facts = Facts::default();
        let joins: Vec<Vec<u32>> = strands.iter().map(joins).collect();
        for (thread, strand) in strands.iter().enumerate() {
            if strand.operations.iter().any(|operation| operation.code.awaits()) {
                facts.find_waits(thread as u32, &strand.operations, &joins);
            }
        }
        for (thread, position, object) in counts {
            if !facts.held(thread, position).is_empty() {
                facts.counted.entry(object).or_default();
            }
        }
        facts
    }

    fn find_waits(&mut self, thread: u32, operations: &[Operation], joins: &[Vec<u32>]) {
        // By object, with how often it is held.
        let mut held = FixedMap::<u32, (Held, u32)>::default();
        for (event, operation) in operations.iter().enumerate() {
            let (code, object, position) = (operation.code, operation.object, event as u32);
            if code.awaits() && !held.is_empty() {
                let waits = held.values().map(|&(lock, _)| Wait { thread, position, lock });
                self.waits.extend(waits);
                match code {
                    Code::Join => self.join(thread, position, object, joins),
                    Code::Await => _ = self.counted.entry(object).or_default(),
                    _ => {}
                }
            }
            match code {
                Code::Unlock if held.get(&object).is_some_and(|(_, depth)| *depth > 1) => {
                    held.entry(object).and_modify(|(_, depth)| *depth -= 1);
                }
                Code::Unlock | Code::CondRelease => _ = held.remove(&object),
                code if code.possesses() || code == Code::Read => {
                    let lock = Held { object, event: position, shared: code == Code::Read };
                    held.entry(object).or_insert((lock, 0)).1 += 1;
                }
                _ => {}
            }
        }
    }

    /// The join needs all that the joined thread does, and whom that one joins.
    fn join(&mut self, thread: u32, position: u32, joined: u32, joins: &[Vec<u32>]) {
        let mut all = vec![joined];
        let mut next = 0;
        while let Some(&other) = all.get(next) {
            next += 1;
            for lock in self.held(thread, position) {
                self.needs.push(Need { thread, other, lock, before: u32::MAX });
            }
            let more = joins[other as usize].iter().filter(|&&child| child != thread);
            for &child in more {
                if !all.contains(&child) {
                    all.push(child);
                }
            }
        }
    }

    fn held(&self, thread: u32, position: u32) -> Vec<Held> {
        let at = (thread, position);
        let first = self.waits.partition_point(|wait| (wait.thread, wait.position) < at);
        let here = self.waits[first..].iter();
        here.take_while(|wait| (wait.thread, wait.position) == at).map(|wait| wait.lock).collect()
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
        let locks = self.held(thread, position);
        if locks.is_empty() {
            return;
        }
        let seen = self.seen.entry((object, thread)).or_default();
        let until = counted.len().min(count as usize);
        // What was waited for before is over, and the latest of a thread implies its others.
        let new = counted.get(*seen..until).unwrap_or(&[]);
        let latest: FixedMap<u32, u32> = new.iter().copied().collect();
        for (other, before) in latest.into_iter().filter(|(other, _)| *other != thread) {
            self.needs.extend(locks.iter().map(|&lock| Need { thread, other, lock, before }));
        }
        *seen = until.max(*seen);
    }

    /// Gives the strands their precedences.
    pub(crate) fn finish(mut self, strands: &mut [Strand]) {
        if self.needs.is_empty() {
            return;
        }
        let acquisitions = Acquisitions::of(strands, &self.needs);
        self.needs.sort_unstable();
        let mut last = None;
        for Need { thread, other, lock, before } in self.needs {
            let Some(source) = acquisitions.last(other, lock, before) else { continue };
            // A thread's earlier acquisitions of the lock have waited for what they needed.
            let key = (thread, other, lock.object);
            if last.is_some_and(|(before, had)| before == key && had >= source) {
                continue;
            }
            last = Some((key, source));
            let strand = &mut strands[thread as usize];
            strand.operations[lock.event as usize].flags |= AFTER;
            match strand.after.last_mut() {
                Some(last) if (last.event, last.thread) == (lock.event, other) => {
                    last.source = source;
                }
                _ => strand.after.push(Precedence { event: lock.event, thread: other, source }),
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
struct Acquisitions(FixedMap<(u32, u32), Vec<Acquisition>>);

#[derive(Clone, Copy)]
struct Acquisition {
    event: u32,
    /// The latest exclusive one up to here.
    exclusive: Option<u32>,
}

impl Acquisitions {
    /// Of the locks that somebody waits under.
    fn of(strands: &[Strand], needs: &[Need]) -> Acquisitions {
        let locks: FixedMap<u32, ()> = needs.iter().map(|need| (need.lock.object, ())).collect();
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

    /// The last acquisition by `thread`, before its event `before`, that excludes `lock`.
    fn last(&self, thread: u32, lock: Held, before: u32) -> Option<u32> {
        let list = self.0.get(&(thread, lock.object))?;
        let end = list.partition_point(|acquisition| acquisition.event < before);
        let Acquisition { event, exclusive } = *list.get(end.checked_sub(1)?)?;
        if lock.shared { exclusive } else { Some(event) }
    }
}
