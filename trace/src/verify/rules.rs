//! Rules about threads, times, locks and payloads: everything but the order itself.

use super::{MAX_VIOLATIONS, Violation, ViolationKind};
use crate::container::Trace;
use crate::payload::SyscallRecord;
use crate::{Event, EventId, EventKind, ThreadId, UNFINISHED};
use std::collections::{BTreeMap, BTreeSet};

/// The owner died with the lock; it is acquired all the same (Linux's EOWNERDEAD).
const OWNER_DEAD: i32 = 130;

/// What is known of a thread so far.
#[derive(Clone, Copy, Default)]
struct State {
    last_end: u64,
    /// Mutex and variable of the wait that has not ended.
    wait: Option<(u64, u64)>,
    exited: bool,
    /// The last event shows that the process ends.
    ended: bool,
}

/// A thread's hold on a lock.
#[derive(Clone, Copy)]
struct Hold {
    depth: u32,
    /// By an acquisition that has a place in the lock's order, for exclusion.
    exclusive: bool,
}

/// What an event does to a lock.
enum LockStep {
    Acquire { exclusive: bool },
    Release,
}

pub(super) struct Rules<'a> {
    trace: &'a Trace,
    /// The trace ends before the program did.
    cut_off: bool,
    /// Events are missing from here on: what other threads hold is no longer known.
    past_cut: bool,
    states: BTreeMap<ThreadId, State>,
    /// Sorted by lock, so that its holders stand together.
    holds: BTreeMap<(u64, ThreadId), Hold>,
    created: BTreeSet<ThreadId>,
    exited: BTreeSet<ThreadId>,
    /// Threads that ended without an exit.
    unended: Vec<(ThreadId, EventId)>,
    ended_from_within: bool,
}

/// Where violations go, and the event that they are about.
struct Sink<'a> {
    thread: ThreadId,
    event: EventId,
    out: &'a mut Vec<Violation>,
}

impl Sink<'_> {
    fn report(&mut self, kind: ViolationKind) {
        if self.out.len() < MAX_VIOLATIONS {
            self.out.push(Violation { thread: self.thread, event: self.event, kind });
        }
    }
}

