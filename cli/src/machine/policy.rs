//! Schedulers by name, for both clocks.

use super::segments::Segments;
use crate::args::SchedulerKind;
use refrain_scheduler::{
    Config, Constraints, Durations, Elsc, Kendo, MemS, Model, Noise, Orig, Outcome, Pct, Random,
    Recorder, Schedule, Scheduler, Skeleton, Waiting, simulate,
};
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};

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
pub(crate) struct Policy {
    /// Which one.
    pub(crate) scheduler: SchedulerKind,
    /// Of what is random in it. `orig-s` has no noise without one.
    pub(crate) seed: Option<u64>,
}

impl Policy {
    /// The policy of the repetition with this number.
    pub(crate) fn repetition(self, number: u32) -> Policy {
        Policy { seed: self.seed.map(|seed| seed.wrapping_add(u64::from(number))), ..self }
    }

    /// Whether two seeds may give two times.
    pub(crate) fn varies(self) -> bool {
        match self.scheduler {
            SchedulerKind::Elsc | SchedulerKind::Kendo | SchedulerKind::MemS => false,
            SchedulerKind::OrigS => self.seed.is_some(),
            SchedulerKind::Pct | SchedulerKind::Random => true,
        }
    }

    /// The policy of a full replay.
    pub(super) fn live(self) -> refrain_vm::Policy {
        let seed = self.seed.unwrap_or(0);
        match self.scheduler {
            SchedulerKind::Elsc => refrain_vm::Policy::Elsc,
            SchedulerKind::MemS => refrain_vm::Policy::MemS,
            SchedulerKind::OrigS => refrain_vm::Policy::OrigS,
            SchedulerKind::Kendo => refrain_vm::Policy::Kendo,
            SchedulerKind::Random => refrain_vm::Policy::Random { seed },
            SchedulerKind::Pct => refrain_vm::Policy::Pct { seed, depth: DEPTH },
        }
    }

    /// Replays a skeleton in virtual time; with `keep`, the decisions come back too.
    ///
    /// # Panics
    /// If what the scheduler decides by has not been counted.
    pub(super) fn simulate(
        self,
        (skeleton, config): (&Skeleton, &Config),
        decisive: &Decisive,
        keep: bool,
    ) -> (Outcome, Option<Schedule>) {
        let seed = self.seed.unwrap_or(0);
        let at = |model| (skeleton, config, model, keep);
        let plain = at(Model::default());
        let counted = "whoever chose the scheduler had it counted";
        match self.scheduler {
            SchedulerKind::Elsc => replayed(plain, Elsc),
            SchedulerKind::Kendo => {
                let instructions = decisive.instructions.as_ref().expect(counted);
                let clocks = worked(skeleton, instructions);
                let model = Model { clocks: Some(&clocks), ..Model::waiting(Waiting::Polling) };
                let at = (skeleton, config, model, keep);
                replayed(at, Kendo::default())
            }
            SchedulerKind::MemS => {
                let accesses = decisive.accesses.as_ref().expect(counted);
                let none = Constraints::none();
                replayed(plain, MemS::new(skeleton, &none, config, accesses))
            }
            SchedulerKind::OrigS => {
                let noise = self.seed.map(|seed| Noise { seed, per_mille: NOISE_PER_MILLE });
                replayed(at(Model { noise, ..Model::waiting(Waiting::Barging) }), Orig)
            }
            SchedulerKind::Pct => replayed(plain, Pct::new(seed, DEPTH, acting(skeleton))),
            SchedulerKind::Random => replayed(plain, Random::new(seed)),
        }
    }
}

/// What is replayed, where, what is assumed, and whether the decisions are kept.
type Place<'a> = (&'a Skeleton, &'a Config, Model<'a>, bool);

fn replayed<S: Scheduler>(at: Place<'_>, mut by: S) -> (Outcome, Option<Schedule>) {
    let (skeleton, config, model, keep) = at;
    let none = Constraints::none();
    if !keep {
        return (simulate(skeleton, &none, config, &model, &mut by, &mut ()), None);
    }
    let mut recorder = Recorder::new(by, &model);
    let outcome = simulate(skeleton, &none, config, &model, &mut recorder, &mut ());
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
