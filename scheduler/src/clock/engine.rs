//! The engine: what happens at each moment.
//!
//! The flow of an event: a thread *arrives* (its work is done), waits for *facts* (causal edges,
//! joins, counts), then competes for its object, is *granted*, *performs* it, and *leaves* (goes
//! on with the next work), directly if it never waited, else after being woken and given a core.
//! An event's effects on others are put on work lists, so that grants never recurse.

use super::logical::Clocks;
use super::objects::{NOBODY, State};
use super::threads::{Phase, Reason, Then, Thread, Waiter};
use super::timers::Timers;
use super::{Run, Visitor};
use crate::admission::Occupants;
use crate::constraints::Edge;
use crate::model::Wakings;
use crate::skeleton::{Code, Operation, TRY};
use crate::{
    Config, Constraints, Costs, Model, Noise, Progress, Request, Scheduler, Scope, Skeleton,
    Waiting, rank,
};
use refrain_trace::{EventId, ThreadId};
use std::collections::VecDeque;

pub(super) struct Engine<'a, S, V> {
    pub(super) skeleton: &'a Skeleton,
    pub(super) constraints: &'a Constraints<'a>,
    pub(super) config: &'a Config,
    pub(super) scheduler: &'a mut S,
    pub(super) visitor: &'a mut V,
    pub(super) global: bool,
    total: bool,
    pub(super) barging: bool,
    polling: bool,
    /// See [`Waiting::Glibc`].
    pub(super) glibc: bool,
    pub(super) in_order: bool,
    noise: Option<Noise>,
    pub(super) wakings: Wakings<'a>,
    /// For a scheduler that looks at all threads.
    pub(super) clocks: Clocks,
    /// For whom held requests wait, as the scheduler said last.
    pub(super) behind: Option<ThreadId>,
    /// What operations cost, by code: a table, because nobody can predict which code is next.
    costs: [u64; Code::ALL.len()],
    pub(super) threads: Vec<Thread<'a>>,
    pub(super) objects: Vec<State>,
    /// By thread: its place in the list of the object that it waits at.
    pub(super) waiters: Vec<Waiter>,
    /// Who is inside of relaxed objects.
    pub(super) occupants: Occupants,
    /// The thread whose step this is.
    actor: usize,
    pub(super) timers: Timers,
    pub(super) now: u64,
    /// Steps of threads up to now: timers, grants, cores given.
    pub(super) step: u64,
    /// Threads that wait for a grant.
    pub(super) queued: usize,
    pub(super) idle_cores: u32,
    /// Whether slices matter.
    pub(super) crowded: bool,
    pub(super) ready: VecDeque<u32>,
    /// Objects that changed and have waiting threads; threads that performed a watched event.
    pub(super) changed: Vec<u32>,
    pub(super) passed: Vec<u32>,
    pub(super) requests: Vec<Request>,
    /// Whom the release in hand wakes.
    pub(super) rousing: Vec<u32>,
    pub(super) progress: Vec<Progress>,
}

impl<'a, S: Scheduler, V: Visitor> Engine<'a, S, V> {
    pub(super) fn new(
        skeleton: &'a Skeleton,
        constraints: &'a Constraints<'a>,
        config: &'a Config,
        model: &'a Model<'a>,
        scheduler: &'a mut S,
        visitor: &'a mut V,
    ) -> Self {
        let scope = scheduler.scope();
        let strands = skeleton.strands.iter().enumerate();
        let threads: Vec<Thread<'a>> =
            strands.map(|(id, strand)| Thread::new(strand, constraints.edges_of(id))).collect();
        Engine {
            costs: Code::ALL.map(|code| config.costs.of(code)),
            global: scope.is_global(),
            total: scope == Scope::Total,
            barging: matches!(model.waiting, Waiting::Barging | Waiting::Glibc),
            polling: model.waiting == Waiting::Polling,
            glibc: model.waiting == Waiting::Glibc && !scope.is_global(),
            in_order: scope == Scope::Order,
            noise: model.noise,
            wakings: Wakings::new(model, &config.costs),
            clocks: if scope.is_global() {
                Clocks::of(model.clocks.unwrap_or(skeleton))
            } else {
                Clocks::default()
            },
            behind: None,
            timers: Timers::new(threads.len() + 1),
            objects: skeleton.objects.iter().map(State::new).collect(),
            waiters: vec![Waiter::default(); threads.len()],
            occupants: Occupants::new(skeleton.objects.len()),
            actor: 0,
            now: 0,
            step: 0,
            queued: 0,
            idle_cores: config.cores,
            crowded: threads.len() > config.cores as usize,
            ready: VecDeque::new(),
            changed: Vec::new(),
            passed: Vec::new(),
            requests: Vec::new(),
            rousing: Vec::new(),
            progress: Vec::new(),
            skeleton,
            constraints,
            config,
            scheduler,
            visitor,
            threads,
        }
    }

