//! PCT: probabilistic concurrency testing.
//!
//! Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs"
//! (ASPLOS 2010), section 2.3: threads get random distinct priorities; the enabled thread with
//! the highest priority goes; at `d - 1` random steps the running thread falls below all others.
//!
//! # Deviations
//! 1. Threads run in parallel between operations. A thread of lower priority waits at its next
//!    operation until every thread above it waits or is done (`turns`), which gives the same orders
//!    of operations as one core would.
//! 2. A step is one operation, not one instruction.

use crate::splitmix::SplitMix;
use crate::turns::{Key, turn};
use crate::{Choice, Moment, Progress, Request, Scheduler, Scope};
use refrain_trace::ThreadId;

/// Keys of threads that have fallen lie from here on.
const FALLEN: u64 = 1 << 63;

/// Strict random priorities with a few changes.
#[derive(Clone, Debug)]
pub struct Pct {
    random: SplitMix,
    /// By thread; the least goes first.
    keys: Vec<u64>,
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
        Pct { random, keys: Vec::new(), changes, step: 0 }
    }
}

impl Scheduler for Pct {
    fn scope(&self) -> Scope {
        Scope::Total
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        while self.keys.len() < moment.threads.len() {
            self.keys.push(self.random.below(FALLEN));
        }
        let choice = by_keys(moment, requests, &self.keys);
        if let Choice::Grant(index) = choice {
            // Later changes give lower priorities, as in the paper (d, d-1, ..., 1).
            if self.changes.contains(&self.step) {
                self.keys[requests[index].thread.index()] = FALLEN + self.step;
            }
            self.step += 1;
        }
        choice
    }
}

/// Whose turn it is by keys that stay as they are until the next turn.
pub(crate) fn by_keys(moment: Moment<'_>, requests: &[Request], keys: &[u64]) -> Choice {
    let comes = |other: ThreadId, _: &Progress, mine: Key| {
        ((keys[other.index()], other) > mine).then_some(moment.now)
    };
    turn(moment, requests, |request| keys[request.thread.index()], comes)
}
