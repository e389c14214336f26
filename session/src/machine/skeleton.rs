//! A trace's skeleton in virtual time, which every replay by the virtual clock simulates; and the
//! [`Replayer`] that the crate `transform` is given.

use super::constrained::constraints;
use super::made::OwnLocks;
use super::policy::{Decisive, NOISE_PER_MILLE, Policy, worked};
use super::segments::{Amount, Segments};
use crate::calibration::{self, Source};
use crate::choices::Cost;
use crate::error::{Context, Error, bail};
use crate::model::VirtualMachine;
use rayon::prelude::*;
use refrain_scheduler::{
    self as scheduler, Account, Admission, Builder, Config, Conflicts, Constraints, Costs, Edge,
    Elsc, Fixed, Locksets, Noise, Orig, Outcome, Patience, Run, Schedule, Skeleton as Reduced,
    Waiting, Waking, simulate,
};
use refrain_trace::{Event, EventId, ThreadId, Trace};
use refrain_transform::{
    Arrival, Cores, Made, NOMINAL, Plan, RECORDED, Relaxed, Replayer, Setting,
};

/// Slices of a recording, at most: no more steps than that are spent on sharing cores. Recordings
/// of up to a quarter of an hour keep the usual slices.
const SLICES: u64 = 1 << 18;
/// The longest time of all threads together, in ticks.
const LONGEST: u64 = 1 << 62;

/// Fewer sleeps tell nothing of how long threads are awake before.
const ENOUGH_SLEEPS: u64 = 32;
/// Factors of how long threads are awake that are tried, in eighths; of equally good ones the first is
/// taken.
const FACTORS: [u32; 5] = [PLAIN, 4, 12, 16, 24];
const PLAIN: u32 = 8;

/// A call that wakes and takes longer has lost its core, in nanoseconds.
const LOST: u64 = 1_000_000;