    /// Runs to the end; `None` if no thread can go on before it.
    pub(super) fn run(&mut self) -> Option<Run> {
        self.begin();
        while let Some((now, id)) = self.timers.first() {
            self.now = now;
            if id == self.threads.len() {
                self.timers.clear(id);
            } else {
                self.step += 1;
                self.actor = id;
                match self.threads[id].phase {
                    Phase::Running => self.stop(id),
                    Phase::Spinning => self.give_up_spinning(id),
                    Phase::Dozing => self.end_dozing(id),
                    Phase::Sleeping => self.end_sleep(id),
                    Phase::Waking => self.end_waking(id),
                    phase => unreachable!("t{id} has a timer while it is {phase:?}"),
                }
            }
            self.settle_others();
        }
        if self.threads.iter().all(|thread| thread.phase == Phase::Done) {
            let threads: Vec<_> = self.threads.iter().map(|thread| thread.account).collect();
            let duration = threads.iter().map(|account| account.finished).max().unwrap_or(0);
            Some(Run { duration, threads })
        } else {
            None
        }
    }

    fn begin(&mut self) {
        for id in 0..self.threads.len() {
            if self.threads[id].is_over() {
                self.threads[id].phase = Phase::Done;
                continue;
            }
            match self.skeleton.strands[id].creator {
                Some((parent, event))
                    if (event as usize) < self.threads[parent.index()].operations.len() =>
                {
                    self.wait_for_event(id, parent.0, event);
                }
                _ => {
                    self.load(id, 0);
                    self.want_core(id);
                }
            }
        }
        self.settle_others();
    }

    /// A thread on a core comes to the end of its work or of its slice.
    fn stop(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        thread.account.running += self.now - thread.since;
        thread.since = self.now;
        if thread.remaining > 0 {
            if self.ready.is_empty() {
                thread.slice_end = self.now.saturating_add(self.config.quantum);
                self.work(id);
            } else {
                thread.phase = Phase::Runnable;
                thread.then = Then::Work;
                self.timers.clear(id);
                self.ready.push_back(id as u32);
                self.release_core();
            }
            return;
        }
        if thread.is_over() {
            self.end(id);
            return;
        }
        if thread.then == Then::Retry {
            thread.then = Then::Work;
        } else if !thread.fetched {
            thread.arrived = self.now;
        }
        if !(self.glibc && self.fetches(id)) {
            self.arrive(id);
        }
    }

    /// A thread on a core stands before the event in hand.
    fn arrive(&mut self, id: usize) {
        self.threads[id].phase = Phase::Arriving;
        let code = self.threads[id].operation().code;
        // What an edge holds back is the mutex at the end of a timed wait, not the wait.
        let sleeps = match code {
            Code::CondTimeout => true,
            Code::Sleep | Code::TimedOut => self.pass_edges(id).is_none(),
            _ => false,
        };
        if sleeps && !self.threads[id].slept {
            let duration = self.threads[id].duration();
            self.threads[id].phase = Phase::Sleeping;
            self.timers.set(id, self.now.saturating_add(duration));
            self.release_core();
            return;
        }
        self.proceed(id);
        let thread = &mut self.threads[id];
        if thread.phase == Phase::Arriving {
            let spins = code == Code::Spin && (!self.crowded || self.config.quantum != u64::MAX);
            if spins && matches!(thread.reason, Reason::Object { .. }) {
                thread.phase = Phase::Spinning;
                self.timers.clear(id);
                if self.crowded {
                    self.timers.set(id, thread.slice_end.max(self.now + 1));
                }
            } else {
                self.go_to_sleep(id);
            }
        }
    }

