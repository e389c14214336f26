//! The run of a trace that analyses replay: the [`Replayer`] that the crate `transform` is given.

use super::policy::NOISE_PER_MILLE;
use super::skeleton::{Shown, Skeleton};
use rayon::prelude::*;
use refrain_scheduler::{
    Admission, Builder, Config, Conflicts, Constraints, Contracted, Costs, Edge, Elsc, Model,
    Noise, Orig, Outcome, Patience, Run, Waiting, Waking, simulate, ticks,
};
use refrain_trace::{EventId, ThreadId, Trace};
use refrain_transform::{
    Arrival, Cores, Made, NOMINAL, Plan, RECORDED, Relaxed, Replayer, Setting,
};

/// Fewer sleeps tell nothing of how long threads are awake before.
const ENOUGH_SLEEPS: u64 = 32;
/// By so many eighths `fit` multiplies the time that threads stay awake. Of factors that fit equally well
/// it takes the first.
const FACTORS: [u32; 5] = [PLAIN, 4, 12, 16, 24];
const PLAIN: u32 = 8;

/// What the recorder adds to a call that wakes nobody, in nanoseconds.
const RECORDED_VAIN: u64 = 90;

/// A call that wakes and takes longer has lost its core, in nanoseconds.
const LOST: u64 = 1_000_000;

/// A run that can be replayed in its recorded order and by arrival.
pub(super) struct Predictor {
    /// The program's own time.
    own: Skeleton,
    /// What replays by arrival need of it, and of the same run with the recorder's work in it.
    arriving: Contracted,
    with_recording: Contracted,
    shown: Shown,
    /// By which factor threads are awake longer than is known, in the recorded run ([`Predictor::fit`]).
    patient: u32,
}

impl Predictor {
    /// The run of a trace with these locks that the program makes itself.
    pub(super) fn new(trace: &Trace, made: &Made) -> crate::Result<Predictor> {
        let cores = trace.header().machine.cores;
        let predicting = |builder: Builder| builder.recorded_on(cores).predicting();
        let recorded = |builder| predicting(builder).with_recording();
        let (recorded, _) = Skeleton::read(trace, made, recorded)?;
        let locking = trace.header().machine.locking;
        let own = |builder| predicting(builder).without_recording(locking);
        let (own, shown) = Skeleton::read(trace, made, own)?;
        let mut predictor = Predictor {
            arriving: own.reduced.contracted(&own.config.costs),
            with_recording: recorded.reduced.contracted(&own.config.costs),
            own,
            shown,
            patient: PLAIN,
        };
        predictor.patient = predictor.fit();
        Ok(predictor)
    }

    /// From the guest's first instruction to its last event, as recorded.
    pub(super) fn recorded_ns(&self) -> u64 {
        self.own.recorded_ns()
    }

    /// What a trial replays.
    fn contracted(&self, trial: u32) -> &Contracted {
        if trial == RECORDED { &self.with_recording } else { &self.arriving }
    }

