//! Maps the name of a scheduler to the scheduler that both clocks ask.

use super::segments::Segments;
use crate::choices::SchedulerKind;
use refrain_scheduler::{
    Config, Constraints, Durations, Elsc, InOrder, Kendo, MemS, Model, Noise, Orig, Outcome, Pct,
    Random, Recorder, Schedule, Scheduler, Skeleton, Waiting, simulate,
};
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Noise of `orig-s` in virtual time: each piece of work takes up to so many thousandths longer.
pub(super) const NOISE_PER_MILLE: u32 = 10;
/// Depth of `pct`: the bugs that it finds need up to so many ordered steps (Burckhardt et al.,
/// section 5, find most at 2 and 3).
const DEPTH: u32 = 3;

/// What some schedulers decide by, where it has been counted.
#[derive(Default)]
pub(super) struct Decisive {
    /// Instructions, for Kendo's clocks.
    pub(super) instructions: Option<Segments>,
    /// Shared accesses, for MEM-S.
    pub(super) accesses: Option<Segments>,
}

/// A scheduler and its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Policy {
    /// Which one.
    pub scheduler: SchedulerKind,
    /// Of what is random in it. `orig-s` has no noise without one.
    pub seed: Option<u64>,
}

impl Policy {
    /// The policy of the repetition with this number.
    pub fn repetition(self, number: u32) -> Policy {
        Policy { seed: self.seed.map(|seed| seed.wrapping_add(u64::from(number))), ..self }
    }

    /// Whether two seeds may give two times.
    pub fn varies(self) -> bool {
        match self.scheduler {
            SchedulerKind::Elsc | SchedulerKind::Kendo | SchedulerKind::MemS => false,
            SchedulerKind::OrigS => self.seed.is_some(),
            SchedulerKind::Pct | SchedulerKind::Random => true,
        }
    }

    /// The policy of a full replay.
    pub(super) fn full(self) -> refrain_vm::Policy {
        let anew = move |turns| self.anew(turns).expect("this one decides anew");
        match self.scheduler {
            SchedulerKind::Elsc => refrain_vm::Policy::Elsc,
            SchedulerKind::MemS => refrain_vm::Policy::MemS,
            _ => refrain_vm::Policy::Anew(Arc::new(anew)),
        }
    }

    /// The scheduler that both clocks ask, for a trace in which so many operations take a turn.
    /// `None` for one that keeps the recorded order.
    fn anew(self, turns: u64) -> Option<Box<dyn Scheduler + Send>> {
        let seed = self.seed.unwrap_or(0);
        Some(match self.scheduler {
            SchedulerKind::Elsc | SchedulerKind::MemS => return None,
            SchedulerKind::OrigS => Box::new(Orig),
            SchedulerKind::Kendo => Box::new(Kendo::default()),
            SchedulerKind::Pct => Box::new(Pct::new(seed, DEPTH, turns)),
            SchedulerKind::Random => Box::new(Random::new(seed)),
        })
    }

    /// Replays a skeleton in virtual time; with `keep`, the decisions come back too. Of a transformed
    /// trace, what is not freed keeps its recorded order.
    ///
    /// # Panics
    /// If what the scheduler decides by has not been counted.
    pub(super) fn simulate(
        self,
        (skeleton, config, transformed): (&Skeleton, &Config, Option<&Constraints<'_>>),
        decisive: &Decisive,
        keep: bool,
    ) -> (Outcome, Option<Schedule>) {
        let counted = "whoever chose the scheduler had it counted";
        let kendo = self.scheduler == SchedulerKind::Kendo;
        let clocks = kendo.then(|| {
            let instructions = decisive.instructions.as_ref().expect(counted);
            worked(skeleton, instructions)
        });
        let noise = |seed| Noise { seed, per_mille: NOISE_PER_MILLE };
        let model = match self.scheduler {
            SchedulerKind::Kendo => {
                Model { clocks: clocks.as_ref(), ..Model::waiting(Waiting::Polling) }
            }
            SchedulerKind::OrigS => {
                Model { noise: self.seed.map(noise), ..Model::waiting(Waiting::Barging) }
            }
            _ => Model::default(),
        };
        let none = Constraints::none();
        let constraints = transformed.unwrap_or(&none);
        let at = Setup { skeleton, constraints, config, model, keep };
        match self.anew(acting(skeleton)) {
            Some(scheduler) if transformed.is_some() => replayed(at, InOrder::new(scheduler)),
            Some(scheduler) => replayed(at, scheduler),
            None if self.scheduler == SchedulerKind::Elsc => replayed(at, Elsc),
            None => {
                let accesses = decisive.accesses.as_ref().expect(counted);
                replayed(at, MemS::new(skeleton, constraints, config, accesses))
            }
        }
    }
}

/// What is replayed, where, what is assumed, and whether the decisions are kept.
struct Setup<'a> {
    skeleton: &'a Skeleton,
    constraints: &'a Constraints<'a>,
    config: &'a Config,
    model: Model<'a>,
    keep: bool,
}

fn replayed<S: Scheduler>(at: Setup<'_>, mut by: S) -> (Outcome, Option<Schedule>) {
    let Setup { skeleton, constraints, config, model, keep } = at;
    if !keep {
        return (simulate(skeleton, constraints, config, &model, &mut by, &mut ()), None);
    }
    let mut recorder = Recorder::new(by, &model);
    let outcome = simulate(skeleton, constraints, config, &model, &mut recorder, &mut ());
    (outcome, Some(recorder.into_schedule()))
}

/// Operations that take a turn.
fn acting(skeleton: &Skeleton) -> u64 {
    let threads = (0..skeleton.threads()).map(|id| ThreadId(id as u32));
    let operations = threads.flat_map(|thread| skeleton.operations(thread));
    operations.filter(|operation| operation.acts()).count() as u64
}

/// The skeleton with other amounts of work.
pub(super) fn worked(skeleton: &Skeleton, segments: &Segments) -> Skeleton {
    skeleton.retimed(|thread: ThreadId, event: EventId, Durations { time, .. }| {
        let of_thread = segments.get(thread.index());
        let work = of_thread.and_then(|events| events.get(event.index())).copied().unwrap_or(0);
        Durations { work, time }
    })
}