    /// A thread on a core begins to wait. On its way to sleep it still has the core, and glibc's
    /// lock word is looked at once more in the end: `FUTEX_WAIT` does not sleep if it has changed.
    fn go_to_sleep(&mut self, id: usize) {
        let patience = self.config.costs.patience;
        let thread = &mut self.threads[id];
        let dozes = self.glibc && patience > 0 && thread.costs.is_empty();
        if dozes && matches!(thread.reason, Reason::Object { .. }) {
            thread.phase = Phase::Dozing;
            let patience = self.wakings.around(patience);
            self.timers.set(id, self.now.saturating_add(patience));
        } else {
            thread.phase = Phase::Waiting;
            self.timers.clear(id);
            self.release_core();
        }
    }

    /// A thread on its way to sleep is asleep, or asks again if its object has been released.
    fn end_dozing(&mut self, id: usize) {
        let Reason::Object { object } = self.threads[id].reason else {
            unreachable!("only waits at objects are dozed through")
        };
        self.settle(id);
        if !std::mem::take(&mut self.threads[id].returns) {
            // Who must let another go first is kept by an order, and that one may need the core.
            let possible = self.admits(object, id) && self.is_preceded(id);
            if self.objects[object as usize].sought && !possible {
                self.threads[id].phase = Phase::Waiting;
                self.timers.clear(id);
                self.release_core();
                return;
            }
            self.threads[id].marks = true;
            let back = self.config.costs.back;
            if back > 0 {
                let back = self.wakings.around(back);
                self.threads[id].returns = true;
                self.timers.set(id, self.now.saturating_add(back));
                return;
            }
        }
        self.delist(id, object);
        self.threads[id].phase = Phase::Arriving;
        self.proceed(id);
        if self.threads[id].phase == Phase::Arriving {
            self.go_to_sleep(id);
        }
    }

    /// Whether the operation in hand could be performed now, as far as its object is concerned.
    pub(super) fn admits(&self, object: u32, id: usize) -> bool {
        let thread = &self.threads[id];
        let code = thread.operation().code;
        match self.constraints.admission(object) {
            Some(admission) if code.possesses() || code == Code::Read => {
                let section = (id as u32, thread.position);
                self.occupants.allow(admission, object, section, code == Code::Read)
            }
            _ => self.objects[object as usize].allows(code, id as u32),
        }
    }

    /// Performs the event in hand if nothing is in its way; else notes what is.
    pub(super) fn proceed(&mut self, id: usize) {
        if let Some(edge) = self.pass_edges(id) {
            self.threads[id].edges_waited += 1;
            self.wait_for_event(id, edge.source_thread.0, edge.source);
            return;
        }
        let operation = self.threads[id].operation();
        match operation.code {
            Code::Join => {
                let joined = &self.threads[operation.object()];
                let events = joined.operations.len() as u32;
                if joined.performed < events {
                    self.wait_for_event(id, operation.object, events - 1);
                    return;
                }
            }
            Code::Woken => {
                let (other, event) = self.threads[id].waker();
                if !self.threads[other as usize].has_performed(event) {
                    self.wait_for_event(id, other, event);
                    return;
                }
                self.threads[id].pass_woken();
            }
            Code::Await | Code::AwaitLoad
                if self.objects[operation.object()].count < operation.rank =>
            {
                self.wait_for_count(id, operation.object, operation.rank);
                return;
            }
            Code::CondRelock if !self.threads[id].slept => {
                let (object, need) = self.threads[id].signalled();
                if self.objects[object as usize].count < need {
                    self.wait_for_count(id, object, need);
                    return;
                }
                self.threads[id].pass_side();
                self.threads[id].slept = true;
                if self.glibc && self.threads[id].phase == Phase::Waiting {
                    // The signal wakes it; then it asks for the mutex.
                    self.rouse(id);
                    return;
                }
            }
            // After an edge was waited for, off the core, the sleep is still to come.
            Code::Sleep | Code::TimedOut if !self.threads[id].slept => {
                self.rouse(id);
                return;
            }
            _ => {}
        }
        let asks = operation.competes() || (self.total && operation.acts());
        if asks && !self.constraints.is_freed(operation.object) {
            self.compete(id, operation.object);
        } else {
            self.perform(id);
        }
    }

    /// Passes the causal edges into the event in hand whose sources have been performed, up to
    /// the first that has not, which it returns.
    fn pass_edges(&mut self, id: usize) -> Option<Edge> {
        while let Some(edge) = self.threads[id].edge() {
            if !self.threads[edge.source_thread.index()].has_performed(edge.source) {
                return Some(edge);
            }
            self.threads[id].pass_edge();
        }
        None
    }

