//! MULTIRACE (Pozniansky and Schuster; FastTrack, section 5.1): DJIT+ whose comparisons begin once Eraser's
//! lockset of a variable is empty.
//!
//! The lockset is updated by the first access of a thread in an epoch. Eraser's states for
//! variables of one thread, and for those that are only read, are taken over with what they hide.

use super::clocks::{Accesses, Clocks};
use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::FixedMap;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct MultiRace {
    clocks: Clocks,
    held: FixedMap<u32, BTreeSet<u64>>,
    variables: FixedMap<u64, Variable>,
}

struct Variable {
    accesses: Accesses,
    /// While one thread has used it.
    owner: Option<u32>,
    is_written: bool,
    locks: BTreeSet<u64>,
}

impl Detector for MultiRace {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let held = self.held.entry(thread).or_default();
        let (now, cost) = self.clocks.of(thread);
        let of = self.variables.entry(variable).or_insert_with(|| Variable {
            accesses: Accesses::new(cost),
            owner: Some(thread),
            is_written: false,
            locks: BTreeSet::new(),
        });
        let epoch = now.of(thread);
        let mine = of.accesses.of_kind(writes);
        if mine.of(thread) == epoch {
            return false;
        }
        mine.set(thread, epoch);
        match of.owner {
            Some(owner) if owner == thread => return false,
            Some(_) => (of.owner, of.locks) = (None, held.clone()),
            None => of.locks.retain(|lock| held.contains(lock)),
        }
        of.is_written |= writes;
        if !of.is_written || !of.locks.is_empty() {
            return false;
        }
        of.accesses.race_with(writes, now, cost)
    }

    fn forget(&mut self, variable: u64) {
        self.variables.remove(&variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        match step.op {
            Op::Hold { lock, alone: true } => {
                self.held.entry(step.thread).or_default().insert(lock);
            }
            Op::Drop(lock) => {
                self.held.entry(step.thread).or_default().remove(&lock);
            }
            _ => self.clocks.synchronize(step),
        }
        false
    }

    fn cost(&self) -> Cost {
        let bytes = |of: &Variable| {
            let locks = (of.locks.len() * size_of::<u64>()) as u64;
            of.accesses.bytes() + locks + size_of::<Variable>() as u64
        };
        Cost { bytes: self.variables.values().map(bytes).sum(), ..self.clocks.cost.clone() }
    }
}
