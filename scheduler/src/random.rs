//! Random: each operation has a random priority, from a seed.
//!
//! It finds orders that the recording did not have. After Yuan, Yang and Gu, "Partial Order Aware
//! Concurrency Sampling" (CAV 2018), section 3, whose basic form gives every event an independent
//! priority.
//!
//! # Deviation
//! As with [`crate::Pct`], threads run in parallel between operations, and whoever has the lesser
//! key is waited for (`turns`).

use crate::pct::by_keys;
use crate::splitmix::SplitMix;
use crate::{Choice, Moment, Request, Scheduler, Scope};

/// Gives each thread a new random key after each of its operations.
#[derive(Clone, Debug)]
pub struct Random {
    random: SplitMix,
    /// By thread, of its next operation; the least goes first.
    keys: Vec<u64>,
}

impl Random {
    /// The seed decides every choice.
    pub fn new(seed: u64) -> Random {
        Random { random: SplitMix::new(seed), keys: Vec::new() }
    }
}

impl Scheduler for Random {
    fn scope(&self) -> Scope {
        Scope::Total
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        while self.keys.len() < moment.threads.len() {
            self.keys.push(self.random.next());
        }
        let choice = by_keys(moment, requests, &self.keys);
        if let Choice::Grant(index) = choice {
            self.keys[requests[index].thread.index()] = self.random.next();
        }
        choice
    }
}
