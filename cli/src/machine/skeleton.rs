//! The trace's skeleton in virtual time: what `replay --clock virtual` and its kin measure, and
//! the replayer that the transformation is handed (ELSC, on as many cores as recorded).

use super::policy::Policy;
use crate::calibration::{Calibration, Source};
use anyhow::{Context, bail};
use refrain_scheduler::{
    Account, Builder, Config, Constraints, Edge, Elsc, Outcome, Run, Skeleton as Reduced, simulate,
};
use refrain_trace::payload::Effect;
use refrain_trace::{Cursor, Event, EventId, EventKind, ThreadId, Trace};
use refrain_transform::{Cores, Plan, Replayer};

/// The number of `clone`.
const CLONE: u16 = 56;

/// A trace without its work.
pub(crate) struct Skeleton {
    reduced: Reduced,
    config: Config,
    ticks_per_second: u64,
    /// Where the latencies of the modelled machine come from.
    pub(crate) latencies: Source,
}

impl Skeleton {
    /// Reads the events of a trace, to be replayed on a machine with these latencies.
    pub(crate) fn of(trace: &Trace, calibration: Option<&Calibration>) -> anyhow::Result<Skeleton> {
        let header = trace.header();
        let ticks_per_second = header.tsc_hz.max(1);
        let threads = trace.threads() as usize;
        let mut builder = Builder::new(threads, ticks_per_second, header.tsc_start);
        for thread in (0..trace.threads()).map(ThreadId) {
            let mut cursor = trace.cursor(thread);
            while let Some(event) = cursor.next()? {
                builder.push(thread, &event)?;
                if let Some(child) = child(&event, &mut cursor)? {
                    builder.created(thread, child);
                }
            }
        }
        let reduced = builder.finish().context("the trace cannot be replayed in virtual time")?;
        let (costs, latencies) = Calibration::costs(calibration, ticks_per_second);
        let typical = Config::typical(header.machine.cores.max(1), ticks_per_second);
        let config = Config { costs, ..typical };
        Ok(Skeleton { reduced, config, ticks_per_second, latencies })
    }

    /// Replays on this many cores instead of the recorded machine's.
    pub(crate) fn on_cores(self, cores: Option<u32>) -> Skeleton {
        let cores = cores.unwrap_or(self.config.cores);
        Skeleton { config: Config { cores, ..self.config }, ..self }
    }

    /// Cores of the modelled machine.
    pub(crate) fn cores(&self) -> u32 {
        self.config.cores
    }

    /// Replays in virtual time. A deadlock is an error that names its cycle.
    pub(crate) fn run(&self, policy: Policy) -> anyhow::Result<Run> {
        let none = Constraints::none();
        match policy.simulate(&self.reduced, &none, &self.config, &mut ())? {
            Outcome::Completed(run) => Ok(self.in_nanoseconds(run)),
            Outcome::Deadlocked(deadlock) => bail!("{deadlock}"),
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
            artificial: ns(of.artificial),
            runnable: ns(of.runnable),
            io: ns(of.io),
            ..of
        };
        Run { duration: ns(run.duration), threads: run.threads.into_iter().map(account).collect() }
    }

    fn constraints(&self, plan: &Plan) -> Result<Constraints, String> {
        let edges = plan.edges.iter().map(|edge| Edge {
            target_thread: edge.target_thread,
            target: edge.target,
            source_thread: edge.source_thread,
            source: edge.source,
        });
        Constraints::new(&self.reduced, |address| plan.frees(address), edges)
            .map_err(|error| error.to_string())
    }
}

/// The thread that the event which `cursor` returned last has created.
fn child(event: &Event, cursor: &mut Cursor) -> anyhow::Result<Option<ThreadId>> {
    // Other payloads may be large.
    let clones = event.kind() == EventKind::Syscall && event.nr == CLONE;
    let record = if clones { cursor.payload()? } else { None };
    Ok(record.and_then(|record| match record.effect {
        Effect::Clone { child } => Some(child),
        _ => None,
    }))
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
        match simulate(&self.reduced, &constraints, &config, &mut Elsc, &mut visit) {
            Outcome::Completed(run) => Ok(run.duration),
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        }
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks_per_second);
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }
}
