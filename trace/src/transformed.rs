//! A transformed trace: which locks of a recording are freed, and what takes their place.
//!
//! PerfPlay (CGO 2015), section 3: a lock's critical sections need neither its exclusion nor its
//! recorded order where they do not conflict. A transformed trace has the events of the original,
//! and this record beside them: the locks that are freed, their critical sections with what each
//! reads and writes, and the causal edges that keep the order of those that conflict (Rules 1 and
//! 2). The auxiliary locks and the locksets of Rule 3 follow from the edges.
//!
//! [`crate::verify::verify`] judges the record by what it says itself.

use crate::{AuxLock, ThreadId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What replaces the freed locks of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Transformed {
    /// Addresses of the freed locks, ascending.
    pub locks: Vec<u64>,
    /// Distinct sets of bytes that sections use, each as intervals (start, end), ascending and
    /// apart. The first is empty.
    pub sets: Vec<Vec<(u64, u64)>>,
    /// The critical sections of the freed locks: by lock, those of one in the order in which they
    /// had it.
    pub sections: Vec<FreedSection>,
    /// The causal edges, ascending.
    pub edges: Vec<CausalEdge>,
    /// A digest of what all these bytes held when the original had ended.
    pub state: Option<u32>,
}

/// A critical section of a freed lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FreedSection {
    /// The lock, by its place among [`Transformed::locks`].
    pub lock: u32,
    /// Whose it is.
    pub thread: u32,
    /// The event that acquires the lock.
    pub acquire: u32,
    /// The event that releases it, or the thread's last.
    pub release: u32,
    /// What it reads of the data that threads share, by its place among [`Transformed::sets`].
    pub reads: u32,
    /// What it writes of them.
    pub writes: u32,
    /// It is a reader's.
    pub shared: bool,
    /// It begins when a wait on a condition variable ends.
    pub after_wait: bool,
}

impl FreedSection {
    /// Whose it is.
    pub fn thread(&self) -> ThreadId {
        ThreadId(self.thread)
    }
}

/// Section `target` begins after section `source` has ended. Both by their places among
/// [`Transformed::sections`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct CausalEdge {
    /// The section that waits.
    pub target: u32,
    /// The section waited for, of the same lock and another thread.
    pub source: u32,
}

impl Transformed {
    /// Whether the lock at this address is freed.
    pub fn frees(&self, address: u64) -> bool {
        self.locks.binary_search(&address).is_ok()
    }

    /// All bytes that sections use, as ranges, ascending and apart.
    pub fn bytes(&self) -> Vec<Range<u64>> {
        let mut all: Vec<(u64, u64)> = self.sets.iter().flatten().copied().collect();
        all.sort_unstable();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (start, end) in all {
            match ranges.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// The edges into a section.
    pub fn edges_into(&self, section: u32) -> &[CausalEdge] {
        let start = self.edges.partition_point(|edge| edge.target < section);
        let rest = &self.edges[start..];
        &rest[..rest.partition_point(|edge| edge.target == section)]
    }

    /// Rule 3: the sections with outgoing edges, ascending. The one at place `n` has the auxiliary
    /// lock `@Ln`.
    pub fn sources(&self) -> Vec<u32> {
        let mut sources: Vec<u32> = self.edges.iter().map(|edge| edge.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// Rule 3: a section's lockset, its own auxiliary lock and those of its sources, ascending.
    /// `sources` are [`Self::sources`].
    pub fn lockset(&self, section: u32, sources: &[u32]) -> Vec<AuxLock> {
        let aux = |section: u32| sources.binary_search(&section).ok().map(|n| AuxLock(n as u32));
        let into = self.edges_into(section).iter();
        let mut locks: Vec<AuxLock> = into.filter_map(|edge| aux(edge.source)).collect();
        locks.extend(aux(section));
        locks.sort_unstable();
        locks
    }
}
