//! The replayer that the transformation is handed: the trace's skeleton in virtual time, under
//! ELSC, on as many cores as recorded.

use anyhow::Context;
use refrain_scheduler::{
    Builder, Config, Constraints, Edge, Elsc, Outcome, Skeleton as Reduced, simulate,
};
use refrain_trace::payload::Effect;
use refrain_trace::{Cursor, Event, EventId, EventKind, ThreadId, Trace};
use refrain_transform::{Cores, Plan, Replayer};

/// The number of `clone`.
const CLONE: u16 = 56;

/// A trace without its work.
pub(super) struct Skeleton {
    reduced: Reduced,
    config: Config,
    ticks_per_second: u64,
}

impl Skeleton {
    /// Reads the events of a trace.
    pub(super) fn of(trace: &Trace) -> anyhow::Result<Skeleton> {
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
        let config = Config::typical(header.machine.cores.max(1), ticks_per_second);
        Ok(Skeleton { reduced, config, ticks_per_second })
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
