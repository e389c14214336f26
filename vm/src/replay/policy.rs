//! Who decides which thread goes next in a full replay.

use crate::{Error, Result, host};
use refrain_scheduler::Scheduler;
use std::sync::Arc;

/// Makes a scheduler for a trace in which so many operations take a turn.
pub type NewScheduler = Arc<dyn Fn(u64) -> Box<dyn Scheduler + Send> + Send + Sync>;

/// Who decides which thread goes next in a full replay, where the program's values are live.
///
/// The recorded order can be exact. A scheduler decides anew who gets a lock of the library, so that
/// the program may do something else than it did when it was recorded; the first difference is the
/// replay's result then.
///
/// What is no lock of the library keeps its recorded order under all of them: atomic
/// instructions, system calls, threads, the address space. Under a scheduler that order gives way,
/// one event at a time, when no thread could go on with it: a thread that waits for its turn at an
/// atomic counter while it holds the lock that the other needs, say.
#[derive(Clone, Default)]
pub enum Policy {
    /// Per object the recorded order; free otherwise: ELSC (PerfPlay, section 5.2).
    #[default]
    Elsc,
    /// All ordered events in one sequence that extends the recorded orders, as PinPlay and
    /// CoreDet enforce it.
    MemS,
    /// The very schedulers of the virtual clock. Those that look at [`Request::clock`] need an
    /// engine that counts instructions; [`Request::rank`] is always `None`. One that decides object
    /// by object has threads race: who waited for a lock asks again, and whoever comes first gets
    /// it.
    ///
    /// [`Request::clock`]: refrain_scheduler::Request::clock
    /// [`Request::rank`]: refrain_scheduler::Request::rank
    Anew(NewScheduler),
}

impl Policy {
    /// Whether data have live values: a scheduler decides anew who gets a lock.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self, Policy::Anew(_))
    }
}

/// On which cores guest threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// So many of those that this process may use; all if `None`.
    pub cores: Option<u32>,
    /// Whether each thread gets a core of its own, if there are enough for all.
    pub pinned: bool,
}

/// The cores of a replay.
pub(crate) struct Cores {
    /// Empty if the threads run wherever the host lets them.
    allowed: Vec<usize>,
    count: usize,
    /// Thread `n` runs on core `n` alone.
    pinned: bool,
}

impl Cores {
    pub(crate) fn new(placement: Placement, threads: u32) -> Result<Cores> {
        let mut allowed = host::allowed_cores();
        if let Some(wanted) = placement.cores {
            if wanted as usize > allowed.len() {
                return Err(Error::Unsupported(format!(
                    "a replay on {wanted} cores by the wall clock: there are {}",
                    allowed.len()
                )));
            }
            allowed.truncate(wanted as usize);
        }
        let count = allowed.len().max(1);
        let pinned = placement.pinned && allowed.len() >= threads as usize;
        if placement.cores.is_none() && !pinned {
            allowed.clear();
        }
        Ok(Cores { allowed, count, pinned })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Puts the calling host thread, which runs this guest thread, where it belongs.
    pub(crate) fn settle(&self, thread: u32) {
        match self.allowed.get(thread as usize) {
            Some(&own) if self.pinned => host::run_on(&[own]),
            _ if !self.allowed.is_empty() => host::run_on(&self.allowed),
            _ => {}
        }
    }
}
