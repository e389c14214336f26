//! Runs written by hand: operations in the order in which they happened, and their skeletons.

#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod program;

use refrain_scheduler::{
    Builder, Config, Constraints, Costs, Elsc, Fixed, Kendo, MemS, Model, Noise, Orig, Outcome,
    Pct, Random, Recorder, Run, Schedule, Scheduler, Skeleton, Waiting, simulate,
};
use refrain_trace::{Event, EventId, EventKind, ThreadId, order};
use std::collections::BTreeMap;

/// Ticks are nanoseconds.
pub const HZ: u64 = 1_000_000_000;

/// A recorded run in the making.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub threads: Vec<Vec<Event>>,
    /// Thread and event of everything, in the order in which it happened.
    pub sequence: Vec<(usize, usize)>,
    tickets: BTreeMap<usize, u64>,
    clocks: Vec<u64>,
}

impl Recording {
    pub fn new(threads: usize) -> Recording {
        Recording {
            threads: vec![Vec::new(); threads],
            sequence: Vec::new(),
            tickets: BTreeMap::new(),
            clocks: vec![0; threads],
        }
    }

    /// `thread` works for `work` ticks and then performs an event, next in its object's order.
    pub fn push(&mut self, thread: usize, work: u64, kind: EventKind, object: u64) -> &mut Event {
        let ticket = self.tickets.entry(order::slot(object)).or_default();
        let begin = self.clocks[thread] + work;
        self.clocks[thread] = begin;
        let event = Event {
            code: kind as u8,
            object,
            ticket: *ticket,
            begin,
            end: begin,
            ..Event::default()
        };
        *ticket += 1;
        self.sequence.push((thread, self.threads[thread].len()));
        self.threads[thread].push(event);
        self.threads[thread].last_mut().expect("just pushed")
    }

    /// The same for an event that takes `time` ticks itself.
    pub fn push_timed(
        &mut self,
        thread: usize,
        work: u64,
        kind: EventKind,
        object: u64,
        time: u64,
    ) -> &mut Event {
        self.clocks[thread] += time;
        let clock = self.clocks[thread];
        self.push(thread, work, kind, object);
        let event = self.threads[thread].last_mut().expect("just pushed");
        event.begin = clock - time + work;
        event.end = clock + work;
        event
    }

    /// Tickets given out so far in the slot of an object.
    pub fn tickets(&self, object: u64) -> u64 {
        self.tickets.get(&order::slot(object)).copied().unwrap_or(0)
    }

    pub fn skeleton(&self) -> Skeleton {
        self.build(Builder::new(self.threads.len(), HZ, 0))
    }

    /// The skeleton of the recording as it was, had its events happened at these times.
    pub fn repeated(mut self, times: &Times) -> Skeleton {
        for &(thread, event, begin, end) in times {
            let event = &mut self.threads[thread as usize][event as usize];
            (event.begin, event.end) = (begin, end);
        }
        self.build(Builder::new(self.threads.len(), HZ, 0).as_recorded())
    }

    /// The skeleton of a recording that was made on so many cores.
    pub fn build_on(&self, cores: u32) -> Skeleton {
        self.build(Builder::new(self.threads.len(), HZ, 0).recorded_on(cores))
    }

    fn build(&self, mut builder: Builder) -> Skeleton {
        for (thread, events) in self.threads.iter().enumerate() {
            for event in events {
                builder.push(ThreadId(thread as u32), event).expect("a sound recording");
            }
        }
        builder.finish().expect("a sound recording")
    }
}

/// Every event of a replay: thread, event, begin, end.
pub type Times = Vec<(u32, u64, u64, u64)>;

/// A scheduler with what a simulation by it assumes.
pub trait Played<'a> {
    type By: Scheduler;

    fn parts(self) -> (Self::By, Model<'a>);
}

macro_rules! played {
    ($($scheduler:ty => $waiting:ident),* $(,)?) => {$(
        impl Played<'static> for $scheduler {
            type By = $scheduler;

            fn parts(self) -> ($scheduler, Model<'static>) {
                (self, Model::waiting(Waiting::$waiting))
            }
        }
    )*};
}

played! {
    Elsc => Handover,
    Kendo => Polling,
    MemS => Handover,
    Orig => Barging,
    Pct => Handover,
    Random => Handover,
}

impl<'a, S: Scheduler> Played<'a> for (S, Model<'a>) {
    type By = S;

    fn parts(self) -> (S, Model<'a>) {
        self
    }
}

/// Any scheduler.
pub type Boxed<'a> = (Box<dyn Scheduler>, Model<'a>);

pub fn boxed<'a, P: Played<'a>>(played: P) -> Boxed<'a>
where
    P::By: 'static,
{
    let (by, model) = played.parts();
    (Box::new(by), model)
}

/// Kendo by the clocks of a skeleton.
pub fn kendo(logical: &Skeleton) -> (Kendo, Model<'_>) {
    let model = Model { clocks: Some(logical), ..Model::waiting(Waiting::Polling) };
    (Kendo::default(), model)
}

/// ORIG-S with noise.
pub fn noisy(seed: u64, per_mille: u32) -> (Orig, Model<'static>) {
    let noise = Some(Noise { seed, per_mille });
    (Orig, Model { noise, ..Model::waiting(Waiting::Barging) })
}

/// Repeats a schedule; `left` is how many of its grants were not made.
pub fn repeat(skeleton: &Skeleton, config: &Config, schedule: Schedule) -> (Outcome, Times, usize) {
    let model = schedule.model();
    let mut fixed = Fixed::new(schedule);
    let (outcome, times) = replay(skeleton, &Constraints::none(), config, (&mut fixed, model));
    (outcome, times, fixed.left())
}

pub fn replay<'a>(
    skeleton: &Skeleton,
    constraints: &Constraints<'_>,
    config: &Config,
    played: impl Played<'a>,
) -> (Outcome, Times) {
    let (mut by, model) = played.parts();
    let mut times = Times::new();
    let mut visit = |thread: ThreadId, event: EventId, begin, end| {
        times.push((thread.0, event.0, begin, end));
    };
    let outcome = simulate(skeleton, constraints, config, &model, &mut by, &mut visit);
    (outcome, times)
}

/// The same, and what was decided.
pub fn decided<'a>(
    skeleton: &Skeleton,
    constraints: &Constraints<'_>,
    config: &Config,
    played: impl Played<'a>,
) -> (Outcome, Times, Schedule) {
    let (by, model) = played.parts();
    let mut recorder = Recorder::new(by, &model);
    let (outcome, times) = replay(skeleton, constraints, config, (&mut recorder, model));
    (outcome, times, recorder.into_schedule())
}

pub fn run<'a>(recording: &Recording, cores: u32, played: impl Played<'a>) -> Run {
    let skeleton = recording.skeleton();
    let (outcome, _) = replay(&skeleton, &Constraints::none(), &Config::ideal(cores), played);
    outcome.completed().expect("no deadlock")
}

/// Machines that differ in every way: plenty of cores and one, free operations and dear ones.
pub fn machines() -> [Config; 4] {
    let costs = Costs {
        acquire: 1,
        release: 2,
        other: 1,
        handoff: 3,
        wake: 11,
        patience: 20,
        rouse: 4,
        travel: 1,
    };
    [
        Config::ideal(8),
        Config::ideal(1),
        Config { cores: 2, quantum: 7, costs },
        Config { cores: 8, quantum: 50, costs },
    ]
}

/// What was granted, in order.
pub fn order(schedule: &Schedule) -> Vec<(ThreadId, EventId)> {
    schedule.grants.iter().map(|grant| (grant.thread, grant.event)).collect()
}
