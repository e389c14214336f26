//! What this crate asks of a replay, and what it hands to one.

use crate::topology::CausalEdge;
use crate::{Relaxed, Sections};
use refrain_trace::{EventId, ThreadId};

/// `target` waits for `source.END`: PerfPlay's dynamic locking strategy (section 3.2), and what
/// Rule 2 needs, since locks give exclusion but not order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlanEdge {
    /// Thread of the acquisition that waits.
    pub target_thread: ThreadId,
    /// The acquisition that waits.
    pub target: u32,
    /// Thread of the release waited for.
    pub source_thread: ThreadId,
    /// The release waited for.
    pub source: u32,
}

/// A transformed trace, as the difference from the original.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Locks whose own waiting and order are gone, ascending.
    pub freed: Vec<u64>,
    /// Causal edges in their place. The recorded order satisfies them all, so they cannot
    /// deadlock with anything else that keeps it.
    pub edges: Vec<PlanEdge>,
}

impl Plan {
    /// From edges between critical sections.
    pub(crate) fn new(sections: &Sections, freed: Vec<u64>, edges: &[CausalEdge]) -> Plan {
        let edge = |edge: &CausalEdge| {
            let (source, target) =
                (&sections.all()[edge.source.index()], &sections.all()[edge.target.index()]);
            PlanEdge {
                target_thread: target.thread,
                target: target.acquire,
                source_thread: source.thread,
                source: source.release,
            }
        };
        Plan { freed, edges: edges.iter().map(edge).collect() }
    }

    /// Whether the lock at `address` is freed.
    pub fn frees(&self, address: u64) -> bool {
        self.freed.binary_search(&address).is_ok()
    }
}

/// How many cores a replay models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cores {
    /// As many as the recording had: what a fix gains there.
    Recorded,
    /// One for each thread: what threads wait for each other, and never for a core.
    Enough,
}

/// Trials of [`Replayer::arrive`] that differ in noise alone.
pub const NOMINAL: u32 = 3;
/// The trial in which the recorder's work is left in.
pub const RECORDED: u32 = 5;
/// All trials.
pub const TRIALS: u32 = 6;

/// How a replay by arrival differs from the likeliest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The noise of arrivals, and latencies that are not known well: the first [`NOMINAL`] trials have
    /// the likeliest latencies, and [`RECORDED`] has the recorder's work in it.
    pub trial: u32,
    /// On so many cores; as many as recorded, without a number.
    pub cores: Option<u32>,
    /// How often each thread is there that another one created.
    pub copies: u32,
}

impl Setting {
    /// A trial of the run as it was.
    pub fn of(trial: u32) -> Setting {
        Setting { trial, cores: None, copies: 1 }
    }
}

/// A replay by arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Duration of the run, in ticks.
    pub duration: u64,
    /// For how long all threads together waited for locks that were taken, in ticks.
    pub waited: u64,
}

/// Replays the skeleton of the trace whose critical sections are analysed.
///
/// Implementations keep the recorded order of everything that a plan does not free, and give the
/// same times for the same plan.
pub trait Replayer: Sync {
    /// Replays under `plan` (the original without one) on `cores`, shows `visit` every event with
    /// the time at which its thread came to it and the time at which it went on, each thread's in
    /// order, and returns the duration of the run. Times are in ticks of the replayer's clock. An error
    /// says why the replay did not end.
    fn replay(
        &mut self,
        plan: Option<&Plan>,
        cores: Cores,
        visit: &mut dyn FnMut(ThreadId, EventId, u64, u64),
    ) -> Result<u64, String>;

    /// Replays with every lock granted as threads come, the original or with some locks relaxed. The
    /// original and its variants are charged alike. Several such replays may be under way at once.
    fn arrive(&self, relaxed: Option<&Relaxed<'_>>, setting: Setting) -> Result<Arrival, String> {
        let _ = (relaxed, setting);
        Err("this replayer keeps the recorded order".to_owned())
    }

    /// How long the recording took, in ticks.
    fn recorded(&self) -> Option<u64> {
        None
    }

    /// Ticks in nanoseconds.
    fn nanoseconds(&self, ticks: u64) -> u64;
}
