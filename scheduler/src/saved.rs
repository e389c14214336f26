//! Keeping a schedule and repeating it: a scheduler around another, and one that takes every
//! decision from a [`Schedule`].

use crate::schedule::{Grant, Noise};
use crate::{Choice, Moment, Request, Schedule, Scheduler, Scope};
use refrain_trace::{EventId, ThreadId};

/// Decides as another scheduler does and keeps the decisions.
#[derive(Clone, Debug)]
pub struct Recorder<S> {
    inner: S,
    schedule: Schedule,
    /// By thread: for how many events it has been asked for noise.
    asked: Vec<u64>,
}

impl<S: Scheduler> Recorder<S> {
    /// Keeps what `inner` decides.
    pub fn new(inner: S) -> Recorder<S> {
        let (total, barging) = (inner.scope() == Scope::Total, inner.barges());
        let polling = inner.polls();
        let schedule = Schedule { total, barging, polling, ..Schedule::default() };
        Recorder { inner, schedule, asked: Vec::new() }
    }

    /// The decisions so far.
    pub fn into_schedule(self) -> Schedule {
        self.schedule
    }
}

/// Counts the events of a thread, which are asked about in their order.
fn next_event(asked: &mut Vec<u64>, thread: ThreadId) -> EventId {
    if asked.len() <= thread.index() {
        asked.resize(thread.index() + 1, 0);
    }
    let event = EventId(asked[thread.index()]);
    asked[thread.index()] += 1;
    event
}

impl<S: Scheduler> Scheduler for Recorder<S> {
    fn scope(&self) -> Scope {
        self.inner.scope()
    }

    fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        let choice = self.inner.choose(moment, requests);
        if let Choice::Grant(index) = choice {
            let Request { thread, event, .. } = requests[index];
            let event = EventId(u64::from(event));
            self.schedule.grants.push(Grant { thread, event, at: moment.now, step: moment.step });
        }
        choice
    }

    fn barges(&self) -> bool {
        self.inner.barges()
    }

    fn polls(&self) -> bool {
        self.inner.polls()
    }

    fn jitter(&mut self, thread: ThreadId, work: u64) -> u64 {
        let more = self.inner.jitter(thread, work);
        let event = next_event(&mut self.asked, thread);
        if more > 0 {
            self.schedule.noise.push(Noise { thread, event, more });
        }
        more
    }

    fn awaits(&self, request: &Request) -> Option<ThreadId> {
        self.inner.awaits(request)
    }
}

/// Takes every decision from a schedule.
///
/// Invariant: the grants of the schedule are made in their order, none before its time. On the
/// skeleton and the machine that the schedule was kept on, the outcome is the same to the tick;
/// on another machine the order is the same, and an event that comes later goes when it comes.
/// What is asked about after the schedule's end goes in the order of arrival.
#[derive(Clone, Debug)]
pub struct Fixed {
    total: bool,
    barging: bool,
    polling: bool,
    grants: Vec<Grant>,
    next: usize,
    /// By thread, in the order of the events.
    noise: Vec<Vec<Noise>>,
    used: Vec<usize>,
    asked: Vec<u64>,
}

impl Fixed {
    /// Repeats `schedule`.
    pub fn new(schedule: Schedule) -> Fixed {
        let Schedule { total, barging, polling, grants, noise: all } = schedule;
        let threads = all.iter().map(|noise| noise.thread.index() + 1).max().unwrap_or(0);
        let mut noise = vec![Vec::new(); threads];
        for one in all {
            noise[one.thread.index()].push(one);
        }
        let used = vec![0; threads];
        Fixed { total, barging, polling, grants, next: 0, noise, used, asked: Vec::new() }
    }

    /// How many grants of the schedule have not been made: 0 after a replay that followed it.
    pub fn left(&self) -> usize {
        self.grants.len() - self.next
    }
}

impl Scheduler for Fixed {
    fn scope(&self) -> Scope {
        if self.total { Scope::Total } else { Scope::Global }
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        let Some(next) = self.grants.get(self.next) else { return Choice::Grant(0) };
        let wanted = |request: &Request| {
            request.thread == next.thread && u64::from(request.event) == next.event.0
        };
        match requests.iter().position(wanted) {
            None => Choice::Hold,
            Some(_) if moment.now < next.at => Choice::HoldUntil(next.at),
            // The same time, but others come first: they are steps, after which it asks again.
            Some(_) if moment.now == next.at && moment.step < next.step => Choice::Hold,
            Some(index) => {
                self.next += 1;
                Choice::Grant(index)
            }
        }
    }

    fn barges(&self) -> bool {
        self.barging
    }

    fn polls(&self) -> bool {
        self.polling
    }

    fn jitter(&mut self, thread: ThreadId, _: u64) -> u64 {
        let event = next_event(&mut self.asked, thread);
        let (Some(noise), Some(used)) =
            (self.noise.get(thread.index()), self.used.get_mut(thread.index()))
        else {
            return 0;
        };
        match noise.get(*used) {
            Some(noise) if noise.event == event => {
                *used += 1;
                noise.more
            }
            _ => 0,
        }
    }

    fn awaits(&self, _: &Request) -> Option<ThreadId> {
        self.grants.get(self.next).map(|grant| grant.thread)
    }
}
