//! SHB (Mathur, Kini and Viswanathan, OOPSLA 2018): races that are real beyond the first.
//!
//! After the first race a run might have gone on otherwise, so what happens-before leaves open later may
//! never be open. *Schedulable* happens-before also orders each write before the reads that saw it:
//! two conflicting accesses that it leaves open are next to each other in some run of the program.
//!
//! An access is compared before what it sees orders it. Atomic accesses only synchronize, as
//! everywhere here.

use super::clocks::{Clock, Clocks};
use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::FixedMap;

#[derive(Default)]
pub(super) struct Shb {
    clocks: Clocks,
    variables: FixedMap<u64, Variable>,
}

#[derive(Default)]
struct Variable {
    reads: Clock,
    writes: Clock,
    /// What happens before the last write, that write included.
    last: Clock,
}

impl Detector for Shb {
    fn step(&mut self, step: &Step) -> bool {
        let (variable, writes) = match step.op {
            Op::Read(variable) => (variable, false),
            Op::Write(variable) => (variable, true),
            Op::Fresh(variable) => {
                self.variables.remove(&variable);
                return false;
            }
            _ => {
                self.clocks.synchronize(step);
                return false;
            }
        };
        let (now, cost) = self.clocks.of(step.thread);
        let of = self.variables.entry(variable).or_insert_with(|| {
            cost.clocks += 3;
            Variable::default()
        });
        let mut races = !of.writes.is_before(now, cost);
        if writes {
            races |= !of.reads.is_before(now, cost);
            of.writes.set(step.thread, now.of(step.thread));
            of.last.clone_from(now);
            cost.operations += 1;
            // What the thread does from here on is not what the readers of this write saw.
            self.clocks.advance(step.thread);
        } else {
            of.reads.set(step.thread, now.of(step.thread));
            self.clocks.see(step.thread, &of.last);
        }
        races
    }

    fn cost(&self) -> Cost {
        let bytes = |of: &Variable| {
            let clocks = of.reads.bytes() + of.writes.bytes() + of.last.bytes();
            clocks + size_of::<Variable>() as u64
        };
        Cost { bytes: self.variables.values().map(bytes).sum(), ..self.clocks.cost.clone() }
    }
}
