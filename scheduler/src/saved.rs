//! Keeping a schedule and repeating it: a scheduler around another, and one that takes every
//! decision from a [`Schedule`].

use crate::{Choice, Grant, Model, Moment, Request, Schedule, Scheduler, Scope};
use refrain_trace::EventId;

/// Decides as another scheduler does and keeps the decisions.
#[derive(Clone, Debug)]
pub struct Recorder<S> {
    inner: S,
    schedule: Schedule,
}

impl<S: Scheduler> Recorder<S> {
    /// Keeps what `inner` decides in a simulation that assumes `model`.
    pub fn new(inner: S, model: &Model<'_>) -> Recorder<S> {
        let total = inner.scope() == Scope::Total;
        let Model { waiting, noise, .. } = *model;
        Recorder { inner, schedule: Schedule { total, waiting, noise, grants: Vec::new() } }
    }

    /// The decisions so far.
    pub fn into_schedule(self) -> Schedule {
        self.schedule
    }
}

impl<S: Scheduler> Scheduler for Recorder<S> {
    fn scope(&self) -> Scope {
        self.inner.scope()
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
}

/// Takes every decision from a schedule.
///
/// Invariant: the grants of the schedule are made in their order, none before its time. On the
/// skeleton and the machine that the schedule was kept on, with [`Schedule::model`], the outcome is the same to the tick;
/// on another machine the order is the same, and an event that comes later goes when it comes.
/// What is asked about after the schedule's end goes in the order of arrival.
#[derive(Clone, Debug)]
pub struct Fixed {
    total: bool,
    grants: Vec<Grant>,
    next: usize,
}

impl Fixed {
    /// Repeats `schedule`.
    pub fn new(schedule: Schedule) -> Fixed {
        Fixed { total: schedule.total, grants: schedule.grants, next: 0 }
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
            None => Choice::Hold(Some(next.thread)),
            Some(_) if moment.now < next.at => Choice::HoldUntil(next.at),
            // The same time, but others come first: they are steps, after which it asks again.
            Some(_) if moment.now == next.at && moment.step < next.step => {
                Choice::Hold(Some(next.thread))
            }
            Some(index) => {
                self.next += 1;
                Choice::Grant(index)
            }
        }
    }
}
