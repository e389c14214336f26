//! Comparing two traces or two schedulers by replays in turns (`ab`), and the replays of schedulers with
//! the recording (`fidelity`).

use crate::again;
use crate::calibration::Source;
use crate::choices::{Clock, Cost, EngineKind, SchedulerKind};
use crate::error::{Context, Error, bail};
use crate::machine::{Policy, ReplayOptions, Skeleton};
use crate::model::VirtualMachine;
use crate::session::Session;
use crate::stats::{Difference, Distribution};
use crate::trace_file;
use serde::Serialize;
use std::path::Path;

/// How replays are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measuring {
    /// Replays of each kind.
    pub repeat: u32,
    /// By this clock alone.
    pub clock: Option<Clock>,
    /// Where virtual time comes from.
    pub cost: Cost,
    /// On so many cores; by default those of the recorded machine, or of this one by the wall clock.
    pub cores: Option<u32>,
    /// First seed of what is random.
    pub seed: u64,
    /// What executes the recorded code for the wall clock.
    pub engine: EngineKind,
}

impl Default for Measuring {
    fn default() -> Measuring {
        Measuring {
            repeat: 10,
            clock: None,
            cost: Cost::Recorded,
            cores: None,
            seed: 1,
            engine: EngineKind::Copy,
        }
    }
}

impl Measuring {
    /// Whether this clock is asked for.
    fn wants(&self, clock: Clock) -> bool {
        self.clock.is_none_or(|only| only == clock)
    }

    fn policy(&self, scheduler: SchedulerKind) -> Policy {
        Policy { scheduler, seed: Some(self.seed) }
    }

    fn options(&self, policy: Policy) -> ReplayOptions {
        ReplayOptions { policy, cores: self.cores, pin: true, ..ReplayOptions::exact(self.engine) }
    }
}

/// A side of a comparison: a trace, and who decides.
pub type Candidate<'a> = (&'a Path, SchedulerKind);

/// A comparison of A and B.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// The one side.
    pub a: Compared,
    /// The other.
    pub b: Compared,
    /// By the virtual clock, if that was asked for.
    pub virtual_time: Option<Exact>,
    /// By the wall clock, if that was asked for.
    pub wall: Option<Measured>,
}

/// What is compared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Compared {
    /// Path of the trace.
    pub trace: String,
    /// The command that was recorded.
    pub command: String,
    /// Who decided.
    pub scheduler: SchedulerKind,
}

impl Compared {
    fn of((trace, scheduler): Candidate<'_>) -> crate::Result<Compared> {
        let command = trace_file::read(trace)?.header().argv.join(" ");
        Ok(Compared { trace: trace.display().to_string(), command, scheduler })
    }
}

/// How stable and how precise replays under different schedulers are.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Fidelity {
    /// The command that was recorded.
    pub command: String,
    /// The engine of the wall clock.
    pub engine: &'static str,
    /// The machine of the virtual clock.
    #[serde(flatten)]
    pub model: VirtualMachine,
    /// What all are compared with.
    pub recorded_ns: u64,
    /// One for each scheduler and clock.
    pub rows: Vec<Row>,
}

/// Replays under one scheduler by one clock.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Who decided.
    pub scheduler: SchedulerKind,
    /// What was measured.
    pub clock: Clock,
    /// The replays that came to their end; `None` if none did.
    pub times: Option<Distribution>,
    /// By how much their mean is longer than the recorded run, as a part of it.
    pub error: Option<f64>,
    /// The same for their median, which a disturbed replay does not move.
    pub median_error: Option<f64>,
    /// Replays that did not come to their end.
    pub failed: u64,
    /// Why the first of these did not.
    pub why: Option<String>,
}

impl Row {
    /// From the times of the replays that ended.
    pub fn new(
        (scheduler, clock): (SchedulerKind, Clock),
        (times, (failed, why)): Times,
        recorded_ns: u64,
    ) -> Row {
        let times = Distribution::of(&times);
        let error = |ns: u64| ns as f64 / recorded_ns.max(1) as f64 - 1.0;
        Row {
            scheduler,
            clock,
            error: times.as_ref().map(|times| error(times.mean_ns)),
            median_error: times.as_ref().map(|times| error(times.p50_ns)),
            times,
            failed,
            why,
        }
    }
}

/// Times that every run gives again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Exact {
    /// Modelled cores of A and of B.
    pub cores: (u32, u32),
    /// Where the latencies of A's and B's machine come from.
    pub latencies: (Source, Source),
    /// Where the time of the program's own work comes from.
    pub cost: Cost,
    /// Seed of a random scheduler.
    pub seed: u64,
    /// Time of A.
    pub a_ns: u64,
    /// Time of B.
    pub b_ns: u64,
    /// B - A.
    pub difference_ns: i64,
}

/// Times of replays in turns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// What executed the code.
    pub engine: &'static str,
    /// Times of A.
    pub a: Distribution,
    /// Times of B.
    pub b: Distribution,
    /// B - A, pair by pair.
    pub difference: Difference,
}

/// Times of the replays that ended, how many did not, and why the first of them did not.
pub type Times = (Vec<u64>, (u64, Option<String>));