impl<'a> Rules<'a> {
    pub(super) fn new(trace: &'a Trace) -> Rules<'a> {
        Rules {
            trace,
            cut_off: trace.is_cut_off(),
            past_cut: false,
            states: BTreeMap::new(),
            holds: BTreeMap::new(),
            created: BTreeSet::from([ThreadId(0)]),
            exited: BTreeSet::new(),
            unended: Vec::new(),
            ended_from_within: false,
        }
    }

    /// From now on events may be missing.
    pub(super) fn pass_cut(&mut self) {
        self.past_cut = true;
    }

    /// Whether order is no longer judged.
    pub(super) fn is_past_cut(&self) -> bool {
        self.past_cut
    }

    /// Judges an event; returns the thread that it creates.
    pub(super) fn event(
        &mut self,
        thread: ThreadId,
        id: EventId,
        event: &Event,
        payload: Option<&SyscallRecord>,
        out: &mut Vec<Violation>,
    ) -> Option<ThreadId> {
        let mut sink = Sink { thread, event: id, out };
        let state = self.states.entry(thread).or_default();
        state.times(event, &mut sink);
        state.life(id, event, &mut sink);
        state.waits(event, &mut sink);
        if state.exited {
            self.exited.insert(thread);
        }
        self.locks(thread, event, &mut sink);
        self.other_thread(event, &mut sink);
        let is_call = event.kind() == EventKind::Syscall;
        match payload {
            None if is_call && event.has_ticket() && event.flags & UNFINISHED == 0 => {
                sink.report(ViolationKind::PayloadMissing);
            }
            Some(_)
                if !is_call && !matches!(event.kind(), EventKind::Signal | EventKind::Common) =>
            {
                sink.report(ViolationKind::PayloadUnexpected)
            }
            _ => {}
        }
        self.created_by(payload, &mut sink)
    }

    fn created_by(
        &mut self,
        payload: Option<&SyscallRecord>,
        sink: &mut Sink<'_>,
    ) -> Option<ThreadId> {
        let child = payload?.effect.child()?;
        // One without events had been created and had not run when the program ended.
        if self.trace.events_of(child) > 0 && !self.created.insert(child) {
            sink.report(ViolationKind::CreatedTwice(child));
        }
        Some(child)
    }

    /// Joins and detachments name a thread by its object.
    fn other_thread(&mut self, event: &Event, sink: &mut Sink<'_>) {
        let joins = event.kind() == EventKind::ThreadJoin;
        if !(joins || event.kind() == EventKind::ThreadDetach) || event.result != 0 {
            return;
        }
        let named = event.object.checked_sub(1).and_then(|t| u32::try_from(t).ok());
        let Some(other) = named.map(ThreadId) else { return };
        if self.trace.events_of(other) == 0 {
            if !self.cut_off {
                sink.report(ViolationKind::NoSuchThread(other));
            }
        } else if joins && event.has_ticket() && !self.past_cut && !self.exited.contains(&other) {
            sink.report(ViolationKind::JoinedBeforeExit(other));
        }
    }

    fn locks(&mut self, thread: ThreadId, event: &Event, sink: &mut Sink<'_>) {
        let object = event.object;
        let Some(step) = lock_step(event) else { return };
        let key = (object, thread);
        match step {
            LockStep::Release => match self.holds.get_mut(&key) {
                Some(hold) if hold.depth > 1 => hold.depth -= 1,
                Some(_) => drop(self.holds.remove(&key)),
                // glibc's `pthread_spin_init` and `pthread_spin_unlock` are one function.
                None if event.kind() == EventKind::SpinUnlock => {}
                None => sink.report(ViolationKind::NotHeld { object }),
            },
            LockStep::Acquire { exclusive } => {
                let exclusive = exclusive && event.has_ticket();
                if event.result == OWNER_DEAD {
                    let dead = |&(at, holder): &(u64, ThreadId)| at == object && holder != thread;
                    self.holds.retain(|key, _| !dead(key));
                }
                if exclusive && !self.past_cut {
                    let mut holders =
                        self.holds.range((object, ThreadId(0))..=(object, ThreadId(!0)));
                    let other = holders.find(|((_, t), h)| *t != thread && h.exclusive);
                    if let Some((&(_, holder), _)) = other {
                        sink.report(ViolationKind::HeldBy { object, holder });
                    }
                }
                let hold = self.holds.entry(key).or_insert(Hold { depth: 0, exclusive });
                hold.depth = hold.depth.saturating_add(1);
            }
        }
    }

    /// A thread has no more events.
    pub(super) fn end(&mut self, thread: ThreadId, position: EventId, out: &mut Vec<Violation>) {
        let state = self.states.remove(&thread).unwrap_or_default();
        if state.ended {
            self.ended_from_within = true;
        } else if !state.exited && position.0 > 0 {
            self.unended.push((thread, position));
        }
        if state.exited && state.wait.is_some() {
            Sink { thread, event: position, out }.report(ViolationKind::WaitNotEnded);
        }
    }

    /// The trace has no more events.
    pub(super) fn finish(&mut self, out: &mut Vec<Violation>) {
        if self.cut_off || self.ended_from_within {
            return;
        }
        for (thread, event) in std::mem::take(&mut self.unended) {
            Sink { thread, event, out }.report(ViolationKind::NoExit);
        }
    }
}

impl State {
    fn times(&mut self, event: &Event, sink: &mut Sink<'_>) {
        if event.begin < self.last_end {
            sink.report(ViolationKind::TimeBackwards);
        }
        // What did not return has no end.
        if event.end < event.begin && event.flags & UNFINISHED == 0 {
            sink.report(ViolationKind::EndBeforeBegin);
        }
        self.last_end = event.end;
    }

    fn life(&mut self, id: EventId, event: &Event, sink: &mut Sink<'_>) {
        let starts = event.kind() == EventKind::ThreadStart;
        if id.0 == 0 && !starts {
            sink.report(ViolationKind::NoStart);
        }
        if id.0 > 0 && starts {
            sink.report(ViolationKind::StartedAgain);
        }
        if self.exited {
            sink.report(ViolationKind::AfterExit);
        }
        self.exited |= event.kind() == EventKind::ThreadExit;
        // Another thread that goes on may still take over what this one had.
        if !event.is_from_another_thread() {
            self.ended = matches!(event.kind(), EventKind::Killed | EventKind::Syscall);
        }
    }

    fn waits(&mut self, event: &Event, sink: &mut Sink<'_>) {
        let pair = (event.object, event.value);
        if event.kind() == EventKind::CondWaitBegin && self.wait.replace(pair).is_some() {
            sink.report(ViolationKind::WaitNotEnded);
        }
        if event.kind() == EventKind::CondWaitEnd && self.wait.take() != Some(pair) {
            sink.report(ViolationKind::WaitNotBegun);
        }
    }
}

/// What the event does to the lock `event.object`, if anything. A wait on a condition variable
/// releases its mutex and acquires it again whatever it returns.
fn lock_step(event: &Event) -> Option<LockStep> {
    use EventKind::*;
    let done = event.result == 0 || event.result == OWNER_DEAD;
    match event.kind() {
        CondWaitBegin => Some(LockStep::Release),
        CondWaitEnd => Some(LockStep::Acquire { exclusive: true }),
        _ if !done => None,
        MutexLock | MutexTryLock | MutexTimedLock | SpinLock | SpinTryLock | WriteLock
        | WriteTryLock | WriteTimedLock => Some(LockStep::Acquire { exclusive: true }),
        ReadLock | ReadTryLock | ReadTimedLock => Some(LockStep::Acquire { exclusive: false }),
        MutexUnlock | SpinUnlock | RwUnlock => Some(LockStep::Release),
        _ => None,
    }
}
