//! A trace's skeleton in virtual time, which every replay by the virtual clock simulates.

use super::constrained::constraints;
use super::made::OwnLocks;
use super::policy::{Decisive, Policy, worked};
use super::segments::{Amount, Segments};
use crate::calibration::{self, Source};
use crate::choices::Cost;
use crate::error::{Context, Error, bail};
use crate::model::VirtualMachine;
use refrain_scheduler::{
    self as scheduler, Account, Builder, Config, Constraints, Costs, Elsc, Fixed, Locksets,
    Outcome, Patience, Run, Schedule, Skeleton as Reduced, Waking, simulate,
};
use refrain_trace::{Event, Trace};
use refrain_transform::Made;

/// Slices of a recording, at most: no more steps than that are spent on sharing cores. Recordings
/// of up to a quarter of an hour keep the usual slices.
const SLICES: u64 = 1 << 18;
/// The longest time of all threads together, in ticks.
const LONGEST: u64 = 1 << 62;

/// How threads waited in the recording, as far as the trace shows it.
pub(super) struct Shown {
    /// What it took to wake threads.
    pub wakings: Vec<Waking>,
    /// What it took until threads that waited awake went on, and how long threads were awake before
    /// they slept. The recorder's work is in both.
    pub handoffs: Vec<u64>,
    pub patience: Option<Patience>,
    /// Whether some threads slept for locks that the program makes itself.
    pub sleeps_for_made: bool,
    /// What releases took that woke nobody though they tried.
    pub vain: Option<u64>,
    /// How many waits slept, and for how long together.
    pub slept: (u64, u64),
}

/// A trace without its work.
pub struct Skeleton {
    pub(super) reduced: Reduced,
    pub(super) config: Config,
    pub(super) recorded: u64,
    latencies: Source,
    cost: Cost,
    /// What schedulers decide by.
    decisive: Decisive,
    /// What replaces the freed locks of a transformed trace.
    transformed: Option<Constraints<'static>>,
}

impl Skeleton {
    /// The program's own time, to be replayed on the recorded machine; of a transformed trace, with
    /// dynamic locking in place of its freed locks.
    pub fn of(trace: &Trace) -> crate::Result<Skeleton> {
        let skeleton = Skeleton::own_time(trace, &OwnLocks::of(trace)?.made)?;
        let record = trace.transformed()?;
        let transformed =
            record.map(|record| constraints(&skeleton.reduced, &record, Locksets::Dynamic));
        Ok(Skeleton { transformed: transformed.transpose()?, ..skeleton })
    }

    /// The same, with these locks that the program makes itself.
    pub(super) fn own_time(trace: &Trace, made: &Made) -> crate::Result<Skeleton> {
        let cores = trace.header().machine.cores;
        let locking = trace.header().machine.locking;
        let mode = |builder: Builder| builder.recorded_on(cores).without_recording(locking);
        Ok(Skeleton::read(trace, made, mode)?.0)
    }

    /// The recorded run with the recorder's work and all costs in it, on a core for each thread:
    /// what can be held against the recorded duration.
    pub fn as_recorded(trace: &Trace) -> crate::Result<Skeleton> {
        let (skeleton, _) = Skeleton::read(trace, &Made::default(), Builder::as_recorded)?;
        let Costs { handoff, other, .. } = skeleton.config.costs;
        let ideal = Config::ideal(trace.threads().max(1));
        // MEM-S's token is the one thing that the recording did not have.
        let costs = Costs { handoff, other, ..ideal.costs };
        Ok(Skeleton { config: Config { costs, ..ideal }, ..skeleton })
    }

    /// Reads the events of a trace, as seen with the locks that the program makes itself.
    pub(super) fn read(
        trace: &Trace,
        made: &Made,
        mode: impl FnOnce(Builder) -> Builder,
    ) -> crate::Result<(Skeleton, Shown)> {
        let header = trace.header();
        let ticks_per_second = header.tsc_hz.max(1);
        let threads = trace.threads() as usize;
        let mut builder = mode(Builder::new(threads, ticks_per_second, trace.began()?));
        let view = |thread, id, event: &Event| made.view(thread, id, event);
        let recorded = builder.read_as::<Error>(trace, view)?;
        let shown = Shown {
            handoffs: builder.handoffs(),
            patience: builder.patience(),
            sleeps_for_made: builder.sleeps_for_made(),
            vain: builder.vain(),
            slept: builder.slept(),
            wakings: builder.waking(),
        };
        // Times are added up for all threads on one core.
        if recorded.saturating_mul(trace.threads().max(1).into()) > LONGEST {
            bail!(
                Unusable,
                "the trace says that it was recorded over years; virtual time cannot have that"
            );
        }
        let reduced = builder.finish().context("the trace cannot be replayed in virtual time")?;
        let (costs, latencies) = calibration::costs(&header.machine, ticks_per_second);
        let mut typical = Config::typical(header.machine.cores.max(1), ticks_per_second);
        typical.quantum = typical.quantum.max(recorded / SLICES);
        let wakings = shown.wakings.iter();
        let wake = middle(wakings.clone().map(|waking| waking.wake)).unwrap_or(costs.wake);
        let rouse = middle(wakings.map(|waking| waking.rouse)).unwrap_or(costs.rouse);
        let config = Config { costs: Costs { wake, rouse, ..costs }, ..typical };
        let (cost, decisive) = (Cost::Recorded, Decisive::default());
        let transformed = None;
        let skeleton =
            Skeleton { reduced, config, recorded, latencies, cost, decisive, transformed };
        Ok((skeleton, shown))
    }