    /// By which factor threads are awake longer than is known, such that as many waits of the arrival model of the
    /// recorded run sleep as of the recording, for as long. Two threads that meet at a lock may go on taking
    /// turns at it without sleeping, or may each sleep again and again; which of both they do depends on
    /// some tens of nanoseconds that no trace shows, but the recording shows what they did.
    fn fit(&self) -> u32 {
        let (slept, slept_for) = self.shown.slept;
        // Where threads wait for cores, that is what decides. The first thread mostly waits for others.
        let crowded = self.own.reduced.threads() > self.own.config.cores as usize + 1;
        if slept < ENOUGH_SLEEPS || crowded {
            return PLAIN;
        }
        let away = |factor: u32| {
            let run = self.arrive_with(&Constraints::none(), Setting::of(RECORDED), factor);
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

    fn constraints(&self, plan: &Plan) -> Result<Constraints<'static>, String> {
        let edges = plan.edges.iter().map(|edge| Edge {
            target_thread: edge.target_thread,
            target: edge.target,
            source_thread: edge.source_thread,
            source: edge.source,
        });
        Constraints::new(&self.own.reduced, |address| plan.frees(address), edges)
            .map_err(|error| error.to_string())
    }

    /// Replays by arrival, with threads that are awake so many times as long as is known.
    fn arrive_with(
        &self,
        constraints: &Constraints<'_>,
        Setting { trial, cores, copies }: Setting,
        patient: u32,
    ) -> Result<Run, String> {
        let recorded = trial == RECORDED;
        let contracted = self.contracted(trial);
        let reduced = contracted.skeleton();
        let crowd = (copies > 1).then(|| reduced.multiplied(copies));
        let reduced = crowd.as_ref().unwrap_or(reduced);
        let seed = u64::from(trial);
        let costs = self.own.config.costs;
        let (times, of) = match trial {
            0..NOMINAL | RECORDED => (1, 1),
            _ if trial.is_multiple_of(2) => (2, 1),
            _ => (1, 2),
        };
        // The recorder makes the way to sleep longer, but not how long a lock of the program's own is
        // tried before.
        let usual = Patience { until: costs.patience, back: costs.back };
        let shown = self.shown.patience.unwrap_or(usual);
        let (handoffs, patience) = match recorded {
            true => (&self.shown.handoffs[..], shown),
            false if self.shown.sleeps_for_made => (&[][..], shown),
            false => (&[][..], Patience { until: shown.until.min(usual.until), ..usual }),
        };
        let Patience { until: patience, back } = patience;
        // Threads that are awake for less sleep more often, as if waking took longer.
        let patience = patience.saturating_mul(patient.into()) / u64::from(PLAIN) * of / times;
        let vain = match self.shown.vain {
            Some(vain) if recorded => vain,
            // The recorder makes this call longer, too.
            Some(vain) => {
                let added = ticks(RECORDED_VAIN, reduced.ticks_per_second());
                vain.saturating_sub(added).max(costs.vain)
            }
            None => costs.vain,
        };
        let scaled = |ticks: u64| ticks.saturating_mul(times) / of;
        let (wake, rouse) = (scaled(costs.wake), scaled(costs.rouse));
        let config = Config {
            costs: Costs { wake, rouse, patience, back, vain, ..costs },
            cores: cores.unwrap_or(self.own.config.cores),
            ..self.own.config
        };
        // Who lost its core to the thread that it woke, or to the recorder's writer, lost it in the
        // recording; the program by itself seldom does.
        let lost = |rouse: u64| !recorded && reduced.nanoseconds(rouse) >= LOST;
        let waking = |&Waking { wake, rouse }: &Waking| {
            let rouse = if lost(rouse) { costs.rouse } else { rouse };
            Waking { wake: scaled(wake), rouse: scaled(rouse) }
        };
        let wakings: Vec<Waking> = self.shown.wakings.iter().map(waking).collect();
        let noise = Some(Noise { seed, per_mille: NOISE_PER_MILLE });
        let glibc = Waiting::Glibc;
        let (wakings, clocks) = (&wakings[..], None);
        let model = Model { waiting: glibc, noise, wakings, handoffs, clocks };
        match simulate(reduced, constraints, &config, &model, &mut Orig, &mut ()) {
            Outcome::Completed(run) => Ok(run),
            Outcome::Deadlocked(deadlock) => Err(contracted.explain(deadlock).to_string()),
        }
    }
}

/// How many times more the one is than the other, in 1000ths.
fn apart(a: u64, b: u64) -> u64 {
    u64::try_from(u128::from(a.max(b)) * 1000 / u128::from(a.min(b).max(1))).unwrap_or(u64::MAX)
}

impl Replayer for Predictor {
    fn replay(
        &mut self,
        plan: Option<&Plan>,
        cores: Cores,
        mut visit: &mut dyn FnMut(ThreadId, EventId, u64, u64),
    ) -> Result<u64, String> {
        let constraints = plan.map_or_else(|| Ok(Constraints::none()), |p| self.constraints(p))?;
        let threads = u32::try_from(self.own.reduced.threads()).unwrap_or(u32::MAX);
        let config = match cores {
            Cores::Recorded => self.own.config,
            Cores::Enough => {
                Config { cores: self.own.config.cores.max(threads), ..self.own.config }
            }
        };
        let model = Model::default();
        match simulate(&self.own.reduced, &constraints, &config, &model, &mut Elsc, &mut visit) {
            Outcome::Completed(run) => Ok(run.duration),
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        }
    }

    fn arrive(&self, relaxed: Option<&Relaxed<'_>>, setting: Setting) -> Result<Arrival, String> {
        // The recorder changes the run's rhythm: what fits the recorded run says nothing of the program's own.
        let patient = if setting.trial == RECORDED { self.patient } else { PLAIN };
        let Some(relaxed) = relaxed else {
            let run = self.arrive_with(&Constraints::none(), setting, patient)?;
            return Ok(arrival(&run));
        };
        let contracted = self.contracted(setting.trial);
        let skeleton = contracted.skeleton();
        let copies = skeleton.copies(setting.copies);
        let threads = copies.iter().map(Vec::len).sum();
        let sections = relaxed.sections().iter().flat_map(|&(thread, event, kind)| {
            let copies = copies[thread.index()].iter();
            let place = contracted.place(thread, event);
            place
                .into_iter()
                .flat_map(move |place| copies.clone().map(move |copy| (*copy, place, kind)))
        });
        let conflicts = Exclusions(relaxed);
        let admission = Admission::new(threads, sections, &conflicts);
        let constraints =
            Constraints::relaxing(skeleton, |address| relaxed.relaxes(address), admission);
        Ok(arrival(&self.arrive_with(&constraints, setting, patient)?))
    }

    fn recorded(&self) -> Option<u64> {
        Some(self.own.recorded)
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        self.own.reduced.nanoseconds(ticks)
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

    fn is_lockless(&self, class: u32) -> bool {
        self.0.is_lockless(class)
    }
}
