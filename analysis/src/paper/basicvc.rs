//! BASICVC (FastTrack, section 5.1): every variable has a vector clock of its reads and one of its
//! writes, and every access is compared with them.

use super::clocks::{Clock, Clocks};
use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::FixedMap;

#[derive(Default)]
pub(super) struct BasicVc {
    pub(super) clocks: Clocks,
    variables: FixedMap<u64, Variable>,
}

#[derive(Default)]
struct Variable {
    reads: Clock,
    writes: Clock,
}

impl Detector for BasicVc {
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
            cost.clocks += 2;
            Variable::default()
        });
        let mut races = !of.writes.is_before(now, cost);
        if writes {
            races |= !of.reads.is_before(now, cost);
        }
        let mine = if writes { &mut of.writes } else { &mut of.reads };
        mine.set(step.thread, now.of(step.thread));
        races
    }

    fn cost(&self) -> Cost {
        let bytes =
            |of: &Variable| of.reads.bytes() + of.writes.bytes() + size_of::<Variable>() as u64;
        Cost { bytes: self.variables.values().map(bytes).sum(), ..self.clocks.cost.clone() }
    }
}