    /// The event in hand happens now.
    pub(super) fn perform(&mut self, id: usize) {
        self.step += 1;
        let operation = self.threads[id].operation();
        let mut extra = 0;
        if operation.acts() && !self.constraints.is_freed(operation.object) {
            let opens = self.change(id, operation);
            if self.glibc {
                extra = self.pay(id, operation, opens);
            }
            let state = &mut self.objects[operation.object()];
            if operation.competes() && operation.rank != rank::NONE {
                state.granted += 1;
                state.next = operation.next;
            }
            if opens && state.first != NOBODY {
                self.changed.push(operation.object);
            }
            self.count_holding(id, operation.code);
        } else if operation.code == Code::Tried {
            self.count_try(id, operation);
        }
        let thread = &mut self.threads[id];
        thread.performed = thread.position + 1;
        if thread.position >= thread.watched {
            self.passed.push(id as u32);
        }
        match thread.phase {
            Phase::Arriving => self.leave(id, extra),
            Phase::Spinning => {
                self.settle(id);
                let recorded = !self.threads[id].costs.is_empty();
                let handoff = if recorded {
                    0
                } else {
                    let drawn = if self.glibc { self.wakings.draw_handoff() } else { None };
                    drawn.unwrap_or(self.config.costs.handoff)
                };
                self.leave(id, handoff);
            }
            _ => {
                self.threads[id].then = Then::Leave;
                self.wake(id);
            }
        }
    }

    /// The object of an operation is what it makes of it; whether others may have become possible.
    fn change(&mut self, id: usize, operation: Operation) -> bool {
        let Operation { code, object, .. } = operation;
        let now = self.now;
        let state = &mut self.objects[object as usize];
        let Some(admission) = self.constraints.admission(object) else {
            return state.perform(code, id as u32, now);
        };
        let reads = code == Code::Read;
        let section = (id as u32, self.threads[id].position);
        let pays = match code {
            _ if code.possesses() || reads => {
                self.occupants.enter(admission, object, section, reads);
                self.occupants.pays(admission, object, id as u32)
            }
            Code::Unlock | Code::CondRelease => {
                let pays = self.occupants.pays(admission, object, id as u32);
                self.occupants.leave(object, id as u32, code == Code::CondRelease);
                pays
            }
            _ => return state.perform(code, id as u32, now),
        };
        self.threads[id].lockless = !pays;
        state.occupy(self.occupants.count(object), now);
        !code.possesses() && !reads
    }

    /// What a release costs beyond its instructions: somebody sleeps, or might, and is to be woken
    /// (`FUTEX_WAKE`).
    fn pay(&mut self, id: usize, operation: Operation, opens: bool) -> u64 {
        let thread = &self.threads[id];
        let state = &mut self.objects[operation.object()];
        if operation.code.acquires() {
            // Who has waited for it does not know whether others sleep.
            state.sought |= thread.roused || thread.marks;
            return 0;
        }
        if !(opens && operation.code.releases() && state.sought) {
            return 0;
        }
        let mut next = state.first;
        while next != NOBODY {
            if matches!(self.threads[next as usize].phase, Phase::Waiting | Phase::Spinning) {
                // It is woken, and whoever wakes it pays (`wake`), or it looks by itself.
                return 0;
            }
            next = self.waiters[next as usize].next;
        }
        // Nobody sleeps (yet): the call was in vain.
        state.sought = false;
        self.wakings.around(self.config.costs.vain)
    }

    /// A try that failed: would it have, here?
    fn count_try(&mut self, id: usize, operation: Operation) {
        let fails = self.objects[operation.object()].refuses(operation.flags);
        if !fails && !self.constraints.is_freed(operation.object) {
            self.threads[id].account.tries_free += 1;
        }
    }

    fn count_holding(&mut self, id: usize, code: Code) {
        let holding = &mut self.threads[id].holding;
        match code {
            code if code.possesses() => *holding += 1,
            Code::Unlock | Code::CondRelease => *holding = holding.saturating_sub(1),
            _ => {}
        }
    }

