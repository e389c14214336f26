//! Who waits for what, and who goes next: a scheduler decides on the operations of threads that
//! run.
//!
//! Threads come with requests. The model of the library's objects ([`Objects`]) says which requests are
//! possible, and the [`Scheduler`] chooses among these, the same scheduler as under the virtual clock
//! (`scheduler::clock`). Granting one request may make others possible. The `gate` makes threads wait and
//! wakes them.
//!
//! A thread's logical clock is the count of instructions that it said last: nothing that it does
//! later comes before that. A thread that has not come to its next operation is
//! [`Status::Going`], even while it waits for something that no scheduler decides on (a recorded
//! order). When no thread moves, the question is put without such threads ([`Grants::force`]).
//!
//! If a scheduler decides object by object, threads race, as on a real machine: a thread that waited is
//! told to ask again, and whichever thread comes first gets the object. Under any other scheduler,
//! requests are performed in the order in which they are granted, so that the scheduler alone decides the
//! order of operations.

use super::objects::{Objects, Operation, Words};
use refrain_scheduler::{Choice, Moment, Progress, Request, Scheduler, Scope, Status};
use refrain_trace::{EventId, ThreadId, order};
use std::fmt::Write;

/// A request: an operation, its event, and its recorded place among those of its object's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) operation: Operation,
    pub(crate) event: EventId,
    pub(crate) ticket: u64,
}

/// A request that waits, and as the how manieth it came.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    thread: ThreadId,
    asked: Asked,
    arrived: u64,
}

impl Waiter {
    fn event(&self) -> u32 {
        u32::try_from(self.asked.event.0).unwrap_or(u32::MAX)
    }
}

/// What becomes of a thread that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// Its operation is done.
    Granted,
    /// It may ask again.
    Retry,
}

/// Objects that a result names.
const NAMED: usize = 4;

/// All threads, and what they wait for.
pub(crate) struct Grants<W> {
    scheduler: Box<dyn Scheduler + Send>,
    scope: Scope,
    objects: Objects<W>,
    /// By thread.
    progress: Vec<Progress>,
    /// Requests that wait, in the order in which they came.
    waiting: Vec<Waiter>,
    /// Requests so far, and operations performed.
    requests: u64,
    step: u64,
    /// News that `gate` has not passed on yet.
    news: Vec<(ThreadId, News)>,
}

impl<W: Words> Grants<W> {
    /// For a trace with so many threads.
    pub(crate) fn new(scheduler: Box<dyn Scheduler + Send>, words: W, threads: usize) -> Grants<W> {
        let unborn = Progress {
            status: Status::Unborn,
            event: 0,
            from: 0,
            clock: 0,
            due: u64::MAX,
            left: 0,
            span: 0,
        };
        Grants {
            scope: scheduler.scope(),
            scheduler,
            objects: Objects::new(words),
            progress: vec![unborn; threads],
            waiting: Vec::new(),
            requests: 0,
            step: 0,
            news: Vec::new(),
        }
    }

    /// A thread begins, unless its creation has said so before.
    pub(crate) fn begin(&mut self, thread: ThreadId) {
        if let Some(progress) = self.progress.get_mut(thread.index())
            && progress.status == Status::Unborn
        {
            progress.status = Status::Going;
        }
    }

    /// A thread has ended, perhaps without an exit.
    pub(crate) fn end(&mut self, thread: ThreadId) {
        self.waiting.retain(|waiter| waiter.thread != thread);
        self.objects.perform(thread, Operation::Exit, 0);
        self.progress[thread.index()].status = Status::Done;
        self.settle();
    }

    /// The thread has retired so many instructions: nothing that it does later comes before that.
    pub(crate) fn publish(&mut self, thread: ThreadId, retired: u64) {
        let progress = &mut self.progress[thread.index()];
        if progress.from < retired {
            (progress.from, progress.clock) = (retired, retired);
            self.settle();
        }
    }

