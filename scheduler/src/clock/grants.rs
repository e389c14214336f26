//! Who waits for whom, and who goes next: the engine's other half.
//!
//! A thread waits for a fact (an event, a count) or at an object. Facts wake all whom they
//! concern; an object goes to one waiting thread at a time, and the scheduler says to which.
//! Effects are put on the work lists `changed` and `passed`, which [`Engine::settle_others`]
//! empties after each step, so that a grant never recurses into another.

use super::Visitor;
use super::engine::Engine;
use super::objects::NOBODY;
use super::threads::{Phase, Reason, Then, Thread, Waiter};
use crate::skeleton::Precedence;
use crate::skeleton::{AFTER, Code, Operation, UNKNOWN};
use crate::{Choice, Moment, Progress, Request, Scheduler, Status, rank};
use refrain_trace::ThreadId;

impl<S: Scheduler, V: Visitor> Engine<'_, S, V> {
    pub(super) fn wait_for_event(&mut self, id: usize, source: u32, event: u32) {
        self.threads[id].reason = Reason::Event { thread: source, event };
        let source = &mut self.threads[source as usize];
        source.watched = source.watched.min(event);
    }

    pub(super) fn wait_for_count(&mut self, id: usize, object: u32, need: u32) {
        self.threads[id].reason = Reason::Count { object, need };
        self.enlist(id, object);
    }

    fn release_watchers(&mut self, source: u32) {
        let performed = self.threads[source as usize].performed;
        // Whoever still waits, or waits again, says so anew.
        self.threads[source as usize].watched = u32::MAX;
        for id in 0..self.threads.len() {
            let waits = matches!(self.threads[id].phase, Phase::Waiting | Phase::Unborn);
            match self.threads[id].reason {
                Reason::Event { thread, event } if waits && thread == source => {
                    if event >= performed {
                        self.wait_for_event(id, source, event);
                    } else if self.threads[id].phase == Phase::Unborn {
                        self.load(id, 0);
                        self.wake(id);
                    } else {
                        self.settle(id);
                        self.proceed(id);
                    }
                }
                _ => {}
            }
        }
    }

    /// Threads that waited for a count which the object has reached go on.
    fn recount(&mut self, object: u32) {
        if self.objects[object as usize].counters == 0 {
            return;
        }
        let mut id = self.objects[object as usize].first;
        while id != NOBODY {
            let next = self.waiters[id as usize].next;
            if let Reason::Count { object: counts, need } = self.threads[id as usize].reason
                && counts == object
                && self.objects[object as usize].count >= need
            {
                self.delist(id as usize, object);
                self.settle(id as usize);
                self.proceed(id as usize);
            }
            id = next;
        }
    }

    pub(super) fn compete(&mut self, id: usize, object: u32) {
        let state = &self.objects[object as usize];
        let code = self.threads[id].operation().code;
        let alone = !self.global && state.first == NOBODY;
        let possible = self.admits(object, id) && self.is_preceded(id);
        self.threads[id].queued = self.now;
        if (alone || (self.barging && !self.global)) && possible {
            // The common case: nobody else wants it, or nobody else is awake.
            let request = self.request(id, object);
            let moment = Moment { now: self.now, step: self.step, threads: &[] };
            if self.scheduler.choose(moment, &[request]) == Choice::Grant(0) {
                self.admit(id);
                return;
            }
        }
        self.threads[id].taken = self.objects[object as usize].taken_for(code, self.now);
        self.threads[id].reason = Reason::Object { object };
        self.threads[id].fetched = false;
        self.enlist(id, object);
        if self.global {
            // Who reacts to what others have done is not alone: `settle_others` asks when all have
            // reacted.
            let reacts = self.threads[id].phase != Phase::Arriving;
            if !reacts && self.passed.is_empty() && self.changed.is_empty() {
                self.grant_one();
            }
        } else if !alone && possible {
            self.grant(object);
        }
    }

    /// Whether the acquisitions that precede the event in hand have been performed. The last of
    /// them is followed by a release, after which whoever waits for the object is looked at again.
    #[inline]
    pub(super) fn is_preceded(&self, id: usize) -> bool {
        let thread = &self.threads[id];
        thread.operation().flags & AFTER == 0 || self.preceding(thread).next().is_none()
    }

    /// The acquisitions that are still to come before the event in hand.
    pub(super) fn preceding<'b>(
        &'b self,
        thread: &'b Thread<'_>,
    ) -> impl Iterator<Item = &'b Precedence> {
        let performed =
            |before: &Precedence| self.threads[before.thread as usize].has_performed(before.source);
        thread.precedences().iter().filter(move |before| !performed(before))
    }

    pub(super) fn request(&self, id: usize, object: u32) -> Request {
        let thread = &self.threads[id];
        let operation = thread.operation();
        let placed = operation.competes() && operation.rank != rank::NONE;
        Request {
            thread: ThreadId(id as u32),
            event: thread.position,
            rank: placed.then_some(operation.rank),
            granted: self.objects[object as usize].granted,
            arrived: thread.queued,
            clock: if self.global { self.clocks.at(id, thread.position).1 } else { 0 },
        }
    }

    /// Asks the scheduler about one object until nothing more is granted.
    fn grant(&mut self, object: u32) {
        // `FUTEX_WAKE` is called only if the lock word says that somebody sleeps.
        if self.glibc && !self.objects[object as usize].sought {
            return;
        }
        self.rousing.clear();
        loop {
            self.requests.clear();
            self.collect(object);
            let moment = Moment { now: self.now, step: self.step, threads: &[] };
            if self.requests.is_empty() {
                return;
            }
            let Some(id) = self.ask(moment) else { return };
            // One release wakes one thread, or all that read.
            // (Who is only woken is still before the operation that it asked for.)
            let last = self.barging
                && self.constraints.admission(object).is_none()
                && self.threads[id].operation().code != Code::Read;
            if self.barging {
                self.rousing.push(id as u32);
            }
            if last || self.objects[object as usize].is_shut() {
                return;
            }
        }
    }

    fn collect(&mut self, object: u32) {
        let state = &self.objects[object as usize];
        if self.in_order && state.unranked == 0 && state.next != UNKNOWN {
            // One thread at most can go, wherever it is in the list.
            self.consider(u32::from(state.next), object);
            return;
        }
        let mut id = state.first;
        while id != NOBODY {
            self.consider(id, object);
            id = self.waiters[id as usize].next;
        }
    }

    fn consider(&mut self, id: u32, object: u32) {
        let state = &self.objects[object as usize];
        let waiter = self.waiters[id as usize];
        let comes = !self.in_order || waiter.rank == state.granted || waiter.is_unranked();
        let dozes = self.threads[id as usize].phase == Phase::Dozing;
        if waiter.object == object
            && waiter.competes
            && comes
            && !dozes
            && self.admits(object, id as usize)
            && !self.conflicts_with_roused(object, id)
            && (!waiter.after || self.is_preceded(id as usize))
        {
            let request = self.request(id as usize, object);
            self.requests.push(request);
        }
    }

    /// Whether one of the threads that this release wakes would exclude it, so that it is not woken.
    fn conflicts_with_roused(&self, object: u32, id: u32) -> bool {
        let Some(admission) = self.constraints.admission(object) else { return false };
        let at = |id: u32| (id, self.threads[id as usize].position);
        self.rousing.iter().any(|&other| admission.exclude(at(id), at(other)))
    }

    /// The same for a scheduler that looks at everything, and that is asked again once others have
    /// reacted to the grant. Whether there was one.
    fn grant_one(&mut self) -> bool {
        if self.queued == 0 {
            return false;
        }
        self.requests.clear();
        for id in 0..self.threads.len() {
            if let Some(object) = self.queued_at(id)
                && self.admits(object, id)
                && self.is_preceded(id)
            {
                let request = self.request(id, object);
                self.requests.push(request);
            }
        }
        if self.requests.is_empty() {
            return false;
        }
        self.requests.sort_by_key(|request| request.arrived);
        let mut progress = std::mem::take(&mut self.progress);
        progress.clear();
        progress.extend((0..self.threads.len()).map(|id| self.progress(id)));
        let moment = Moment { now: self.now, step: self.step, threads: &progress };
        let granted = self.ask(moment);
        self.progress = progress;
        granted.is_some()
    }

    fn queued_at(&self, id: usize) -> Option<u32> {
        let waits =
            matches!(self.threads[id].phase, Phase::Waiting | Phase::Spinning | Phase::Arriving);
        match self.threads[id].reason {
            Reason::Object { object } if waits => Some(object),
            _ => None,
        }
    }

    fn progress(&self, id: usize) -> Progress {
        let thread = &self.threads[id];
        let status = match thread.phase {
            Phase::Unborn => Status::Unborn,
            Phase::Arriving | Phase::Waiting | Phase::Spinning | Phase::Dozing => Status::Waiting,
            Phase::Running | Phase::Waking | Phase::Runnable => Status::Going,
            Phase::Sleeping => Status::Away,
            Phase::Done => Status::Done,
        };
        let due = if thread.phase == Phase::Running { self.timers.get(id) } else { u64::MAX };
        let begun = thread.phase != Phase::Unborn && thread.performed == thread.position;
        let left = match (thread.phase, thread.then) {
            _ if !begun => thread.span.max(1),
            (Phase::Running, _) => thread.remaining + (due - self.now),
            (Phase::Runnable | Phase::Waking, Then::Work) => thread.remaining,
            _ => 0,
        };
        let span = thread.span.max(left);
        let from = self.clocks.before(id, thread.performed);
        let (arrive, leave) = self.clocks.at(id, thread.performed);
        let clock = if status == Status::Away { leave } else { arrive };
        Progress { status, event: thread.performed, from, clock, due, left, span }
    }

    /// Puts one question about `self.requests`; to which thread something was granted.
    fn ask(&mut self, moment: Moment<'_>) -> Option<usize> {
        match self.scheduler.choose(moment, &self.requests) {
            Choice::Grant(index) => {
                let id = self.requests[index].thread.index();
                let object = self.threads[id].operation().object;
                self.delist(id, object);
                self.admit(id);
                Some(id)
            }
            Choice::Hold(behind) => {
                self.behind = behind;
                None
            }
            Choice::HoldUntil(moment) => {
                let timer = self.threads.len();
                self.timers.set(timer, moment.max(self.now + 1));
                None
            }
        }
    }

    /// A thread's request is granted.
    fn admit(&mut self, id: usize) {
        if self.barging && self.threads[id].phase == Phase::Waiting {
            let object = self.threads[id].operation().object;
            self.objects[object as usize].sought = false;
            self.threads[id].roused = true;
            self.rouse(id);
        } else {
            self.perform(id);
        }
    }

    fn enlist(&mut self, id: usize, object: u32) {
        let state = &mut self.objects[object as usize];
        let thread = &self.threads[id];
        let Operation { code, rank, flags, .. } = thread.operation();
        let competes = matches!(thread.reason, Reason::Object { .. });
        let after = flags & AFTER != 0;
        let (next, before) = (NOBODY, state.last);
        let waiter = Waiter { next, before, object, rank, code, competes, after };
        self.waiters[id] = waiter;
        state.counters += u32::from(!competes);
        state.passers += u32::from(waiter.passes());
        state.unranked += u32::from(waiter.is_unranked());
        self.queued += usize::from(competes);
        state.sought |= competes;
        if state.last == NOBODY {
            state.first = id as u32;
        } else {
            self.waiters[state.last as usize].next = id as u32;
        }
        state.last = id as u32;
    }

    pub(super) fn delist(&mut self, id: usize, object: u32) {
        let state = &mut self.objects[object as usize];
        let waiter = std::mem::take(&mut self.waiters[id]);
        let Waiter { next, before, competes, .. } = waiter;
        state.counters -= u32::from(!competes);
        state.passers -= u32::from(waiter.passes());
        state.unranked -= u32::from(waiter.is_unranked());
        self.queued -= usize::from(competes);
        match before {
            NOBODY => state.first = next,
            before => self.waiters[before as usize].next = next,
        }
        match next {
            NOBODY => state.last = before,
            next => self.waiters[next as usize].before = before,
        }
    }

    /// Lets others react to what was performed.
    #[inline]
    pub(super) fn settle_others(&mut self) {
        loop {
            if let Some(object) = self.changed.pop() {
                self.recount(object);
                if !self.global {
                    self.grant(object);
                }
            } else if let Some(source) = self.passed.pop() {
                self.release_watchers(source);
            } else if self.idle_cores > 0 && !self.ready.is_empty() {
                self.idle_cores -= 1;
                let id = self.ready.pop_front().expect("just seen not to be empty");
                self.start(id as usize);
            } else if self.global && self.grant_one() {
                // Another round, for what the grants have changed.
            } else {
                return;
            }
        }
    }
}
