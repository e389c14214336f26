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

use super::clocks::{Clock, Clocks};
use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::{FixedMap, FixedSet};

#[derive(Default)]
pub(super) struct SingleTrack {
    clocks: Clocks,
    variables: FixedMap<u64, Variable>,
    /// Objects that stand for the order of a lock.
    locks: FixedSet<u64>,
    /// What a thread has just released, if that was its last step.
    released: FixedMap<u32, u64>,
}

#[derive(Default)]
struct Variable {
    reads: Clock,
    writes: Clock,
}

impl SingleTrack {
    /// An object orders for a lock if it is the lock, or is released right before the lock is dropped
    /// (readers leave what writers wait for).
    fn synchronize(&mut self, step: &Step) {
        let released = self.released.remove(&step.thread);
        match step.op {
            Op::Hold { lock, .. } => self.learn(lock),
            Op::Drop(lock) => {
                self.learn(lock);
                released.into_iter().for_each(|object| self.learn(object));
            }
            Op::Acquire(object) | Op::Release(object) if self.locks.contains(&object) => {}
            _ => self.clocks.synchronize(step),
        }
        if let Op::Release(object) = step.op {
            self.released.insert(step.thread, object);
        }
    }

    fn learn(&mut self, object: u64) {
        if self.locks.insert(object) {
            self.clocks.forget(object);
        }
    }
}

impl Detector for SingleTrack {
    fn step(&mut self, step: &Step) -> bool {
        let (variable, writes) = match step.op {
            Op::Read(variable) => (variable, false),
            Op::Write(variable) => (variable, true),
            Op::Fresh(variable) => {
                self.variables.remove(&variable);
                return false;
            }
            _ => {
                self.synchronize(step);
                return false;
            }
        };
        self.released.remove(&step.thread);
        let (now, cost) = self.clocks.of(step.thread);
        let of = self.variables.entry(variable).or_insert_with(|| {
            cost.clocks += 2;
            Variable::default()
        });
        let mut depends = !of.writes.is_before(now, cost);
        if writes {
            depends |= !of.reads.is_before(now, cost);
        }
        let mine = if writes { &mut of.writes } else { &mut of.reads };
        mine.set(step.thread, now.of(step.thread));
        depends
    }

    fn cost(&self) -> Cost {
        let bytes =
            |of: &Variable| of.reads.bytes() + of.writes.bytes() + size_of::<Variable>() as u64;
        Cost { bytes: self.variables.values().map(bytes).sum(), ..self.clocks.cost.clone() }
    }
}
