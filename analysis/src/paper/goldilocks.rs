//! GOLDILOCKS (Elmas, Qadeer, Tasiran, PLDI 2007), lazy: who may use a variable next.
//!
//! An access by a thread is followed by a set of threads and objects, at first that thread. A release
//! by a thread of the set adds its object, an acquisition of an object of the set adds its thread. A
//! conflicting access by a thread that is not in the set is a race. The set is computed when it is
//! asked for, from the list of all synchronization since the access.
//!
//! # Deviations from the paper
//! Sets of the reads are kept for each thread. The shortcut of FastTrack's authors for data of one thread
//! is left out, which misses races; so this one is exact.

use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::{FixedMap, FixedSet};
use std::cell::Cell;

#[derive(Default)]
pub(super) struct Goldilocks {
    /// The thread, the object, whether it acquires.
    list: Vec<(u32, u64, bool)>,
    variables: FixedMap<u64, Variable>,
    carried: Cell<u64>,
}

/// By whom, and how long the list was then.
type Used = (u32, usize);

#[derive(Default)]
struct Variable {
    write: Option<Used>,
    /// Since the last write, by thread.
    reads: Vec<Used>,
}

impl Goldilocks {
    /// Whether a thread may use now what was used so.
    fn owns(&self, thread: u32, (by, at): Used) -> bool {
        if by == thread {
            return true;
        }
        let mut threads = FixedSet::default();
        let mut objects = FixedSet::default();
        threads.insert(by);
        for &(actor, object, acquires) in &self.list[at..] {
            self.carried.set(self.carried.get() + 1);
            if acquires && objects.contains(&object) {
                if actor == thread {
                    return true;
                }
                threads.insert(actor);
            } else if !acquires && threads.contains(&actor) {
                objects.insert(object);
            }
        }
        false
    }
}

impl Detector for Goldilocks {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let mut of = self.variables.remove(&variable).unwrap_or_default();
        let mut races = of.write.is_some_and(|used| !self.owns(thread, used));
        let now = (thread, self.list.len());
        if writes {
            races |= of.reads.iter().any(|&used| !self.owns(thread, used));
            of = Variable { write: Some(now), reads: Vec::new() };
        } else {
            of.reads.retain(|&(by, _)| by != thread);
            of.reads.push(now);
        }
        self.variables.insert(variable, of);
        races
    }

    fn forget(&mut self, variable: u64) {
        self.variables.remove(&variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        match step.op {
            Op::Acquire(object) => self.list.push((step.thread, object, true)),
            Op::Release(object) => self.list.push((step.thread, object, false)),
            _ => {}
        }
        false
    }

    fn cost(&self) -> Cost {
        let bytes = |of: &Variable| size_of_val(of.reads.as_slice()) + size_of::<Variable>();
        let bytes: usize = self.variables.values().map(bytes).sum();
        let list = size_of_val(self.list.as_slice());
        let operations = self.carried.get();
        Cost { operations, bytes: (bytes + list) as u64, ..Cost::default() }
    }
}