    /// Replays on this many cores instead.
    pub fn on_cores(self, cores: Option<u32>) -> Skeleton {
        let cores = cores.unwrap_or(self.config.cores);
        Skeleton { config: Config { cores, ..self.config }, ..self }
    }

    /// Whether this has been counted.
    pub fn knows(&self, amount: Amount) -> bool {
        match amount {
            Amount::Instructions => self.decisive.instructions.is_some(),
            Amount::SharedAccesses => self.decisive.accesses.is_some(),
            Amount::Cycles => self.cost == Cost::Instructions,
        }
    }

    /// Takes what has been counted. Cycles become the time of the program's work, a tick each;
    /// what the kernel does takes as long as it took.
    pub fn learn(&mut self, amount: Amount, segments: Segments) {
        match amount {
            Amount::Instructions => self.decisive.instructions = Some(segments),
            Amount::SharedAccesses => self.decisive.accesses = Some(segments),
            Amount::Cycles => {
                self.cost = Cost::Instructions;
                self.reduced = worked(&self.reduced, &segments);
            }
        }
    }

    /// The modelled machine.
    pub fn model(&self) -> VirtualMachine {
        VirtualMachine { cores: self.config.cores, latencies: self.latencies, cost: self.cost }
    }

    /// From the guest's first instruction to its last event, as recorded.
    pub fn recorded_ns(&self) -> u64 {
        self.reduced.nanoseconds(self.recorded)
    }

    /// Replays in virtual time. A deadlock is an error that names its cycle.
    pub fn run(&self, policy: Policy) -> crate::Result<Run> {
        self.outcome(policy, false).map(|(run, _)| run)
    }

    /// The same, and what was decided.
    pub fn run_and_keep(&self, policy: Policy) -> crate::Result<(Run, Schedule)> {
        let (run, schedule) = self.outcome(policy, true)?;
        Ok((run, schedule.expect("decisions are kept on request")))
    }

    fn outcome(&self, policy: Policy, keep: bool) -> crate::Result<(Run, Option<Schedule>)> {
        let replayed = (&self.reduced, &self.config, self.transformed.as_ref());
        match policy.simulate(replayed, &self.decisive, keep) {
            (Outcome::Completed(run), schedule) => Ok((self.in_nanoseconds(run), schedule)),
            (Outcome::Deadlocked(deadlock), _) => bail!(Deadlock, "{deadlock}"),
        }
    }

    /// Replays as any scheduler decides, with what the clock assumes of it. Of a transformed trace,
    /// what is not freed keeps its recorded order only if the scheduler sees to it
    /// ([`scheduler::InOrder`]).
    pub fn run_by(
        &self,
        by: &mut impl scheduler::Scheduler,
        model: &scheduler::Model<'_>,
    ) -> crate::Result<Run> {
        let none = Constraints::none();
        let constraints = self.transformed.as_ref().unwrap_or(&none);
        match simulate(&self.reduced, constraints, &self.config, model, by, &mut ()) {
            Outcome::Completed(run) => Ok(self.in_nanoseconds(run)),
            Outcome::Deadlocked(deadlock) => bail!(Deadlock, "{deadlock}"),
        }
    }

    /// Replays what was decided before.
    pub fn repeat(&self, schedule: Schedule) -> crate::Result<Run> {
        let none = Constraints::none();
        let constraints = self.transformed.as_ref().unwrap_or(&none);
        let model = schedule.model();
        let mut fixed = Fixed::new(schedule);
        match simulate(&self.reduced, constraints, &self.config, &model, &mut fixed, &mut ()) {
            Outcome::Completed(_) if fixed.left() > 0 => {
                bail!(Refused, "{} decisions of the schedule are for another replay", fixed.left())
            }
            Outcome::Completed(run) => Ok(self.in_nanoseconds(run)),
            Outcome::Deadlocked(deadlock) => {
                bail!(Refused, "the schedule does not fit the replay: {deadlock}")
            }
        }
    }

    /// The run without its durations' source: what constraints are about.
    pub(super) fn reduced(&self) -> &Reduced {
        &self.reduced
    }

    /// Replays under constraints, all else in its recorded order; the duration in nanoseconds.
    pub(super) fn in_order(&self, constraints: &Constraints<'_>) -> Result<u64, String> {
        let model = scheduler::Model::default();
        match simulate(&self.reduced, constraints, &self.config, &model, &mut Elsc, &mut ()) {
            Outcome::Completed(run) => Ok(self.reduced.nanoseconds(run.duration)),
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        }
    }

    fn in_nanoseconds(&self, run: Run) -> Run {
        let ns = |ticks: u64| self.reduced.nanoseconds(ticks);
        let account = |of: Account| Account {
            started: ns(of.started),
            finished: ns(of.finished),
            running: ns(of.running),
            spinning: ns(of.spinning),
            blocked: ns(of.blocked),
            wanted: ns(of.wanted),
            artificial: ns(of.artificial),
            runnable: ns(of.runnable),
            io: ns(of.io),
            ..of
        };
        Run { duration: ns(run.duration), threads: run.threads.into_iter().map(account).collect() }
    }
}

fn middle(samples: impl Iterator<Item = u64>) -> Option<u64> {
    let mut samples: Vec<u64> = samples.collect();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}
