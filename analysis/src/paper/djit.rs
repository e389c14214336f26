//! DJIT+ (FastTrack, section 2.3): as BASICVC, but only the first read and the first write of a thread in
//! an epoch are compared.

use super::clocks::{Clock, Clocks};
use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::FixedMap;

const RULES: [&str; 4] = ["read same epoch", "read", "write same epoch", "write"];

#[derive(Default)]
pub(super) struct Djit {
    clocks: Clocks,
    variables: FixedMap<u64, Variable>,
    rules: [u64; 4],
}

#[derive(Default)]
struct Variable {
    reads: Clock,
    writes: Clock,
}

impl Detector for Djit {
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
        let epoch = now.of(step.thread);
        let mine = if writes { &mut of.writes } else { &mut of.reads };
        let rule = 2 * usize::from(writes);
        if mine.of(step.thread) == epoch {
            self.rules[rule] += 1;
            return false;
        }
        self.rules[rule + 1] += 1;
        mine.set(step.thread, epoch);
        let mut races = !of.writes.is_before(now, cost);
        if writes {
            races |= !of.reads.is_before(now, cost);
        }
        races
    }

    fn cost(&self) -> Cost {
        let bytes =
            |of: &Variable| of.reads.bytes() + of.writes.bytes() + size_of::<Variable>() as u64;
        Cost {
            bytes: self.variables.values().map(bytes).sum(),
            rules: RULES.into_iter().zip(self.rules).collect(),
            ..self.clocks.cost.clone()
        }
    }
}
