//! Runs written by hand: operations in the order in which they happened, and their skeletons.

#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

use refrain_scheduler::{
    Config, Constraints, Costs, Elsc, Fixed, Kendo, MemS, Model, Noise, Orig, Outcome, Pct, Random,
    Recorder, Run, Schedule, Scheduler, Skeleton, Waiting, simulate,
};
use refrain_trace::{EventId, ThreadId};

pub use refrain_scheduler::testing::{HZ, Recording, Times, play};

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
    play((skeleton, constraints), config, &model, &mut by)
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

/// What was granted, in order.
pub fn order(schedule: &Schedule) -> Vec<(ThreadId, EventId)> {
    schedule.grants.iter().map(|grant| (grant.thread, grant.event)).collect()
}
