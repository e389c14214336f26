//! BASICVC (FastTrack, section 5.1): every variable has a vector clock of its reads and one of its
//! writes, and every access is compared with them.

use super::clocks::{Accesses, Clocks};
use super::{Cost, Detector, Step};
use refrain_trace::fixed::FixedMap;

#[derive(Default)]
pub(super) struct BasicVc {
    pub(super) clocks: Clocks,
    variables: FixedMap<u64, Accesses>,
}

impl Detector for BasicVc {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let (now, cost) = self.clocks.of(thread);
        let of = self.variables.entry(variable).or_insert_with(|| Accesses::new(cost));
        let races = of.race_with(writes, now, cost);
        of.of_kind(writes).set(thread, now.of(thread));
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
        let bytes = |of: &Accesses| of.bytes() + size_of::<Accesses>() as u64;
        Cost { bytes: self.variables.values().map(bytes).sum(), ..self.clocks.cost.clone() }
    }
}