    /// On a core, with the event in hand performed: goes on with what follows.
    fn leave(&mut self, id: usize, latency: u64) {
        let lockset = self.lockset(id);
        let thread = &mut self.threads[id];
        let Operation { code, flags, .. } = thread.operation();
        let cost = latency.saturating_add(if code.is_kernel() {
            thread.duration()
        } else if thread.costs.is_empty() {
            let own = if thread.lockless { 0 } else { self.costs[code as usize] };
            lockset.unwrap_or(own)
        } else {
            u64::from(thread.costs[thread.position as usize])
        });
        let end = self.now.saturating_add(cost);
        let event = EventId(u64::from(thread.position));
        self.visitor.event(ThreadId(id as u32), event, thread.arrived, end);
        thread.position += 1;
        thread.slept = false;
        let roused = std::mem::take(&mut thread.roused);
        thread.marks = false;
        thread.fetched = false;
        thread.lockless = false;
        thread.edges_waited = 0;
        thread.awaited = 0;
        thread.then = Then::Work;
        if thread.real > 0 {
            let taken = std::mem::take(&mut thread.real);
            // A wait on a condition variable comes to its mutex late.
            let signalled = matches!(code, Code::CondRelock | Code::CondTimeout);
            thread.account.wanted += if signalled { taken } else { self.now - thread.arrived };
            thread.account.contended += 1;
            if roused {
                thread.account.slept += 1;
                thread.account.slept_for += self.now - thread.arrived;
            }
            thread.account.tries_differ += u64::from(flags & TRY != 0);
        }
        if thread.is_over() && cost == 0 {
            self.end(id);
        } else {
            self.load(id, cost);
            self.work(id);
        }
    }

    /// What the event in hand costs, if its object is freed and its locksets are counted.
    fn lockset(&self, id: usize) -> Option<u64> {
        let thread = &self.threads[id];
        let operation = thread.operation();
        if !operation.acts() || !self.constraints.is_freed(operation.object) {
            return None;
        }
        let locks = self.constraints.lockset(id, thread.position, thread.edges_waited)?;
        let Costs { acquire, release, .. } = self.config.costs;
        Some(if operation.competes() { locks.saturating_mul(acquire + release) } else { 0 })
    }

    /// Sets the work before the event in hand, after `cost` more of the last one.
    pub(super) fn load(&mut self, id: usize, cost: u64) {
        let thread = &mut self.threads[id];
        let mut work = 0;
        if !thread.is_over() {
            work = thread.work();
            if let Some(noise) = self.noise {
                work = work.saturating_add(noise.more(id as u32, thread.position, work));
            }
        }
        thread.span = work.saturating_add(cost);
        thread.remaining = thread.span;
    }

    /// On a core: works until the next event or the end of the slice.
    #[inline]
    pub(super) fn work(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        thread.phase = Phase::Running;
        let mut span = thread.remaining;
        if self.crowded {
            // A slice that is over is renewed by `stop`, which needs a moment to come to.
            span = span.min(thread.slice_end.saturating_sub(self.now).max(1));
        }
        thread.remaining -= span;
        self.timers.set(id, self.now.saturating_add(span));
    }

    /// The thread's last event is over.
    fn end(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        thread.phase = Phase::Done;
        thread.account.finished = self.now;
        self.timers.clear(id);
        if thread.holding > 0 {
            // The stream was cut off, or the program ended: a lock must not stay held for ever.
            for (object, state) in self.objects.iter_mut().enumerate() {
                let object = object as u32;
                let is_relaxed = self.constraints.admission(object).is_some();
                if is_relaxed {
                    self.occupants.leave(object, id as u32, true);
                    state.occupy(self.occupants.count(object), self.now);
                }
                if (is_relaxed || state.abandon(id as u32, self.now)) && state.first != NOBODY {
                    self.changed.push(object);
                }
            }
        }
        self.release_core();
    }

    /// Wakes a waiting thread that then asks again.
    pub(super) fn rouse(&mut self, id: usize) {
        self.threads[id].then = Then::Retry;
        self.wake(id);
    }

