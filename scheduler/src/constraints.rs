//! What a transformed trace replaces locks with: causal edges.
//!
//! PerfPlay, section 3.2: the locks of the original are removed and the true dependencies put
//! back. Rule 2 and the dynamic locking strategy say how: a target waits for `source.END`.

use crate::admission::Admission;
use crate::{Error, Skeleton};
use refrain_trace::{EventId, ThreadId};

/// `target` is performed after `source` has been. For critical sections the source is the release
/// of the first and the target the acquisition of the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Edge {
    /// Thread of the event that waits.
    pub target_thread: ThreadId,
    /// The event that waits.
    pub target: u32,
    /// Thread of the event waited for.
    pub source_thread: ThreadId,
    /// The event waited for.
    pub source: u32,
}

/// What the acquisitions of freed objects cost: PerfPlay, Rule 3 and section 6.4. An auxiliary lock
/// is taken and given back, which costs what an acquisition and a release cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Locksets {
    /// What they cost in the original.
    #[default]
    Original,
    /// Nothing: causal edges alone.
    Free,
    /// A section takes all locks of its lockset: its own, if it has outgoing edges, and those of its
    /// sources.
    Static,
    /// A lock is left out if its section has ended when this one comes: dynamic locking.
    Dynamic,
}

/// Changes to a skeleton for one replay.
///
/// An object is freed as a whole: its acquisitions neither wait nor order anything, and its
/// releases do nothing. (Half a lock would have neither its exclusion nor its order, so there is
/// no way to ask for it.) A wait on a condition variable still waits for its signal, and every
/// operation on other objects is as before.
#[derive(Clone, Debug, Default)]
pub struct Constraints<'a> {
    /// Per object whether it is freed. Empty if none is.
    freed: Vec<bool>,
    /// Per thread, in the order of the targets.
    edges: Vec<Vec<Edge>>,
    locksets: Locksets,
    /// Per thread the acquisitions of sections with outgoing edges, ascending.
    sources: Vec<Vec<u32>>,
    /// Per object whether it is relaxed, and which of its sections conflict.
    relaxed: Option<(Vec<bool>, Admission<'a>)>,
}

impl<'a> Constraints<'a> {
    /// The skeleton as it is.
    pub fn none() -> Constraints<'a> {
        Constraints::default()
    }

    /// Frees the objects at the addresses for which `freed` says so and adds `edges`.
    pub fn new(
        skeleton: &Skeleton,
        mut freed: impl FnMut(u64) -> bool,
        edges: impl IntoIterator<Item = Edge>,
    ) -> Result<Constraints<'a>, Error> {
        let freed = skeleton.objects().iter().map(|object| freed(object.address)).collect();
        let mut lists = vec![Vec::new(); skeleton.threads()];
        for edge in edges {
            check(skeleton, edge.target_thread, edge.target)?;
            check(skeleton, edge.source_thread, edge.source)?;
            lists[edge.target_thread.index()].push(edge);
        }
        for list in &mut lists {
            list.sort_unstable();
            list.dedup();
        }
        Ok(Constraints { freed, edges: lists, ..Constraints::default() })
    }

    /// The same, with what acquisitions of freed objects cost. `sources` are the acquisitions, by
    /// thread and event, of sections with outgoing edges.
    pub fn with_locksets(
        mut self,
        locksets: Locksets,
        sources: impl IntoIterator<Item = (ThreadId, u32)>,
    ) -> Constraints<'a> {
        self.locksets = locksets;
        self.sources = vec![Vec::new(); self.edges.len()];
        for (thread, event) in sources {
            if let Some(of_thread) = self.sources.get_mut(thread.index()) {
                of_thread.push(event);
            }
        }
        for of_thread in &mut self.sources {
            of_thread.sort_unstable();
        }
        self
    }

    /// How many auxiliary locks an acquisition of a freed object takes, of whose sources `waited`
    /// had not ended when it came; `None` if it costs what it costs in the original.
    pub(crate) fn lockset(&self, thread: usize, event: u32, waited: u32) -> Option<u64> {
        let own = || {
            let of_thread = self.sources.get(thread);
            u64::from(of_thread.is_some_and(|all| all.binary_search(&event).is_ok()))
        };
        match self.locksets {
            Locksets::Original => None,
            Locksets::Free => Some(0),
            Locksets::Dynamic => Some(own() + u64::from(waited)),
            Locksets::Static => {
                let edges = self.edges_of(thread);
                let from = edges.partition_point(|edge| edge.target < event);
                let into = edges[from..].partition_point(|edge| edge.target == event);
                Some(own() + into as u64)
            }
        }
    }

    /// Relaxes the objects at the addresses for which `relaxed` says so: their sections exclude only
    /// those that they conflict with.
    pub fn relaxing(
        skeleton: &Skeleton,
        relaxed: impl FnMut(u64) -> bool,
        admission: Admission<'a>,
    ) -> Constraints<'a> {
        let addresses = skeleton.objects().iter().map(|object| object.address);
        let relaxed = addresses.map(relaxed).collect();
        Constraints { relaxed: Some((relaxed, admission)), ..Constraints::none() }
    }

    /// What says who may enter a relaxed object; `None` for any other.
    pub(crate) fn admission(&self, object: u32) -> Option<&Admission<'a>> {
        let (relaxed, admission) = self.relaxed.as_ref()?;
        relaxed.get(object as usize).copied().unwrap_or(false).then_some(admission)
    }

    pub(crate) fn is_freed(&self, object: u32) -> bool {
        self.freed.get(object as usize).copied().unwrap_or(false)
    }

    pub(crate) fn edges_of(&self, thread: usize) -> &[Edge] {
        self.edges.get(thread).map_or(&[], Vec::as_slice)
    }
}

fn check(skeleton: &Skeleton, thread: ThreadId, event: u32) -> Result<(), Error> {
    let length = skeleton.strands.get(thread.index()).map_or(0, |strand| strand.operations.len());
    if (event as usize) < length {
        Ok(())
    } else {
        Err(Error::UnknownEvent { thread, event: EventId(u64::from(event)) })
    }
}
