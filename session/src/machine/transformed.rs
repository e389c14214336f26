//! Transformed traces: making one, and holding its end against the original's.

use super::collect::Collect;
use super::constrained::constraints;
use super::ground::Ground;
use super::made::OwnLocks;
use super::skeleton::Skeleton;
use super::{Extent, Listener, observed};
use crate::error::{Error, bail};
use crate::replayed;
use refrain_scheduler::{Constraints, Locksets};
use refrain_trace::{EventId, ThreadId, Trace, Transformed};
use refrain_transform::{LockKind, Sections, Topology};
use refrain_vm::{Count, Divergence, DivergenceKind, Outcome};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What comes of a transformation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Transformation {
    /// The record, and what it is worth.
    Done(Box<Transformed>, Worth),
    /// Nothing: the replay left the recording.
    Diverged(replayed::Divergence),
}

/// What a transformation is worth, in virtual time: every replay keeps the recorded order of what is
/// not freed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Worth {
    /// Modelled cores.
    pub cores: u32,
    /// How much of the recording was analysed.
    pub extent: Extent,
    /// Critical sections that conflict with none, so that their locking is gone.
    pub removed: u64,
    /// Locks that keep their order, because their use is irregular.
    pub kept: u64,
    /// Freed locks that the program makes itself of atomic instructions, which a replay by the wall
    /// clock executes in their recorded order.
    pub made: u64,
    /// The original, each lock in its recorded order.
    pub original_ns: u64,
    /// The causal edges alone, auxiliary locks for free. Or why that replay did not end.
    pub free_ns: Result<u64, String>,
    /// With all locks of the locksets.
    pub static_ns: Result<u64, String>,
    /// With dynamic locking.
    pub dynamic_ns: Result<u64, String>,
    /// Auxiliary locks that all sections' locksets hold.
    pub locks_static: u64,
}

/// Replays a trace with the observer of the ranking, and transforms it (PerfPlay, Rules 1 to 3).
pub(crate) fn transform(
    trace: &Trace,
    listener: Arc<dyn Listener>,
) -> crate::Result<Transformation> {
    let Ground { own, mut constant } = Ground::of(trace)?;
    let collect = Arc::new(Collect::new(own).of_locks(OwnLocks::of(trace)?));
    let outcome = observed(trace, Count::Nothing, collect.clone(), None, listener)?;
    if let Some(divergence) = outcome.divergence {
        return Ok(Transformation::Diverged(divergence.into()));
    }
    if outcome.events == 0 {
        bail!(Unusable, "nothing of the trace can be replayed: it was cut off too soon");
    }
    let locks = collect.locks().expect("it was made with them");
    constant.extend(locks.words());
    let sections = Sections::merge(collect.take(), &constant, &locks.atomic)?;
    let topology = Topology::new(&sections);
    let mut record = topology.record(&sections);
    if !outcome.truncated {
        record.state = Some(refrain_vm::memory_digest(&record.bytes()));
    }
    let original = Skeleton::own_time(trace, &locks.made)?;
    let time = |locksets| {
        let constraints = constraints(original.reduced(), &record, locksets);
        constraints.map_err(|error| error.chain()).and_then(|it| original.in_order(&it))
    };
    let original_ns = original.in_order(&Constraints::none()).map_err(Error::Deadlock)?;
    let sources = record.sources();
    let locks_static = (0..record.sections.len() as u32)
        .map(|section| record.lockset(section, &sources).len() as u64)
        .sum();
    let is_made = |lock: &&u64| locks.made.locks.iter().any(|made| made.address == **lock);
    let irregular = sections.locks().iter().filter(|lock| lock.kind != LockKind::Regular);
    let worth = Worth {
        cores: original.model().cores,
        extent: Extent {
            events: outcome.events,
            recorded: outcome.recorded,
            recorded_ns: original.recorded_ns(),
        },
        removed: topology.removed(),
        kept: irregular.count() as u64,
        made: record.locks.iter().filter(is_made).count() as u64,
        original_ns,
        free_ns: time(Locksets::Free),
        static_ns: time(Locksets::Static),
        dynamic_ns: time(Locksets::Dynamic),
        locks_static,
    };
    Ok(Transformation::Done(Box::new(record), worth))
}

/// Holds what a replay of a transformed trace ended with against what the original did (Theorem 1).
pub(super) fn compare_state(trace: &Trace, record: &Transformed, outcome: &mut Outcome) {
    let Some(expected) = record.state.filter(|_| outcome.divergence.is_none()) else { return };
    let actual = refrain_vm::memory_digest(&record.bytes());
    outcome.digests += 1;
    if expected == actual {
        outcome.equal += 1;
        return;
    }
    let last = trace.events_of(ThreadId(0)).saturating_sub(1);
    outcome.divergence = Some(Divergence {
        kind: DivergenceKind::State,
        thread: ThreadId(0),
        event: EventId(last),
        pc: 0,
        expected: format!("data whose digest is {expected:#x}"),
        actual: format!("data whose digest is {actual:#x}"),
    });
}
