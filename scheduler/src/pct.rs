//! PCT: probabilistic concurrency testing.
//!
//! Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs"
//! (ASPLOS 2010), section 2.3: threads get random distinct priorities; the enabled thread with
//! the highest priority goes; at `d - 1` random steps the running thread falls below all others.
//!
//! # Deviations
//! 1. Threads run in parallel between operations. A thread of lower priority waits at its next
//!    competing operation until every thread above it waits or is done, which gives the same
//!    orders of competing operations as one core would.
//! 2. A step is one competing operation, not one instruction.

use crate::splitmix::SplitMix;
use crate::{Choice, Moment, Request, Scheduler, Scope, Status};

/// Strict random priorities with a few changes.
#[derive(Clone, Debug)]
pub struct Pct {
    random: SplitMix,
    /// Priority of each thread seen so far; higher goes first.
    priorities: Vec<u64>,
    /// Steps after which the thread that took the step falls, ascending.
    changes: Vec<u64>,
    step: u64,
}

impl Pct {
    /// `depth - 1` changes of priority are spread evenly at random over `steps` operations.
    pub fn new(seed: u64, depth: u32, steps: u64) -> Pct {
        let mut random = SplitMix::new(seed);
        let mut changes: Vec<u64> = (1..depth).map(|_| random.below(steps.max(1))).collect();
        changes.sort_unstable();
        Pct { random, priorities: Vec::new(), changes, step: 0 }
    }

    /// First priorities lie above every priority that a change gives.
    fn know(&mut self, threads: usize) {
        while self.priorities.len() < threads {
            self.priorities.push((self.random.next() >> 1) | (1 << 63));
        }
    }
}

impl Scheduler for Pct {
    fn scope(&self) -> Scope {
        Scope::Global
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        self.know(moment.threads.len());
        let (index, best) = requests
            .iter()
            .enumerate()
            .max_by_key(|(_, request)| self.priorities[request.thread.index()])
            .expect("the caller guarantees that requests are not empty");
        let thread = best.thread.index();
        let above = |other: usize| self.priorities[other] > self.priorities[thread];
        let going = |status| matches!(status, Status::Going | Status::Away);
        let mut threads = moment.threads.iter().enumerate();
        if threads.any(|(other, progress)| going(progress.status) && above(other)) {
            return Choice::Hold;
        }
        let falls = self.changes.iter().filter(|&&at| at == self.step).count();
        if falls > 0 {
            // Later changes give lower priorities, as in the paper (d, d-1, ..., 1).
            let left = self.changes.iter().filter(|&&at| at > self.step).count();
            self.priorities[thread] = left as u64;
        }
        self.step += 1;
        Choice::Grant(index)
    }
}