/// A trace without its work.
pub struct Skeleton {
    reduced: Reduced,
    config: Config,
    recorded: u64,
    latencies: Source,
    cost: Cost,
    /// What schedulers decide by.
    decisive: Decisive,
    /// The same run with the recorder's work in it, where it was asked for.
    with_recording: Option<Reduced>,
    /// What it took to wake threads, as far as the trace shows it.
    wakings: Vec<Waking>,
    /// What it took until threads that waited awake went on, and how long threads were awake before
    /// they slept, the same. The recorder's work is in both.
    handoffs: Vec<u64>,
    /// Whether some threads slept for locks that the program makes itself.
    sleeps_for_made: bool,
    patience: Option<Patience>,
    /// What releases took that woke nobody though they tried.
    vain: Option<u64>,
    /// How many waits slept in the recording, and for how long together.
    slept: (u64, u64),
    /// By which factor threads are awake longer than `patience` says, in the recorded run and in the
    /// program's own ([`Skeleton::fit`]).
    patient: [u32; 2],
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
        Skeleton::read(trace, made, |builder| builder.recorded_on(cores).without_recording())
    }

    /// The program's own time, to be replayed by arrival too.
    pub(super) fn to_predict(trace: &Trace, made: &Made) -> crate::Result<Skeleton> {
        let cores = trace.header().machine.cores;
        let predicting = |builder: Builder| builder.recorded_on(cores).predicting();
        let recorded = |builder| predicting(builder).with_recording();
        let with_recording = Some(Skeleton::read(trace, made, recorded)?.reduced);
        let own = Skeleton::read(trace, made, |builder| predicting(builder).without_recording())?;
        let mut skeleton = Skeleton { with_recording, ..own };
        skeleton.patient = [RECORDED, 0].map(|trial| skeleton.fit(trial));
        Ok(skeleton)
    }

    /// By which factor threads are awake longer than is known, such that as many waits of the arrival
    /// model sleep as of the recording, for as long. Two threads that meet at a lock may go on taking
    /// turns at it without sleeping, or may each sleep again and again; which of both they do depends on
    /// some tens of nanoseconds that no trace shows, but the recording shows what they did.
    fn fit(&self, trial: u32) -> u32 {
        let (slept, slept_for) = self.slept;
        // Where threads wait for cores, that is what decides. The first thread mostly waits for others.
        let crowded = self.reduced.threads() > self.config.cores as usize + 1;
        if slept < ENOUGH_SLEEPS || crowded {
            return PLAIN;
        }
        let away = |factor: u32| {
            let run = self.arrive_with(&Constraints::none(), Setting::of(trial), factor);
            let threads = run.ok()?.threads;
            let count = threads.iter().map(|account| account.slept).sum();
            let time = threads.iter().map(|account| account.slept_for).sum();
            Some(apart(count, slept).saturating_mul(apart(time, slept_for)))
        };
        let tried: Vec<_> = FACTORS.into_par_iter().map(away).collect();
        let tried =
            tried.into_iter().zip(FACTORS).filter_map(|(away, factor)| Some((away?, factor)));
        tried.min_by_key(|(away, _)| *away).map_or(PLAIN, |(_, factor)| factor)
    }

    /// The recorded run with the recorder's work and all costs in it, on a core for each thread:
    /// what can be held against the recorded duration.
    pub fn as_recorded(trace: &Trace) -> crate::Result<Skeleton> {
        let skeleton = Skeleton::read(trace, &Made::default(), Builder::as_recorded)?;
        let Costs { handoff, other, .. } = skeleton.config.costs;
        let ideal = Config::ideal(trace.threads().max(1));
        // MEM-S's token is the one thing that the recording did not have.
        let costs = Costs { handoff, other, ..ideal.costs };
        Ok(Skeleton { config: Config { costs, ..ideal }, ..skeleton })
    }

    /// Reads the events of a trace, as seen with the locks that the program makes itself.
    fn read(
        trace: &Trace,
        made: &Made,
        mode: impl FnOnce(Builder) -> Builder,
    ) -> crate::Result<Skeleton> {
        let header = trace.header();
        let ticks_per_second = header.tsc_hz.max(1);
        let threads = trace.threads() as usize;
        let mut builder = mode(Builder::new(threads, ticks_per_second, trace.began()?));
        let view = |thread, id, event: &Event| made.view(thread, id, event);
        let recorded = builder.read_as::<Error>(trace, view)?;
        let (handoffs, patience) = (builder.handoffs(), builder.patience());
        let (vain, slept) = (builder.vain(), builder.slept());
        let sleeps_for_made = builder.sleeps_for_made();
        let wakings = builder.waking();
        // Times are added up for all threads on one core.
        if recorded.saturating_mul(trace.threads().max(1).into()) > LONGEST {
            bail!(
                Unusable,
                "the trace says that it was recorded over years; virtual time cannot have that"
            );
        }
        let reduced = builder.finish().context("the trace cannot be replayed in virtual time")?;
        let (costs, latencies) = calibration::costs(header.machine.latencies, ticks_per_second);
        let mut typical = Config::typical(header.machine.cores.max(1), ticks_per_second);
        typical.quantum = typical.quantum.max(recorded / SLICES);
        let wake = middle(wakings.iter().map(|waking| waking.wake)).unwrap_or(costs.wake);
        let rouse = middle(wakings.iter().map(|waking| waking.rouse)).unwrap_or(costs.rouse);
        let config = Config { costs: Costs { wake, rouse, ..costs }, ..typical };
        let (cost, decisive) = (Cost::Recorded, Decisive::default());
        let with_recording = None;
        Ok(Skeleton {
            reduced,
            config,
            recorded,
            latencies,
            cost,
            decisive,
            with_recording,
            wakings,
            handoffs,
            sleeps_for_made,
            patience,
            vain,
            slept,
            patient: [PLAIN; 2],
            transformed: None,
        })
    }

    fn constraints(&self, plan: &Plan) -> Result<Constraints<'static>, String> {
        let edges = plan.edges.iter().map(|edge| Edge {
            target_thread: edge.target_thread,
            target: edge.target,
            source_thread: edge.source_thread,
            source: edge.source,
        });
        Constraints::new(&self.reduced, |address| plan.frees(address), edges)
            .map_err(|error| error.to_string())
    }

    /// Replays by arrival, with threads that are awake so many times as long as is known.
    fn arrive_with(
        &self,
        constraints: &Constraints<'_>,
        Setting { trial, cores, copies }: Setting,
        patient: u32,
    ) -> Result<Run, String> {
        let recorded = self.with_recording.as_ref().filter(|_| trial == RECORDED);
        let reduced = recorded.unwrap_or(&self.reduced);
        let crowd = (copies > 1).then(|| reduced.multiplied(copies));
        let reduced = crowd.as_ref().unwrap_or(reduced);
        let seed = u64::from(trial);
        let costs = self.config.costs;
        let (times, of) = match trial {
            0..NOMINAL | RECORDED => (1, 1),
            _ if trial.is_multiple_of(2) => (2, 1),
            _ => (1, 2),
        };
        // The recorder makes the way to sleep longer, but not how long a lock of the program's own is
        // tried before.
        let usual = Patience { until: costs.patience, back: costs.back };
        let shown = self.patience.unwrap_or(usual);
        let (handoffs, patience) = match recorded {
            Some(_) => (&self.handoffs[..], shown),
            None if self.sleeps_for_made => (&[][..], shown),
            None => (&[][..], Patience { until: shown.until.min(usual.until), ..usual }),
        };
        let Patience { until: patience, back } = patience;
        // Threads that are awake for less sleep more often, as if waking took longer.
        let patience = patience.saturating_mul(patient.into()) / u64::from(PLAIN) * of / times;
        let vain = self.vain.unwrap_or(costs.vain);
        let scaled = |ticks: u64| ticks.saturating_mul(times) / of;
        let (wake, rouse) = (scaled(costs.wake), scaled(costs.rouse));
        let config = Config {
            costs: Costs { wake, rouse, patience, back, vain, ..costs },
            cores: cores.unwrap_or(self.config.cores),
            ..self.config
        };
        let wakings = self.wakings.iter();
        // Who lost its core to the thread that it woke, or to the recorder's writer, lost it in the
        // recording; the program by itself seldom does.
        let lost = |rouse: u64| recorded.is_none() && reduced.nanoseconds(rouse) >= LOST;
        let wakings: Vec<Waking> = wakings
            .map(|waking| if lost(waking.rouse) { costs.rouse } else { waking.rouse })
            .zip(self.wakings.iter().map(|waking| waking.wake))
            .map(|(rouse, wake)| Waking { wake: scaled(wake), rouse: scaled(rouse) })
            .collect();
        let noise = Some(Noise { seed, per_mille: NOISE_PER_MILLE });
        let glibc = Waiting::Glibc;
        let (wakings, clocks) = (&wakings[..], None);
        let model = scheduler::Model { waiting: glibc, noise, wakings, handoffs, clocks };
        match simulate(reduced, constraints, &config, &model, &mut Orig, &mut ()) {
            Outcome::Completed(run) => Ok(run),
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        }
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

/// How many times more the one is than the other, in 1000ths.
fn apart(a: u64, b: u64) -> u64 {
    u64::try_from(u128::from(a.max(b)) * 1000 / u128::from(a.min(b).max(1))).unwrap_or(u64::MAX)
}

fn middle(samples: impl Iterator<Item = u64>) -> Option<u64> {
    let mut samples: Vec<u64> = samples.collect();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

impl Replayer for Skeleton {
    fn replay(
        &mut self,
        plan: Option<&Plan>,
        cores: Cores,
        mut visit: &mut dyn FnMut(ThreadId, EventId, u64, u64),
    ) -> Result<u64, String> {
        let constraints = plan.map_or_else(|| Ok(Constraints::none()), |p| self.constraints(p))?;
        let threads = u32::try_from(self.reduced.threads()).unwrap_or(u32::MAX);
        let config = match cores {
            Cores::Recorded => self.config,
            Cores::Enough => Config { cores: self.config.cores.max(threads), ..self.config },
        };
        let model = scheduler::Model::default();
        match simulate(&self.reduced, &constraints, &config, &model, &mut Elsc, &mut visit) {
            Outcome::Completed(run) => Ok(run.duration),
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        }
    }

    fn arrive(&self, relaxed: Option<&Relaxed<'_>>, setting: Setting) -> Result<Arrival, String> {
        let of = usize::from(setting.trial != RECORDED || self.with_recording.is_none());
        let Some(relaxed) = relaxed else {
            let run = self.arrive_with(&Constraints::none(), setting, self.patient[of])?;
            return Ok(arrival(&run));
        };
        let copies = self.reduced.copies(setting.copies);
        let threads = copies.iter().map(Vec::len).sum();
        let sections = relaxed.sections().iter().flat_map(|&(thread, event, kind)| {
            copies[thread.index()].iter().map(move |copy| (*copy, event, kind))
        });
        let conflicts = Exclusions(relaxed);
        let admission = Admission::new(threads, sections, &conflicts);
        let constraints =
            Constraints::relaxing(&self.reduced, |address| relaxed.relaxes(address), admission);
        Ok(arrival(&self.arrive_with(&constraints, setting, self.patient[of])?))
    }

    fn recorded(&self) -> Option<u64> {
        self.with_recording.as_ref().map(|_| self.recorded)
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        self.reduced.nanoseconds(ticks)
    }
}

fn arrival(run: &Run) -> Arrival {
    let waited = run.threads.iter().map(|thread| thread.wanted).sum();
    Arrival { duration: run.duration, waited }
}

/// Who excludes whom, as the scheduler asks it.
struct Exclusions<'a>(&'a Relaxed<'a>);

impl Conflicts for Exclusions<'_> {
    fn conflict(&self, a: u32, b: u32) -> bool {
        // What conflicts with none of another thread has data of its own, and so have its copies.
        !self.0.is_free(a) && !self.0.is_free(b) && self.0.conflict(a, b)
    }

    fn is_free(&self, class: u32) -> bool {
        self.0.is_free(class)
    }
}