    /// A thread asks for an operation. Whether it is done; if not, there will be news for the
    /// thread.
    pub(crate) fn request(&mut self, thread: ThreadId, asked: Asked) -> bool {
        self.requests += 1;
        let waiter = Waiter { thread, asked, arrived: self.requests };
        if !self.scope.is_global() && self.goes_at_once(waiter) {
            self.perform(waiter);
            self.react(asked.operation);
            return true;
        }
        let progress = &mut self.progress[thread.index()];
        (progress.status, progress.event) = (Status::Waiting, waiter.event());
        self.waiting.push(waiter);
        self.settle();
        // It is here to hear it.
        match self.news.iter().position(|(other, _)| *other == thread) {
            Some(own) => self.news.swap_remove(own).1 == News::Granted,
            None => false,
        }
    }

    /// Nobody runs: gives a turn to the first of those that wait for one, whoever is expected to
    /// come before it. Whether there was one.
    pub(crate) fn force(&mut self) -> bool {
        let forced = self.scope.is_global() && self.grant_one(true);
        if forced {
            self.settle();
        }
        forced
    }

    /// Takes the news for threads that waited.
    pub(crate) fn take_news(&mut self) -> Vec<(ThreadId, News)> {
        std::mem::take(&mut self.news)
    }

    /// Objects whose acquisitions came in another order than recorded, the first few. `too_soon`
    /// tells of an object whether one of its events has come before an earlier one.
    pub(crate) fn reordered(&self, too_soon: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
        self.objects.reordered(too_soon).take(NAMED)
    }

    /// Whether the scheduler decides on an operation. Others go when they are possible.
    fn decides_on(&self, operation: Operation) -> bool {
        operation.competes() || self.scope == Scope::Total && operation.acts()
    }

    /// Whoever comes along gets what is free, whoever else waits for it.
    fn goes_at_once(&mut self, waiter: Waiter) -> bool {
        let operation = waiter.asked.operation;
        let allowed = self.objects.allow(waiter.thread, operation);
        allowed && (!self.decides_on(operation) || self.choose(&[waiter], false).is_some())
    }

    /// Lets all go on that can, but for those who race for an object.
    fn settle(&mut self) {
        while self.pass_one() || self.scope.is_global() && self.grant_one(false) {}
    }

    /// Grants what nobody decides on, if it is possible. Whether there was something.
    fn pass_one(&mut self) -> bool {
        let goes = |waiter: &Waiter| {
            let Asked { operation, .. } = waiter.asked;
            !self.decides_on(operation) && self.objects.allow(waiter.thread, operation)
        };
        match self.waiting.iter().position(goes) {
            Some(at) => self.grant(at),
            None => return false,
        }
        true
    }

    /// Asks the scheduler about all requests that are possible. Whether it granted one. If nobody
    /// moves (`forced`), nobody is expected to come.
    fn grant_one(&mut self, forced: bool) -> bool {
        let (able, questions) = self.able(|operation| self.decides_on(operation));
        let chosen = self.choose(&questions, forced);
        chosen.map(|chosen| self.grant(able[chosen])).is_some()
    }

    /// What an operation means for those who race for an object: a release lets one of them ask
    /// again, or all that read.
    fn react(&mut self, performed: Operation) {
        let freed = match performed {
            Operation::Unlock { object: at }
            | Operation::Wait { mutex: at, .. }
            | Operation::Post { semaphore: at } => Some(at),
            Operation::Signal { .. } => None,
            _ => return self.settle(),
        };
        loop {
            let here = |operation: Operation| match freed {
                Some(object) => operation.competes() && operation.object() == object,
                None => matches!(operation, Operation::Relock { .. }),
            };
            let (able, questions) = self.able(here);
            let Some(chosen) = self.choose(&questions, false) else { break };
            match questions[chosen].asked.operation {
                // The end of a wait cannot be asked for again.
                Operation::Relock { .. } => self.grant(able[chosen]),
                operation => {
                    let Waiter { thread, .. } = self.waiting.remove(able[chosen]);
                    self.progress[thread.index()].status = Status::Going;
                    self.news.push((thread, News::Retry));
                    if !matches!(operation, Operation::Read { .. }) {
                        break;
                    }
                }
            }
        }
    }

