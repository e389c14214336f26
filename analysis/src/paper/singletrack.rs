//! SINGLETRACK (Sadowski, Freund and Flanagan, ESOP 2009): does what a program computes depend on how its
//! threads come?
//!
//! Who has a lock first is decided anew in each run. So two conflicting accesses whose order comes from
//! a lock alone may be the other way round next time, and what the program makes of them may differ:
//! they are reported, as races are. What orders in every run alike (creation and join, barriers,
//! messages) is what this checker knows.
//!
//! # Deviations
//! 1. All of the program is meant to be deterministic: nobody marks the parts of it that are.
//! 2. Orders of atomic variables count as alike in every run.
//! 3. Updates that come to the same in either order are reported too.

use super::basicvc::BasicVc;
use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::{FixedMap, FixedSet};

#[derive(Default)]
pub(super) struct SingleTrack {
    /// Which conflicting accesses nothing orders, were there no locks.
    unordered: BasicVc,
    /// Objects that stand for the order of a lock.
    locks: FixedSet<u64>,
    /// What a thread has just released, if that was its last step.
    released: FixedMap<u32, u64>,
}

impl SingleTrack {
    fn learn(&mut self, object: u64) {
        if self.locks.insert(object) {
            self.unordered.clocks.forget(object);
        }
    }
}

impl Detector for SingleTrack {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        self.released.remove(&thread);
        self.unordered.access(thread, variable, writes)
    }

    fn forget(&mut self, variable: u64) {
        self.unordered.forget(variable);
    }

    /// An object orders for a lock if it is the lock, or is released right before the lock is dropped
    /// (readers leave what writers wait for).
    fn synchronize(&mut self, step: &Step) -> bool {
        let released = self.released.remove(&step.thread);
        match step.op {
            Op::Hold { lock, .. } => self.learn(lock),
            Op::Drop(lock) => {
                self.learn(lock);
                released.into_iter().for_each(|object| self.learn(object));
            }
            Op::Acquire(object) | Op::Release(object) if self.locks.contains(&object) => {}
            _ => drop(self.unordered.synchronize(step)),
        }
        if let Op::Release(object) = step.op {
            self.released.insert(step.thread, object);
        }
        false
    }

    fn cost(&self) -> Cost {
        self.unordered.cost()
    }
}
