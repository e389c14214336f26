//! DJIT+ (FastTrack, section 2.3): as BASICVC, but only the first read and the first write of a thread in
//! an epoch are compared.

use super::clocks::{Accesses, Clocks};
use super::{Cost, Detector, Step};
use refrain_trace::fixed::FixedMap;

const RULES: [&str; 4] = ["read same epoch", "read", "write same epoch", "write"];

#[derive(Default)]
pub(super) struct Djit {
    clocks: Clocks,
    variables: FixedMap<u64, Accesses>,
    rules: [u64; 4],
}

impl Detector for Djit {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let (now, cost) = self.clocks.of(thread);
        let of = self.variables.entry(variable).or_insert_with(|| Accesses::new(cost));
        let epoch = now.of(thread);
        let mine = of.of_kind(writes);
        let rule = 2 * usize::from(writes);
        if mine.of(thread) == epoch {
            self.rules[rule] += 1;
            return false;
        }
        self.rules[rule + 1] += 1;
        mine.set(thread, epoch);
        of.race_with(writes, now, cost)
    }

    fn forget(&mut self, variable: u64) {
        self.variables.remove(&variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        self.clocks.synchronize(step);
        false
    }

    fn cost(&self) -> Cost {
        let bytes = |of: &Accesses| of.bytes() + size_of::<Accesses>() as u64;
        Cost {
            bytes: self.variables.values().map(bytes).sum(),
            rules: RULES.into_iter().zip(self.rules).collect(),
            ..self.clocks.cost.clone()
        }
    }
}
