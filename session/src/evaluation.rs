//! What PerfPlay's evaluation measures (section 6), of one recording.
//!
//! # Deviations
//! 1. T_real is the modelled time of the original (T_ut): what the recording itself took has the
//!    recorder's work in it.
//! 2. T_ut and T_uft are replays in which locks are granted as threads come, not in the recorded order:
//!    a program without its ULCPs would not keep it ([`refrain_transform::Relaxed`]).
//! 3. What ΔULCP sums up is measured as a whole: for how long threads waited for locks with ULCPs and
//!    for how long without. A section that waited for several others is in several pairs, whose ΔT
//!    (Eq. 1) overlap, so that their sum grows with the square of the threads.
//! 4. All times are the virtual clock's, and so the same in every run; where the paper repeats
//!    replays to show how they differ, ORIG-S is given other noise each time.

use crate::choices::{Clock, SchedulerKind};
use crate::compare::{Measuring, Row};
use crate::machine::Worth;
use crate::ranking::Ranking;
use crate::session::Session;
use crate::symbols::Place;
use crate::trace_file;
use refrain_trace::Trace;
use refrain_transform::{Group, PairCounts, Waiting};
use serde::Serialize;
use std::path::Path;

/// One recording in PerfPlay's tables and figures.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Evaluation {
    /// The command that was recorded.
    pub command: Vec<String>,
    /// Threads that it had.
    pub threads: u64,
    /// Bytes of its executable, as mapped.
    pub size: u64,
    /// How long the recording took.
    pub recorded_ns: u64,
    /// Acquisitions of locks (Table 1).
    pub acquisitions: u64,
    /// ULCPs by kind (Table 1).
    pub kinds: PairCounts,
    /// T_ut (Figure 14).
    pub original_ns: u64,
    /// T_uft; `None` if that replay did not end.
    pub ulcp_free_ns: Option<u64>,
    /// For how long threads waited, with and without ULCPs.
    pub waiting: Option<Waiting>,
    /// Groups of ULCPs (Table 2), the most costly first.
    pub groups: Vec<EvaluatedGroup>,
    /// The original, the transformed trace, and what its locksets cost (Table 3); or why there is none.
    pub locksets: Result<Locksets, String>,
    /// Replays under the four schedulers, by the virtual clock (Figure 13); or why there are none.
    pub schedulers: Result<Vec<Row>, String>,
}

/// A group of ULCPs in Table 2, and in the figures of single groups.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EvaluatedGroup {
    /// Where the two locks are acquired.
    pub sites: [String; 2],
    /// P (Eq. 2): its share of all groups' ΔT.
    pub share: f64,
    /// ΔT (Eq. 1), summed over its pairs.
    pub delta_ns: i64,
    /// How much shorter the run is if this group alone is fixed; `None` if that was not replayed.
    pub alone_ns: Option<i64>,
}

/// The transformed trace in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Locksets {
    /// Causal edges alone, auxiliary locks for nothing.
    pub free_ns: u64,
    /// Every section takes its whole lockset.
    pub static_ns: u64,
    /// Without the locks of sections that have ended (dynamic locking).
    pub dynamic_ns: u64,
}

impl Locksets {
    /// What whole locksets cost, as a part of the run without.
    pub fn static_overhead(&self) -> f64 {
        part(self.static_ns, self.free_ns)
    }

    /// The same with dynamic locking.
    pub fn dynamic_overhead(&self) -> f64 {
        part(self.dynamic_ns, self.free_ns)
    }
}

fn part(more: u64, of: u64) -> f64 {
    more as f64 / of.max(1) as f64 - 1.0
}

impl Evaluation {
    /// T_pd / T_real: which part of the run its ULCPs cost.
    pub fn degradation(&self) -> Option<f64> {
        Some(self.of_run(self.degradation_ns()?))
    }

    /// T_rw / N_thread, as a part of the run: what each thread wastes for ULCPs beyond that.
    pub fn waste(&self) -> Option<f64> {
        let waiting = self.waiting?;
        let less = waiting.original_ns as i64 - waiting.ulcp_free_ns as i64;
        Some(self.of_run(less - self.degradation_ns()?) / self.threads.max(1) as f64)
    }

    /// Degradation by a group alone.
    pub fn of_group(&self, group: &EvaluatedGroup) -> Option<f64> {
        Some(self.of_run(group.alone_ns?))
    }

    fn degradation_ns(&self) -> Option<i64> {
        Some(self.original_ns as i64 - self.ulcp_free_ns? as i64)
    }

    fn of_run(&self, ns: i64) -> f64 {
        ns as f64 / self.original_ns.max(1) as f64
    }
}

impl Session {
    /// Measures what PerfPlay's evaluation measures. Under schedulers the trace at `path` is replayed
    /// `repeat` times each.
    pub fn evaluate(&self, path: &Path, repeat: u32) -> crate::Result<Evaluation> {
        let trace = trace_file::read(path)?;
        let Ranking { ranked, recorded_ns, .. } = self.rank(path, false)?;
        let locksets = self.worth(path).and_then(locksets);
        let how = Measuring { repeat, clock: Some(Clock::Virtual), ..Measuring::default() };
        let schedulers = self.fidelity(path, &SchedulerKind::OF_FIGURE_13, &how);
        Ok(Evaluation {
            command: trace.header().argv.clone(),
            threads: ranked.analysed.threads,
            size: size(&trace),
            recorded_ns,
            acquisitions: ranked.analysed.acquisitions,
            kinds: ranked.analysed.pairs,
            original_ns: ranked.original_ns,
            ulcp_free_ns: ranked.ulcp_free_ns,
            waiting: ranked.waiting,
            groups: ranked.groups.into_iter().map(group).collect(),
            locksets: locksets.map_err(|error| error.chain()),
            schedulers: schedulers.map(|it| it.rows).map_err(|error| error.chain()),
        })
    }
}

fn size(trace: &Trace) -> u64 {
    trace.modules().first().map_or(0, |module| module.end.saturating_sub(module.start))
}

fn group(group: Group) -> EvaluatedGroup {
    let site = |place: Place| place.short();
    EvaluatedGroup {
        sites: [site(group.first), site(group.second)],
        share: group.share,
        delta_ns: group.delta_ns,
        alone_ns: group.alone_ns,
    }
}

fn locksets(worth: Worth) -> crate::Result<Locksets> {
    let time = |time: Result<u64, String>| time.map_err(crate::Error::Unusable);
    Ok(Locksets {
        free_ns: time(worth.free_ns)?,
        static_ns: time(worth.static_ns)?,
        dynamic_ns: time(worth.dynamic_ns)?,
    })
}