impl Session {
    /// Compares two traces, or two schedulers, by replaying them in turns.
    pub fn compare(&self, sides: [Candidate<'_>; 2], how: &Measuring) -> crate::Result<Comparison> {
        let [a, b] = sides.map(Compared::of);
        let (a, b) = (a?, b?);
        let virtual_time = how.wants(Clock::Virtual).then(|| self.exact(sides, how));
        let virtual_time = virtual_time.transpose()?;
        let wall = how.wants(Clock::Wall).then(|| self.measured(sides, how));
        Ok(Comparison { a, b, virtual_time, wall: wall.transpose()? })
    }

    fn exact(&self, sides: [Candidate<'_>; 2], how: &Measuring) -> crate::Result<Exact> {
        let [a, b] = sides.map(|(trace, scheduler)| {
            self.simulate(trace, how.policy(scheduler), (how.cores, how.cost))
        });
        let [(a_ns, a), (b_ns, b)] =
            [a?, b?].map(|(run, skeleton)| (run.duration, skeleton.model()));
        Ok(Exact {
            cores: (a.cores, b.cores),
            latencies: (a.latencies, b.latencies),
            cost: how.cost,
            seed: how.seed,
            a_ns,
            b_ns,
            difference_ns: b_ns as i64 - a_ns as i64,
        })
    }

    /// Who is first in a pair alternates, so that neither side always gets the warmer machine.
    fn measured(&self, sides: [Candidate<'_>; 2], how: &Measuring) -> crate::Result<Measured> {
        let mut times = [Vec::new(), Vec::new()];
        for number in 0..how.repeat {
            let first = number as usize % 2;
            for index in [first, 1 - first] {
                let (trace, scheduler) = sides[index];
                let options = how.options(how.policy(scheduler).repetition(number));
                let time = self.wall_time(trace, &options)?;
                let which = ["A", "B"][index];
                let failed =
                    |why| Error::Unusable(format!("a replay of {which} did not end: {why}"));
                times[index].push(time.map_err(failed)?);
            }
        }
        let [a, b] = times;
        let pairs: Vec<(u64, u64)> = a.iter().copied().zip(b.iter().copied()).collect();
        let none = || Error::Refused("there must be at least one repetition".into());
        Ok(Measured {
            engine: how.engine.name(),
            a: Distribution::of(&a).ok_or_else(none)?,
            b: Distribution::of(&b).ok_or_else(none)?,
            difference: Difference::of(&pairs, how.seed).ok_or_else(none)?,
        })
    }

    /// Replays the trace at `path` under all these schedulers and compares the times with the
    /// recorded one.
    pub fn fidelity(
        &self,
        path: &Path,
        schedulers: &[SchedulerKind],
        how: &Measuring,
    ) -> crate::Result<Fidelity> {
        let trace = trace_file::read(path)?;
        if trace.is_transformed() {
            bail!(
                Refused,
                "a transformed trace has no recorded time to compare with: take the recording"
            );
        }
        if trace.is_truncated() {
            bail!(
                Refused,
                "the recording was cut off, so that there is no recorded time to compare with"
            );
        }
        let skeleton = match how.cost {
            // With the recorder's work in it, as the recorded time has it.
            Cost::Recorded => Skeleton::as_recorded(&trace)?,
            Cost::Instructions => Skeleton::of(&trace)?,
        };
        let mut skeleton = skeleton.on_cores(how.cores);
        let recorded_ns = skeleton.recorded_ns();
        let mut rows = Vec::new();
        if how.wants(Clock::Virtual) {
            for &scheduler in schedulers {
                let times = self.virtual_times((path, scheduler), &mut skeleton, how);
                rows.push(Row::new((scheduler, Clock::Virtual), times, recorded_ns));
            }
        }
        if how.wants(Clock::Wall) {
            let times = self.wall_times(path, schedulers, how)?;
            for (&scheduler, times) in schedulers.iter().zip(times) {
                rows.push(Row::new((scheduler, Clock::Wall), times, recorded_ns));
            }
        }
        let command = trace.header().argv.join(" ");
        let engine = how.engine.name();
        Ok(Fidelity { command, engine, model: skeleton.model(), recorded_ns, rows })
    }

    fn virtual_times(
        &self,
        (path, scheduler): (&Path, SchedulerKind),
        skeleton: &mut Skeleton,
        how: &Measuring,
    ) -> Times {
        if let Err(error) = self.materialize(path, skeleton, (scheduler, how.cost)) {
            return (Vec::new(), (how.repeat.into(), Some(error.chain())));
        }
        let mut all = Times::default();
        for number in 0..how.repeat {
            let policy = how.policy(scheduler).repetition(number);
            let failed = || again::failed(path, policy, how.cores, how.cost);
            let run = skeleton.run(policy).with_context(failed);
            count(&mut all, run.map(|run| run.duration).map_err(|error| error.chain()));
        }
        all
    }

    /// In turns, so that what disturbs the machine for a while disturbs all schedulers alike.
    fn wall_times(
        &self,
        path: &Path,
        schedulers: &[SchedulerKind],
        how: &Measuring,
    ) -> crate::Result<Vec<Times>> {
        let mut all = vec![Times::default(); schedulers.len()];
        for number in 0..how.repeat {
            for (&scheduler, times) in schedulers.iter().zip(&mut all) {
                let options = how.options(how.policy(scheduler).repetition(number));
                count(times, self.wall_time(path, &options)?);
            }
        }
        Ok(all)
    }
}

fn count((times, (failed, why)): &mut Times, result: Result<u64, String>) {
    match result {
        Ok(time) => times.push(time),
        Err(error) => {
            *failed += 1;
            why.get_or_insert(error);
        }
    }
}