    /// Requests that are possible: their places, and themselves.
    fn able(&self, wanted: impl Fn(Operation) -> bool) -> (Vec<usize>, Vec<Waiter>) {
        let able = |(_, waiter): &(usize, &Waiter)| {
            let Asked { operation, .. } = waiter.asked;
            wanted(operation) && self.objects.allow(waiter.thread, operation)
        };
        self.waiting.iter().enumerate().filter(able).map(|(at, waiter)| (at, *waiter)).unzip()
    }

    /// Puts a question to the scheduler, unless there is nothing to ask.
    fn choose(&mut self, questions: &[Waiter], forced: bool) -> Option<usize> {
        let still = |progress: &Progress| match progress.status {
            Status::Going if forced => Progress { status: Status::Waiting, ..*progress },
            _ => *progress,
        };
        let threads: Vec<Progress> = match self.scope.is_global() {
            true => self.progress.iter().map(still).collect(),
            false => Vec::new(),
        };
        let request = |waiter: &Waiter| Request {
            thread: waiter.thread,
            event: waiter.event(),
            rank: None,
            granted: 0,
            arrived: waiter.arrived,
            clock: self.progress[waiter.thread.index()].clock,
        };
        let requests: Vec<Request> = questions.iter().map(request).collect();
        if requests.is_empty() {
            return None;
        }
        let moment = Moment { now: 0, step: self.step, threads: &threads };
        match self.scheduler.choose(moment, &requests) {
            Choice::Grant(index) => Some(index),
            Choice::Hold(_) | Choice::HoldUntil(_) => None,
        }
    }

    /// Performs what waits at this place, and says so.
    fn grant(&mut self, at: usize) {
        let waiter = self.waiting.remove(at);
        self.perform(waiter);
        self.news.push((waiter.thread, News::Granted));
    }

    fn perform(&mut self, waiter: Waiter) {
        let Waiter { thread, asked, .. } = waiter;
        self.step += 1;
        let progress = &mut self.progress[thread.index()];
        (progress.status, progress.event) = (Status::Going, waiter.event().saturating_add(1));
        if let Operation::Create { thread } = asked.operation {
            self.begin(thread);
        }
        self.objects.perform(thread, asked.operation, asked.ticket);
    }

    /// Why nobody can go on: the cycle of threads each of which waits for the next, or else all
    /// that wait. Empty if no thread waits here.
    pub(crate) fn explain(&self) -> String {
        let mut waiting: Vec<ThreadId> = self.waiting.iter().map(|waiter| waiter.thread).collect();
        waiting.sort_unstable();
        let cycle = waiting.iter().find_map(|&thread| self.cycle(thread));
        let mut text = if cycle.is_some() { "deadlock".to_owned() } else { String::new() };
        for thread in cycle.unwrap_or(waiting) {
            let Some((what, at)) = self.waits_at(thread) else { continue };
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}{thread} waits for {what}");
            if at > order::THREADS {
                let _ = write!(text, " at {at:#x}");
            }
            for holder in self.objects.holders(at) {
                let _ = write!(text, ", which {holder} holds");
            }
        }
        text
    }

    fn waits_at(&self, thread: ThreadId) -> Option<(&'static str, u64)> {
        let waiter = self.waiting.iter().find(|waiter| waiter.thread == thread)?;
        let Asked { operation, .. } = waiter.asked;
        let what = match operation {
            Operation::Relock { .. } => match self.objects.sleeps_on(thread) {
                Some(condition) => return Some(("the condition variable", condition)),
                None => "the mutex",
            },
            Operation::Leave { .. } => "the barrier",
            Operation::Take { .. } => "the semaphore",
            Operation::Lock { .. } | Operation::Read { .. } => "the lock",
            Operation::Join { .. } => "another thread",
            _ => "its turn",
        };
        Some((what, operation.object()))
    }

    /// From a thread along whoever holds what is waited for, back to it.
    fn cycle(&self, thread: ThreadId) -> Option<Vec<ThreadId>> {
        let mut path = vec![thread];
        loop {
            let last = *path.last().expect("the path begins with a thread");
            let (_, at) = self.waits_at(last)?;
            let next = *self.objects.holders(at).first()?;
            if next == thread {
                return Some(path);
            }
            if path.contains(&next) {
                return None;
            }
            path.push(next);
        }
    }
}

#[cfg(test)]
mod across_clocks;
#[cfg(test)]
mod tests;
