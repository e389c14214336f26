//! Walking through all threads in the order of their tickets.
//!
//! Each thread advances until an event's ticket is not the next of its slot; it then waits for
//! that ticket and another thread advances. In a right trace some thread can always advance (the
//! recorded run is an order that satisfies every ticket), so when none can, a ticket is missing.
//! The event that is then let through is the one that ended first: whatever it waits for should
//! have happened before that time, so it cannot be waiting for one of the others.
//!
//! An event first takes its ticket and then waits for its lower bound: the bound of a system
//! call counts the call's own entry.

use super::rules::Rules;
use super::{MAX_VIOLATIONS, Violation, ViolationKind};
use crate::container::{Cursor, Trace};
use crate::error::Result;
use crate::{Event, EventId, ThreadId, order};
use std::collections::{BTreeMap, BTreeSet};

/// A thread that is waiting for `ticket` of `slot`, or for so many tickets to be given out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiter {
    slot: usize,
    ticket: u64,
    thread: ThreadId,
}

/// A thread that has begun and not ended.
struct Live {
    cursor: Cursor,
    /// The event that the thread waits with, if its bound is what it waits for.
    bound: Option<Event>,
    /// What it waits for, and the end of the event.
    waiting: Option<(Waiter, u64)>,
}

pub(super) struct Replay<'a> {
    trace: &'a Trace,
    rules: Rules<'a>,
    /// By slot: tickets given out.
    given: Vec<u64>,
    live: BTreeMap<ThreadId, Live>,
    ready: Vec<ThreadId>,
    waiters: BTreeSet<Waiter>,
    /// The waiters, by the end of their events.
    by_end: BTreeSet<(u64, ThreadId)>,
    /// Threads that began, and the first that may not have.
    begun: BTreeSet<ThreadId>,
    unbegun: u32,
    violations: Vec<Violation>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        Replay {
            trace,
            rules: Rules::new(trace),
            given: vec![0; order::SLOTS],
            live: BTreeMap::new(),
            ready: Vec::new(),
            waiters: BTreeSet::new(),
            by_end: BTreeSet::new(),
            begun: BTreeSet::new(),
            unbegun: 0,
            violations: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Vec<Violation>> {
        loop {
            if let Some(thread) = self.ready.pop() {
                self.advance(thread)?;
            } else if !self.begin_another() && !self.force() {
                break;
            }
        }
        self.rules.finish(&mut self.violations);
        self.violations.truncate(MAX_VIOLATIONS);
        Ok(self.violations)
    }

    fn begin(&mut self, thread: ThreadId) {
        if thread.0 < self.trace.threads() && self.begun.insert(thread) {
            let live = Live { cursor: self.trace.cursor(thread), bound: None, waiting: None };
            self.live.insert(thread, live);
            self.ready.push(thread);
        }
    }

    /// Begins a thread that nobody has created (so far): the main thread, and in traces without
    /// records of creation the others.
    fn begin_another(&mut self) -> bool {
        while self.unbegun < self.trace.threads() {
            let thread = ThreadId(self.unbegun);
            self.unbegun += 1;
            if !self.begun.contains(&thread) {
                self.begin(thread);
                return true;
            }
        }
        false
    }

    /// Lets a waiting thread through.
    fn force(&mut self) -> bool {
        let Some((_, thread)) = self.by_end.pop_first() else { return false };
        let live = self.live.get_mut(&thread).expect("a waiting thread is live");
        let (waiter, _) = live.waiting.take().expect("it is among the waiting ones");
        let position = live.cursor.position();
        self.waiters.remove(&waiter);
        let Waiter { slot, ticket, .. } = waiter;
        let given = self.given[slot];
        if self.trace.is_truncated() {
            self.rules.pass_cut();
        } else if live.bound.is_some() {
            let kind = ViolationKind::BoundNotMet { slot, given, bound: ticket };
            self.report(thread, EventId(position.0 - 1), kind);
        } else {
            let kind = ViolationKind::TicketGap { slot, expected: given, found: ticket };
            self.report(thread, position, kind);
        }
        let live = self.live.get_mut(&thread).expect("a waiting thread is live");
        if live.bound.take().is_none() {
            // The missing tickets count as given out.
            self.give(slot, ticket);
        }
        self.ready.push(thread);
        true
    }

    fn report(&mut self, thread: ThreadId, event: EventId, kind: ViolationKind) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(Violation { thread, event, kind });
        }
    }

    /// So many tickets of `slot` are given out now; wakes who waited for that.
    fn give(&mut self, slot: usize, given: u64) {
        self.given[slot] = given;
        let none = Waiter { slot, ticket: 0, thread: ThreadId(0) };
        while let Some(&waiter) = self.waiters.range(none..).next() {
            if waiter.slot != slot || waiter.ticket > given {
                break;
            }
            self.waiters.remove(&waiter);
            let live = self.live.get_mut(&waiter.thread).expect("a waiting thread is live");
            let (_, end) = live.waiting.take().expect("it is among the waiting ones");
            self.by_end.remove(&(end, waiter.thread));
            live.bound = None;
            self.ready.push(waiter.thread);
        }
    }

    fn wait(&mut self, thread: ThreadId, slot: usize, ticket: u64, event: &Event, bound: bool) {
        let waiter = Waiter { slot, ticket, thread };
        let live = self.live.get_mut(&thread).expect("a thread that advances is live");
        live.waiting = Some((waiter, event.end));
        live.bound = bound.then_some(*event);
        self.waiters.insert(waiter);
        self.by_end.insert((event.end, thread));
    }

    /// Advances a thread until it must wait or ends.
    fn advance(&mut self, thread: ThreadId) -> Result<()> {
        loop {
            let live = self.live.get_mut(&thread).expect("a thread that advances is live");
            let position = live.cursor.position();
            let Some(&event) = live.cursor.peek()? else { break };
            let payload = live.cursor.peek_payload()?;
            if let Some(slot) = order::slot_of(&event, payload.as_ref()) {
                let given = self.given[slot];
                if event.ticket > given {
                    self.wait(thread, slot, event.ticket, &event, false);
                    return Ok(());
                }
                if event.ticket < given && self.rules.is_past_cut() {
                    // It was taken for missing when another thread had to go on.
                } else if event.ticket < given {
                    let found = event.ticket;
                    let kind = ViolationKind::TicketRepeated { slot, expected: given, found };
                    self.report(thread, position, kind);
                } else {
                    self.give(slot, given.saturating_add(1));
                }
            }
            let live = self.live.get_mut(&thread).expect("a thread that advances is live");
            live.cursor.next()?;
            let payload = payload.as_ref();
            let child = self.rules.event(thread, position, &event, payload, &mut self.violations);
            child.into_iter().for_each(|child| self.begin(child));
            if let Some((slot, bound)) = order::bound_of(&event, payload)
                && bound > self.given[slot]
            {
                self.wait(thread, slot, bound, &event, true);
                return Ok(());
            }
        }
        let position = self.live.remove(&thread).map(|live| live.cursor.position());
        self.rules.end(thread, position.unwrap_or(EventId(0)), &mut self.violations);
        Ok(())
    }
}