    /// Wakes a waiting thread; what it does then is `self.threads[id].then`.
    pub(super) fn wake(&mut self, id: usize) {
        self.settle(id);
        let costs = &self.config.costs;
        let thread = &mut self.threads[id];
        let (mut slept, mut rouse) = (false, costs.rouse);
        // A thread that an order held back did not wait in the program: it is not woken either.
        let latency = match thread.awaited {
            // The recorded costs hold what it took to go on.
            _ if !thread.costs.is_empty() => 0,
            _ if thread.phase == Phase::Unborn => costs.wake,
            0 => 0,
            _ if self.polling && matches!(thread.reason, Reason::Object { .. }) => costs.handoff,
            awaited if awaited < costs.patience && !(self.glibc && thread.roused) => costs.handoff,
            // Where no core is idle, none has to be woken.
            _ if self.glibc && self.idle_cores == 0 => costs.patience,
            _ => {
                let drawn = if self.glibc { self.wakings.draw() } else { None };
                slept = true;
                rouse = drawn.map_or(rouse, |waking| waking.rouse);
                drawn.map_or(costs.wake, |waking| waking.wake)
            }
        };
        thread.phase = Phase::Waking;
        self.timers.set(id, self.now.saturating_add(latency));
        if slept && self.glibc {
            self.charge(rouse);
        }
    }

    /// The thread whose step this is has so much more to do before it goes on with its work.
    fn charge(&mut self, more: u64) {
        let id = self.actor;
        if self.threads[id].phase == Phase::Running {
            let due = self.timers.get(id);
            self.timers.set(id, due.saturating_add(more));
        }
    }

    fn end_waking(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        thread.account.blocked += self.now - thread.since;
        thread.since = self.now;
        self.want_core(id);
    }

    fn end_sleep(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        let code = thread.operation().code;
        let slept = self.now - thread.since;
        if code == Code::Sleep {
            thread.account.io += slept;
        } else {
            thread.account.blocked += slept;
        }
        thread.since = self.now;
        thread.slept = true;
        thread.then = Then::Retry;
        self.want_core(id);
    }

    fn give_up_spinning(&mut self, id: usize) {
        use Phase::{Dozing, Running, Sleeping, Waking};
        let moves = |it: &Thread<'_>| matches!(it.phase, Running | Dozing | Sleeping | Waking);
        if !self.ready.is_empty() {
            self.settle(id);
            self.threads[id].phase = Phase::Waiting;
            self.timers.clear(id);
            self.release_core();
        } else if self.threads.iter().any(moves) || self.timers.is_set(self.threads.len()) {
            self.timers.set(id, self.now.saturating_add(self.config.quantum));
        } else {
            // Nobody is left to end the wait: a deadlock.
            self.timers.clear(id);
        }
    }

    fn want_core(&mut self, id: usize) {
        if self.idle_cores > 0 && self.ready.is_empty() {
            self.idle_cores -= 1;
            self.start(id);
        } else {
            self.threads[id].phase = Phase::Runnable;
            self.timers.clear(id);
            self.ready.push_back(id as u32);
        }
    }

    /// [`Engine::settle_others`] gives the core to the next thread.
    fn release_core(&mut self) {
        self.idle_cores += 1;
    }

    /// A thread gets a core.
    pub(super) fn start(&mut self, id: usize) {
        self.step += 1;
        let thread = &mut self.threads[id];
        thread.account.runnable += self.now - thread.since;
        thread.since = self.now;
        thread.slice_end = self.now.saturating_add(self.config.quantum);
        match thread.then {
            Then::Work => self.work(id),
            Then::Leave => self.leave(id, 0),
            Then::Retry => {
                // `stop` finds no work left and lets the thread arrive, outside any grant.
                thread.remaining = 0;
                self.work(id);
            }
        }
    }

    /// Books the time since the last booking to what the thread waited for.
    pub(super) fn settle(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        if thread.phase == Phase::Unborn {
            thread.since = self.now;
            thread.account.started = self.now;
            return;
        }
        let waited = self.now - thread.since;
        thread.since = self.now;
        let operation = thread.operation();
        let mut real = waited;
        match thread.reason {
            Reason::Object { object } => {
                let taken = self.objects[object as usize].taken_for(operation.code, self.now);
                real = (taken - thread.taken).min(waited);
                thread.real += real;
                thread.taken = taken;
            }
            Reason::Count { .. } if operation.code == Code::AwaitLoad => real = 0,
            _ => {}
        }
        thread.awaited += real;
        thread.account.artificial += waited - real;
        if matches!(thread.phase, Phase::Spinning | Phase::Dozing) {
            thread.account.spinning += real;
        } else {
            thread.account.blocked += real;
        }
    }
}
