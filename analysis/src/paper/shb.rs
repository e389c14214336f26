//! SHB (Mathur, Kini and Viswanathan, OOPSLA 2018): races that are real beyond the first.
//!
//! After the first race a run might have gone on otherwise, so what happens-before leaves open later may
//! never be open. *Schedulable* happens-before also orders each write before the reads that saw it:
//! two conflicting accesses that it leaves open are next to each other in some run of the program.
//!
//! An access is compared before what it sees orders it. Atomic accesses only synchronize, as
//! everywhere here.

use super::clocks::{Accesses, Clock, Clocks};
use super::{Cost, Detector, Step};
use refrain_trace::fixed::FixedMap;

#[derive(Default)]
pub(super) struct Shb {
    clocks: Clocks,
    variables: FixedMap<u64, Variable>,
}

struct Variable {
    accesses: Accesses,
    /// What happens before the last write, that write included.
    last: Clock,
}

impl Detector for Shb {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let (now, cost) = self.clocks.of(thread);
        let of = self.variables.entry(variable).or_insert_with(|| {
            cost.clocks += 1;
            Variable { accesses: Accesses::new(cost), last: Clock::default() }
        });
        let races = of.accesses.race_with(writes, now, cost);
        of.accesses.of_kind(writes).set(thread, now.of(thread));
        if writes {
            of.last.clone_from(now);
            cost.operations += 1;
            // What the thread does from here on is not what the readers of this write saw.
            self.clocks.advance(thread);
        } else {
            self.clocks.see(thread, &of.last);
        }
        races
    }

    fn forget(&mut self, variable: u64) {
        self.variables.remove(&variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        self.clocks.synchronize(step);
        false
    }

    fn cost(&self) -> Cost {
        let bytes =
            |of: &Variable| of.accesses.bytes() + of.last.bytes() + size_of::<Variable>() as u64;
        Cost { bytes: self.variables.values().map(bytes).sum(), ..self.clocks.cost.clone() }
    }
}
